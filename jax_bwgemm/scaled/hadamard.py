"""Rotations by Hadamard matrices with random signs, which spread outliers over their neighbours."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

SIDE = 16


def rotation(key: jax.Array) -> jax.Array:
    """An orthogonal float32 matrix [SIDE, SIDE] with entries of equal magnitude."""
    matrix = np.ones((1, 1), np.float32)
    while len(matrix) < SIDE:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    signs = jax.random.rademacher(key, (SIDE, 1), jnp.float32)
    return signs * (matrix / np.float32(SIDE**0.5))


def rotated(x: jax.Array, matrix: jax.Array) -> jax.Array:
    """Every SIDE columns of [R, K] times a rotation, K filled up with zeros: float32.

    Products that contract K do not change when both operands are rotated alike.
    """
    rows, k = x.shape
    x = jnp.pad(x.astype(jnp.float32), ((0, 0), (0, -k % SIDE)))
    blocks = x.reshape(rows, x.shape[1] // SIDE, SIDE)
    return jnp.einsum("rbi,ij->rbj", blocks, matrix, precision="highest").reshape(x.shape)
