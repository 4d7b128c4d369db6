"""`accelerate`: the decorator."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

from jax_bwgemm.product.implementations import as_implementations
from jax_bwgemm.product.program_explanation import Rewrite
from jax_bwgemm.rewriting import flax_nnx
from jax_bwgemm.rewriting.calls import trace_call
from jax_bwgemm.rewriting.rewrite import accelerated, rewrite


def accelerate(
    f: Callable[..., Any] | None = None, *, implementation: str | Sequence[str] | None = None
) -> Callable[..., Any]:
    """Runs the products of any function on this package's kernels, without changing its code.

        @jax.jit
        @jax_bwgemm.accelerate
        def train_step(params, batch): ...

    ``f`` is traced. Every `jax.lax.dot_general` and `jax.lax.ragged_dot` in it that a kernel can
    run becomes this package's, in gradients too, and within jit, scan, while, cond, checkpoint,
    custom derivatives and shard_map. Everything else stays: donation, shardings, names, effects.
    Results differ from f's by the rounding of the products. `jax_bwgemm.explain_program` of the
    returned function says which products stay with XLA, and why.

    Put it inside jit and outside grad: an eager call is traced every time. Arrays are traced, so f
    cannot branch on their values; other arguments reach f unchanged.

    Args:
        f: Any function of arrays, pytrees of them, and anything else; jitted or not. None: returns
            the decorator, ``@accelerate(implementation=...)``.
        implementation: As in `jax_bwgemm.dot_general`, for every product that is rewritten.

    Returns:
        A function with f's arguments and results. It can be jitted, differentiated and mapped.

    Raises:
        TypeError: f is not callable, a coroutine or a generator, or ``implementation`` of the wrong
            type.
        ValueError: Unknown implementation.
    """
    implementations = as_implementations(implementation)
    if f is None:
        return functools.partial(accelerate, implementation=implementations)
    if not callable(f):
        raise TypeError(f"accelerate takes a function, got {type(f).__name__}")
    for kind in ("coroutine", "generator", "asyncgen"):
        # A call of one runs nothing yet: there would be nothing to trace.
        if getattr(inspect, f"is{kind}function")(f):
            raise TypeError(f"accelerate takes a function that returns results, got a {kind}")

    @functools.wraps(f, updated=())
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return accelerated(f, implementations)(*args, **kwargs)

    def rewritten(*args: Any, **kwargs: Any) -> tuple[Any, tuple[Rewrite, ...]]:
        called = f
        if flax_nnx.has_objects(args, kwargs):
            called, state, _ = flax_nnx.functional(f, args, kwargs)
            args, kwargs = (state,), {}
        return rewrite(trace_call(called, args, kwargs).jaxpr, implementations)

    # For `explain_program`.
    wrapper.accelerated, wrapper.rewritten = wrapper, rewritten
    return wrapper
