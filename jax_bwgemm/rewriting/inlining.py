"""Equations traced from a function, which replace one equation of a jaxpr."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from jax_bwgemm import compat_jaxpr


def trace_in_place(function: Callable[..., list[Any]], eqn: Any, atoms: Sequence[Any]) -> Any:
    """The jaxpr of a function on some atoms, in the context of an equation that it replaces.

    Args:
        function: Takes arrays of the atoms' types, returns a list of arrays; makes no constants.
        eqn: The equation.
        atoms: What the function is to read.
    """
    with compat_jaxpr.equation_context(eqn):
        jaxpr, constants = compat_jaxpr.trace(function, [x.aval for x in atoms])
    assert not constants, "replacements make their constants while they run"
    return jaxpr


def trace_for(function: Callable[..., Any], eqn: Any) -> Any:
    """The jaxpr of a function of an equation's operands that returns one array."""
    return trace_in_place(lambda *xs: [function(*xs)], eqn, eqn.invars)


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
                invars=[x if compat_jaxpr.is_literal(x) else names[x] for x in one.invars],
                outvars=[names[v] for v in one.outvars],
                source_info=source,
            )
        )
    return found


def placed_anew(jaxpr: Any, call: Any) -> list[Any] | None:
    """The equations of a call's jaxpr in the call's place, with variables of their own.

    None where equations alone cannot stand for it: it has constants, returns an argument, a
    constant or one value twice, or its arguments have other types than the call's operands.

    Args:
        jaxpr: What is called, closed or not. Other calls may share it.
        call: The equation.
    """
    body = compat_jaxpr.opened(jaxpr)
    defined = {v for eqn in body.eqns for v in eqn.outvars}
    results = [v for v in body.outvars if not compat_jaxpr.is_literal(v) and v in defined]
    types = [(v.aval, x.aval) for v, x in zip(body.invars, call.invars, strict=True)]
    types += [(v.aval, x.aval) for v, x in zip(body.outvars, call.outvars, strict=True)]
    if body.constvars or len(set(results)) < len(body.outvars) or any(a != b for a, b in types):
        return None
    names = dict(zip(body.invars, call.invars, strict=True))
    for v, outside in zip(body.outvars, call.outvars, strict=True):
        names[v] = compat_jaxpr.new_variable(v.aval) if compat_jaxpr.is_unread(outside) else outside
    called = f"jit({call.params.get('name', '')})"
    found = []
    for eqn in body.eqns:
        for v in eqn.outvars:
            if v not in names and not compat_jaxpr.is_unread(v):
                names[v] = compat_jaxpr.new_variable(v.aval)
        found.append(
            eqn.replace(
                invars=[x if compat_jaxpr.is_literal(x) else names[x] for x in eqn.invars],
                outvars=[names.get(v, v) for v in eqn.outvars],
                source_info=compat_jaxpr.source_within(eqn, call, called),
            )
        )
    return found
