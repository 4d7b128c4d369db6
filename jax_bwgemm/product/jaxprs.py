"""Walks traced programs."""

from __future__ import annotations

import functools
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import jax

from jax_bwgemm import compat_jaxpr
from jax_bwgemm.compat import Primitive

# Equations whose body XLA inlines, and the parameter that holds the body.
INLINED = {
    "jit": "jaxpr",
    "pjit": "jaxpr",
    "closed_call": "call_jaxpr",
    "core_call": "call_jaxpr",
    "eval_jaxpr": "call_jaxpr",  # of a traced function that is called
    "remat2": "jaxpr",
    "checkpoint": "jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
    "remat_opt": "fwd_jaxpr",  # of custom_vjp's optimize_remat
    "shard_map": "jaxpr",
}

# Primitives whose equations hold no jaxpr, but stand for a function of their operands and
# parameters that has products.
FUNCTIONS: dict[Primitive, Callable[..., Any]] = {}


def equations(jaxpr: Any, times: int = 1) -> Iterator[tuple[Any, int]]:
    """All equations of a jaxpr, nested ones included, with how often each runs.

    A loop's body runs as often as the loop does, where that is known, and else once.
    """
    for eqn in compat_jaxpr.opened(jaxpr).eqns:
        yield eqn, times
        inner = times * eqn.params["length"] if eqn.primitive.name == "scan" else times
        for value in jax.tree.leaves(list(eqn.params.values()), is_leaf=is_jaxpr):
            if is_jaxpr(value):
                yield from equations(value, inner)
        if eqn.primitive in FUNCTIONS:
            yield from equations(_traced(eqn), times)


def _traced(eqn: Any) -> Any:
    """The program that an equation of a primitive in `FUNCTIONS` stands for.

    Of plain types: what varies over mesh axes, and how, changes no product.
    """
    types = [jax.ShapeDtypeStruct(x.aval.shape, x.aval.dtype) for x in eqn.invars]
    with compat_jaxpr.equation_context(eqn):
        return jax.make_jaxpr(functools.partial(FUNCTIONS[eqn.primitive], **eqn.params))(*types)


def jitted(program: Callable[..., Any]) -> Any:
    """A function under jit; itself if it is.

    jit needs a weak reference to it, which instances of classes with slots do not have.
    """
    # Before Python 3.12 methods of jitted functions pass for `Wrapped`; their `trace` lacks self.
    method = isinstance(program, types.MethodType)
    if isinstance(program, jax.stages.Wrapped) and not method:
        return program
    try:
        weakref.ref(program)
    except TypeError:
        program = functools.partial(program)
    return jax.jit(program)


def is_jaxpr(value: Any) -> bool:
    """Whether it is a jaxpr, open or closed."""
    from jax.extend import core as jex_core  # slow to import: see compat.py

    return isinstance(value, jex_core.Jaxpr | jex_core.ClosedJaxpr)
