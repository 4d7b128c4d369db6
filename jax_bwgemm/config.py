"""User switches: target, linked epilogues, partial sums, tuning policy.

Each is a context manager, with an environment variable for its default. Set variables before the
first call: what JAX has traced keeps the values that it was traced with.
"""

from __future__ import annotations

import dataclasses
import os
from typing import Any

import jax

# Streaming multiprocessors assumed when an architecture is named without a device:
# H100/H200 SXM and B200.
DEFAULT_SM_COUNT = {"sm90": 132, "sm100": 148}
MOST_SM_COUNT = 65535  # more than any GPU has

# What selection does for a problem that no tuning table has.
MISS_POLICIES = ("heuristic", "autotune", "error")

# In which type devices exchange partial products.
PARTIAL_SUMS = ("result", "float32")

# A JAX user context is part of every trace and compilation cache key, so that a function traced
# for one target is traced again for another.
_target_context = jax.make_user_context(default_value=None)
_miss_context = jax.make_user_context(default_value=None)
_sums_context = jax.make_user_context(default_value=None)
_linked_context = jax.make_user_context(default_value=None)


@dataclasses.dataclass(frozen=True)
class Target:
    """The GPU that kernels are selected for.

    Attributes:
        arch: ``"sm90"`` or ``"sm100"``.
        sm_count: Number of streaming multiprocessors.
    """

    arch: str
    sm_count: int


def make_target(arch: str, sm_count: int | None = None) -> Target:
    """Validates an architecture name and fills in its usual number of multiprocessors.

    Raises:
        ValueError: The architecture is unknown, or ``sm_count`` is not a number of multiprocessors.
    """
    if not isinstance(arch, str) or arch not in DEFAULT_SM_COUNT:
        known = ", ".join(DEFAULT_SM_COUNT)
        raise ValueError(f"unknown target architecture {arch!r}: known are {known}")
    count = DEFAULT_SM_COUNT[arch] if sm_count is None else sm_count
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= MOST_SM_COUNT:
        raise ValueError(f"sm_count must be an integer from 1 to {MOST_SM_COUNT}, got {count!r}")
    return Target(arch, count)


def target(arch: str, sm_count: int | None = None) -> Any:
    """Context manager that selects kernels for ``arch``, whatever GPU this machine has.

    For cross-lowering (``lower(lowering_platforms=("cuda",))``, ``jax.export``) on a machine
    without that GPU, and for choosing what the emulator emulates. Takes part in JAX's caches:
    functions traced under another target are traced again.

    Args:
        arch: ``"sm90"`` or ``"sm100"``.
        sm_count: Number of multiprocessors of the target; default is the usual data-centre part.

    Raises:
        ValueError: The architecture is unknown, or ``sm_count`` is not a number of multiprocessors.
    """
    return _target_context(make_target(arch, sm_count))


def explicit_target() -> Target | None:
    """The target named by `target` or else by ``BWGEMM_TARGET_ARCH``; None when neither is.

    The variable holds an architecture, optionally with a count: ``sm90`` or ``sm100:148``.

    Raises:
        ValueError: ``BWGEMM_TARGET_ARCH`` is malformed.
    """
    chosen = _target_context.value
    if chosen is not None:
        return chosen
    text = os.environ.get("BWGEMM_TARGET_ARCH", "")
    if not text:
        return None
    arch, _, count = text.partition(":")
    try:
        if count and not count.isdecimal():
            raise ValueError(f"{count!r} is no number of multiprocessors")
        return make_target(arch, int(count) if count else None)
    except ValueError as error:
        raise ValueError(
            f"BWGEMM_TARGET_ARCH={text!r}: {error}; expected an architecture, optionally followed "
            "by ':' and a number of multiprocessors, as in 'sm100:148'"
        ) from None


