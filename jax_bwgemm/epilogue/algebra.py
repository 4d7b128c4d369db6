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

- Sums of three keep their order, but for multiples of one function (`_belong_together`). Terms with
  the same atoms and opposite signs stay where they are.
- A sum is never multiplied out. It takes a constant only if that cannot cost digits: a power of
  two, or where its terms have one sign (`_Rewriter._has_one_sign`).
- Values that are squared, or whose constant is far from one, are written first, and factors keep
  their order but for functions. A product overflows only if it would without these, which are at
  most one.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import struct
from collections import Counter

import numpy as np

from jax_bwgemm.epilogue.monomials import (
    ONE,
    Monomial,
    Sum,
    divided_by,
    in_range,
    scaled_by,
    shared_factors,
    times,
)
from jax_bwgemm.epilogue.program import Program, Step

_MOST_POWER = 8
# Sums within functions within sums, and so on: deeper ones are written as they are met.
_MOST_DEPTH = 24
# Programs without one of these are left as they are.
_FUNCTIONS = ("tanh", "logistic")
# Functions first: x s, which may be a result, is then part of x y s. Sums last: a product with
# one is then often part of another sum, in one instruction.
_ORDER_OF_FACTORS = ("logistic", "tanh", "value", "complement", "sum")
_LOG2_E = math.log2(math.e)
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
        self.steps: list[Step] = []
        self.known: dict[Step, int] = {}
        self.sums: dict[int, Sum] = {}  # old float32 values
        self.values: dict[int, int] = {}  # new numbers of the other old values
        # ("value", number), ("sum", argument), ("tanh", argument), ("logistic", argument), or
        # ("complement", atom) of an atom of the last kind. Arguments are indices of `arguments`.
        self.atoms: list[tuple[str, int]] = []
        self.arguments: list[Sum] = []
        self.depths: list[int] = []  # of atoms
        self.not_negative: set[int] = set()  # atoms of values
        self.written: dict[tuple[tuple[Monomial, float], ...], int] = {}
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
                self._define(number, self._emit(step.op, inputs, step.dtype, step.params))
            elif self.uses[number] > 1 and self._is_written_once(number, terms):
                self._define(number, self._write(terms))
            else:
                self.sums[number] = terms
        results = tuple(map(self._written, self.old.results))
        return dataclasses.replace(self.old, steps=tuple(self.steps), results=results)

    def _define(self, old: int, new: int) -> None:
        if self.old.dtype(old) == "float32":
            self.sums[old] = self._of_atom("value", new)
        else:
            self.values[old] = new

    def _of_atom(self, kind: str, what: int) -> Sum:
        if (kind, what) not in self.atoms:
            self.atoms.append((kind, what))
            match kind:
                case "value":
                    self.depths.append(0)
                case "complement":
                    self.depths.append(self.depths[what])
                case _:
                    self.depths.append(1 + self._depth(self.arguments[what]))
        return {((self.atoms.index((kind, what)), 1),): 1.0}

    def _depth(self, terms: Sum) -> int:
        return max((self.depths[atom] for term in terms for atom, _ in term), default=0)

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
        if self._is_atom(terms):
            return False
        return len(terms) > 1 or number in self.not_linear

    def _is_atom(self, terms: Sum) -> bool:
        """A power of an atom, or a constant, times a constant."""
        return len(terms) == 1 and all(len(term) <= 1 for term in terms)

    def _first_written(self, terms: Sum) -> Sum:
        atom = self._of_atom("value", self._write(terms))
        if min(terms.values()) > 0 and all(map(self._is_not_negative, terms)):
            ((((own, _),), _),) = atom.items()
            self.not_negative.add(own)
        return atom

    def _is_not_negative(self, term: Monomial) -> bool:
        """Whether this product surely is no negative number."""
        return all(
            power % 2 == 0
            or atom in self.not_negative
            or self.atoms[atom][0] in ("logistic", "complement")
            for atom, power in term
        )

    def _written(self, old: int) -> int:
        """The new number of an old value."""
        return self._write(self.sums[old]) if old in self.sums else self.values[old]

    # Sums of old steps.

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
                return self._of_atom(step.op, self._argument(terms[0]))
            case "one_minus_square" if len(terms[0]) == 1:
                square = self._to_the_power(terms[0], 2)
                return square and self._added({ONE: 1.0}, scaled_by(square, -1.0))
        return None

    def _argument(self, terms: Sum) -> int:
        if self._depth(terms) >= _MOST_DEPTH:
            terms = self._first_written(terms)
        if terms not in self.arguments:
            self.arguments.append(terms)
        return self.arguments.index(terms)

    def _product_of(self, one: Sum, other: Sum) -> Sum | None:
        for constant, terms in ((one, other), (other, one)):
            if set(constant) == {ONE}:
                c = constant[ONE]
                if not self._takes(terms, c):
                    terms = self._single(terms)
                return in_range(scaled_by(terms, c))
        one, other = self._factor(one), self._factor(other)
        ((left, x),), ((right, y),) = one.items(), other.items()
        if len(left) + len(right) > 2 and dict(left).keys() & dict(right).keys():
            (right,) = self._first_written({right: 1.0})
        product = times(left, right)
        return {product: x * y} if max(dict(product).values()) <= _MOST_POWER else None

    def _to_the_power(self, terms: Sum, power: int) -> Sum | None:
        base = self._factor(terms)
        if not self._is_atom(base):
            base = self._first_written(base)
        ((term, c),) = base.items()
        raised = tuple((atom, p * power) for atom, p in term)
        fits = all(p <= _MOST_POWER for _, p in raised)
        return in_range({raised: c**power}) if fits else None

    def _factor(self, terms: Sum) -> Sum:
        """A single term whose constant may be multiplied later."""
        terms = self._single(terms)
        (c,) = terms.values()
        return terms if 1 / _MOST_MOVED <= abs(c) <= _MOST_MOVED else self._first_written(terms)

    def _single(self, terms: Sum) -> Sum:
        """The same value as one term: a sum's common factors times an atom."""
        if len(terms) == 1:
            return terms
        common = self._common_factors(terms)
        ((((own, _),), _),) = self._of_atom(
            "sum", self._argument(divided_by(terms, common))
        ).items()
        return {(*common, (own, 1)): 1.0}

    def _takes(self, terms: Sum, c: float) -> bool:
        """Whether the terms may be multiplied by the constant one by one."""
        return len(terms) == 1 or math.frexp(abs(c))[0] == 0.5 or self._has_one_sign(terms)

    def _has_one_sign(self, terms: Sum) -> bool:
        """Whether all terms surely have the sign of the first, after what they have in common."""
        divided = divided_by(terms, shared_factors(terms))
        if min(divided.values()) < 0 < max(divided.values()):
            return False
        return all(map(self._is_not_negative, divided))

    def _added(self, one: Sum, other: Sum) -> Sum | None:
        for two, single in ((one, other), (other, one)):
            if len(two) == 2 and len(single) == 1:
                (third,) = single
                for rest, term in itertools.permutations(two):
                    pair = {term: two[term], third: single[third]}
                    if dict(term) != dict(third) and self._belong_together(pair):
                        return self._added({rest: two[rest]}, self._single(pair))
        one, other = self._single(one), self._single(other)
        ((left, x),), ((right, y),) = one.items(), other.items()
        if dict(left) != dict(right):
            return self._by_logistic({left: x, right: y})
        return in_range({left: x + y}) if x * y > 0 else None

    def _belong_together(self, pair: Sum) -> bool:
        """Whether two of three terms are added first, wherever they stand in the sum.

        They are multiples of one function, so that their own errors exceed what the order of
        additions changes, and they do not cancel.
        """
        common = shared_factors(pair)
        functions = any(self.atoms[atom][0] not in ("value", "sum") for atom, _ in common)
        return functions and self._has_one_sign(pair)

    def _by_logistic(self, total: Sum) -> Sum:
        """``c (1 + tanh)``, ``c (1 - tanh)``, ``c (1 - tanh^2)``, ``c (1 - logistic)``."""
        if len(total) != 2 or ONE not in total:
            return total
        (term,) = set(total) - {ONE}
        c, sign = total[ONE], total[term] / total[ONE]
        if len(term) != 1 or abs(sign) != 1.0:
            return total
        ((atom, power),) = term
        kind, what = self.atoms[atom]
        if kind == "logistic" and (power, sign) == (1, -1.0):
            return scaled_by(self._of_atom("complement", atom), c)
        if kind != "tanh" or (power, sign) not in ((1, 1.0), (1, -1.0), (2, -1.0)):
            return total
        twice = self._argument(scaled_by(self.arguments[what], 2.0))
        logistic = self._of_atom("logistic", twice)
        ((((own, _),), _),) = logistic.items()
        complement = self._of_atom("complement", own)
        if power == 1:
            return scaled_by(logistic if sign == 1.0 else complement, 2 * c)
        return scaled_by({times(*logistic, *complement): 1.0}, 4 * c)

    # Sums, written as steps.

    def _emit(
        self, op: str, inputs: tuple[int, ...], dtype: str = "float32", params: tuple = ()
    ) -> int:
        step = Step(op, inputs, dtype, params)
        if step not in self.known:
            self.known[step] = self.first + len(self.steps)
            self.steps.append(step)
        return self.known[step]

    def _literal(self, value: float) -> int:
        return self._emit("literal", (), params=(("value", np.float32(value).tobytes().hex()),))

    def _value_of(self, atom: int) -> int:
        kind, what = self.atoms[atom]
        match kind:
            case "value":
                return what
            case "sum":
                return self._write(self.arguments[what])
            case "complement":
                return self._emit("sub", (self._literal(1.0), self._value_of(what)))
            case "tanh":
                return self._emit("tanh", (self._write(self.arguments[what]),))
        terms = self.arguments[what]
        argument = self._product_of(terms, {ONE: -_LOG2_E})
        if argument is None:
            argument = scaled_by(self._first_written(terms), -_LOG2_E)
        return self._emit("logistic_of_log2", (self._write(argument),))

    def _power(self, atom: int, power: int) -> int:
        value = self._value_of(atom)
        if power == 1:
            return value
        half = self._power(atom, power // 2)
        square = self._emit("mul", (half, half))
        return self._emit("mul", (square, value)) if power % 2 else square

    def _product(self, term: Monomial) -> int | None:
        """None: one."""
        complement = self._complement_in(term)
        product = None
        for atom, power in sorted(term, key=self._place_in_product):  # stable
            if atom == complement:  # y t = y - y s: one instruction
                assert product is not None, "s comes before t"
                part = self._emit("mul", (product, self._value_of(self.atoms[atom][1])))
                product = self._emit("sub", (product, part))
                continue
            factor = self._power(atom, power)
            product = factor if product is None else self._emit("mul", (product, factor))
        return product

    def _place_in_product(self, item: tuple[int, int]) -> int:
        return _ORDER_OF_FACTORS.index(self.atoms[item[0]][0])

    def _complement_in(self, term: Monomial) -> int | None:
        """The ``t`` of a term with the factors ``s`` and ``t``, of which ``t`` is no power."""
        powers = dict(term)
        for atom, power in term:
            kind, what = self.atoms[atom]
            if kind == "complement" and power == 1 and what in powers:
                return atom
        return None

    def _with_constant_inside(self, term: Monomial, c: float) -> tuple[Monomial, float]:
        """The product of both: a sum that is a factor takes the constant, if there is one."""
        for i, (atom, power) in enumerate(term):
            kind, what = self.atoms[atom]
            if kind == "sum" and power == 1 and self._takes(self.arguments[what], c):
                scaled = in_range(scaled_by(self.arguments[what], c))
                if scaled is not None:
                    (((own, _),),) = self._of_atom("sum", self._argument(scaled))
                    return (*term[:i], *term[i + 1 :], (own, 1)), 1.0
        return term, c

    def _has_complement(self, atom: int) -> bool:
        return ("complement", atom) in self.atoms

    def _write(self, terms: Sum) -> int:
        key = tuple(terms.items())
        if key not in self.written:
            self.written[key] = self._write_sum(terms) if len(terms) > 1 else self._write_term(*key)
        return self.written[key]

    def _write_term(self, item: tuple[Monomial, float]) -> int:
        term, c = item
        if abs(c) != 1.0:
            term, c = self._with_constant_inside(term, c)
        product = self._product(term)
        if product is None:
            return self._literal(c)
        if abs(c) == 1.0:
            return product if c > 0 else self._emit("neg", (product,))
        return self._emit("mul", (product, self._literal(c)))

    def _write_sum(self, terms: Sum) -> int:
        if common := self._common_factors(terms):
            factor = self._product(common)
            assert factor is not None
            return self._emit("mul", (self._write(divided_by(terms, common)), factor))
        one, other = ({term: c} for term, c in terms.items())
        return self._emit("add", (self._write(one), self._write(other)))

    def _common_factors(self, terms: Sum) -> Monomial:
        """What is taken out of a sum. Where one term alone has ``t``, ``s`` remains beside it."""
        common = shared_factors(terms)
        if len({self._complement_in(term) is None for term in terms}) > 1:
            common = tuple(x for x in common if not self._has_complement(x[0]))
        return common
