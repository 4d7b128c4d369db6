"""What is in force where a call is traced: tuned tables, and what happens on a miss.

Both are JAX user contexts, so they are part of every trace and compilation cache key, and both
travel in `GemmSpec.tuning`, since a program may be lowered after its context was left.
"""

from __future__ import annotations

import dataclasses
import os
from typing import Any

import jax

from jax_bwgemm.tuning_cache import TuningTable

MISS_POLICIES = ("heuristic", "autotune", "error")

_tables = jax.make_user_context(default_value=None)
_on_miss = jax.make_user_context(default_value=None)


class TuningMissError(LookupError):
    """A problem without a tuned entry, where the policy is ``"error"``."""


@dataclasses.dataclass(frozen=True)
class Tuning:
    """Tuning in force for a call.

    Attributes:
        tables: Tables entered as context managers, innermost first.
        on_miss: ``"heuristic"``, ``"autotune"`` or ``"error"``.
    """

    tables: tuple[TuningTable, ...] = ()
    on_miss: str = "heuristic"


def tuned(table: TuningTable) -> Any:
    """Context manager that puts a table before those already in force."""
    return _tables((table, *(_tables.value or ())))


def tuning_miss(policy: str) -> Any:
    """Context manager: what selection does for a problem without a tuned entry.

    Args:
        policy: ``"heuristic"`` (default): the predicted best kernel. ``"autotune"``: measure now,
            while compiling, use the result and keep it in the cache; the heuristic where the GPU
            compiled for is not in this process. ``"error"``: raise `TuningMissError`.
            The environment variable ``BWGEMM_TUNING_MISS`` sets the default.

    Raises:
        ValueError: An unknown policy.
    """
    return _on_miss(_check_policy(policy, "tuning_miss"))


def _check_policy(policy: str, where: str) -> str:
    if policy not in MISS_POLICIES:
        known = ", ".join(repr(p) for p in MISS_POLICIES)
        raise ValueError(f"{where}: unknown policy {policy!r}, known are {known}")
    return policy


def current() -> Tuning | None:
    """The tuning in force here; None when there is nothing but the defaults.

    Raises:
        ValueError: ``BWGEMM_TUNING_MISS`` is not a policy.
    """
    policy = _on_miss.value
    if policy is None:
        variable = "BWGEMM_TUNING_MISS"
        policy = _check_policy(os.environ.get(variable) or "heuristic", variable)
    tuning = Tuning(_tables.value or (), policy)
    return None if tuning == Tuning() else tuning
