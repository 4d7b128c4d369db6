"""Sums of products as numbers: what `algebra` calculates with."""

from __future__ import annotations

import numpy as np

# Atoms of a product and their powers, in the order in which they are multiplied.
Monomial = tuple[tuple[int, int], ...]
# No two products have the same powers.
Sum = dict[Monomial, float]
ONE: Monomial = ()
# Factors that are finite and normal in float32, also after one of `algebra`'s own.
_LEAST, _MOST = (float(x) for x in (np.finfo(np.float32).tiny * 8, np.finfo(np.float32).max / 8))


def in_range(terms: Sum) -> Sum | None:
    """The sum itself; None where a factor, which is computed in more digits, is none of float32."""
    return terms if all(_LEAST <= abs(c) <= _MOST for c in terms.values()) else None


def scaled_by(terms: Sum, c: float) -> Sum:
    return {term: x * c for term, x in terms.items()}


def times(one: Monomial, other: Monomial) -> Monomial:
    """In the order in which atoms appear."""
    powers = dict(one)
    for atom, power in other:
        powers[atom] = powers.get(atom, 0) + power
    return tuple(powers.items())


def shared_factors(terms: Sum) -> Monomial:
    """What all terms are multiples of."""
    powers = [dict(term) for term in terms]
    shared = set.intersection(*(set(p) for p in powers))
    return tuple((atom, min(p[atom] for p in powers)) for atom in powers[0] if atom in shared)


def divided_by(terms: Sum, by: Monomial) -> Sum:
    less = dict(by)
    return {
        tuple((a, p - less.get(a, 0)) for a, p in term if p > less.get(a, 0)): c
        for term, c in terms.items()
    }
