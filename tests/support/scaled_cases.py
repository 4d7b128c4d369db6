"""Scaled operands for tests: of exactly representable numbers, for every layout."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

import jax_bwgemm as bw
from jax_bwgemm.scaled.layouts import FLOAT4, LAYOUTS, layout_of

SCALINGS = tuple(LAYOUTS)
FOUR_BITS = tuple(name for name, layout in LAYOUTS.items() if layout.value_dtypes == FLOAT4)


def exact_operand(
    rng: np.random.Generator, shape: tuple[int, ...], scaling: str, dtype: str | None = None
) -> bw.ScaledArray:
    """Small integers with scales that are powers of two: sums of their products are exact."""
    layout = layout_of(scaling)
    value_dtype = layout.value_dtypes[0] if dtype is None else dtype
    # Rounded by NumPy: JAX would compile a program for each shape and type.
    values = rng.integers(-2, 3, shape).astype(np.float32).astype(jnp.dtype(value_dtype))
    scales = 2.0 ** rng.integers(-1, 2, layout.scales_shapes(shape)[0])
    scales = scales.astype(np.float32).astype(jnp.dtype(layout.scale_dtype))
    whole = jnp.float32(0.5) if layout.has_global_scale else None
    return bw.ScaledArray(jnp.asarray(values), jnp.asarray(scales), scaling, whole)


def formula_scales(x: bw.ScaledArray) -> np.ndarray:
    """The scale of every element, as the table in the docstring of `ScaledArray` says it."""
    scales = np.asarray(x.scales).astype(np.float64)
    rows, k = (np.arange(size) for size in x.shape[-2:])
    r, c = rows[:, None], k[None, :]
    index = {
        "row": (r,),
        "1x128": (c // 128, r),
        "128x128": (r // 128, c // 128),
        "mxfp8": (r, c // 32),
        "mxfp4": (r, c // 32),
        "nvfp4": (r, c // 16),
    }
    if x.scaling == "tensor":
        found = np.broadcast_to(scales[..., None, None], x.shape)
    else:
        found = np.broadcast_to(scales[(..., *index[x.scaling])], x.shape)
    return found if x.global_scale is None else found * float(x.global_scale)


def formula_values(x: bw.ScaledArray) -> np.ndarray:
    """Values times scales in f64."""
    return np.asarray(x.values).astype(np.float64) * formula_scales(x)


def formula_product(a: bw.ScaledArray, b: bw.ScaledArray) -> np.ndarray:
    """``a @ b.mT`` in f64."""
    return formula_values(a) @ np.swapaxes(formula_values(b), -1, -2)


def leaves(x: bw.ScaledArray) -> list[jax.Array]:
    return jax.tree.leaves(x)
