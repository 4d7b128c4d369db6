"""Grouped scaled products by XLA: what every implementation computes, but for the order of sums.

One loop over (block of rows, group) pairs, as `jax_bwgemm.grouped.reference` has it.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import lax

from jax_bwgemm import compat
from jax_bwgemm.grouped.groups import clamp_offset, group_of_rows
from jax_bwgemm.grouped.reference import Schedule, filled, grouped_reference
from jax_bwgemm.grouped.spec import GroupedSpec
from jax_bwgemm.product.spec import common_batch
from jax_bwgemm.scaled.layouts import layout_of
from jax_bwgemm.scaled.ragged_spec import ScaledRaggedDims, ScaledRaggedSpec
from jax_bwgemm.scaled.reference import PROMOTED_K, multiplied, scaled_reference
from jax_bwgemm.scaled.scaled_array import ScaledArray


def ragged_reference(
    operands: Sequence[jax.Array], spec: ScaledRaggedSpec, dims: ScaledRaggedDims
) -> jax.Array:
    """The grouped scaled products.

    Args:
        operands: A, B, group sizes, offset, scales of A and of B, alpha; each first dimension is
            the batch or 1.
        spec: What to compute.
        dims: Its sizes.

    Returns:
        D, [B, M, N]; k-grouped [B, E, K, N].
    """
    operands = compat.match_varying(*operands)
    result = (dims.m, dims.n) if spec.m_grouped else (dims.experts, dims.k, dims.n)
    if dims.empty:
        return compat.zeros_like_varying((dims.batch, *result), spec.out_dtype, operands[0])
    if layout_of(spec.a_scaling).exact_in_bfloat16:
        return _of_block_formats(operands, spec, dims)
    *operands, _ = operands
    one = _rows if spec.m_grouped else _contract
    if dims.batch == 1:
        return one(*(x[0] for x in operands), spec, dims)[None]
    batched = [x if x.shape[0] != 1 else None for x in operands]

    def element(slices: list[jax.Array | None]) -> jax.Array:
        full = (x[0] if s is None else s for x, s in zip(operands, slices, strict=True))
        return one(*full, spec, dims)

    return lax.map(element, batched)


def _of_block_formats(
    operands: Sequence[jax.Array], spec: ScaledRaggedSpec, dims: ScaledRaggedDims
) -> jax.Array:
    """Values times scales are bfloat16 numbers: the grouped product of these, times alpha."""
    a, b, sizes, offset, a_scales, b_scales, alpha = operands
    global_scale = jnp.ones((), jnp.float32) if layout_of(spec.a_scaling).has_global_scale else None

    def product(values: jax.Array, scales: jax.Array) -> jax.Array:
        batch = common_batch((values.shape[0], scales.shape[0]))  # one of them may be shared
        values, scales = (jnp.broadcast_to(x, (batch, *x.shape[1:])) for x in (values, scales))
        return multiplied(ScaledArray(values, scales, spec.a_scaling, global_scale))

    left, right = product(a, a_scales), product(b, b_scales)
    plain = GroupedSpec(
        kind=spec.kind,
        b_major="k" if spec.m_grouped else "n",
        experts=spec.experts,
        out_dtype="float32",
    )
    if not spec.m_grouped:
        # XLA's CPU backend fails on some products of transposed bfloat16 matrices in loops.
        left, right = (x.astype(jnp.float32).mT for x in (left, right))
    out = grouped_reference(left, right, sizes, offset, plain)
    if global_scale is not None:
        out *= (
            _alpha_of_rows(alpha, sizes, offset, dims)
            if spec.m_grouped
            else (alpha[:, None, None, None])
        )
    return jnp.broadcast_to(out, (dims.batch, *out.shape[1:])).astype(spec.out_dtype)


def _alpha_of_rows(
    alpha: jax.Array, sizes: jax.Array, offset: jax.Array, dims: ScaledRaggedDims
) -> jax.Array:
    """That of every row's matrix, [B or 1, M, 1]; of rows of none, which are zeros, any."""
    batch = common_batch((alpha.shape[0], sizes.shape[0], offset.shape[0]))

    def one(alpha: jax.Array, sizes: jax.Array, offset: jax.Array) -> jax.Array:
        expert = group_of_rows(sizes, dims.m) - clamp_offset(offset, dims.groups)
        return alpha[jnp.clip(expert, 0, dims.experts - 1)][:, None]

    return jax.vmap(one)(
        *(jnp.broadcast_to(x, (batch, *x.shape[1:])) for x in (alpha, sizes, offset))
    )


