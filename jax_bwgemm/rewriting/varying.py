"""Elementwise equations of a jaxpr, evaluated where their operands vary over manual mesh axes.

Types within shard_map say over which mesh axes an array varies, and casts (``pvary``) bring
constants to what they meet. The operands of a fused product vary over all axes of any of them, so
that the casts in its jaxpr would be those of other types.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jax_bwgemm import compat, compat_jaxpr
from jax_bwgemm.product.jaxprs import INLINED
from jax_bwgemm.rewriting.dataflow import variables

CASTS = ("pvary", "pcast")
# Bodies that are nothing but their equations.
_PLAIN = {"jit": "jaxpr", "pjit": "jaxpr", "closed_call": "call_jaxpr", "core_call": "call_jaxpr"}


def has_casts(eqns: Sequence[Any]) -> bool:
    """Whether any of these equations is a cast, or has one in a body of its own."""
    return any(e.primitive.name in CASTS or has_casts(_body(e)) for e in eqns)


def _body(eqn: Any) -> Sequence[Any]:
    inner = eqn.params.get(INLINED.get(eqn.primitive.name, ""))
    return () if inner is None else compat_jaxpr.opened(inner).eqns


def plain_body(eqn: Any) -> Any:
    """The jaxpr whose equations could replace an equation; None: there is none."""
    inner = eqn.params.get(_PLAIN.get(eqn.primitive.name, ""))
    return compat_jaxpr.opened(inner)


def can_evaluate(eqns: Sequence[Any], operands: Sequence[Any]) -> bool:
    """Whether `evaluate` keeps the types in these equations' custom derivatives.

    Casts in their bodies stay, and are for operands that vary as they did.

    Args:
        eqns: The equations.
        operands: Variables that all of the jaxpr's operands vary alike with.
    """
    axes = frozenset().union(*(compat_jaxpr.varying_axes(x.aval) for x in operands))

    def fits(eqn: Any) -> bool:
        if (body := plain_body(eqn)) is not None:
            return all(map(fits, body.eqns))
        alike = all(compat_jaxpr.varying_axes(x.aval) == axes for x in variables(eqn.invars))
        return alike or not has_casts(_body(eqn))

    return all(map(fits, eqns))


def evaluate(jaxpr: Any, operands: Sequence[Any], varying: Any = None) -> list[Any]:
    """The results of a jaxpr without its casts: each equation's operands are cast to vary alike.

    Args:
        jaxpr: An open jaxpr of elementwise equations, without constants.
        operands: Arrays.
        varying: An array that varies over all of the axes; None: the first operand is one.
    """
    varying = operands[0] if varying is None else varying
    known = dict(zip(jaxpr.invars, operands, strict=True))

    def value(atom: Any) -> Any:
        return atom.val if compat_jaxpr.is_literal(atom) else known[atom]

    for eqn in jaxpr.eqns:
        read = [value(x) for x in eqn.invars]
        body = plain_body(eqn)
        if eqn.primitive.name in CASTS:
            results = read
        elif body is not None:
            results = evaluate(body, read, varying)
        elif eqn.primitive.name in INLINED:  # a custom derivative
            own = list(dict.fromkeys(variables(eqn.invars)))
            alone = compat_jaxpr.part_of(jaxpr, own, eqn.outvars, [eqn])
            alike = compat.match_varying(*(known[x] for x in own), varying)
            results = compat_jaxpr.evaluate(alone, [], list(alike[:-1]))
        else:
            with compat_jaxpr.equation_context(eqn):
                results = eqn.primitive.bind(*compat.match_varying(*read), **eqn.params)
            results = results if eqn.primitive.multiple_results else [results]
        known.update(zip(eqn.outvars, results, strict=True))
    return [value(x) for x in jaxpr.outvars]
