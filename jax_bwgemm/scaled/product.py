"""The product of two scaled operands as one batch of matrices."""

from __future__ import annotations

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp

from jax_bwgemm import compat
from jax_bwgemm.scaled.layouts import FLOAT32, layout_of, multipliable
from jax_bwgemm.scaled.primitive import DENSE
from jax_bwgemm.scaled.reference import scaled_reference
from jax_bwgemm.scaled.scaled_array import ScaledArray
from jax_bwgemm.scaled.spec import ScaledDims, ScaledSpec


def _scaled_product(a: ScaledArray, b: ScaledArray, spec: ScaledSpec) -> jax.Array:
    """The product of operands that were checked."""
    batch = a.shape[:-2] or b.shape[:-2]
    if not multipliable(a.scaling, b.scaling):
        return _by_xla(a, b, spec)
    out = DENSE.product(factors(a, b), spec)
    return jnp.broadcast_to(out, (math.prod(batch), *out.shape[1:])).reshape(*batch, *out.shape[1:])


scaled_product = compat.compiled_outside(_scaled_product, 2)


def computed_by_kernel(a: ScaledArray, b: ScaledArray, spec: ScaledSpec, dims: ScaledDims) -> bool:
    """Whether a kernel may compute the product: it is then a primitive."""
    if not multipliable(a.scaling, b.scaling):
        return False
    return DENSE.viable_implementations(spec, dims, [])[0] != "xla"


def factors(a: ScaledArray, b: ScaledArray) -> list[jax.Array]:
    """The operands of `DENSE`."""
    parts = [_rank3(x) for x in (a, b)]
    operands = [part for pair in zip(*parts, strict=True) for part in pair]
    return [*operands, global_scales(a, b).reshape(-1)]


def global_scales(a: ScaledArray, b: ScaledArray) -> jax.Array:
    """Their product, of the leading dimensions' shape, or () if all elements have the same."""
    alpha = jnp.ones((), FLOAT32)
    for x in (a, b):
        if x.global_scale is not None:
            alpha = alpha * x.global_scale
    return alpha


def _rank3(x: ScaledArray) -> tuple[jax.Array, jax.Array]:
    """Values and scales with one leading dimension for all; scales that all share have 1."""
    batch = x.ndim - 2
    values = x.values.reshape(math.prod(x.shape[:batch]), *x.shape[batch:])
    if x.scales.ndim == 0:
        return values, x.scales.reshape(1)
    return values, x.scales.reshape(values.shape[0], *x.scales.shape[batch:])


def _by_xla(a: ScaledArray, b: ScaledArray, spec: ScaledSpec) -> jax.Array:
    """The product of layouts that no kernel has, whose scales may come with a global one."""
    batch = math.prod(a.shape[:-2] or b.shape[:-2])
    sizes = (a.shape[-2], b.shape[-2], a.shape[-1], a.dtype.name, b.dtype.name)
    DENSE.viable_implementations(spec, ScaledDims(batch, *sizes), [])
    one = functools.partial(
        scaled_reference, out_dtype=spec.out_dtype, accumulation=spec.accumulation
    )
    for _ in range(max(a.ndim, b.ndim) - 2):
        one = jax.vmap(one, in_axes=(_axes(a), _axes(b)))
    return one(a, b)


def _axes(x: ScaledArray) -> Any:
    """What of an operand has the leading dimensions, for `jax.vmap`."""
    if x.ndim == 2:
        return None
    whole_array = layout_of(x.scaling).block_rows is None and x.scales.ndim == 0
    one_global = x.global_scale is not None and x.global_scale.ndim > 0
    made = (0, None if whole_array else 0, 0 if one_global else None)
    return ScaledArray.tree_unflatten(x.scaling, made)
