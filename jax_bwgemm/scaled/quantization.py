"""`quantize`: from 16-bit or 32-bit matrices to narrow values with scales."""

from __future__ import annotations

import functools
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike, DTypeLike

from jax_bwgemm.dense.validation import as_array
from jax_bwgemm.scaled.layouts import FLOAT32, Layout, layout_of
from jax_bwgemm.scaled.scaled_array import ScaledArray

# Smallest scale: its reciprocal is finite, and its exponent is one of E8M0's.
_TINY = float(jnp.finfo(jnp.float32).tiny)
_MANTISSA = 0x7FFFFF


def quantize(
    x: ArrayLike,
    scaling: str,
    *,
    dtype: DTypeLike | None = None,
    transposed: bool = False,
    power_of_two: bool = False,
    epsilon: float = 0.0,
    key: jax.Array | None = None,
) -> Any:
    """Rounds a matrix to narrow values with scales.

    Of every block: ``amax = max(|x|, epsilon)``, ``scale = amax / largest value of dtype``,
    ``values = round(x * (1 / scale))``, to nearest even. A block of zeros has a scale of 1. Where a
    rounded scale makes a value too large, it saturates. A block with an infinity or NaN
    has a scale of 1: its infinities become NaN in e4m3fn and stay in e5m2; of ``nvfp4``, whose
    values have neither, the scale is NaN.

    Scales of ``mxfp8`` are powers of two, rounded up. Of ``nvfp4`` the global scale is
    ``max(|x|) / (448 * 6)`` of the whole matrix and a block's scale, relative to it, is rounded to
    e4m3fn.

    Args:
        x: [..., R, K], floating point. K is what products will contract.
        scaling: A layout of `ScaledArray`. ``"tensor"``: one scale for all of x.
        dtype: Type of the values; None is float8_e4m3fn, of ``nvfp4`` float4_e2m1fn.
        transposed: Whether the transposed matrices [..., K, R] are returned too, with scales of
            their own (along R, which other products contract), made from x, not from the result.
        power_of_two: Round f32 scales up to powers of two: then no rounding but that of values.
        epsilon: Least amax.
        key: Round stochastically, by this random key: up with the probability of the distance to
            the lower neighbour, so that the mean of many roundings is the number.

    Returns:
        A `ScaledArray` [..., R, K]; with ``transposed`` a pair of it and one [..., K, R].

    Raises:
        TypeError: Not an array, not floating point, of rank less than 2, or an impossible dtype.
            Differentiating also raises it.
        ValueError: An unknown scaling or a negative epsilon.
    """
    layout = layout_of(scaling)
    x = as_array("quantize", "x", x)
    if not jnp.issubdtype(x.dtype, jnp.floating) or x.dtype.itemsize < 2:
        raise TypeError(f"quantize requires 16-bit floating point or wider, got {x.dtype}")
    if x.ndim < 2:
        raise TypeError(f"quantize requires x [..., R, K], got shape {x.shape}")
    value_dtype = layout.value_dtypes[0] if dtype is None else np.dtype(dtype)
    if value_dtype not in layout.value_dtypes:
        known = ", ".join(str(d) for d in layout.value_dtypes)
        raise TypeError(
            f"quantize to scaling {scaling!r} has values of type {known}, got {value_dtype}"
        )
    if not (isinstance(epsilon, (int, float)) and 0 <= epsilon < float("inf")):
        raise ValueError(f"quantize requires a finite epsilon of at least 0, got {epsilon!r}")
    return _quantize(
        x, key, scaling, value_dtype, bool(transposed), bool(power_of_two), float(epsilon)
    )


@functools.partial(jax.custom_jvp, nondiff_argnums=(2, 3, 4, 5, 6))
def _quantize(
    x: jax.Array,
    key: jax.Array | None,
    scaling: str,
    dtype: np.dtype,
    transposed: bool,
    power_of_two: bool,
    epsilon: float,
) -> Any:
    layout = layout_of(scaling)
    keys = (None, None) if key is None else jax.random.split(key)
    one = functools.partial(
        _one, layout=layout, dtype=dtype, power_of_two=power_of_two, epsilon=epsilon
    )
    q = one(x, keys[0])
    if not transposed:
        return q
    return q, (q.mT if layout.transposable else one(jnp.swapaxes(x, -1, -2), keys[1]))


@_quantize.defjvp
def _no_derivative(*args: Any) -> NoReturn:
    del args
    raise TypeError(
        "quantize is not differentiable: use fp8_dot_general, whose gradients are products of "
        "quantized operands, or apply jax.lax.stop_gradient to its argument"
    )