def _of_rows(scales: jax.Array, scaling: str, rows: int) -> tuple[jax.Array, str]:
    """Scales of a layout whose rows can be cut anywhere."""
    if scaling != "128x128":
        return scales, scaling
    return jnp.take(scales, jnp.arange(rows) // 128, axis=0, mode="clip").T, "1x128"


def _rows(
    a: jax.Array,
    b: jax.Array,
    sizes: jax.Array,
    offset: jax.Array,
    a_scales: jax.Array,
    b_scales: jax.Array,
    spec: ScaledRaggedSpec,
    dims: ScaledRaggedDims,
) -> jax.Array:
    schedule = Schedule(sizes, offset, dims)
    a_scales, a_scaling = _of_rows(a_scales, spec.a_scaling, dims.m)
    rows_axis = {"tensor": None, "row": 0, "1x128": 1}[a_scaling]
    a = filled(a, schedule.rows)
    if rows_axis is not None:
        a_scales = filled(a_scales, schedule.rows, rows_axis)

    def step(i: jax.Array, out: jax.Array) -> jax.Array:
        item = schedule.item(i)
        rows, scales = lax.dynamic_slice_in_dim(a, item.first, schedule.block), a_scales
        if rows_axis is not None:
            scales = lax.dynamic_slice_in_dim(scales, item.first, schedule.block, rows_axis)
        product = scaled_reference(
            ScaledArray(rows, scales, a_scaling),
            ScaledArray(b[item.expert], b_scales[item.expert], spec.b_scaling),
            spec.out_dtype,
            spec.accumulation,
        )
        before = lax.dynamic_slice_in_dim(out, item.first, schedule.block)
        merged = jnp.where(item.mask, product, before)
        return lax.dynamic_update_slice_in_dim(out, merged, item.first, 0)

    zeros = compat.zeros_like_varying((schedule.rows, dims.n), spec.out_dtype, a)
    return filled(lax.fori_loop(0, schedule.count, step, zeros), dims.m)


def _contract(
    a: jax.Array,
    b: jax.Array,
    sizes: jax.Array,
    offset: jax.Array,
    a_scales: jax.Array,
    b_scales: jax.Array,
    spec: ScaledRaggedSpec,
    dims: ScaledRaggedDims,
) -> jax.Array:
    # Whole blocks of the ragged rows, at fixed places: each has its scales.
    schedule = Schedule(sizes, offset, dims, PROMOTED_K)

    def of_block(scales: jax.Array, scaling: str, block: jax.Array, rows: int) -> jax.Array:
        """Those of the rows of a block's product."""
        if layout_of(scaling).block_k is None:
            return jnp.ones((rows,), jnp.float32)
        return _of_rows(scales, scaling, rows)[0][block]

    def whole(scales: jax.Array, scaling: str, rows: int) -> jax.Array:
        """Those of all of a row, or one."""
        known = layout_of(scaling).block_k is None
        return jnp.broadcast_to(scales if known else jnp.float32(1), (rows,))

    a, b = filled(a, schedule.rows, 1), filled(b, schedule.rows, 1)

    def step(i: jax.Array, carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        out, total = carry
        item = schedule.item(i)
        # Both masked: a row of another group may hold anything, infinities included.
        product = lax.dot_general(
            *(
                jnp.where(item.mask.T, lax.dynamic_slice_in_dim(x, item.first, PROMOTED_K, 1), 0)
                for x in (a, b)
            ),
            (((1,), (1,)), ((), ())),
            preferred_element_type=jnp.float32,
        )
        block = item.first // PROMOTED_K
        left = of_block(a_scales, spec.a_scaling, block, dims.k)
        right = of_block(b_scales, spec.b_scaling, block, dims.n)
        # Blocks outside the group may have any scales, NaN included.
        product = jnp.where(jnp.any(item.mask), product * left[:, None] * right[None], 0)
        total = jnp.where(item.opens, product, total + product)
        return lax.dynamic_update_index_in_dim(out, total, item.expert, 0), total

    out = compat.zeros_like_varying((dims.experts, dims.k, dims.n), jnp.float32, a)
    total = compat.zeros_like_varying((dims.k, dims.n), jnp.float32, a)
    sums = lax.fori_loop(0, schedule.count, step, (out, total))[0]
    left, right = whole(a_scales, spec.a_scaling, dims.k), whole(b_scales, spec.b_scaling, dims.n)
    scaled = sums * left[None, :, None] * right[None, None]
    # A group without rows is zero, whatever the scales.
    found = (schedule.ends > schedule.starts)[:, None, None]
    return jnp.where(found, scaled, 0).astype(spec.out_dtype)
