"""Functions made of equations that are equal where their equations are.

They are parameters of primitives. Called outside of jit, `accelerate` traces a function again every
time; a primitive with an equal function is then compiled only once.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Hashable
from typing import Any

import jax
import numpy as np

from jax_bwgemm import compat_jaxpr

# Primitives whose equal equations differ: in what they return, or in what they are for.
UNIQUE = ("rng_uniform", "optimization_barrier")
CALLS = {"jit": "jaxpr", "pjit": "jaxpr"}  # primitives that run a jaxpr, and its parameter
_JAX = os.path.dirname(jax.__file__) + os.sep


@dataclasses.dataclass(frozen=True)
class Comparable:
    """A function that equals another with an equal key.

    Attributes:
        key: What it computes.
        function: The function.
    """

    key: Hashable
    function: Callable[..., Any] = dataclasses.field(compare=False, repr=False)

    def __call__(self, *args: Any) -> Any:
        return self.function(*args)


def key_of(jaxpr: Any) -> Hashable:
    """Equal for jaxprs that compute the same; of one that cannot be compared, equal to no other."""
    key = _key(jaxpr)
    try:
        hash(key)
    except TypeError:  # a parameter that cannot be compared
        return object()
    return key


def literal_key(literal: Any) -> Hashable:
    """Type and bits of a literal."""
    value = np.asarray(literal.val)
    return "literal", str(literal.aval), value.dtype.str, value.tobytes()


def place_of(jaxpr: Any) -> str:
    """Where the function of a traced program is defined."""
    return str(compat_jaxpr.opened(jaxpr).debug_info.func_src_info)


def is_jaxs(jaxpr: Any) -> bool:
    """Whether a function is one of JAX's own: one place in its code has one rule."""
    return _JAX in place_of(jaxpr)


def _key(jaxpr: Any) -> Hashable:
    body = compat_jaxpr.opened(jaxpr)
    numbers: dict[Any, int] = {}

    def define(v: Any) -> str:
        numbers[v] = len(numbers)
        return str(v.aval)

    def atom(x: Any) -> Hashable:
        return literal_key(x) if compat_jaxpr.is_literal(x) else numbers[x]

    types = [define(v) for v in (*body.constvars, *body.invars)]
    constants = [id(x) for x in getattr(jaxpr, "consts", ())]
    eqns = [
        (_operation(e), e.ctx, *map(atom, e.invars), *map(define, e.outvars)) for e in body.eqns
    ]
    return (*types, *constants, *eqns, *map(atom, body.outvars))


def _operation(eqn: Any) -> Hashable:
    """What an equation does with what it reads."""
    name, params = eqn.primitive.name, eqn.params
    if eqn.effects:
        return object()
    if name in CALLS and compat_jaxpr.only_groups(eqn):
        return name, _key(params[CALLS[name]])
    if name == "custom_jvp_call" and is_jaxs(params["call_jaxpr"]):
        return name, place_of(params["call_jaxpr"]), _key(params["call_jaxpr"])
    return name, *sorted(params.items())
