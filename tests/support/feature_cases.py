"""Products for tests of JAX's features, and the primitives that they become."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numerics import small_integers

import jax_bwgemm as bw

EXPERTS = np.array([2, 1, 3], np.int32)


def primitives(jaxpr: Any) -> Iterator[str]:
    """Names of all equations' primitives, nested ones included; those of kernels as JAX's."""
    for eqn in jaxpr.eqns:
        yield {"bw_gemm": "dot_general"}.get(eqn.primitive.name, eqn.primitive.name)
        for value in eqn.params.values():
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                yield from primitives(inner)


def operands(shape: tuple[int, ...], *more: tuple[int, ...]) -> list[jax.Array]:
    rng = np.random.default_rng(0)
    return [jnp.asarray(small_integers(rng, s, "bfloat16")) for s in (shape, *more)]


def ragged(x: jax.Array, w: jax.Array) -> jax.Array:
    return bw.ragged_dot(x, w, EXPERTS)
