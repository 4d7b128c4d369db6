"""`accelerate`: the decorator."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from jax_bwgemm.product.implementations import as_implementations
from jax_bwgemm.rewriting.calls import check_function, rewritable
from jax_bwgemm.rewriting.rewrite import rewrite


def accelerate(
    f: Callable[..., Any] | None = None, *, implementation: str | Sequence[str] | None = None
) -> Callable[..., Any]:
    """Runs the products of any function on this package's kernels, without changing its code.

        @jax.jit
        @jax_bwgemm.accelerate
        def train_step(params, batch): ...

    ``f`` is traced. Every `jax.lax.dot_general` and `jax.lax.ragged_dot` in it that a kernel can
    run becomes this package's, in gradients too, and within jit, scan, while, cond, checkpoint,
    linear solves, custom derivatives and shard_map. Everything else stays: donation, shardings,
    names, effects. Results differ from f's by the rounding of the products.
    `jax_bwgemm.explain_program` of the returned function says which products stay with XLA, and
    why.

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
    check_function("accelerate", f)
    return rewritable("accelerate", f, lambda jaxpr: rewrite(jaxpr, implementations))
