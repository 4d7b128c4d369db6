"""What is known at trace time: which implementations can run a grouped GEMM, and why not others."""

from __future__ import annotations

from jax_bwgemm import runtime
from jax_bwgemm.grouped.spec import GroupedDims, GroupedSpec
from jax_bwgemm.product import implementations
from jax_bwgemm.runtime import GroupedKernelInfo


def kernel_table(implementation: str) -> tuple[GroupedKernelInfo, ...]:
    """The kernels an implementation can run; empty when it was not built."""
    if implementation == "cutlass":
        return runtime.grouped_kernels()
    return runtime.emulated_grouped_kernels()


def describe(spec: GroupedSpec, lhs_dtype: str, rhs_dtype: str, dims: GroupedDims) -> str:
    """The problem in one line, for messages."""
    types = f"{lhs_dtype} x {rhs_dtype} -> {spec.out_dtype}"
    major = f", rhs major {spec.rhs_major}" if spec.kind == "rows" else ""
    tail = " summed over the batch" if spec.reduce_batch else ""
    return f"grouped GEMM ({spec.kind}) {types}{major}, {dims}{tail}"


def viable_implementations(
    spec: GroupedSpec, lhs_dtype: str, rhs_dtype: str, dims: GroupedDims
) -> tuple[str, ...]:
    """The implementations of ``spec`` left to try, knowing everything but the device.

    Reasons for skipping one are logged once. ``"xla"`` runs everything, so it ends the list.

    Raises:
        NotImplementedError: The only implementation asked for cannot run the problem, or no
            kernel of this build satisfies ``spec.config``.
        ExceptionGroup: Of NotImplementedError: several were asked for and none can.
        ValueError: ``spec.config`` names a kernel for another kind of problem.
    """
    return implementations.viable(
        spec.implementations,
        describe(spec, lhs_dtype, rhs_dtype, dims),
        lambda name: refusal(name, spec, lhs_dtype, rhs_dtype, dims),
        [],
    )


def refusal(
    name: str, spec: GroupedSpec, lhs_dtype: str, rhs_dtype: str, dims: GroupedDims
) -> str | None:
    """Why a kernel implementation cannot run a problem on any device; None when it may.

    Raises:
        NotImplementedError: No kernel of this build satisfies ``spec.config``: asking for a
            particular kernel never falls back silently.
        ValueError: ``spec.config`` names a kernel for another kind of problem.
    """
    table = kernel_table(name)
    if not table:
        return implementations.missing_kernels(name, spec.config, " for grouped GEMMs")
    types = (lhs_dtype, rhs_dtype, spec.out_dtype)
    if spec.config is not None:
        matching = implementations.of_types(table, types)
        implementations.check_config(
            spec.config,
            table,
            [k for k in matching if (k.kind, k.rhs_major) == (spec.kind, spec.rhs_major)],
            lambda k: (
                f"({k.kind}) multiplies {k.in_dtype} into {k.out_dtype} with rhs major "
                f"{k.rhs_major}, but the problem ({spec.kind}) is {types[0]} x {types[1]} -> "
                f"{types[2]} with rhs major {spec.rhs_major}"
            ),
        )
    if reason := implementations.types_refusal(table, types, spec.precision):
        return reason
    rows = dims.m * (dims.batch if spec.reduce_batch else 1)
    too_large = max(rows, dims.n, dims.k, dims.experts, dims.groups, dims.batch)
    if too_large > implementations.MAX_SIZE:
        return f"size {too_large} exceeds {implementations.MAX_SIZE}"
    return None
