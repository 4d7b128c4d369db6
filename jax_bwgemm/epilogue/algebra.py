"""Program to program, for kernels whose results are of 16 bits: activations in few operations.

Every float32 value is kept as one or two products of *atoms* (operands, results of other functions,
sums of two products) while it passes through sums, products and powers, and is written out where
something else needs it: common factors first, so that ``x + a x^3`` becomes ``x (1 + a x^2)``, and
constants meet before they are multiplied with anything. ``1 + tanh(u)`` is ``2 s`` and
``1 - tanh(u)^2`` is ``4 s t`` with ``s = logistic(2 u)``, ``t = 1 - s``: derivatives share the
function's exponential. A product ``y t`` of which ``y`` has the factor ``s`` is written as
``y - y s``, one instruction: ``x s``, where it is a result, then serves its derivative
``s + x s t`` too.

Rounding changes by a few units of float32, of the result:

- Sums of three keep their order, but for multiples of one function (`Atoms.belong_together`).
  Terms with the same atoms and opposite signs stay where they are.
- A sum is never multiplied out. It takes a constant only if that cannot cost digits: a power of
  two, or where its terms have one sign (`Atoms.has_one_sign`).
- Values that are squared, or whose constant is far from one, are written first, and factors keep
  their order but for functions. A product overflows only if it would without these, which are at
  most one.
"""

from __future__ import annotations

import dataclasses
import itertools
import struct
from collections import Counter

from jax_bwgemm.epilogue.monomials import ONE, Sum, in_range, scaled_by, times
from jax_bwgemm.epilogue.program import Program, Step
from jax_bwgemm.epilogue.term_writer import TermWriter

_MOST_POWER = 8
# Programs without one of these are left as they are.
_FUNCTIONS = ("tanh", "logistic")
# Constants up to this, and down to its reciprocal, may be multiplied later than they were.
_MOST_MOVED = 256.0


def in_few_operations(program: Program) -> Program:
    """The same function but for roundings of float32; see above."""
    if not any(step.op in _FUNCTIONS for step in program.steps):
        return program
    return _Rewriter(program).run()


