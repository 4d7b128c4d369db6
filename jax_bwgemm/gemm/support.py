"""What is known at trace time: which implementations can run a problem, and why others cannot."""

from __future__ import annotations

import functools
import logging
from collections.abc import Sequence

from jax import lax

from jax_bwgemm import runtime
from jax_bwgemm.gemm.spec import GemmDims, GemmSpec
from jax_bwgemm.runtime import KernelInfo

IMPLEMENTATIONS = ("cutlass", "emulator", "xla")
DEFAULT_IMPLEMENTATIONS = ("cutlass", "xla")
MAX_SIZE = 2**31 - 1

_logger = logging.getLogger("jax_bwgemm")


@functools.cache
def log_once(message: str) -> None:
    """Logs a message the first time it is seen in this process."""
    _logger.info(message)


def as_implementations(implementation: str | Sequence[str] | None) -> tuple[str, ...]:
    """Normalises the ``implementation=`` argument to the names to try, in order.

    Raises:
        TypeError: Not None, a string or a sequence of strings.
        ValueError: An unknown name, or an empty sequence.
    """
    if implementation is None:
        return DEFAULT_IMPLEMENTATIONS
    names = (implementation,) if isinstance(implementation, str) else implementation
    if not isinstance(names, Sequence) or not all(isinstance(name, str) for name in names):
        raise TypeError(
            f"implementation must be None, a name or a sequence of names, got {implementation!r}"
        )
    known = ", ".join(repr(name) for name in IMPLEMENTATIONS)
    if not names:
        raise ValueError(f"implementation must not be empty; known names are {known}")
    for name in names:
        if name not in IMPLEMENTATIONS:
            raise ValueError(f"unknown implementation {name!r}; known names are {known}")
    return tuple(names)


def kernel_table(implementation: str) -> tuple[KernelInfo, ...]:
    """The kernels an implementation can run; empty when it was not built."""
    return runtime.kernels() if implementation == "cutlass" else runtime.emulated_kernels()


def refusal_error(what: str, refusals: Sequence[tuple[str, str]]) -> Exception:
    """The error of a problem that no implementation can run.

    A NotImplementedError when one was tried, an ExceptionGroup of these when several were.
    """
    errors = [
        NotImplementedError(f"implementation={name!r} cannot run {what}: {reason}")
        for name, reason in refusals
    ]
    if len(errors) == 1:
        return errors[0]
    return ExceptionGroup(f"no implementation can run {what}", errors)


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
    what = describe(spec, lhs_dtype, rhs_dtype, dims)
    viable: list[str] = []
    refusals: list[tuple[str, str]] = [] if rejected is None else rejected
    for name in spec.implementations:
        if name == "xla":
            viable.append(name)
            break
        reason = veto or refusal(name, spec, lhs_dtype, rhs_dtype, dims)
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
        what = "compiled kernels" if name == "cutlass" else "emulator"
        reason = f"jax_bwgemm was installed without its {what}"
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
    too_large = max(dims.m, dims.n, dims.k * (dims.batch if spec.reduce_batch else 1), dims.batch)
    if too_large > MAX_SIZE:
        return f"size {too_large} exceeds {MAX_SIZE}"
    return None


def precision_refusal(precision: object, dtype: str) -> str | None:
    """Why the kernels' exact products with f32 accumulation do not answer a precision request."""
    if isinstance(precision, lax.DotAlgorithm):
        return f"precision={precision} asks for a particular algorithm"
    if isinstance(precision, lax.DotAlgorithmPreset):
        native = {"bfloat16": "BF16_BF16_F32", "float16": "F16_F16_F32"}[dtype]
        if precision.name not in ("DEFAULT", native):
            return f"precision={precision.name} asks for an algorithm other than {native}"
    return None


def _check_config(
    spec: GemmSpec,
    types: tuple[str, str, str],
    table: Sequence[KernelInfo],
    matching: Sequence[KernelInfo],
) -> None:
    config = spec.config
    fitting = [k for k in matching if k.lhs_major + k.rhs_major == spec.majors]
    if config.kernel is not None:
        named = next((k for k in table if k.name == config.kernel), None)
        if named is None:
            listed = ", ".join(k.name for k in fitting) or "none"
            raise NotImplementedError(
                f"kernel {config.kernel!r} is not in this build; for this problem it has: {listed}"
            )
        if named not in fitting:
            raise ValueError(
                f"kernel {config.kernel!r} multiplies {named.in_dtype} into {named.out_dtype} "
                f"with majors {named.lhs_major}{named.rhs_major}, but the problem is "
                f"{types[0]} x {types[1]} -> {types[2]} with majors {spec.majors}"
            )
    if fitting and all(config.mismatch(k) for k in fitting):
        reasons = "; ".join(f"{k.name}: {config.mismatch(k)}" for k in fitting)
        raise NotImplementedError(f"no kernel of this build satisfies {config}: {reasons}")
