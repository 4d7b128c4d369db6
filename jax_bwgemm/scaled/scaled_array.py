"""`ScaledArray`: narrow values and their scales, as one pytree whose layout is in its type."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from jax_bwgemm import compat
from jax_bwgemm.product.arguments import as_dtype
from jax_bwgemm.scaled.layouts import FLOAT32, layout_of


@jax.tree_util.register_pytree_with_keys_class
@dataclasses.dataclass(frozen=True, eq=False)
class ScaledArray:
    """A matrix of 8-bit or 4-bit floating-point values with scales: values times scales.

    The dimension that products contract, K, is the last: a weight [K, N] is kept as [N, K].

    ========= ===================== ======================== ===============================
    scaling   values [..., R, K]    scales                   scale of values[..., r, k]
    ========= ===================== ======================== ===============================
    tensor    e4m3fn, e5m2          f32 [] or [...]          scales[...]
    row       e4m3fn, e5m2          f32 [..., R]             scales[..., r]
    1x128     e4m3fn, e5m2          f32 [..., K/128, R]      scales[..., k // 128, r]
    128x128   e4m3fn, e5m2          f32 [..., R/128, K/128]  scales[..., r // 128, k // 128]
    mxfp8     e4m3fn, e5m2          e8m0fnu [..., R, K/32]   scales[..., r, k // 32]
    mxfp4     e2m1fn                e8m0fnu [..., R, K/32]   scales[..., r, k // 32]
    nvfp4     e2m1fn                e4m3fn [..., R, K/16]    scales[..., r, k // 16]
    ========= ===================== ======================== ===============================

    Numbers of blocks are rounded up: the last block of a row may be shorter.

    Attributes:
        values: [..., R, K].
        scales: As in the table.
        scaling: Name of the layout. It is part of the pytree's structure.
        global_scale: Of ``nvfp4`` only: an f32 factor of everything, of shape [] or [...].

    Raises:
        TypeError: Types or shapes that are not those of the layout.
        ValueError: An unknown ``scaling``.
    """

    values: jax.Array
    scales: jax.Array
    scaling: str
    global_scale: jax.Array | None = None

    def __post_init__(self) -> None:
        check(self)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the values."""
        return self.values.shape

    @property
    def ndim(self) -> int:
        """Rank of the values."""
        return self.values.ndim

    @property
    def dtype(self) -> np.dtype:
        """Type of the values."""
        return self.values.dtype

    @property
    def mT(self) -> ScaledArray:
        """The transposed matrices, of the same values and scales.

        Raises:
            ValueError: A layout whose scales do not serve the transposed matrix.
        """
        layout = layout_of(self.scaling)
        if not layout.transposable:
            raise ValueError(
                f"scaling {self.scaling!r} has no transpose without quantizing again: use "
                "quantize(..., transposed=True)"
            )
        scales = self.scales if layout.block_k is None else jnp.swapaxes(self.scales, -1, -2)
        return ScaledArray(jnp.swapaxes(self.values, -1, -2), scales, self.scaling)

    def tree_flatten_with_keys(self) -> tuple[Any, str]:
        """Arrays by name, and the layout."""
        keys = ("values", "scales", "global_scale")
        children = [(jax.tree_util.GetAttrKey(k), getattr(self, k)) for k in keys]
        return children, self.scaling

    @classmethod
    def tree_unflatten(cls, scaling: str, children: Any) -> ScaledArray:
        """Without checks: stacked arrays and placeholders of transformations are fine."""
        made = object.__new__(cls)
        names = ("values", "scales", "global_scale")
        for name, value in zip(names, children, strict=True):
            object.__setattr__(made, name, value)
        object.__setattr__(made, "scaling", scaling)
        return made


jax.export.register_pytree_node_serialization(
    ScaledArray,
    serialized_name="jax_bwgemm.ScaledArray",
    serialize_auxdata=str.encode,
    deserialize_auxdata=bytes.decode,
)


def check(x: ScaledArray, what: str = "ScaledArray") -> None:
    """Checks types and shapes against the layout.

    Raises:
        TypeError: Types or shapes that are not those of the layout.
        ValueError: An unknown scaling.
    """
    layout = layout_of(x.scaling)
    for name in ("values", "scales", "global_scale"):
        if name == "global_scale" and x.global_scale is None:
            continue
        # A type of jax.numpy has a dtype, but no shape.
        if not (hasattr(getattr(x, name), "dtype") and hasattr(getattr(x, name), "shape")):
            found = type(getattr(x, name)).__name__
            raise TypeError(f"{what}: {name} must be an array, got {found}")
    if x.values.dtype not in layout.value_dtypes:
        known = ", ".join(str(d) for d in layout.value_dtypes)
        raise TypeError(
            f"{what}: values of scaling {x.scaling!r} must be of type {known}, got {x.values.dtype}"
        )
    if x.values.ndim < 2:
        raise TypeError(f"{what}: values must be [..., R, K], got shape {x.values.shape}")
    if x.scales.dtype != layout.scale_dtype:
        raise TypeError(
            f"{what}: scales of scaling {x.scaling!r} must be of type {layout.scale_dtype}, got "
            f"{x.scales.dtype}"
        )
    shapes = layout.scales_shapes(x.values.shape)
    if x.scales.shape not in shapes:
        raise TypeError(
            f"{what}: scales of scaling {x.scaling!r} for values of shape {x.values.shape} must "
            f"have shape {' or '.join(map(str, shapes))}, got {x.scales.shape}"
        )
    if layout.has_global_scale != (x.global_scale is not None):
        must = "needs a" if layout.has_global_scale else "has no"
        raise TypeError(f"{what}: scaling {x.scaling!r} {must} global_scale")
    shapes = layout_of("tensor").scales_shapes(x.values.shape)
    if x.global_scale is not None and (
        x.global_scale.dtype != FLOAT32 or x.global_scale.shape not in shapes
    ):
        raise TypeError(
            f"{what}: global_scale must be float32 of shape {' or '.join(map(str, shapes))}, got "
            f"{x.global_scale.dtype} of shape {x.global_scale.shape}"
        )


def block_scales(x: ScaledArray) -> jax.Array:
    """The scales in float32 as [..., rows' blocks, K's blocks], of one block where all share it."""
    layout = layout_of(x.scaling)
    scales = x.scales.astype(jnp.float32)
    if layout.block_rows is None:
        return scales[..., None, None]
    if layout.block_k is None:
        return scales[..., None]
    return jnp.swapaxes(scales, -1, -2) if layout.k_first else scales


def element_scales(x: ScaledArray) -> jax.Array:
    """Every element's scale in float32, of a shape that broadcasts with the values."""
    layout = layout_of(x.scaling)
    scales = block_scales(x)
    for axis, block in ((-2, layout.block_rows), (-1, layout.block_k)):
        if block not in (None, 1):
            scales = jnp.repeat(scales, block, axis)
            scales = jax.lax.slice_in_dim(scales, 0, x.shape[axis], axis=axis)
    return scales


def dequantize(x: ScaledArray, dtype: DTypeLike = jnp.float32) -> jax.Array:
    """Values times scales, computed in float32.

    Args:
        x: [..., R, K].
        dtype: Floating-point type of the result.

    Returns:
        [..., R, K].

    Raises:
        TypeError: Not a `ScaledArray`, one whose shapes do not fit together, or another type.
    """
    if not isinstance(x, ScaledArray):
        raise TypeError(f"dequantize requires a ScaledArray, got {type(x).__name__}")
    check(x, "dequantize")
    out_dtype = as_dtype("dequantize", "dtype", dtype)
    if not jnp.issubdtype(out_dtype, jnp.floating):
        raise TypeError(f"dequantize: dtype must be a floating-point type, got {out_dtype}")
    return compat.in_automatic_axes(
        lambda x: _dequantized(x, out_dtype), lambda: compat.spec_of(x.values), x
    )


def _product_with_scales(x: ScaledArray, dtype: np.dtype) -> jax.Array:
    def of_rank(scales: jax.Array) -> jax.Array:
        # One scale of all matrices has no dimensions for these.
        return jnp.expand_dims(scales, tuple(range(x.ndim - scales.ndim)))

    wide = x.values.astype(jnp.float32) * of_rank(element_scales(x))
    if x.global_scale is not None:
        wide *= of_rank(x.global_scale[..., None, None])
    return wide.astype(dtype)


_dequantized = compat.compiled_outside(_product_with_scales, 1)
