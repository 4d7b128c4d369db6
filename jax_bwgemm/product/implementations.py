"""Which implementations to try, and the reasons against one, for all products."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jax import lax

from jax_bwgemm import runtime
from jax_bwgemm.config import Target, explicit_target, make_target
from jax_bwgemm.product.dtypes import operand_types
from jax_bwgemm.product.kernel_config import KernelConfig
from jax_bwgemm.product.kernels import Kernel

IMPLEMENTATIONS = ("cutlass", "emulator", "xla")
# The JAX platform that each kernel implementation is lowered for.
PLATFORMS = {"cutlass": "cuda", "emulator": "cpu"}
DEFAULT_IMPLEMENTATIONS = ("cutlass", "xla")
# Why XLA computes products of symbolic sizes (`jax.export`).
SYMBOLIC = "a kernel is selected by sizes"
# Algorithms that kernels satisfy, by operand types, as `jax.lax.DotAlgorithmPreset` names them:
# first their own, then less accurate ones. With an exact bf16 operand, X3 has no more products than
# the two terms of the f32 operand make.
_SPLIT = ("BF16_BF16_F32_X3", "TF32_TF32_F32")
NATIVE_ALGORITHMS = {
    "bfloat16": ("BF16_BF16_F32",),
    "float16": ("F16_F16_F32",),
    "float32 x bfloat16": _SPLIT,
    "bfloat16 x float32": _SPLIT,
}

# How two f32 operands are multiplied, by the precision asked for: as three or six products of bf16
# terms, or in any way that is as accurate as f32's own sums.
F32_ALGORITHMS = {
    lax.Precision.HIGH: "x3",
    lax.DotAlgorithmPreset.BF16_BF16_F32_X3: "x3",
    lax.Precision.HIGHEST: "highest",
    lax.DotAlgorithmPreset.BF16_BF16_F32_X6: "x6",
}
# bf16 terms that each of them needs, the least accurate algorithm first. Three terms are exact; the
# error of their six largest products is below that of f32's own sums.
F32_TERMS = {"x3": 2, "x6": 3, "highest": 3}

_logger = logging.getLogger("jax_bwgemm")


@functools.lru_cache(maxsize=4096)
def log_once(message: str) -> None:
    """Logs a message the first time it is seen in this process, of the last 4096."""
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


def assumed_target() -> Target:
    """The GPU that decisions taken while tracing are for: named, or this process's, or a Hopper."""
    return explicit_target() or runtime.local_target().target or make_target("sm90")


def has_only_other_gpus() -> bool:
    """Whether this process has GPUs, no kernels for any of them, and no target was named."""
    devices = runtime.cuda_devices()
    others = all(runtime.device_target(device).target is None for device in devices)
    return bool(devices) and others and explicit_target() is None


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


def viable(
    implementations: Sequence[str],
    what: str,
    refuse: Callable[[str], str | None],
    refusals: list[tuple[str, str]],
) -> tuple[str, ...]:
    """The implementations left to try, knowing everything but the device.

    Reasons for skipping one are logged once. ``"xla"`` runs everything, so it ends the list.

    Args:
        implementations: Those asked for, in order.
        what: The problem, for messages.
        refuse: Why one cannot run it; None when it may.
        refusals: Where (name, reason) of each that is skipped is appended.

    Raises:
        NotImplementedError: The only implementation asked for cannot run the problem.
        ExceptionGroup: Of NotImplementedError: several were asked for and none can.
    """
    found: list[str] = []
    for name in implementations:
        if name == "xla":
            found.append(name)
            break
        reason = refuse(name)
        if reason is None:
            found.append(name)
        else:
            refusals.append((name, reason))
    if not found:
        raise refusal_error(what, refusals)
    if found[0] != implementations[0]:
        for name, reason in refusals:
            log_once(f"{what}: not {name} ({reason}), using {found[0]}")
    return tuple(found)


def without(
    implementations: Sequence[str], refused: Sequence[str], what: str, reason: str
) -> tuple[str, ...]:
    """The implementations left to a program that some cannot run. The reason is logged once.

    Args:
        implementations: Those left so far, in order.
        refused: Those that cannot run it.
        what: The problem, for messages.
        reason: Why they cannot.

    Raises:
        NotImplementedError: There are no others (several refused: an ExceptionGroup).
    """
    others = tuple(name for name in implementations if name not in refused)
    if not others:
        raise refusal_error(what, [(name, reason) for name in implementations])
    if implementations[0] != others[0]:
        log_once(f"{what}: not {implementations[0]} ({reason}), using {others[0]}")
    return others


def target_here(name: str, platform: str, target: Target | None) -> Target | str:
    """The GPU to choose a kernel for, or why an implementation cannot run on a platform.

    Args:
        name: ``"cutlass"`` or ``"emulator"``.
        platform: JAX platform being lowered for.
        target: The GPU asked for; None is this process's, which the emulator takes for an SM100.
    """
    if platform != PLATFORMS[name]:
        return f"{name} runs on {PLATFORMS[name]}, this program is lowered for {platform}"
    if target is None and name == "emulator":
        return make_target("sm100")
    if target is None:
        local = runtime.local_target()
        return local.reason if local.target is None else local.target
    return target


