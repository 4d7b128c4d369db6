"""Walks traced programs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax


def equations(jaxpr: Any, times: int = 1) -> Iterator[tuple[Any, int]]:
    """All equations of a jaxpr, nested ones included, with how often each runs.

    A loop's body runs as often as the loop does, where that is known, and else once.
    """
    for eqn in getattr(jaxpr, "jaxpr", jaxpr).eqns:
        yield eqn, times
        inner = times * eqn.params["length"] if eqn.primitive.name == "scan" else times
        for value in jax.tree.leaves(list(eqn.params.values()), is_leaf=is_jaxpr):
            if is_jaxpr(value):
                yield from equations(value, inner)


def is_jaxpr(value: Any) -> bool:
    """Whether it is a jaxpr, open or closed."""
    from jax.extend import core as jex_core  # slow to import: see compat.py

    return isinstance(value, jex_core.Jaxpr | jex_core.ClosedJaxpr)
