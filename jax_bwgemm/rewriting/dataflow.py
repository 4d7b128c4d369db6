"""Equations, with what defines and what reads each variable and what is in memory.

Products are fused one after the other. What this knows follows each replacement, so that a program
of many layers costs no more than its layers: nothing is counted again over all equations.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

from jax_bwgemm import compat_jaxpr
from jax_bwgemm.product.jaxprs import INLINED
from jax_bwgemm.rewriting.uses import ALIASES, FUSIBLE, Uses, operand_uses, uses_of


def variables(atoms: Iterable[Any]) -> list[Any]:
    """Those that are not literals."""
    return [x for x in atoms if not compat_jaxpr.is_literal(x)]


class Dataflow:
    """Of the equations of one jaxpr.

    Attributes:
        eqns: The equations, in order.
        place: Each equation's number, by its `id`.
        stored: Variables in memory: something other than a pass of XLA's reads them.
    """

    def __init__(self, body: Any, eqns: list[Any], results: Sequence[Uses]) -> None:
        """
        Args:
            body: The jaxpr that the equations are for: its arguments and results.
            eqns: Its equations.
            results: What reads its results.
        """
        self.body = body
        self.eqns: list[Any] = []
        self.place: dict[int, int] = {}
        self._producers: dict[Any, Any] = {}
        self._readers: dict[Any, dict[int, Any]] = {}
        self._outside: dict[Any, Uses] = {}
        for v, use in zip(body.outvars, results, strict=True):
            if not compat_jaxpr.is_literal(v):
                self._outside[v] = self._outside.get(v, Uses()) | use
        self.stored = {v for v, use in self._outside.items() if use.stored}
        uses = uses_of(compat_jaxpr.with_equations(body, eqns), results)
        for eqn in eqns:
            of_operands = operand_uses(eqn, [uses.get(v, Uses()) for v in eqn.outvars])
            pairs = zip(eqn.invars, of_operands, strict=True)
            self.stored |= {x for x, use in pairs if use.stored and not compat_jaxpr.is_literal(x)}
        self._replace(eqns)

    def producer(self, v: Any) -> Any | None:
        """The equation that defines a variable; None for arguments, constants and literals."""
        return None if compat_jaxpr.is_literal(v) else self._producers.get(v)

    def readers(self, v: Any, without: Collection[int] = ()) -> list[Any]:
        """The equations that read a variable, in order, without those of some `id`s."""
        found = [e for i, e in self._readers.get(v, {}).items() if i not in without]
        return sorted(found, key=lambda e: self.place[id(e)])

    def is_result(self, v: Any) -> bool:
        """Whether a variable is one of the jaxpr's results."""
        return v in self._outside

    def update(self, eqns: list[Any]) -> None:
        """Takes other equations, which compute the same results.

        Those that went away read nothing that has to be in memory: they were passes of XLA's.
        """
        for eqn in reversed(self._replace(eqns)):
            self._store(self._stored_by(eqn))

    def read_by_pass(self, v: Any, without: Collection[int]) -> bool:
        """Whether a pass of XLA's reads a variable, of equations without those of some `id`s."""
        pending, seen = [v], set()
        while pending:
            v = pending.pop()
            if v in seen:
                continue
            seen.add(v)
            if self._outside.get(v, Uses()).fused:
                return True
            for eqn in self.readers(v, without):
                name = eqn.primitive.name
                if name in INLINED:
                    after = [
                        Uses(int(self.is_needed(o, without)), fused=self.read_by_pass(o, without))
                        for o in eqn.outvars
                    ]
                    pairs = zip(eqn.invars, operand_uses(eqn, after), strict=True)
                    if any(x is v and use.fused for x, use in pairs):
                        return True
                elif name in ALIASES:
                    pending += eqn.outvars
                elif name in FUSIBLE and any(self.is_needed(o, without) for o in eqn.outvars):
                    return True
        return False

    def is_needed(self, v: Any, without: Collection[int]) -> bool:
        """Whether anything but dead code and equations of some `id`s needs a variable."""
        pending, seen = [v], set()
        while pending:
            v = pending.pop()
            if v in seen:
                continue
            seen.add(v)
            if self._outside.get(v, Uses()).count:
                return True
            for eqn in self.readers(v, without):
                name = eqn.primitive.name
                if name not in INLINED and name not in ALIASES and name not in FUSIBLE:
                    return True
                pending += eqn.outvars
        return False

    def _replace(self, eqns: list[Any]) -> list[Any]:
        """Takes other equations; returns the new ones."""
        kept = {id(e) for e in eqns}
        for eqn in self.eqns:
            if id(eqn) not in kept:
                for v in eqn.outvars:
                    self._producers.pop(v, None)
                for v in set(variables(eqn.invars)):
                    del self._readers[v][id(eqn)]
        added = [e for e in eqns if id(e) not in self.place]
        for eqn in added:
            self._producers.update(dict.fromkeys(eqn.outvars, eqn))
            for v in variables(eqn.invars):
                self._readers.setdefault(v, {})[id(eqn)] = eqn
        self.eqns = eqns
        self.place = {id(e): i for i, e in enumerate(eqns)}
        return added

    def _stored_by(self, eqn: Any) -> list[Any]:
        """The operands that an equation needs in memory."""
        after = [Uses(1, stored=v in self.stored) for v in eqn.outvars]
        pairs = zip(eqn.invars, operand_uses(eqn, after), strict=True)
        return [x for x, use in pairs if use.stored and not compat_jaxpr.is_literal(x)]

    def _store(self, pending: list[Any]) -> None:
        """Variables are in memory, and what they are other forms of."""
        while pending:
            v = pending.pop()
            if v not in self.stored:
                self.stored.add(v)
                eqn = self.producer(v)
                pending += [] if eqn is None else self._stored_by(eqn)
