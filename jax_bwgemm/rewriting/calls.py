"""Functions whose programs are rewritten when they are called."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import jax

from jax_bwgemm.product.remembered import remembering
from jax_bwgemm.product.rewrites import Rewrite, report
from jax_bwgemm.product.traced_call import trace_call
from jax_bwgemm.rewriting import flax_nnx


def transformed(
    caller: str, f: Callable[..., Any], change: Callable[[Any], Any]
) -> Callable[..., Any]:
    """The function whose program is ``f``'s, changed by a function of jaxprs for a caller."""

    def call(*args: Any, **kwargs: Any) -> Any:
        if flax_nnx.has_objects(args, kwargs):
            pure, state, finish = flax_nnx.functional(f, args, kwargs)
            return finish(plain(pure, (state,), {}))
        return plain(f, args, kwargs)

    def plain(f: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        traced = trace_call(caller, f, args, kwargs)
        with remembering():
            return traced.run(change(traced.jaxpr))

    return call


def check_function(caller: str, f: Any) -> None:
    """Checks what a decorator is given.

    Raises:
        TypeError: No function, a coroutine or a generator.
    """
    if not callable(f):
        raise TypeError(f"{caller} takes a function, got {type(f).__name__}")
    for kind in ("coroutine", "generator", "asyncgen"):
        # A call of one runs nothing yet: there would be nothing to trace.
        called = getattr(inspect, f"is{kind}function")
        if called(f) or called(inspect.getattr_static(type(f), "__call__", None)):
            raise TypeError(f"{caller} takes a function that returns results, got a {kind}")


def rewritable(
    caller: str, f: Callable[..., Any], rewrite: Callable[[Any], tuple[Any, tuple[Rewrite, ...]]]
) -> Callable[..., Any]:
    """A function with a rewritten program, which `explain_program` finds the decisions of.

    Args:
        caller: Who rewrites it, for JAX's errors.
        f: The function.
        rewrite: From a jaxpr, another of the same operands and results, and the decisions.
    """

    def reported(jaxpr: Any) -> Any:
        changed, decisions = rewrite(jaxpr)
        report(decisions)
        return changed

    @functools.wraps(f, updated=())
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return transformed(caller, f, reported)(*args, **kwargs)

    def rewritten(*args: Any, **kwargs: Any) -> tuple[Any, tuple[Rewrite, ...]]:
        called = f
        if flax_nnx.has_objects(args, kwargs):
            called, state, _ = flax_nnx.functional(f, args, kwargs)
            args, kwargs = (state,), {}
        operand = jax.Array | jax.ShapeDtypeStruct
        traced = trace_call(caller, called, args, kwargs, operand)
        with remembering():
            return rewrite(traced.jaxpr)

    wrapper.accelerated, wrapper.rewritten = wrapper, rewritten
    return wrapper
