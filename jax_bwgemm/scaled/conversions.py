"""Operands of other libraries as `ScaledArray`: qwix's, and those of `jax.nn.scaled_matmul`."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from jax_bwgemm.scaled.layouts import LAYOUTS, Layout, layout_of
from jax_bwgemm.scaled.scaled_array import ScaledArray, check


def as_scaled_array(x: Any, what: str) -> ScaledArray:
    """An operand that `scaled_matmul` takes, with K last, as a `ScaledArray`.

    Args:
        x: A `ScaledArray`; an object with ``qvalue``, ``scale`` and ``zero_point``, as qwix's
            `QArray`; or a pair of values [..., R, K] and scales [..., R or R / 128, blocks of K],
            as `jax.nn.scaled_matmul` takes them. Scales have the values' rank, and each is that of
            the block of elements that the sizes say, which may be a whole matrix or all of them;
            the layout follows from blocks and types.
        what: Its name, for messages.

    Raises:
        TypeError: None of these, a zero point, or blocks and types of no layout.
    """
    if isinstance(x, ScaledArray):
        return x
    if isinstance(x, tuple) and len(x) == 2:
        values, scales = x
    elif all(hasattr(x, name) for name in ("qvalue", "scale", "zero_point")):
        if x.zero_point is not None:
            raise TypeError(f"{what}: a QArray with a zero_point has no scaled product")
        values, scales = x.qvalue, x.scale
    else:
        raise TypeError(
            f"{what} must be a ScaledArray, a QArray or a pair of values and scales, got "
            f"{type(x).__name__}"
        )
    arrays = all(hasattr(v, "dtype") and hasattr(v, "ndim") for v in (values, scales))
    if not arrays or values.ndim != scales.ndim:
        raise TypeError(f"{what}: values and scales must be arrays of the same rank")
    if values.ndim < 2:
        raise TypeError(f"{what}: values must be [..., R, K], got shape {values.shape}")
    found = [layout for layout in LAYOUTS.values() if _fits(layout, values, scales)]
    if not found:
        raise TypeError(
            f"{what}: no layout has scales {scales.dtype}{list(scales.shape)} of values "
            f"{values.dtype}{list(values.shape)}; every block must have its layout's size"
        )
    return _made(found[0], values, scales)


def as_operand(x: Any, what: str) -> ScaledArray:
    """What `as_scaled_array` makes of an operand, in the layout whose kernels multiply it.

    Raises:
        TypeError: As `as_scaled_array`, or types or shapes that are not those of the layout.
    """
    x = as_scaled_array(x, what)
    layout = layout_of(x.scaling)
    if layout.multiplied_as is None:
        return x
    check(x, what)
    dtype = layout_of(layout.multiplied_as).value_dtypes[0]
    if isinstance(x.values, jax.ShapeDtypeStruct):
        values = jax.ShapeDtypeStruct(x.shape, dtype)
    else:
        values = x.values.astype(dtype)
    return ScaledArray(values, x.scales, layout.multiplied_as)


def _fits(layout: Layout, values: Any, scales: Any) -> bool:
    wide = layout.scale_dtype == jnp.float32
    types = jnp.issubdtype(scales.dtype, jnp.floating) and (
        scales.dtype.itemsize > 1 if wide else scales.dtype == layout.scale_dtype
    )
    *batch, rows, k = values.shape
    whole = layout.block_rows is None
    blocks = (
        1 if whole else -(-rows // layout.block_rows),
        1 if layout.block_k is None else -(-k // layout.block_k),
    )
    expected = {(*batch, *blocks)} | ({(1,) * values.ndim} if whole else set())
    # Blocks have the layout's size. Of 48 elements, two blocks of 24 are as many as of 32.
    sizes = (rows, layout.block_rows), (k, layout.block_k)
    if any(n > 1 and size != n * block for n, (size, block) in zip(blocks, sizes, strict=True)):
        return False
    return bool(types) and values.dtype in layout.value_dtypes and scales.shape in expected


def _made(layout: Layout, values: jax.Array, scales: jax.Array) -> ScaledArray:
    if layout.scale_dtype == jnp.float32:
        scales = scales.astype(jnp.float32)
    if layout.block_rows is None:  # one for all matrices, or one for each
        scales = scales.reshape(() if scales.size == 1 else scales.shape[:-2])
    elif layout.block_k is None:
        scales = scales[..., 0]
    elif layout.k_first:
        scales = jnp.swapaxes(scales, -1, -2)
    whole = jnp.ones((), jnp.float32) if layout.has_global_scale else None
    return ScaledArray(values, scales, layout.name, whole)