class _Rewriter:
    """One program's rewriting. Values of the new program have numbers as `Program` says."""

    def __init__(self, program: Program) -> None:
        self.old = program
        self.first = 1 + len(program.operands)
        self.writer = TermWriter(self.first)
        self.atoms = self.writer.atoms
        self.sums: dict[int, Sum] = {}  # old float32 values
        self.values: dict[int, int] = {}  # new numbers of the other old values
        reads = [x for step in program.steps for x in step.inputs]
        self.uses = Counter([*reads, *program.results])
        self.not_linear = {x for step in program.steps for x in self._not_linear_in(step)}
        self.not_linear.update(program.results)

    def run(self) -> Program:
        for value in range(self.first):
            self._define(value, value)
        for number, step in enumerate(self.old.steps, self.first):
            terms = self._sum_of(step) if step.dtype == "float32" else None
            if terms is None:
                inputs = tuple(map(self._written, step.inputs))
                self._define(number, self.writer.emit(step.op, inputs, step.dtype, step.params))
            elif self.uses[number] > 1 and self._is_written_once(number, terms):
                self._define(number, self.writer.write(terms))
            else:
                self.sums[number] = terms
        results = tuple(map(self._written, self.old.results))
        steps = tuple(self.writer.steps)
        return dataclasses.replace(self.old, steps=steps, results=results)

    def _define(self, old: int, new: int) -> None:
        if self.old.dtype(old) == "float32":
            self.sums[old] = self.atoms.of("value", new)
        else:
            self.values[old] = new

    def _written(self, old: int) -> int:
        """The new number of an old value."""
        return self.writer.write(self.sums[old]) if old in self.sums else self.values[old]

    def _not_linear_in(self, step: Step) -> tuple[int, ...]:
        """The inputs of a step that neither adds them nor multiplies them by a constant."""
        if step.op in ("add", "add_any", "sub", "neg"):
            return ()
        ops = [self.old.steps[x - self.first].op if x >= self.first else "" for x in step.inputs]
        return () if step.op == "mul" and "literal" in ops else step.inputs

    def _is_written_once(self, number: int, terms: Sum) -> bool:
        """Whether a value with several uses is written before the first.

        Else each use multiplies its factors again, and programs would grow. A product that is only
        added is not: a derivative may find what its terms have in common.
        """
        if _is_atom(terms):
            return False
        return len(terms) > 1 or number in self.not_linear

    def _sum_of(self, step: Step) -> Sum | None:
        """A step's result as a sum; None of an operation that has none."""
        if any(x not in self.sums for x in step.inputs):
            return None
        terms = [self.sums[x] for x in step.inputs]
        match step.op:
            case "literal":
                (value,) = struct.unpack("<f", bytes.fromhex(str(step.param("value"))))
                return in_range({ONE: value})
            case "neg":
                return scaled_by(terms[0], -1.0)
            case "add" | "add_any":
                return self._added(*terms)
            case "sub":
                return self._added(terms[0], scaled_by(terms[1], -1.0))
            case "mul":
                return self._product_of(*terms)
            case "square":
                return self._to_the_power(terms[0], 2)
            case "integer_pow" if 1 <= int(str(step.param("y"))) <= 4:
                return self._to_the_power(terms[0], int(str(step.param("y"))))
            case "tanh" | "logistic":
                return self.writer.of_function(step.op, terms[0])
            case "one_minus_square" if len(terms[0]) == 1:
                square = self._to_the_power(terms[0], 2)
                return square and self._added({ONE: 1.0}, scaled_by(square, -1.0))
        return None

    def _product_of(self, one: Sum, other: Sum) -> Sum | None:
        for constant, terms in ((one, other), (other, one)):
            if set(constant) == {ONE}:
                return self.writer.multiplied(terms, constant[ONE])
        one, other = self._factor(one), self._factor(other)
        ((left, x),), ((right, y),) = one.items(), other.items()
        if len(left) + len(right) > 2 and dict(left).keys() & dict(right).keys():
            (right,) = self.writer.written({right: 1.0})
        product = times(left, right)
        return {product: x * y} if max(dict(product).values()) <= _MOST_POWER else None

    def _to_the_power(self, terms: Sum, power: int) -> Sum | None:
        base = self._factor(terms)
        if not _is_atom(base):
            base = self.writer.written(base)
        ((term, c),) = base.items()
        raised = tuple((atom, p * power) for atom, p in term)
        fits = all(p <= _MOST_POWER for _, p in raised)
        return in_range({raised: c**power}) if fits else None

    def _factor(self, terms: Sum) -> Sum:
        """A single term whose constant may be multiplied later."""
        terms = self.writer.single(terms)
        (c,) = terms.values()
        return terms if 1 / _MOST_MOVED <= abs(c) <= _MOST_MOVED else self.writer.written(terms)

    def _added(self, one: Sum, other: Sum) -> Sum | None:
        for two, single in ((one, other), (other, one)):
            if len(two) == 2 and len(single) == 1:
                (third,) = single
                for rest, term in itertools.permutations(two):
                    pair = {term: two[term], third: single[third]}
                    if dict(term) != dict(third) and self.atoms.belong_together(pair):
                        return self._added({rest: two[rest]}, self.writer.single(pair))
        one, other = self.writer.single(one), self.writer.single(other)
        ((left, x),), ((right, y),) = one.items(), other.items()
        if dict(left) != dict(right):
            return self._by_logistic({left: x, right: y})
        return in_range({left: x + y}) if x * y > 0 else None

    def _by_logistic(self, total: Sum) -> Sum:
        """``c (1 + tanh)``, ``c (1 - tanh)``, ``c (1 - tanh^2)``, ``c (1 - logistic)``."""
        if len(total) != 2 or ONE not in total:
            return total
        (term,) = set(total) - {ONE}
        c, sign = total[ONE], total[term] / total[ONE]
        if len(term) != 1 or abs(sign) != 1.0:
            return total
        ((atom, power),) = term
        kind, what = self.atoms.kinds[atom]
        if kind == "logistic" and (power, sign) == (1, -1.0):
            return scaled_by(self.atoms.of("complement", atom), c)
        if kind != "tanh" or (power, sign) not in ((1, 1.0), (1, -1.0), (2, -1.0)):
            return total
        logistic = self.writer.of_function("logistic", scaled_by(self.atoms.arguments[what], 2.0))
        ((((own, _),), _),) = logistic.items()
        complement = self.atoms.of("complement", own)
        if power == 1:
            return scaled_by(logistic if sign == 1.0 else complement, 2 * c)
        return scaled_by({times(*logistic, *complement): 1.0}, 4 * c)


def _is_atom(terms: Sum) -> bool:
    """A power of an atom, or a constant, times a constant."""
    return len(terms) == 1 and all(len(term) <= 1 for term in terms)
