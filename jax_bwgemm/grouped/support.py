"""What is known at trace time: which implementations can run a grouped GEMM, and why not others."""

from __future__ import annotations

from collections.abc import Sequence

from jax_bwgemm import runtime
from jax_bwgemm.gemm.support import MAX_SIZE, log_once, precision_refusal, refusal_error
from jax_bwgemm.grouped.spec import GroupedDims, GroupedSpec
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
    what = describe(spec, lhs_dtype, rhs_dtype, dims)
    viable: list[str] = []
    refusals: list[tuple[str, str]] = []
    for name in spec.implementations:
        if name == "xla":
            viable.append(name)
            break
        reason = refusal(name, spec, lhs_dtype, rhs_dtype, dims)
        if reason is None:
            viable.append(name)
        else:
            refusals.append((name, reason))
    if not viable:
        raise refusal_error(what, refusals)
    if viable[0] != spec.implementations[0]:
        for name, reason in refusals:
            log_once(f"{what}: not {name} ({reason}), using {viable[0]}")
    return tuple(viable)


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
        what = "compiled kernels" if name == "cutlass" else "emulator"
        reason = f"jax_bwgemm was installed without its {what} for grouped GEMMs"
        if spec.config is not None:
            raise NotImplementedError(f"{spec.config} cannot be satisfied: {reason}")
        return reason
    types = (lhs_dtype, rhs_dtype, spec.out_dtype)
    matching = [k for k in table if (k.in_dtype, k.in_dtype, k.out_dtype) == types]
    if spec.config is not None:
        _check_config(spec, types, table, matching)
    if "float32" in (lhs_dtype, rhs_dtype) and lhs_dtype != rhs_dtype:
        return (
            "kernels multiply operands of one 16-bit type (in a gradient, the float32 cotangent "
            "comes from preferred_element_type=float32: leave it None, or allow 'xla')"
        )
    if not matching:
        pairs = sorted({f"{k.in_dtype} x {k.in_dtype} -> {k.out_dtype}" for k in table})
        return f"kernels exist for {', '.join(pairs)}"
    if reason := precision_refusal(spec.precision, lhs_dtype):
        return reason
    rows = dims.m * (dims.batch if spec.reduce_batch else 1)
    too_large = max(rows, dims.n, dims.k, dims.experts, dims.groups, dims.batch)
    if too_large > MAX_SIZE:
        return f"size {too_large} exceeds {MAX_SIZE}"
    return None


def _check_config(
    spec: GroupedSpec,
    types: tuple[str, str, str],
    table: Sequence[GroupedKernelInfo],
    matching: Sequence[GroupedKernelInfo],
) -> None:
    config = spec.config
    fitting = [k for k in matching if (k.kind, k.rhs_major) == (spec.kind, spec.rhs_major)]
    if config.kernel is not None:
        named = next((k for k in table if k.name == config.kernel), None)
        if named is None:
            listed = ", ".join(k.name for k in fitting) or "none"
            raise NotImplementedError(
                f"kernel {config.kernel!r} is not in this build; for this problem it has: {listed}"
            )
        if named not in fitting:
            raise ValueError(
                f"kernel {config.kernel!r} ({named.kind}) multiplies {named.in_dtype} into "
                f"{named.out_dtype} with rhs major {named.rhs_major}, but the problem ({spec.kind})"
                f" is {types[0]} x {types[1]} -> {types[2]} with rhs major {spec.rhs_major}"
            )
    if fitting and all(config.mismatch(k) for k in fitting):
        reasons = "; ".join(f"{k.name}: {config.mismatch(k)}" for k in fitting)
        raise NotImplementedError(f"no kernel of this build satisfies {config}: {reasons}")
