"""Equations traced from a function, in the place of one equation of a jaxpr."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jax_bwgemm import compat


def trace_for(function: Callable[..., Any], eqn: Any) -> Any:
    """The jaxpr of a function on an equation's operands, in the equation's context.

    Args:
        function: Takes the equation's operands, returns one array; makes no constants.
        eqn: The equation.
    """
    with compat.equation_context(eqn):
        jaxpr, constants = compat.trace(lambda *xs: [function(*xs)], [x.aval for x in eqn.invars])
    assert not constants, "replacements make their constants while they run"
    return jaxpr


def inlined(traced: Any, eqn: Any) -> list[Any]:
    """A traced replacement's equations, reading the operands and writing the result of another's.

    They keep its place in the source and its names.
    """
    atoms = dict(zip(traced.invars, eqn.invars, strict=True))
    (result,) = traced.outvars
    atoms[result] = eqn.outvars[0]
    placed = []
    for one in traced.eqns:
        for v in one.outvars:
            if v not in atoms:
                atoms[v] = v
        placed.append(
            one.replace(
                invars=[x if hasattr(x, "val") else atoms[x] for x in one.invars],
                outvars=[atoms[v] for v in one.outvars],
                source_info=eqn.source_info,
            )
        )
    return placed
