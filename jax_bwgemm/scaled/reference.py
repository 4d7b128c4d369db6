"""The scaled product by XLA: what every implementation computes, but for the order of sums."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jax_bwgemm import compat
from jax_bwgemm.scaled.layouts import layout_of
from jax_bwgemm.scaled.scaled_array import ScaledArray, block_scales

# Products that are summed before they are added to the f32 accumulator: promotion.
PROMOTED_K = 128


def scaled_reference(
    a: ScaledArray, b: ScaledArray, out_dtype: Any, accumulation: str
) -> jax.Array:
    """D = A B' of two matrices.

    Scales of whole rows multiply the sum over K, scales of blocks of K each block's sum; those of
    8 bits multiply the values before, which is exact in bfloat16.

    Args:
        a: [M, K].
        b: [N, K].
        out_dtype: Type of D.
        accumulation: As in `scaled_matmul`.

    Returns:
        D, [M, N].
    """
    if 0 in (*a.shape, *b.shape):
        operands = a.values, b.values, a.scales, b.scales
        return compat.match_varying(jnp.zeros((a.shape[0], b.shape[0]), out_dtype), *operands)[0]
    left, right = multiplied(a), multiplied(b)
    if left.dtype != right.dtype and jnp.bfloat16 in (left.dtype, right.dtype):
        left, right = left.astype(jnp.bfloat16), right.astype(jnp.bfloat16)
    blocked = [layout_of(x.scaling).block_k == PROMOTED_K for x in (a, b)]
    if any(blocked):
        out = _promoted(left, right, a, b, blocked)
    else:
        precision = lax.Precision.HIGHEST if accumulation == "promoted" else None
        out = _dot(left, right, precision)
    for x, k_blocked, axis in zip((a, b), blocked, (1, 0), strict=True):
        if not (k_blocked or layout_of(x.scaling).exact_in_bfloat16):
            column = block_scales(x)  # [rows or 1, 1]
            out *= column if axis == 1 else column.T
        if x.global_scale is not None:
            out *= x.global_scale.reshape(())
    return out.astype(out_dtype)


def multiplied(x: ScaledArray) -> jax.Array:
    """What the tensor cores multiply, [..., R, K]: the values, or these times scales of 8 bits."""
    layout = layout_of(x.scaling)
    if not layout.exact_in_bfloat16:
        return x.values
    *leading, k = x.shape
    blocks = _in_blocks(x.values.astype(jnp.bfloat16), layout.block_k)
    scaled = blocks * x.scales.astype(jnp.bfloat16)[..., None]
    return scaled.reshape(*leading, scaled.shape[-2] * layout.block_k)[..., :k]


def _in_blocks(x: jax.Array, size: int) -> jax.Array:
    """[..., K] as [..., blocks, size], the last block filled up with zeros."""
    *leading, k = x.shape
    blocks = -(-k // size)  # once: JAX does not see that a padded symbolic size is a multiple
    x = jnp.pad(x, [*[(0, 0)] * len(leading), (0, blocks * size - k)])
    return x.reshape(*leading, blocks, size)


def _promoted(
    left: jax.Array, right: jax.Array, a: ScaledArray, b: ScaledArray, blocked: Sequence[bool]
) -> jax.Array:
    """Sums of 128 products times their scales, added in float32, in order."""

    def leading_blocks(x: jax.Array) -> jax.Array:
        return jnp.swapaxes(_in_blocks(x, PROMOTED_K), 0, 1)

    def leading_scales(x: ScaledArray, k_blocked: bool) -> jax.Array:
        """[blocks of K, rows]."""
        blocks = -(-x.shape[1] // PROMOTED_K)
        if not k_blocked:
            return jnp.ones((blocks, x.shape[0]), jnp.float32)
        scales = block_scales(x)
        in_rows = layout_of(x.scaling).block_rows or 1
        return jnp.repeat(scales.T, in_rows, 1)[:, : x.shape[0]]

    def step(out: jax.Array, block: tuple[jax.Array, ...]) -> tuple[jax.Array, None]:
        left, right, left_scales, right_scales = block
        # One after the other: the product of both may leave the range of float32.
        scaled = _dot(left, right, None) * left_scales[:, None] * right_scales[None]
        return out + scaled, None

    operands = (
        leading_blocks(left),
        leading_blocks(right),
        leading_scales(a, blocked[0]),
        leading_scales(b, blocked[1]),
    )
    zeros = jnp.zeros((left.shape[0], right.shape[0]), jnp.float32)
    zeros, *operands = compat.match_varying(zeros, *operands)
    return lax.scan(step, zeros, tuple(operands))[0]


def _dot(left: jax.Array, right: jax.Array, precision: Any) -> jax.Array:
    return lax.dot_general(
        left,
        right,
        (((1,), (1,)), ((), ())),
        precision=precision,
        preferred_element_type=jnp.float32,
    )