def missing_kernels(name: str, config: KernelConfig | None, tail: str = "") -> str:
    """The reason against an implementation that was not built.

    Raises:
        NotImplementedError: A particular kernel was asked for.
    """
    what = "compiled kernels" if name == "cutlass" else "emulator"
    reason = f"jax_bwgemm was installed without its {what}{tail}"
    if config is not None:
        raise NotImplementedError(f"{config} cannot be satisfied: {reason}")
    return reason


def types_refusal(
    table: Sequence[Kernel],
    types: tuple[str, str, str],
    precision: object,
) -> str | None:
    """Why no kernel multiplies these types (lhs, rhs, result); None when some do."""
    operands = rounded_types(types[:2], precision)
    types = (*operands, types[2])
    found = of_types(table, types)
    if not found:
        pairs = sorted({f"{k.a_dtype} x {k.b_dtype} -> {k.out_dtype}" for k in table})
        return f"kernels exist for {', '.join(pairs)}"
    if all(getattr(k, "splits_both", False) for k in found):
        return f32_refusal(precision)
    return precision_refusal(precision, operand_types(*operands))


def of_types(table: Sequence[Kernel], types: tuple[str, str, str]) -> list[Kernel]:
    """The kernels that multiply these types."""
    return [k for k in table if (k.a_dtype, k.b_dtype, k.out_dtype) == types]


def rounded_types(dtypes: Sequence[str], precision: object) -> tuple[str, str]:
    """The types that A and B are rounded to before a kernel: by default their own.

    ``DotAlgorithmPreset.BF16_BF16_F32`` asks for float32 operands in bfloat16.
    """
    a, b = dtypes
    if precision != lax.DotAlgorithmPreset.BF16_BF16_F32:
        return a, b
    return tuple("bfloat16" if dtype == "float32" else dtype for dtype in (a, b))


def of_operands(precision: object) -> tuple[object, ...]:
    """A precision request for each operand, or the one for both."""
    pair = isinstance(precision, tuple) and not isinstance(precision, lax.DotAlgorithm)
    return precision if pair else (precision,)


def f32_algorithm(precision: object) -> str | None:
    """How kernels multiply two f32 operands for a precision; None: they do not satisfy it.

    Args:
        precision: As `Policy.precision`. Of a pair the higher counts, as in XLA.

    Returns:
        A value of `F32_ALGORITHMS`.
    """
    order = list(F32_TERMS)
    asked = [F32_ALGORITHMS[p] for p in of_operands(precision) if p in F32_ALGORITHMS]
    return max(asked, key=order.index, default=None)


def f32_refusal(precision: object) -> str | None:
    """Why kernels that split two f32 operands do not answer a precision request."""
    if f32_algorithm(precision) is not None:
        return None
    precision = of_operands(precision)[0]  # of a pair, neither is answered
    name = getattr(precision, "name", precision)
    listed = ", ".join(p.name for p in F32_ALGORITHMS)
    return f"precision={name} of float32 operands is left to XLA; kernels answer {listed}"


def precision_refusal(precision: object, types: str) -> str | None:
    """Why kernels do not answer a precision request.

    16-bit operands are multiplied exactly and accumulated in f32; of an f32 operand two bf16 terms
    are multiplied, an error of at most 2^-17 in each product.

    Args:
        precision: As `Policy.precision`.
        types: The operands' types, as `dtypes.operand_types` says them.
    """
    if isinstance(precision, lax.DotAlgorithm):
        return f"precision={precision} asks for a particular algorithm"
    if isinstance(precision, lax.DotAlgorithmPreset):
        native = NATIVE_ALGORITHMS.get(types, (f"the kernels' for {types}",))
        if precision.name not in ("DEFAULT", *native):
            return f"precision={precision.name} asks for an algorithm other than {native[0]}"
    if "float32" in types and lax.Precision.HIGHEST in np.atleast_1d(precision):
        return "precision=HIGHEST asks for float32's accuracy, kernels split float32 into two terms"
    return None


def check_config(
    config: KernelConfig,
    table: Sequence[Kernel],
    fitting: Sequence[Kernel],
    describe: Callable[[Any], str],
) -> None:
    """Checks a configuration against the kernels of this build.

    Args:
        config: The configuration.
        table: All of an implementation.
        fitting: Those for the kind of problem at hand.
        describe: Why a kernel of that name is for another kind of problem.

    Raises:
        NotImplementedError: No kernel of this build satisfies it: asking for a particular kernel
            never falls back silently.
        ValueError: It names a kernel for another kind of problem.
    """
    if config.kernel is not None:
        named = next((k for k in table if k.name == config.kernel), None)
        if named is None:
            listed = ", ".join(k.name for k in fitting) or "none"
            raise NotImplementedError(
                f"kernel {config.kernel!r} is not in this build; for this problem it has: {listed}"
            )
        if named not in fitting:
            raise ValueError(f"kernel {config.kernel!r} {describe(named)}")
    if fitting and all(config.mismatch(k) for k in fitting):
        reasons = "; ".join(f"{k.name}: {config.mismatch(k)}" for k in fitting)
        raise NotImplementedError(f"no kernel of this build satisfies {config}: {reasons}")
