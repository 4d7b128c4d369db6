"""Products that a program computes twice, as when a metric runs the model again that the loss ran.

XLA computes equal operations once. Kernels of ours that write different results beside the product
(an activation alone, or its slope too) are different to it, so the program says itself which values
are equal.

Values are numbered (global value numbering): equal numbers, equal values. What checkpoint computes
again is kept apart, since that is what it is for.
"""

from __future__ import annotations

import collections
from collections.abc import Hashable
from typing import Any

from jax_bwgemm import compat_jaxpr
from jax_bwgemm.rewriting.comparable import CALLS, UNIQUE, is_jaxs, literal_key, place_of
from jax_bwgemm.rewriting.dataflow import variables
from jax_bwgemm.rewriting.inlining import placed_anew
from jax_bwgemm.rewriting.products import PRODUCTS


def without_duplicates(body: Any) -> Any:
    """A jaxpr in which equal products are one, the same object where all differ.

    Calls of jit that hold one of several equal products run in place, unless jit is told more than
    what to run: shardings, donation, options.

    Args:
        body: An open jaxpr.
    """
    if _overwrites(body):
        return body  # the value would be another's too
    numbers = _Numbers(body)
    # What one call computes twice is for the rewriting of its body.
    found = [n for eqn in body.eqns for n in set(numbers.products(eqn))]
    several = {n for n, count in collections.Counter(found).items() if count > 1}
    if not several:
        return body
    first: dict[int, Any] = {}  # by number, the first variable of the value
    names: dict[Any, Any] = {}  # by a later variable, the first one

    def renamed(atoms: list[Any]) -> list[Any]:
        return [x if compat_jaxpr.is_literal(x) else names.get(x, x) for x in atoms]

    eqns = []
    for eqn in [one for call in body.eqns for one in _flat(call, numbers, several)]:
        for v, n in zip(eqn.outvars, numbers.define(eqn), strict=True):
            if compat_jaxpr.is_unread(v):
                continue
            same = first.setdefault(n, v)
            if same is not v and same.aval == v.aval:
                names[v] = same
        if not names.keys().isdisjoint(variables(eqn.invars)):
            eqn = eqn.replace(invars=renamed(eqn.invars))
        eqns.append(eqn)
    results = renamed(body.outvars)
    return body.replace(eqns=_alive(eqns, results), outvars=results)


def _flat(eqn: Any, numbers: _Numbers, several: set[int]) -> list[Any]:
    """The equations in place of one: a call's own if it holds one of several equal products."""
    if eqn.primitive.name not in CALLS or several.isdisjoint(numbers.products(eqn)):
        return [eqn]
    called = eqn.params[CALLS[eqn.primitive.name]]
    plain = compat_jaxpr.only_groups(eqn) and not _overwrites(compat_jaxpr.opened(called))
    inner = placed_anew(called, eqn) if plain else None
    if inner is None:
        return [eqn]
    for one in inner:
        numbers.define(one)
    return [new for one in inner for new in _flat(one, numbers, several)]


def _overwrites(body: Any) -> bool:
    """Whether a jaxpr donates values to a call."""
    return any(any(eqn.params.get("donated_invars", ())) for eqn in body.eqns)


def _alive(eqns: list[Any], results: list[Any]) -> list[Any]:
    """The equations whose results are read, or that have effects."""
    needed, found = set(variables(results)), []
    for eqn in reversed(eqns):
        if eqn.effects or not needed.isdisjoint(eqn.outvars):
            needed |= set(variables(eqn.invars))
            found.append(eqn)
    return found[::-1]


class _Numbers:
    """The numbers of a jaxpr's values."""

    def __init__(self, body: Any) -> None:
        self._by_key: dict[Hashable, int] = {}
        self._by_variable: dict[Any, int] = {}
        self._products: dict[int, list[int]] = {}  # by the `id` of an equation
        self._fresh = 0
        self._by_variable |= {v: self._new() for v in (*body.constvars, *body.invars)}
        for eqn in body.eqns:
            self.define(eqn)

    def products(self, eqn: Any) -> list[int]:
        """The numbers of an equation's products, of those in calls too."""
        return self._products[id(eqn)]

    def define(self, eqn: Any) -> list[int]:
        """The numbers of an equation's results."""
        products: list[int] = []
        found = self._results(eqn, self._by_variable, products)
        self._by_variable.update(zip(eqn.outvars, found, strict=True))
        self._products[id(eqn)] = products
        return found

    def _new(self) -> int:
        self._fresh += 1
        return self._fresh

    def _keyed(self, key: Hashable) -> int:
        if key not in self._by_key:
            self._by_key[key] = self._new()
        return self._by_key[key]

    def _atom(self, atom: Any, known: dict[Any, int]) -> int:
        if not compat_jaxpr.is_literal(atom):
            return known[atom]
        return self._keyed(literal_key(atom))

    def _results(self, eqn: Any, known: dict[Any, int], products: list[int]) -> list[int]:
        """The numbers of an equation's results.

        Args:
            eqn: The equation.
            known: The numbers of what it may read.
            products: Gets the numbers of its products.
        """
        name = eqn.primitive.name
        read = [self._atom(x, known) for x in eqn.invars]
        key: Hashable = None
        if name in CALLS and not eqn.effects:
            return self._body(eqn.params[CALLS[name]], read, products)
        if name == "custom_jvp_call" and is_jaxs(eqn.params["call_jaxpr"]):
            # What the rule computes may depend on its arguments.
            inner = self._body(eqn.params["call_jaxpr"], read, products)
            key = (name, place_of(eqn.params["call_jaxpr"]), *inner)
        elif not eqn.effects and name not in UNIQUE:
            key = (name, *sorted(eqn.params.items()), *read)
        try:
            hash(key)
        except TypeError:  # parameters that cannot be compared
            key = None
        if key is None:
            found = [self._new() for _ in eqn.outvars]
        else:
            found = [self._keyed((key, eqn.ctx, i)) for i in range(len(eqn.outvars))]
        if name in PRODUCTS:
            products += found
        return found

    def _body(self, jaxpr: Any, read: list[int], products: list[int]) -> list[int]:
        """The numbers of the results of a call's body."""
        body = compat_jaxpr.opened(jaxpr)
        known = dict(zip(body.invars, read, strict=True))
        constants = getattr(jaxpr, "consts", ())
        for v, value in zip(body.constvars, constants, strict=True):
            known[v] = self._keyed(("constant", id(value)))
        for eqn in body.eqns:
            found = self._results(eqn, known, products)
            known.update(zip(eqn.outvars, found, strict=True))
        return [self._atom(x, known) for x in body.outvars]
