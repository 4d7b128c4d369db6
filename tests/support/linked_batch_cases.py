"""Batches of matrices with an epilogue in the kernel: functions, operands, and exact results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from linked_cases import F32
from numerics import small_integers

import jax_bwgemm as bw

BATCH = 3
# Of every kind: of all results, of each matrix, and of all matrices; a row, a column, a matrix.
SHAPES: list[tuple[tuple[str | int, ...], str]] = [
    ((), "float32"),
    (("n",), "bfloat16"),
    ((BATCH, 1, "n"), "bfloat16"),
    ((BATCH, 1, "n"), "float32"),
    (("m", 1), "float32"),
    ((BATCH, "m", 1), "float32"),
    ((BATCH, 1, 1), "float32"),
]


def of_vectors(z: Any, s: Any, r: Any, rb: Any, rf: Any, c: Any, cb: Any, sb: Any) -> Any:
    """Reads vectors of every kind, and the number of the matrix."""
    number = jax.lax.broadcasted_iota(jnp.int32, z.shape, z.ndim - 3)
    z = z * sb + r.astype(F32) + rb.astype(F32) - rf + c * s - cb
    return z + number, (z > number).astype(jnp.int32)


def of_matrices(z: Any, one: Any, own: Any) -> Any:
    """Reads a matrix that all share, and one of the results' shape; stores two of D's type."""
    return z + one.astype(F32) - 2 * own.astype(F32), own.astype(F32) * one.astype(F32)


def call(f: Callable[..., Any], **more: Any) -> Callable[..., Any]:
    def product(a: Any, b: Any, *arrays: Any) -> Any:
        return bw.matmul(a, b, epilogue=f, epilogue_operands=arrays, **more)

    return product


def integers(rng: np.random.Generator, shape: tuple[Any, ...], dtype: str, **sizes: int) -> Any:
    return jnp.asarray(small_integers(rng, tuple(sizes.get(x, x) for x in shape), dtype))


def case(f: Callable[..., Any], m: int, n: int, k: int) -> tuple[Any, Any, list[Any], Any]:
    """A, B and the operands of one of these functions, and its exact results."""
    rng = np.random.default_rng(0)
    a, b = (integers(rng, s, "bfloat16") for s in ((BATCH, m, k), (BATCH, k, n)))
    of = SHAPES if f is of_vectors else [((m, n), "bfloat16"), ((BATCH, m, n), "bfloat16")]
    arrays = [integers(rng, shape, dtype, m=m, n=n) for shape, dtype in of]

    @jax.jit
    def exact(a: Any, b: Any, *arrays: Any) -> Any:
        z = jnp.einsum("bmk,bkn->bmn", a.astype(F32), b.astype(F32), precision="highest")
        return f(z, *arrays)

    return a, b, arrays, exact(a, b, *arrays)
