"""Quantization by XLA: what every implementation computes, bit by bit."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jax_bwgemm.scaled import rounding
from jax_bwgemm.scaled.layouts import FLOAT4, FLOAT32, Layout
from jax_bwgemm.scaled.quantize_spec import QuantizeSpec
from jax_bwgemm.scaled.random_bits import bits_of

E8M0_NAN = 0xFF


def quantize_reference(*operands: jax.Array, spec: QuantizeSpec) -> tuple[jax.Array, ...]:
    """The results of `QuantizeSpec.result_names`, of a layout with f32 scales.

    Args:
        *operands: Those of `QuantizeSpec.operand_names`.
        spec: What to compute.
    """
    given = dict(zip(spec.operand_names, operands, strict=True))
    x = rounding.widened(given["x"])
    random = bits_of(given["random"], *x.shape[1:]) if spec.stochastic else None
    values, scales = _copy(x, given.get("scales"), random, spec)
    found = {"values": values, "scales": scales}
    if spec.transposed:
        if spec.layout.transposable:
            found["t_values"] = jnp.swapaxes(values, 1, 2)
            found["t_scales"] = scales if spec.given_scales else jnp.swapaxes(scales, 1, 2)
        else:
            random = None if random is None else jnp.swapaxes(random, 1, 2)
            t_x = jnp.swapaxes(x, 1, 2)
            found["t_values"], found["t_scales"] = _copy(t_x, given.get("t_scales"), random, spec)
    if spec.amax:
        found["amax"] = rounding.largest(x, (1, 2))[:, 0, 0]
    return tuple(found[name] for name in spec.result_names)


def _copy(
    x: jax.Array, scales: jax.Array | None, random: jax.Array | None, spec: QuantizeSpec
) -> tuple[jax.Array, jax.Array]:
    """Values and scales of [B, R, K]."""
    layout, dtype = spec.layout, np.dtype(spec.dtype)
    blocks, axes = in_blocks(x, layout)
    if scales is None:
        amax = rounding.largest(blocks, axes)
        scale = rounding.scale_of(amax, dtype, spec.power_of_two, spec.epsilon)
        scales = stored(scale, axes, layout)
    else:
        scale = scales.reshape(scales.shape + (1,) * (blocks.ndim - scales.ndim))
    if random is not None:
        random, _ = in_blocks(random, layout)
    values = rounding.rounded(blocks, 1 / scale, dtype, random)
    return out_of_blocks(values, x.shape), scales


def narrow_reference(
    x: jax.Array,
    random: jax.Array | None,
    *,
    layout: Layout,
    dtype: np.dtype,
    epsilon: float,
    whole: jax.Array | None,
    square: bool = False,
) -> tuple[jax.Array, jax.Array, jax.Array | None]:
    """Values, scales and global scale of [B, R, K], of a layout whose scales have 8 bits.

    Args:
        x: [B, R, K].
        random: 16 bits for each element, or None.
        layout: The layout.
        dtype: The values' type.
        epsilon: Least amax.
        whole: Largest magnitude of all finite numbers, for a layout with a global scale.
        square: Whether as many rows as columns share a scale.
    """
    blocks, axes = in_blocks(rounding.widened(x), layout)
    amax = rounding.largest(blocks, axes)
    amax = _of_squares(amax, layout) if square else amax
    amax = jnp.where(amax < epsilon, epsilon, amax)
    top = float(jnp.finfo(dtype).max)
    if layout.has_global_scale:
        assert whole is not None  # the caller's
        whole = jnp.where(whole < epsilon, epsilon, whole)
        most = float(jnp.finfo(layout.scale_dtype).max)
        # XLA rearranges chains of divisions, depending on what is compiled beside them, and a scale
        # that is a tie becomes another e4m3fn. Products with constants stay as they are.
        global_scale = _positive(whole * np.float32(1 / (most * top)), whole)
        global_scale = lax.optimization_barrier(global_scale)
        scale = _positive(amax * (1 / global_scale) * np.float32(1 / top), amax)
        scale = jnp.where(jnp.isfinite(amax), scale, jnp.nan)
        # The least positive e4m3fn, lest a block of small values be divided by zero. Times the
        # global scale it must be normal, too, with one bit to spare for the scale's rounding.
        least = float(jnp.finfo(layout.scale_dtype).smallest_subnormal)
        least = jnp.maximum(least, np.float32(2 * rounding.TINY) / global_scale)
        scales = jnp.maximum(scale, least).astype(layout.scale_dtype)
        factor = 1 / (scales.astype(FLOAT32) * global_scale)
    else:
        global_scale = None
        scale = rounding.scale_of(amax, dtype, True, 0.0)
        exponents = (lax.bitcast_convert_type(scale, jnp.uint32) >> 23).astype(jnp.uint8)
        if dtype in FLOAT4:  # no value is NaN: the scale is
            exponents = jnp.where(jnp.isfinite(amax), exponents, jnp.uint8(E8M0_NAN))
        scales = lax.bitcast_convert_type(exponents, layout.scale_dtype)
        factor = 1 / scale
    if random is not None:
        random, _ = in_blocks(random, layout)
    values = rounding.rounded(blocks, factor, dtype, random)
    return out_of_blocks(values, x.shape), stored(scales, axes, layout), global_scale


def _of_squares(amax: jax.Array, layout: Layout) -> jax.Array:
    """Largest magnitudes [B, R, blocks, 1] of blocks of a row, as those of square blocks."""
    batch, rows, blocks, _ = amax.shape
    side = layout.block_k
    assert side is not None  # of layouts with scales of 8 bits
    count = -(-rows // side)  # once: JAX does not see that a padded symbolic size is a multiple
    padded = jnp.pad(amax, ((0, 0), (0, count * side - rows), (0, 0), (0, 0)))
    squares = rounding.largest(padded.reshape(batch, count, side, blocks, 1), (2,))
    of_rows = jnp.broadcast_to(squares, (batch, count, side, blocks, 1))
    return first_of(of_rows.reshape(padded.shape), amax.shape)


def _positive(scale: jax.Array, amax: jax.Array) -> jax.Array:
    """Scales whose reciprocals are finite: 1 for zeros and for what is not finite.

    A scale may be too small for float32 where the number that it is of is not.
    """
    usable = jnp.isfinite(amax) & (amax >= rounding.TINY)
    return jnp.where(usable, jnp.maximum(scale, rounding.TINY), 1)


def in_blocks(x: jax.Array, layout: Layout) -> tuple[jax.Array, tuple[int, ...]]:
    """[B, R, K] with dimensions of its own for blocks, and which of them share a scale."""
    if layout.block_k is None:
        return x, (1, 2) if layout.block_rows is None else (2,)
    batch, rows, k = x.shape
    in_rows = layout.block_rows or rows
    # Counted once: JAX does not see that a padded symbolic size is a multiple.
    row_blocks, k_blocks = -(-rows // in_rows), -(-k // layout.block_k)
    pad = [(0, 0), (0, row_blocks * in_rows - rows), (0, k_blocks * layout.block_k - k)]
    x = jnp.pad(x, pad) if any(after != 0 for _, after in pad) else x
    # No dimension for blocks of one row: XLA fuses better without it.
    if in_rows == 1:
        return x.reshape(batch, rows, k_blocks, layout.block_k), (3,)
    # One dimension after the other: arrays with shardings in their types allow no other reshapes.
    x = x.reshape(batch, row_blocks, in_rows, x.shape[2])
    return x.reshape(batch, row_blocks, in_rows, k_blocks, layout.block_k), (2, 4)


def out_of_blocks(values: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Undoes `in_blocks`."""
    if values.ndim == len(shape):
        return values
    inner = values.shape[1:]
    rows, k = (math.prod(half) for half in (inner[:-2], inner[-2:]))
    return first_of(values.reshape(*values.shape[:-2], k).reshape(shape[0], rows, k), shape)


def first_of(x: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """The part of an array, which is at least that large, that begins where it does."""
    if all(isinstance(size, int) for size in shape):
        return x[tuple(map(slice, shape))]
    # JAX cannot check that a slice of a symbolic size is inside.
    taken = [(0, size - have, 0) for size, have in zip(shape, x.shape, strict=True)]
    return lax.pad(x, jnp.zeros((), x.dtype), taken)


def stored(scales: jax.Array, axes: tuple[int, ...], layout: Layout) -> jax.Array:
    """Scales without the dimensions in which they are shared, in the layout's order."""
    scales = lax.squeeze(scales, axes)
    return jnp.swapaxes(scales, -1, -2) if layout.k_first else scales
