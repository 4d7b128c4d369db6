"""The factors of the products of `algebra`, and what is known of them before they are computed."""

from __future__ import annotations

import math

from jax_bwgemm.epilogue.monomials import Monomial, Sum, divided_by, shared_factors

# Functions first: x s, which may be a result, is then part of x y s. Sums last: a product with
# one is then often part of another sum, in one instruction.
_ORDER_OF_FACTORS = ("logistic", "tanh", "value", "complement", "sum")


class Atoms:
    """The atoms of one program; their numbers are what a `Monomial` has.

    Attributes:
        kinds: ``("value", number)`` of the new program, ``("sum", argument)``, ``("tanh",
            argument)``, ``("logistic", argument)``, or ``("complement", atom)``: one minus an atom
            of the kind before. An argument is an index of `arguments`.
        arguments: Sums.
    """

    def __init__(self) -> None:
        self.kinds: list[tuple[str, int]] = []
        self.arguments: list[Sum] = []
        self._depths: list[int] = []
        self._not_negative: set[int] = set()  # of kind "value"

    def of(self, kind: str, what: int) -> Sum:
        """An atom as a sum."""
        if (kind, what) not in self.kinds:
            self.kinds.append((kind, what))
            match kind:
                case "value":
                    self._depths.append(0)
                case "complement":
                    self._depths.append(self._depths[what])
                case _:
                    self._depths.append(1 + self.depth(self.arguments[what]))
        return {((self.kinds.index((kind, what)), 1),): 1.0}

    def argument(self, terms: Sum) -> int:
        """The index of a sum in `arguments`."""
        if terms not in self.arguments:
            self.arguments.append(terms)
        return self.arguments.index(terms)

    def depth(self, terms: Sum) -> int:
        """How many sums and functions lie within each other."""
        return max((self._depths[atom] for term in terms for atom, _ in term), default=0)

    def note_not_negative(self, atom: int) -> None:
        """Records that a value surely is no negative number."""
        self._not_negative.add(atom)

    def is_not_negative(self, term: Monomial) -> bool:
        """Whether this product surely is no negative number."""
        return all(
            power % 2 == 0
            or atom in self._not_negative
            or self.kinds[atom][0] in ("logistic", "complement")
            for atom, power in term
        )

    def has_one_sign(self, terms: Sum) -> bool:
        """Whether all terms surely have the sign of the first, after what they have in common."""
        divided = divided_by(terms, shared_factors(terms))
        if min(divided.values()) < 0 < max(divided.values()):
            return False
        return all(map(self.is_not_negative, divided))

    def takes(self, terms: Sum, c: float) -> bool:
        """Whether the terms may be multiplied by the constant one by one."""
        return len(terms) == 1 or math.frexp(abs(c))[0] == 0.5 or self.has_one_sign(terms)

    def belong_together(self, pair: Sum) -> bool:
        """Whether two of three terms are added first, wherever they stand in the sum.

        They are multiples of one function, so that their own errors exceed what the order of
        additions changes, and they do not cancel.
        """
        common = shared_factors(pair)
        functions = any(self.kinds[atom][0] not in ("value", "sum") for atom, _ in common)
        return functions and self.has_one_sign(pair)

    def in_order(self, term: Monomial) -> Monomial:
        """The factors of a product as they are multiplied; of one kind, as they were met."""
        return tuple(sorted(term, key=lambda x: _ORDER_OF_FACTORS.index(self.kinds[x[0]][0])))

    def complement_in(self, term: Monomial) -> int | None:
        """The ``t`` of a term with the factors ``s`` and ``t``, of which ``t`` is no power."""
        powers = dict(term)
        for atom, power in term:
            kind, what = self.kinds[atom]
            if kind == "complement" and power == 1 and what in powers:
                return atom
        return None

    def common_factors(self, terms: Sum) -> Monomial:
        """What is taken out of a sum. Where one term alone has ``t``, ``s`` remains beside it."""
        common = shared_factors(terms)
        if len({self.complement_in(term) is None for term in terms}) > 1:
            common = tuple(x for x in common if ("complement", x[0]) not in self.kinds)
        return common
