"""Scales of blocks, and rounding to narrow values: the formulas of every implementation.

``cc/scaled/quantize/rounding.h`` has the same: results are equal bit by bit.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

# Smallest scale: its reciprocal is finite, and its exponent is one of E8M0's. Smaller numbers count
# as zeros, as they do where a processor flushes them.
TINY = float(jnp.finfo(jnp.float32).tiny)
_MANTISSA = 0x7FFFFF


def widened(x: jax.Array) -> jax.Array:
    """In float32, subnormal numbers as zeros."""
    x = x.astype(jnp.float32)
    return jnp.where(jnp.abs(x) < TINY, jnp.copysign(jnp.float32(0), x), x)


def largest(x: jax.Array, axes: tuple[int, ...] | None = None) -> jax.Array:
    """Largest magnitude, or NaN where there is one: as integers, since XLA's max may lose NaN."""
    bits = lax.bitcast_convert_type(jnp.abs(x), jnp.int32)
    return lax.bitcast_convert_type(jnp.max(bits, axes, keepdims=True, initial=0), jnp.float32)


def scale_of(amax: jax.Array, dtype: np.dtype, power_of_two: bool, epsilon: float) -> jax.Array:
    """Scales of blocks in float32, from their largest magnitudes.

    1 for blocks of zeros and for blocks with an infinity or NaN.
    """
    amax = jnp.where(amax < epsilon, epsilon, amax)
    # Written as a multiplication, because XLA may or may not turn a division into one.
    scale = jnp.maximum(amax * np.float32(1 / float(jnp.finfo(dtype).max)), TINY)
    scale = rounded_up(scale) if power_of_two else scale
    return jnp.where(jnp.isfinite(amax) & (amax >= TINY), scale, 1)


def rounded_up(scale: jax.Array) -> jax.Array:
    """The next power of two that is not smaller, of positive normal numbers."""
    bits = lax.bitcast_convert_type(scale, jnp.uint32)
    return lax.bitcast_convert_type((bits + _MANTISSA) & ~jnp.uint32(_MANTISSA), jnp.float32)


def rounded(
    x: jax.Array, factor: jax.Array, dtype: np.dtype, random: jax.Array | None
) -> jax.Array:
    """Numbers times a factor in a narrow type, saturated; infinities and NaNs stay.

    Args:
        x: As `widened` returns it.
        factor: Reciprocal scales.
        dtype: The type.
        random: 16 bits for each number to round stochastically; None rounds to nearest even.
    """
    top = float(jnp.finfo(dtype).max)
    values = jnp.clip(x * factor, -top, top)
    if random is not None:
        values = _dithered(values, random, dtype)
    return jnp.where(jnp.isfinite(x), values, x).astype(dtype)


def _dithered(values: jax.Array, random: jax.Array, dtype: np.dtype) -> jax.Array:
    """Values rounded to one of their neighbours, the nearer with the higher probability.

    It is the upper one if the distance from the lower one and a random number add up to a step.
    """
    info = jnp.finfo(dtype)
    magnitudes = jnp.abs(values)
    exponent = lax.bitcast_convert_type(magnitudes, jnp.uint32) >> 23
    exponent = jnp.maximum(exponent, jnp.uint32(info.minexp + 127))
    step = _power(exponent - jnp.uint32(info.nmant))
    steps = magnitudes * _power(jnp.uint32(254 + info.nmant) - exponent)
    # In the middle of their intervals, random numbers have a mean of a half.
    threshold = (random.astype(jnp.float32) + 0.5) * np.float32(2**-16)
    return jnp.copysign(jnp.floor(steps + threshold) * step, values)


def _power(exponent: jax.Array) -> jax.Array:
    """The power of two with a biased exponent."""
    return lax.bitcast_convert_type(exponent << 23, jnp.float32)
