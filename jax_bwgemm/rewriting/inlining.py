"""Equations traced from a function, which replace one equation of a jaxpr."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from typing import Any

import jax
from jax import lax

from jax_bwgemm import compat_jaxpr

# Equations that differ from their body in how they are differentiated alone.
_BODIES = {"custom_jvp_call": "call_jaxpr"}


def opened(eqns: Sequence[Any], primitives: Container[Any]) -> list[Any]:
    """Equations with those of a body that holds some primitives in its place.

    Args:
        eqns: The equations.
        primitives: Of which each says itself what its derivative is, or that it has none.
    """
    return [one for eqn in eqns for one in _opened(eqn, primitives)]


def _opened(eqn: Any, primitives: Container[Any]) -> list[Any]:
    body = eqn.params.get(_BODIES.get(eqn.primitive.name, ""))
    if body is None:
        return [eqn]
    body, constants = getattr(body, "jaxpr", body), getattr(body, "consts", ())
    if not any(e.primitive in primitives for e in body.eqns):
        return [eqn]
    with compat_jaxpr.equation_context(eqn):  # traced again: bodies may be shared
        jaxpr, found = compat_jaxpr.trace(
            lambda *xs: _distinct(compat_jaxpr.evaluate(body, list(constants), list(xs)), xs),
            [x.aval for x in eqn.invars],
        )
    assert not found, "a body's constants are in its equation"
    return placed(jaxpr, eqn.invars, eqn.outvars, eqn.source_info)


def _distinct(results: Sequence[jax.Array], operands: Sequence[jax.Array]) -> list[jax.Array]:
    """Results of which none is an operand or another one: each has a variable of its own."""
    found: list[jax.Array] = []
    for x in results:
        same = any(x is y for y in (*operands, *found))
        found.append(lax.squeeze(lax.expand_dims(x, (0,)), (0,)) if same else x)
    return found


def trace_for(function: Callable[..., Any], eqn: Any) -> Any:
    """The jaxpr of a function on an equation's operands, in the equation's context.

    Args:
        function: Takes the equation's operands, returns one array; makes no constants.
        eqn: The equation.
    """
    with compat_jaxpr.equation_context(eqn):
        jaxpr, constants = compat_jaxpr.trace(
            lambda *xs: [function(*xs)], [x.aval for x in eqn.invars]
        )
    assert not constants, "replacements make their constants while they run"
    return jaxpr


def inlined(traced: Any, eqn: Any) -> list[Any]:
    """A traced replacement's equations, reading the operands and writing the result of another's.

    They keep its place in the source and its names.
    """
    return placed(traced, eqn.invars, eqn.outvars, eqn.source_info)


def placed(traced: Any, operands: Sequence[Any], results: Sequence[Any], source: Any) -> list[Any]:
    """A traced function's equations within another jaxpr.

    Args:
        traced: The function's jaxpr.
        operands: The atoms that they read instead of its arguments.
        results: The variables that they define instead of its results.
        source: ``source_info`` of all of them.
    """
    names = dict(zip(traced.invars, operands, strict=True))
    names.update(zip(traced.outvars, results, strict=True))
    found = []
    for one in traced.eqns:
        names.update((v, v) for v in one.outvars if v not in names)
        found.append(
            one.replace(
                invars=[x if hasattr(x, "val") else names[x] for x in one.invars],
                outvars=[names[v] for v in one.outvars],
                source_info=source,
            )
        )
    return found
