"""Equations, with what defines and what reads each variable and what is in memory.

Products are fused one after the other. What this knows follows each replacement, so that a program
of many layers costs no more than its layers: no replacement counts or numbers all equations again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from jax_bwgemm import compat_jaxpr
from jax_bwgemm.product.jaxprs import INLINED
from jax_bwgemm.rewriting.uses import ALIASES, FUSIBLE, Uses, operand_uses, uses_of


def variables(atoms: Iterable[Any]) -> list[Any]:
    """Those that are not literals."""
    return [x for x in atoms if not compat_jaxpr.is_literal(x)]


def _named_by(eqn: Any) -> set[Any]:
    """The variables that an equation reads or defines."""
    return {*variables(eqn.invars), *eqn.outvars}


# Where an equation is among the others: they are in the order of their places.
Place = tuple[int, ...]


class Dataflow:
    """Of the equations of one jaxpr.

    Attributes:
        place: Each equation's, by its `id`. Those that replace one have its place and numbers.
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
        self.place: dict[int, Place] = {}
        self._at: dict[Place, Any] = {}
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
        for i, eqn in enumerate(eqns):
            self._add(eqn, (i,))

    @property
    def eqns(self) -> list[Any]:
        """All equations, in order."""
        return [self._at[place] for place in sorted(self._at)]

    def at(self, place: Place) -> Any:
        """The equation of a place."""
        return self._at[place]

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

    def update(self, exchanged: Mapping[int, Sequence[Any]]) -> set[Any]:
        """Takes other equations in the place of some.

        Those that go away read nothing that has to be in memory: they were passes of XLA's.

        Args:
            exchanged: By the `id` of an equation, those in its place, which may be equations that
                move there from their own.

        Returns:
            The variables whose equation, readers or place in memory may have changed.
        """
        places = [(self.place[i], new) for i, new in exchanged.items()]
        changed = {v for place, _ in places for v in _named_by(self._at[place])}
        for place, _ in places:
            self._remove(place)
        added = []
        for place, new in sorted(places, key=lambda pair: pair[0]):
            for i, eqn in enumerate(new):
                self._add(eqn, (*place, i))
                changed |= _named_by(eqn)
            added += [eqn for eqn in new if id(eqn) not in exchanged]
        for eqn in reversed(added):
            changed |= self._store(self._stored_by(eqn))
        return changed

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
                if eqn.effects:
                    return True
                pending += eqn.outvars
        return False

    def after(self, values: Iterable[Any], without: Collection[int]) -> set[int]:
        """The `id`s of equations that compute something from variables, but for those of some."""
        found: set[int] = set()
        pending = list(values)
        while pending:
            for eqn in self.readers(pending.pop(), without):
                if id(eqn) not in found:
                    found.add(id(eqn))
                    pending += eqn.outvars
        return found

    def _add(self, eqn: Any, place: Place) -> None:
        self.place[id(eqn)], self._at[place] = place, eqn
        self._producers.update(dict.fromkeys(eqn.outvars, eqn))
        for v in variables(eqn.invars):
            self._readers.setdefault(v, {})[id(eqn)] = eqn

    def _remove(self, place: Place) -> None:
        eqn = self._at.pop(place)
        del self.place[id(eqn)]
        for v in eqn.outvars:
            self._producers.pop(v, None)
        for v in set(variables(eqn.invars)):
            del self._readers[v][id(eqn)]

    def _stored_by(self, eqn: Any) -> list[Any]:
        """The operands that an equation needs in memory."""
        after = [Uses(1, stored=v in self.stored) for v in eqn.outvars]
        pairs = zip(eqn.invars, operand_uses(eqn, after), strict=True)
        return [x for x, use in pairs if use.stored and not compat_jaxpr.is_literal(x)]

    def _store(self, pending: list[Any]) -> set[Any]:
        """Variables are in memory, and what they are other forms of; returns those that are new."""
        new = set()
        while pending:
            v = pending.pop()
            if v not in self.stored:
                self.stored.add(v)
                new.add(v)
                eqn = self.producer(v)
                pending += [] if eqn is None else self._stored_by(eqn)
        return new