def partial_sums(dtype: str) -> Any:
    """Context manager: the type in which devices exchange parts of a sum that is sharded.

    Where the contracted dimension (or a batch that is summed, in gradients) is sharded over
    devices, each has a part of every sum, and one all-reduce or reduce-scatter adds them. Takes
    part in JAX's caches, like `target`. ``BWGEMM_PARTIAL_SUMS`` sets the default.

    Products that are left to XLA while tracing, and sums that a program takes itself inside of
    ``shard_map``, are not affected.

    Args:
        dtype: ``"result"`` (default): parts are rounded to the result's type first, as XLA does.
            ``"float32"``: parts are exchanged as float32 and the sum is rounded once; it sends
            twice the bytes of 16-bit results.

    Raises:
        ValueError: Neither of these.
    """
    return _sums_context(_check_partial_sums(dtype, "partial_sums"))


def current_partial_sums() -> str | None:
    """The type by `partial_sums` or else by ``BWGEMM_PARTIAL_SUMS``; None is the result's.

    Raises:
        ValueError: ``BWGEMM_PARTIAL_SUMS`` is neither ``"result"`` nor ``"float32"``.
    """
    variable = "BWGEMM_PARTIAL_SUMS"
    chosen = _sums_context.value
    if chosen is None:
        chosen = _check_partial_sums(os.environ.get(variable) or "result", variable)
    return None if chosen == "result" else chosen


def _check_partial_sums(dtype: str, where: str) -> str:
    if not isinstance(dtype, str) or dtype not in PARTIAL_SUMS:
        known = ", ".join(repr(known) for known in PARTIAL_SUMS)
        raise ValueError(f"{where}: unknown type {dtype!r}; known are {known}")
    return dtype


def linked_epilogues(enabled: bool) -> Any:
    """Context manager: whether epilogues may be linked into kernels.

    Takes part in JAX's caches, like `target`. ``BWGEMM_LINKED_EPILOGUES`` (``1`` or ``0``) sets the
    default, which is that they may: where a kernel, a linker and a predicted gain are there.

    Args:
        enabled: Whether.

    Raises:
        TypeError: Not a bool.
    """
    if not isinstance(enabled, bool):
        raise TypeError(f"linked_epilogues: enabled must be True or False, got {enabled!r}")
    return _linked_context(enabled)


def links_epilogues() -> bool:
    """Whether epilogues may be linked, by `linked_epilogues` or ``BWGEMM_LINKED_EPILOGUES``.

    Raises:
        ValueError: The variable is neither ``0`` nor ``1``.
    """
    chosen = _linked_context.value
    if chosen is not None:
        return chosen
    text = os.environ.get("BWGEMM_LINKED_EPILOGUES") or "1"
    if text not in ("0", "1"):
        raise ValueError(f"BWGEMM_LINKED_EPILOGUES={text!r}: expected 0 or 1")
    return text == "1"


def tuning_miss(policy: str) -> Any:
    """Context manager: what kernel selection does for a problem without a tuned entry.

    Takes part in JAX's caches, like `target`. ``BWGEMM_TUNING_MISS`` sets the default.

    Args:
        policy: ``"heuristic"`` (default): the kernel predicted to be best. ``"autotune"``: measure
            now, while compiling, and keep the result in the tuning cache; the heuristic where the
            GPU compiled for is not in this process. ``"error"``: raise
            `jax_bwgemm.TuningMissError`.

    Raises:
        ValueError: An unknown policy.
    """
    return _miss_context(_check_miss_policy(policy, "tuning_miss"))


def current_tuning_miss() -> str:
    """The policy in force, by `tuning_miss` or else by ``BWGEMM_TUNING_MISS``.

    Raises:
        ValueError: ``BWGEMM_TUNING_MISS`` is not a policy.
    """
    chosen = _miss_context.value
    if chosen is not None:
        return chosen
    variable = "BWGEMM_TUNING_MISS"
    return _check_miss_policy(os.environ.get(variable) or "heuristic", variable)


def _check_miss_policy(policy: str, where: str) -> str:
    if not isinstance(policy, str) or policy not in MISS_POLICIES:
        known = ", ".join(repr(known) for known in MISS_POLICIES)
        raise ValueError(f"{where}: unknown policy {policy!r}; known are {known}")
    return policy


def check_variables() -> None:
    """Reads the environment variables that set defaults here.

    Raises:
        ValueError: One of them is wrong; the message names it.
    """
    explicit_target()
    current_partial_sums()
    links_epilogues()
    current_tuning_miss()
