"""What is in force where a call is traced: tuned tables, and what happens on a miss.

Both are JAX user contexts, so they are part of every trace and compilation cache key, and both
travel in the specs of products, since a program may be lowered after its context was left.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable
from typing import Any

import jax

from jax_bwgemm.config import current_tuning_miss

_tables = jax.make_user_context(default_value=None)


class TuningMissError(LookupError):
    """A problem without a tuned entry, where the policy is ``"error"``."""


@dataclasses.dataclass(frozen=True)
class Tuning:
    """Tuning in force for a call.

    Attributes:
        tables: Each `TuningTable` entered as a context manager, innermost first.
        on_miss: ``"heuristic"``, ``"autotune"`` or ``"error"``.
    """

    tables: tuple[Hashable, ...] = ()
    on_miss: str = "heuristic"


def tuned(table: Hashable) -> Any:
    """Context manager that puts a table before those already in force."""
    return _tables((table, *(_tables.value or ())))


def current() -> Tuning | None:
    """The tuning in force here; None when there is nothing but the defaults.

    Raises:
        ValueError: ``BWGEMM_TUNING_MISS`` is not a policy.
    """
    tuning = Tuning(_tables.value or (), current_tuning_miss())
    return None if tuning == Tuning() else tuning
