"""Sums of products, written as the steps of a program: common factors first, nothing twice."""

from __future__ import annotations

import math

import numpy as np

from jax_bwgemm.epilogue.atoms import Atoms
from jax_bwgemm.epilogue.monomials import Monomial, Sum, divided_by, in_range, scaled_by
from jax_bwgemm.epilogue.program import Step

# Sums within functions within sums, and so on: deeper ones are written as they are met.
_MOST_DEPTH = 24
_LOG2_E = math.log2(math.e)


class TermWriter:
    """Writes values as they are needed.

    Attributes:
        atoms: What the sums consist of.
        steps: What was written.
    """

    def __init__(self, first: int) -> None:
        """first: the number of the value that the first step computes."""
        self.atoms = Atoms()
        self.steps: list[Step] = []
        self._first = first
        self._numbers: dict[Step, int] = {}
        self._written: dict[tuple[tuple[Monomial, float], ...], int] = {}

    def emit(
        self, op: str, inputs: tuple[int, ...], dtype: str = "float32", params: tuple = ()
    ) -> int:
        """The number of a step's value; the step is added unless it is there."""
        step = Step(op, inputs, dtype, params)
        if step not in self._numbers:
            self._numbers[step] = self._first + len(self.steps)
            self.steps.append(step)
        return self._numbers[step]

    def write(self, terms: Sum) -> int:
        """The number of a sum's value."""
        key = tuple(terms.items())
        if key not in self._written:
            self._written[key] = self._sum(terms) if len(terms) > 1 else self._term(*key)
        return self._written[key]

    def written(self, terms: Sum) -> Sum:
        """The same as an atom whose value is written now."""
        atom = self.atoms.of("value", self.write(terms))
        if min(terms.values()) > 0 and all(map(self.atoms.is_not_negative, terms)):
            ((((own, _),), _),) = atom.items()
            self.atoms.note_not_negative(own)
        return atom

    def single(self, terms: Sum) -> Sum:
        """The same as one term: a sum's common factors times an atom."""
        if len(terms) == 1:
            return terms
        common = self.atoms.common_factors(terms)
        rest = self.of_function("sum", divided_by(terms, common))
        ((((own, _),), _),) = rest.items()
        return {(*common, (own, 1)): 1.0}

    def of_function(self, kind: str, terms: Sum) -> Sum:
        """An atom of one of the kinds that have an argument."""
        if self.atoms.depth(terms) >= _MOST_DEPTH:
            terms = self.written(terms)
        return self.atoms.of(kind, self.atoms.argument(terms))

    def multiplied(self, terms: Sum, c: float) -> Sum | None:
        """A sum times a constant; None where float32 has no such factor."""
        if not self.atoms.takes(terms, c):
            terms = self.single(terms)
        return in_range(scaled_by(terms, c))

    def _literal(self, value: float) -> int:
        return self.emit("literal", (), params=(("value", np.float32(value).tobytes().hex()),))

    def _sum(self, terms: Sum) -> int:
        if common := self.atoms.common_factors(terms):
            factor = self._product(common)
            assert factor is not None
            return self.emit("mul", (self.write(divided_by(terms, common)), factor))
        one, other = ({term: c} for term, c in terms.items())
        return self.emit("add", (self.write(one), self.write(other)))

    def _term(self, item: tuple[Monomial, float]) -> int:
        term, c = item
        if abs(c) != 1.0:
            term, c = self._with_constant_inside(term, c)
        product = self._product(term)
        if product is None:
            return self._literal(c)
        if abs(c) == 1.0:
            return product if c > 0 else self.emit("neg", (product,))
        return self.emit("mul", (product, self._literal(c)))

    def _with_constant_inside(self, term: Monomial, c: float) -> tuple[Monomial, float]:
        """The product of both: a sum that is a factor takes the constant, if there is one."""
        for i, (atom, power) in enumerate(term):
            kind, what = self.atoms.kinds[atom]
            if kind == "sum" and power == 1 and self.atoms.takes(self.atoms.arguments[what], c):
                scaled = in_range(scaled_by(self.atoms.arguments[what], c))
                if scaled is not None:
                    (((own, _),),) = self.of_function("sum", scaled)
                    return (*term[:i], *term[i + 1 :], (own, 1)), 1.0
        return term, c

    def _product(self, term: Monomial) -> int | None:
        """None: one."""
        complement = self.atoms.complement_in(term)
        product = None
        for atom, power in self.atoms.in_order(term):
            if atom == complement:  # y t = y - y s: one instruction
                assert product is not None, "s comes before t"
                part = self.emit("mul", (product, self._value(self.atoms.kinds[atom][1])))
                product = self.emit("sub", (product, part))
                continue
            factor = self._power(atom, power)
            product = factor if product is None else self.emit("mul", (product, factor))
        return product

    def _power(self, atom: int, power: int) -> int:
        value = self._value(atom)
        if power == 1:
            return value
        half = self._power(atom, power // 2)
        square = self.emit("mul", (half, half))
        return self.emit("mul", (square, value)) if power % 2 else square

    def _value(self, atom: int) -> int:
        kind, what = self.atoms.kinds[atom]
        match kind:
            case "value":
                return what
            case "sum":
                return self.write(self.atoms.arguments[what])
            case "complement":
                return self.emit("sub", (self._literal(1.0), self._value(what)))
            case "tanh":
                return self.emit("tanh", (self.write(self.atoms.arguments[what]),))
        terms = self.atoms.arguments[what]
        argument = self.multiplied(terms, -_LOG2_E)
        if argument is None:
            argument = scaled_by(self.written(terms), -_LOG2_E)
        return self.emit("logistic_of_log2", (self.write(argument),))
