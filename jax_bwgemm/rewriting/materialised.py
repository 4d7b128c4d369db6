"""Which elementwise results XLA's passes leave in memory, though no product or loop needs them.

A value whose row statistics are needed (by a norm or a softmax) is read twice: for the statistics,
and then with them. If it is made of two or more matrices (a residual sum), reading it again costs
less than computing it again, so the pass that computes it also writes it. Everything else is taken
to be computed where it is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from jax_bwgemm.compat_jaxpr import is_literal, opened
from jax_bwgemm.product.jaxprs import INLINED
from jax_bwgemm.rewriting.dataflow import Dataflow, variables

# What stands between a value and the sums that are its statistics.
_BEFORE_SUMS = ("convert_element_type", "square", "integer_pow", "mul", "abs")
_TO_SUMS = frozenset((*_BEFORE_SUMS, *INLINED))
_REDUCTIONS = ("reduce_sum", "reduce_max", "reduce_min")


class Materialised:
    """The variables of that kind, found when they are asked for, and kept.

    Where equations are replaced, `forget` has to follow.
    """

    def __init__(self, flow: Dataflow, elementwise: Callable[[Any], bool]) -> None:
        """
        Args:
            flow: The equations.
            elementwise: Says of an equation whether a pass computes it.
        """
        self._flow = flow
        self._elementwise = elementwise
        self._found: set[Any] = set()
        self._made_of: dict[Any, frozenset[Any]] = {}
        self._statistics: dict[Any, bool] = {}

    def __contains__(self, v: Any) -> bool:
        self._look(v)
        return v in self._found

    def forget(self, changed: Iterable[Any]) -> None:
        """Drops what depends on variables that `Dataflow.update` changed."""
        flow, pending, known = self._flow, list(changed), self._statistics
        above = set(pending)
        while pending:  # Upwards: a variable's statistics depend on those of what is made of it.
            v = pending.pop()
            known.pop(v, None)
            eqn = flow.producer(v)
            if eqn is not None and eqn.primitive.name in _TO_SUMS:
                new = set(variables(eqn.invars)) - above
                above |= new
                pending += new
        pending, seen = list(above), set(above)
        while pending:  # Downwards: what a variable is made of.
            v = pending.pop()
            self._found.discard(v)
            if self._made_of.pop(v, None) is not None or v in above:
                after = {o for e in flow.readers(v) for o in e.outvars} - seen
                seen |= after
                pending += after

    def _look(self, wanted: Any) -> None:
        """Finds what a variable is made of. Without recursion, whose limit deep networks reach."""
        flow, pending = self._flow, [wanted]
        while pending:
            v = pending[-1]
            eqn = flow.producer(v)
            if v in self._made_of:
                pending.pop()
                continue
            if (
                v in flow.stored
                or eqn is None
                or len(eqn.outvars) > 1
                or not self._elementwise(eqn)
            ):
                self._made_of[v] = frozenset((v,))
                continue
            operands = [x for x in variables(eqn.invars) if x.aval.size == v.aval.size]
            unknown = [x for x in operands if x not in self._made_of]
            if unknown:
                pending += unknown
                continue
            sources = frozenset().union(*(self._made_of[x] for x in operands))
            if len(sources) > 1 and self._has_statistics(v) and self._count(v) > 1:
                self._found.add(v)
                sources = frozenset((v,))
            self._made_of[v] = sources

    def _count(self, v: Any) -> int:
        """How often passes read a variable, conversions being part of what reads them."""
        count = 0
        for eqn in self._flow.readers(v):
            if eqn.primitive.name == "convert_element_type":
                count += self._count(eqn.outvars[0])
            else:  # a body that takes statistics needs more than them
                inlined = eqn.primitive.name in INLINED
                count += 2 if inlined and v in self._summarised(eqn) else 1
        return count

    def _has_statistics(self, wanted: Any) -> bool:
        """Whether a variable's row statistics are needed."""
        flow, known, pending = self._flow, self._statistics, [wanted]
        while pending:
            v = pending[-1]
            if v in known:
                pending.pop()
                continue
            readers = flow.readers(v)
            after = [o for e in readers if e.primitive.name in _TO_SUMS for o in e.outvars]
            unknown = [o for o in after if o not in known]
            if unknown:
                pending += unknown
                continue
            known[v] = any(v in self._summarised(e) for e in readers)
        return known[wanted]

    def _summarised(self, eqn: Any) -> set[Any]:
        if eqn.primitive.name not in _TO_SUMS:
            return _summarised(eqn, set())
        return _summarised(eqn, {v for v in eqn.outvars if self._has_statistics(v)})


def _summarised(eqn: Any, results: set[Any]) -> set[Any]:
    """The operands whose row statistics an equation is on the way to.

    Args:
        eqn: The equation.
        results: Those of its results of which the same is known.
    """
    name = eqn.primitive.name
    if name in INLINED:
        body = eqn.params[INLINED[name]]
        body = opened(body)
        inside = {v for v, w in zip(body.outvars, eqn.outvars, strict=True) if w in results}
        for one in reversed(body.eqns):
            inside |= _summarised(one, {v for v in one.outvars if v in inside})
        pairs = zip(body.invars, eqn.invars, strict=True)
        return {atom for v, atom in pairs if v in inside and not is_literal(atom)}
    own = set(variables(eqn.invars))
    if name in _REDUCTIONS:
        (aval,) = (x.aval for x in eqn.invars)
        return own if tuple(eqn.params["axes"]) == (aval.ndim - 1,) else set()
    if name not in _BEFORE_SUMS or not results:
        return set()
    return {v for v in own if v.aval.size == eqn.outvars[0].aval.size}


class Stored:
    """Variables in memory, those that a norm's pass leaves there included."""

    def __init__(self, flow: Dataflow, norms: Materialised | None) -> None:
        """
        Args:
            flow: The equations.
            norms: What norms' passes leave; None: without these.
        """
        self._flow = flow
        self._norms = () if norms is None else norms

    def __contains__(self, v: Any) -> bool:
        return v in self._flow.stored or v in self._norms
