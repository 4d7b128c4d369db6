"""Program to program, for kernels whose results are of 16 bits: activations in few operations.

Every float32 value is kept as a sum of products of *atoms* (operands, results of other functions)
while it passes through sums, products and powers, and is written out where something else needs it:
common factors first, so that ``x + a x^3`` becomes ``x (1 + a x^2)``, and constants meet before
they are multiplied with anything. ``1 + tanh(u)`` is ``2 s`` and ``1 - tanh(u)^2`` is ``4 s t``
with ``s = logistic(2 u)``, ``t = 1 - s``: derivatives share the function's exponential. A product
``y t`` of which ``y`` has the factor ``s`` is written as ``y - y s``, one instruction: ``x s``,
where it is a result, then serves its derivative ``s + x s t`` too.

Rounding changes by a few units of float32. Nothing cancels that did not before: sums are never
multiplied out, and terms with the same atoms and opposite signs stay where they are.
"""

from __future__ import annotations

import dataclasses
import math
import struct
from collections import Counter
from collections.abc import Iterable

import numpy as np

from jax_bwgemm.epilogue.program import Program, Step

# Atoms of a product and their powers, in order.
Monomial = tuple[tuple[int, int], ...]
Sum = dict[Monomial, float]
_ONE: Monomial = ()
_MOST_TERMS, _MOST_POWER = 6, 8
# Programs without one of these are left as they are.
_FUNCTIONS = ("tanh", "logistic")
# Functions first: x s, which may be a result, is then part of x y s. Sums last: a product with
# one is then often part of another sum, in one instruction.
_ORDER_OF_FACTORS = ("logistic", "tanh", "value", "complement", "sum")
_LOG2_E = math.log2(math.e)
# Factors that are finite and normal in float32, also after one of those of `_by_logistic`.
_LEAST, _MOST = (float(x) for x in (np.finfo(np.float32).tiny * 8, np.finfo(np.float32).max / 8))


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
        reads = [x for step in program.steps for x in step.inputs]
        self.uses = Counter([*reads, *program.results])

    def run(self) -> Program:
        for value in range(self.first):
            self._define(value, value)
        for number, step in enumerate(self.old.steps, self.first):
            terms = self._sum_of(step) if step.dtype == "float32" else None
            if terms is None:
                inputs = tuple(map(self._written, step.inputs))
                self._define(number, self._emit(step.op, inputs, step.dtype, step.params))
            elif len(terms) > 1 and self.uses[number] > 1:
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
        return {((self.atoms.index((kind, what)), 1),): 1.0}

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
                return _in_range({_ONE: value})
            case "neg":
                return _scaled(terms[0], -1.0)
            case "add" | "add_any":
                return self._added(*terms)
            case "sub":
                return self._added(terms[0], _scaled(terms[1], -1.0))
            case "mul":
                return self._multiplied(step.inputs)
            case "square":
                return self._multiplied((step.inputs[0],) * 2)
            case "integer_pow" if 1 <= int(str(step.param("y"))) <= 4:
                return self._multiplied(step.inputs * int(str(step.param("y"))))
            case "tanh" | "logistic":
                return self._of_atom(step.op, self._argument(terms[0]))
            case "one_minus_square" if len(terms[0]) == 1:
                square = self._multiplied(step.inputs * 2)
                return square and self._added({_ONE: 1.0}, _scaled(square, -1.0))
        return None

    def _argument(self, terms: Sum) -> int:
        if terms not in self.arguments:
            self.arguments.append(terms)
        return self.arguments.index(terms)

    def _multiplied(self, values: Iterable[int]) -> Sum | None:
        """Products of single terms; sums become atoms, but for those times a constant."""
        product: Sum = {_ONE: 1.0}
        for value in values:
            terms = self.sums[value]
            if len(product) > 1 or (len(terms) > 1 and set(product) != {_ONE}):
                product, terms = self._single(product), self._single(terms)
            product = {
                _times(one, other): x * y
                for one, x in product.items()
                for other, y in terms.items()
            }
        powers = [power for term in product for _, power in term]
        return _in_range(product) if max(powers, default=0) <= _MOST_POWER else None

    def _single(self, terms: Sum) -> Sum:
        return terms if len(terms) == 1 else self._of_atom("sum", self._argument(terms))

    def _added(self, one: Sum, other: Sum) -> Sum | None:
        shared = set(one) & set(other)
        if any(one[term] * other[term] < 0 for term in shared):
            return None
        total = {term: one.get(term, 0.0) + other.get(term, 0.0) for term in {**one, **other}}
        if len(total) > _MOST_TERMS or not _in_range(total):
            return None
        return self._by_logistic(total)

    def _by_logistic(self, total: Sum) -> Sum:
        """``c (1 + tanh)``, ``c (1 - tanh)``, ``c (1 - tanh^2)``, ``c (1 - logistic)``."""
        if len(total) != 2 or _ONE not in total:
            return total
        (term,) = set(total) - {_ONE}
        c, sign = total[_ONE], total[term] / total[_ONE]
        if len(term) != 1 or abs(sign) != 1.0:
            return total
        ((atom, power),) = term
        kind, what = self.atoms[atom]
        if kind == "logistic" and (power, sign) == (1, -1.0):
            return _scaled(self._of_atom("complement", atom), c)
        if kind != "tanh" or (power, sign) not in ((1, 1.0), (1, -1.0), (2, -1.0)):
            return total
        twice = self._argument(_scaled(self.arguments[what], 2.0))
        logistic = self._of_atom("logistic", twice)
        ((((own, _),), _),) = logistic.items()
        complement = self._of_atom("complement", own)
        if power == 1:
            return _scaled(logistic if sign == 1.0 else complement, 2 * c)
        return _scaled({_times(*logistic, *complement): 1.0}, 4 * c)

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
        argument = _scaled(self.arguments[what], -_LOG2_E)
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
        for atom, power in sorted(term, key=self._place_in_product):
            if atom == complement:  # y t = y - y s: one instruction
                assert product is not None, "s comes before t"
                part = self._emit("mul", (product, self._value_of(self.atoms[atom][1])))
                product = self._emit("sub", (product, part))
                continue
            factor = self._power(atom, power)
            product = factor if product is None else self._emit("mul", (product, factor))
        return product

    def _place_in_product(self, item: tuple[int, int]) -> tuple[int, int]:
        atom, _ = item
        return _ORDER_OF_FACTORS.index(self.atoms[atom][0]), -atom

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
            scaled = _in_range(_scaled(self.arguments[what], c)) if kind == "sum" else None
            if power == 1 and scaled is not None:
                (((own, _),),) = self._of_atom("sum", self._argument(scaled))
                return (*term[:i], *term[i + 1 :], (own, 1)), 1.0
        return term, c

    def _has_complement(self, atom: int) -> bool:
        return ("complement", atom) in self.atoms

    def _write(self, terms: Sum) -> int:
        if len(terms) == 1:
            ((term, c),) = terms.items()
            if abs(c) != 1.0:
                term, c = self._with_constant_inside(term, c)
            product = self._product(term)
            if product is None:
                return self._literal(c)
            if abs(c) == 1.0:
                return product if c > 0 else self._emit("neg", (product,))
            return self._emit("mul", (product, self._literal(c)))
        pairs = {t: c for t, c in terms.items() if self._complement_in(t) is not None}
        rest = {t: c for t, c in terms.items() if t not in pairs}
        common = _common(terms)
        if pairs and rest:  # s remains beside its t
            common = tuple(x for x in common if not self._has_complement(x[0]))
        if common:
            factor = self._product(common)
            assert factor is not None
            return self._emit("mul", (self._write(_divided(terms, common)), factor))
        if pairs and rest:
            return self._emit("add", (self._write(pairs), self._write(rest)))
        # Of the terms with the atom that most of them have, what they share; the rest is added.
        counts = Counter(atom for term in terms for atom, _ in term)
        atom, count = counts.most_common(1)[0]
        own = {t: c for t, c in terms.items() if atom in dict(t)}
        if count == 1:
            own = dict([next((t, c) for t, c in terms.items() if t)])
        rest = {t: c for t, c in terms.items() if t not in own}
        return self._emit("add", (self._write(own), self._write(rest)))


def _in_range(terms: Sum) -> Sum | None:
    """The sum itself; None where a factor, which is computed in more digits, is none of float32."""
    return terms if all(_LEAST <= abs(c) <= _MOST for c in terms.values()) else None


def _scaled(terms: Sum, by: float) -> Sum:
    return {term: c * by for term, c in terms.items()}


def _times(one: Monomial, other: Monomial) -> Monomial:
    powers = Counter(dict(one))
    powers.update(dict(other))
    return tuple(sorted(powers.items()))


def _common(terms: Sum) -> Monomial:
    """What all terms are multiples of."""
    powers = [dict(term) for term in terms]
    shared = set.intersection(*(set(p) for p in powers))
    return tuple((atom, min(p[atom] for p in powers)) for atom in sorted(shared))


def _divided(terms: Sum, by: Monomial) -> Sum:
    less = dict(by)
    return {
        tuple((a, p - less.get(a, 0)) for a, p in term if p > less.get(a, 0)): c
        for term, c in terms.items()
    }
