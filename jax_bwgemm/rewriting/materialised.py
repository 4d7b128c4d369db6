"""Which elementwise results XLA's passes leave in memory, though no product or loop needs them.

A value whose row statistics are needed (a norm's, a softmax's) is read twice: for them, and then
with them. Where it is made of two or more matrices (a residual sum), reading it again costs less
than computing it again, so the pass that makes it writes it. Everything else is taken to be
computed where it is read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from jax_bwgemm.rewriting.uses import INLINED

# What stands between a value and the sums that are its statistics.
_BEFORE_SUMS = ("convert_element_type", "square", "integer_pow", "mul", "abs")
_REDUCTIONS = ("reduce_sum", "reduce_max", "reduce_min")


def materialised(eqns: Sequence[Any], elementwise: Any, stored: set[Any]) -> set[Any]:
    """Variables of that kind.

    Args:
        eqns: Equations of a jaxpr, in order.
        elementwise: Says of an equation whether a pass computes it.
        stored: Variables that are in memory in any case.
    """
    counts: Counter[Any] = Counter()
    summarised: set[Any] = set()
    for eqn in reversed(eqns):
        own = _summarised(eqn, {v for v in eqn.outvars if v in summarised})
        summarised |= own
        for v in set(_variables(eqn.invars)):
            if eqn.primitive.name == "convert_element_type":  # its readers read this
                counts[v] += counts[eqn.outvars[0]]
            else:  # a body that takes statistics needs more than them
                counts[v] += 2 if eqn.primitive.name in INLINED and v in own else 1
    found: set[Any] = set()
    made_of: dict[Any, frozenset[Any]] = {}
    for eqn in eqns:
        (out, *others) = eqn.outvars or [None]
        if out is None or others or not elementwise(eqn):
            continue
        size = out.aval.size
        sources: frozenset[Any] = frozenset()
        for v in _variables(eqn.invars):
            if v.aval.size == size:
                sources |= made_of.get(v, frozenset((v,)))
        if out not in stored and counts[out] > 1 and out in summarised and len(sources) > 1:
            found.add(out)
        made_of[out] = frozenset((out,)) if out in stored or out in found else sources
    return found


def _summarised(eqn: Any, results: set[Any]) -> set[Any]:
    """The operands whose row statistics an equation is on the way to.

    Args:
        eqn: The equation.
        results: Those of its results of which the same is known.
    """
    name = eqn.primitive.name
    if name in INLINED:
        body = eqn.params[INLINED[name]]
        body = getattr(body, "jaxpr", body)
        inside = {v for v, w in zip(body.outvars, eqn.outvars, strict=True) if w in results}
        for one in reversed(body.eqns):
            inside |= _summarised(one, {v for v in one.outvars if v in inside})
        pairs = zip(body.invars, eqn.invars, strict=True)
        return {atom for v, atom in pairs if v in inside and not hasattr(atom, "val")}
    own = set(_variables(eqn.invars))
    if name in _REDUCTIONS:
        (aval,) = (x.aval for x in eqn.invars)
        return own if tuple(eqn.params["axes"]) == (aval.ndim - 1,) else set()
    if name not in _BEFORE_SUMS or not results:
        return set()
    return {v for v in own if v.aval.size == eqn.outvars[0].aval.size}


def _variables(atoms: Sequence[Any]) -> list[Any]:
    return [x for x in atoms if not hasattr(x, "val")]
