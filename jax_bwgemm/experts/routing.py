"""Rows of tokens in the order of their experts, and back: gathers alone, in both directions."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
from jax import lax

from jax_bwgemm.product.linear_map import Arrays, LinearMap

# Unsigned: of signed keys of 8 bits XLA compares pairs instead.
_KEYS = (jnp.uint8, jnp.uint16)


def sort_by_expert(experts: jax.Array, count: int) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The rows of all tokens in the order of their experts, tokens in their order.

    Args:
        experts: Each token's experts, [T, k]. Of those that are none of them rows come last.
        count: How many experts there are.

    Returns:
        Row t * k + j of the tokens that is at each place, [T * k]; the place of each row, [T, k];
        and how many rows each expert has, [count], all int32.
    """
    flat = experts.reshape(-1)
    flat = flat if flat.dtype.itemsize >= 4 else flat.astype(jnp.int32)  # which holds the count
    flat = jnp.where((flat < 0) | (flat >= count), count, flat)
    rows = jnp.arange(flat.size, dtype=jnp.int32)
    # XLA sorts on GPUs by radix, with a pass over all rows for each byte of a key.
    keys = flat.astype(next((t for t in _KEYS if count <= jnp.iinfo(t).max), flat.dtype))
    _, order = lax.sort_key_val(keys, rows, is_stable=True)
    place = jnp.zeros_like(rows).at[order].set(rows, unique_indices=True)
    # Counted by comparing: thousands of atomic additions to a few counters would be slower.
    each = jnp.arange(count, dtype=flat.dtype)
    sizes = jnp.sum(flat[:, None] == each[None], axis=0, dtype=jnp.int32)
    return order, place.reshape(experts.shape), sizes


def dispatch(x: jax.Array, order: jax.Array, place: jax.Array) -> jax.Array:
    """Each token's row at all its places: [T, K] to [T * k, K]."""
    return _Route(to_tokens=False)((order, place), (x,))[0]


def combine(rows: jax.Array, order: jax.Array, place: jax.Array) -> jax.Array:
    """The sums of the rows at each token's places: [T * k, N] to [T, N], summed in float32."""
    return _Route(to_tokens=True)((order, place), (rows,))[0]


@dataclasses.dataclass(frozen=True)
class _Route(LinearMap):
    """Either of two maps that are each other's transposes. Residuals: order and place."""

    to_tokens: bool

    def forward(self, residuals: Arrays, inputs: Arrays) -> Arrays:
        return _route(self.to_tokens, residuals, inputs)

    def backward(self, residuals: Arrays, cotangents: Arrays) -> Arrays:
        return _route(not self.to_tokens, residuals, cotangents)


def _route(to_tokens: bool, residuals: Arrays, inputs: Arrays) -> Arrays:
    (order, place), (x,) = residuals, inputs
    if to_tokens:
        found = x.at[place].get(unique_indices=True, mode="promise_in_bounds")
        return (jnp.sum(found.astype(jnp.float32), axis=1).astype(x.dtype),)
    tokens = order // place.shape[1]
    symbolic = not all(isinstance(size, int) for size in (*x.shape, *tokens.shape))
    # Of symbolic sizes XLA has no bitcasts to another width.
    if x.dtype.itemsize != 2 or x.shape[1] % 2 or symbolic:
        return (x.at[tokens].get(mode="promise_in_bounds"),)
    # In pairs of elements: XLA's kernel moves one at a time.
    rows, columns = x.shape
    pairs = lax.bitcast_convert_type(x.reshape(rows, columns // 2, 2), jnp.uint32)
    found = pairs.at[tokens].get(mode="promise_in_bounds")
    return (lax.bitcast_convert_type(found, x.dtype).reshape(tokens.size, columns),)
