"""What is known at trace time: which implementations can run a problem, and why others cannot."""

from __future__ import annotations

from jax_bwgemm import runtime
from jax_bwgemm.dense.spec import GemmDims, GemmSpec
from jax_bwgemm.product import implementations
from jax_bwgemm.runtime import KernelInfo


def kernel_table(implementation: str) -> tuple[KernelInfo, ...]:
    """The kernels an implementation can run; empty when it was not built."""
    return runtime.kernels() if implementation == "cutlass" else runtime.emulated_kernels()


def viable_implementations(
    spec: GemmSpec,
    lhs_dtype: str,
    rhs_dtype: str,
    dims: GemmDims,
    *,
    veto: str | None = None,
    rejected: list[tuple[str, str]] | None = None,
) -> tuple[str, ...]:
    """The implementations of ``spec`` left to try, knowing everything but the device.

    Reasons for skipping one are logged once. ``"xla"`` runs everything, so it ends the list.
    ``veto`` is a reason against every kernel that the problem itself does not show.
    What is skipped is appended to ``rejected``.

    Raises:
        NotImplementedError: The only implementation asked for cannot run the problem, or no
            kernel of this build satisfies ``spec.config``.
        ExceptionGroup: Of NotImplementedError: several were asked for and none can.
        ValueError: ``spec.config`` names a kernel for another kind of problem.
    """
    return implementations.viable(
        spec.implementations,
        describe(spec, lhs_dtype, rhs_dtype, dims),
        lambda name: veto or refusal(name, spec, lhs_dtype, rhs_dtype, dims),
        [] if rejected is None else rejected,
    )


def describe(spec: GemmSpec, lhs_dtype: str, rhs_dtype: str, dims: GemmDims) -> str:
    """The problem in one line, for messages."""
    types = f"{lhs_dtype} x {rhs_dtype} -> {spec.out_dtype}"
    tail = " summed over the batch" if spec.reduce_batch else ""
    return f"GEMM {types}, majors {spec.majors}, {dims}{tail}"


def refusal(
    name: str, spec: GemmSpec, lhs_dtype: str, rhs_dtype: str, dims: GemmDims
) -> str | None:
    """Why a kernel implementation cannot run a problem on any device; None when it may.

    Raises:
        NotImplementedError: No kernel of this build satisfies ``spec.config``: asking for a
            particular kernel never falls back silently.
        ValueError: ``spec.config`` names a kernel for another kind of problem.
    """
    table = kernel_table(name)
    if not table:
        return implementations.missing_kernels(name, spec.config)
    types = (lhs_dtype, rhs_dtype, spec.out_dtype)
    if spec.config is not None:
        matching = implementations.of_types(table, types)
        fitting = [k for k in matching if k.lhs_major + k.rhs_major == spec.majors]
        implementations.check_config(
            spec.config,
            table,
            fitting,
            lambda k: (
                f"multiplies {k.in_dtype} into {k.out_dtype} with majors "
                f"{k.lhs_major}{k.rhs_major}, but the problem is {types[0]} x {types[1]} -> "
                f"{types[2]} with majors {spec.majors}"
            ),
        )
    if reason := implementations.types_refusal(table, types, spec.precision):
        return reason
    too_large = max(dims.m, dims.n, dims.k * (dims.batch if spec.reduce_batch else 1), dims.batch)
    if too_large > implementations.MAX_SIZE:
        return f"size {too_large} exceeds {implementations.MAX_SIZE}"
    return None