def _one(
    x: jax.Array,
    key: jax.Array | None,
    *,
    layout: Layout,
    dtype: np.dtype,
    power_of_two: bool,
    epsilon: float,
) -> ScaledArray:
    blocks, axes = _blocks(x.astype(jnp.float32), layout)
    amax = _largest(blocks, axes)
    amax = jnp.where(amax < epsilon, epsilon, amax)
    largest = float(jnp.finfo(dtype).max)
    global_scale = None
    if layout.has_global_scale:
        top = float(jnp.finfo(layout.scale_dtype).max)
        global_scale = _positive(_largest(amax).reshape(()) / (top * largest))
        amax = amax / global_scale
    scale = _positive(amax / largest)
    if layout.scale_dtype != FLOAT32:
        scale = jnp.where(jnp.isfinite(amax), scale, jnp.nan) if layout.has_global_scale else scale
        scale, stored = _narrow(scale, layout)
    else:
        scale = _rounded_up(scale) if power_of_two else scale
        stored = scale
    factor = 1 / (scale if global_scale is None else scale * global_scale)
    values = blocks * factor
    if key is not None:
        values = _dithered(values, key, dtype)
    saturated = jnp.clip(values, -largest, largest)
    values = jnp.where(jnp.isfinite(blocks), saturated, blocks).astype(dtype)
    return ScaledArray(
        _unblocked(values, x.shape),
        _stored(stored, axes, layout),
        layout.name,
        global_scale,
    )


def _blocks(x: jax.Array, layout: Layout) -> tuple[jax.Array, tuple[int, ...]]:
    """x with dimensions of its own for blocks, and which of them share a scale."""
    if layout.block_k is None and layout.block_rows is None:
        return x, tuple(range(x.ndim))
    if layout.block_k is None:
        return x, (x.ndim - 1,)
    rows, k = x.shape[-2:]
    in_rows = layout.block_rows or rows
    pad = [(0, 0)] * (x.ndim - 2) + [(0, -rows % in_rows), (0, -k % layout.block_k)]
    x = jnp.pad(x, pad) if any(after for _, after in pad) else x
    *batch, rows, k = x.shape
    # With one row in a block, no dimension for it: XLA's fusions are better for it.
    if in_rows == 1:
        return x.reshape(*batch, rows, k // layout.block_k, layout.block_k), (len(batch) + 2,)
    x = x.reshape(*batch, rows // in_rows, in_rows, k // layout.block_k, layout.block_k)
    return x, (len(batch) + 1, len(batch) + 3)


def _unblocked(values: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    if values.ndim == len(shape):
        return values
    batch = len(shape) - 2
    inner = values.shape[batch:]
    halves = (inner[:-2], inner[-2:])
    sizes = [int(np.prod(half)) for half in halves]
    values = values.reshape(*shape[:batch], *sizes)
    return values[..., : shape[-2], : shape[-1]]


def _stored(scales: jax.Array, axes: tuple[int, ...], layout: Layout) -> jax.Array:
    """Scales without the dimensions in which they are shared, in the layout's order."""
    scales = lax.squeeze(scales, axes)
    return jnp.swapaxes(scales, -1, -2) if layout.k_first else scales


def _largest(x: jax.Array, axes: tuple[int, ...] | None = None) -> jax.Array:
    """Largest magnitude, or NaN where there is one: as integers, since XLA's max may lose NaN."""
    bits = lax.bitcast_convert_type(jnp.abs(x), jnp.int32)
    return lax.bitcast_convert_type(jnp.max(bits, axes, keepdims=True, initial=0), jnp.float32)


def _positive(scale: jax.Array) -> jax.Array:
    """Scales whose reciprocals are finite: 1 for zeros and for what is not finite."""
    usable = jnp.isfinite(scale) & (scale > 0)
    return jnp.where(usable, jnp.maximum(scale, _TINY), 1)


def _rounded_up(scale: jax.Array) -> jax.Array:
    """The next power of two that is not smaller, of positive normal numbers."""
    bits = lax.bitcast_convert_type(scale, jnp.uint32)
    return lax.bitcast_convert_type((bits + _MANTISSA) & ~jnp.uint32(_MANTISSA), jnp.float32)


def _narrow(scale: jax.Array, layout: Layout) -> tuple[jax.Array, jax.Array]:
    """Scales as they are stored in 8 bits: in float32, and in their type."""
    if layout.has_global_scale:
        # The least positive e4m3fn, lest a block of small values be divided by zero.
        least = float(jnp.finfo(layout.scale_dtype).smallest_subnormal)
        stored = jnp.maximum(scale, least).astype(layout.scale_dtype)
        return stored.astype(jnp.float32), stored
    scale = _rounded_up(scale)
    exponents = (lax.bitcast_convert_type(scale, jnp.uint32) >> 23).astype(jnp.uint8)
    return scale, lax.bitcast_convert_type(exponents, layout.scale_dtype)


def _dithered(values: jax.Array, key: jax.Array, dtype: np.dtype) -> jax.Array:
    """A neighbour in ``dtype`` of every value, the nearer one with the higher probability."""
    info = jnp.finfo(dtype)
    exponent = lax.bitcast_convert_type(values, jnp.uint32) >> 23 & 0xFF
    exponent = jnp.maximum(exponent.astype(jnp.int32), info.minexp + 127) - info.nmant
    step = lax.bitcast_convert_type(exponent.astype(jnp.uint32) << 23, jnp.float32)
    return jnp.floor(values / step + jax.random.uniform(key, values.shape)) * step
