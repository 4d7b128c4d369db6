"""Random bits that depend on a key and a position only: what rounds stochastically.

Philox-4x32 with 10 rounds (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3"), as in
``cc/scaled/quantize/philox.h``: equal on every platform and for every sharding.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

# Words that say where a matrix is: a key of two, its number, its first row, and its first group of
# GROUP columns.
WORDS = 5
# Columns that one call of the generator serves, 16 bits each.
GROUP = 8

_ROUNDS = 10
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)


def origins(key: jax.Array, batch: int) -> jax.Array:
    """The words of matrices 0, 1, ... of an array.

    Args:
        key: A key of `jax.random`.
        batch: Number of matrices.

    Returns:
        int32 [batch, WORDS].
    """
    words = jax.lax.bitcast_convert_type(jax.random.bits(key, (2,), jnp.uint32), jnp.int32)
    numbers = jnp.arange(batch, dtype=jnp.int32)
    return jnp.zeros((batch, WORDS), jnp.int32).at[:, :2].set(words).at[:, 2].set(numbers)


def moved(origin: jax.Array, rows: jax.Array | int, columns: jax.Array | int) -> jax.Array:
    """The words of the blocks of matrices that begin so far down and to the right.

    ``columns`` is a multiple of GROUP.
    """
    return origin.at[:, 3].add(rows).at[:, 4].add(columns // GROUP)


def bits_of(origin: jax.Array, rows: int, columns: int) -> jax.Array:
    """16 random bits for each element.

    Args:
        origin: int32 [batch, WORDS].
        rows: Rows of each matrix.
        columns: Its columns.

    Returns:
        uint32 [batch, rows, columns], below 2**16.
    """
    origin = jax.lax.bitcast_convert_type(origin, jnp.uint32)[..., None, None]
    groups = -(-columns // GROUP)
    shape = (origin.shape[0], rows, groups)
    counter = (
        origin[:, 4] + jnp.arange(groups, dtype=jnp.uint32)[None, None],
        origin[:, 3] + jnp.arange(rows, dtype=jnp.uint32)[None, :, None],
        origin[:, 2],
        jnp.zeros((), jnp.uint32),
    )
    words = philox([jnp.broadcast_to(c, shape) for c in counter], (origin[:, 0], origin[:, 1]))
    halves = [half for word in words for half in (word & 0xFFFF, word >> 16)]
    return jnp.stack(halves, -1).reshape(*shape[:2], groups * GROUP)[..., :columns]


def philox(counter: list[jax.Array], key: tuple[jax.Array, jax.Array]) -> list[jax.Array]:
    """Four words for each counter of four words; all uint32."""
    x, y, z, w = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        high0, low0 = _product(x, _MULTIPLIERS[0])
        high1, low1 = _product(z, _MULTIPLIERS[1])
        x, y, z, w = high1 ^ y ^ k0, low1, high0 ^ w ^ k1, low0
        k0, k1 = k0 + jnp.uint32(_WEYL[0]), k1 + jnp.uint32(_WEYL[1])
    return [x, y, z, w]


def _product(a: jax.Array, b: int) -> tuple[jax.Array, jax.Array]:
    """High and low words of a product, without 64-bit integers."""
    a_low, a_high = a & 0xFFFF, a >> 16
    b_low, b_high = jnp.uint32(b & 0xFFFF), jnp.uint32(b >> 16)
    low, middle = a_low * b_low, a_high * b_low
    other = a_low * b_high + (low >> 16)  # at most 2**32 - 2**16
    carried = (other & 0xFFFF) + middle
    # `middle` is at most (2**16 - 1)**2: adding 16 bits more does not overflow.
    return a_high * b_high + (other >> 16) + (carried >> 16), a * jnp.uint32(b)
