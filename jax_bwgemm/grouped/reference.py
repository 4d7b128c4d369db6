"""The XLA implementation of the canonical grouped GEMM: CPU lowering, fallback and test oracle.

One loop over (block of rows, group) pairs, each an ordinary product of which the rows of the group
are kept. It reads nothing but the blocks that a group touches and never repeats an operand;
`jax.lax.ragged_dot` multiplies every row with every group.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from jax_bwgemm import compat
from jax_bwgemm.grouped.groups import count_until, expert_bounds, group_bounds
from jax_bwgemm.grouped.spec import M_GROUPED, GroupedDims, GroupedSpec, grouped_dims, out_shape
from jax_bwgemm.product.dtypes import product_dtype

# Rows of a block: as many as a group has on average, within these limits; of a symbolic number of
# rows, so many.
MIN_BLOCK, MAX_BLOCK = 8, 512
SYMBOLIC_BLOCK = 128


def grouped_reference(
    lhs: jax.Array, rhs: jax.Array, sizes: jax.Array, offset: jax.Array, spec: GroupedSpec
) -> jax.Array:
    """Computes the canonical grouped GEMM with `jax.lax.dot_general` in a loop.

    Args:
        lhs: A, [B or 1, M, K]; any dtype.
        rhs: B of ``spec.kind`` and ``spec.b_major``, batch B or 1; any dtype.
        sizes: [B or 1, G], int32, any values.
        offset: [B or 1], int32, any value.
        spec: What to compute; its implementations and configuration are ignored.

    Returns:
        D of ``spec.out_dtype``, with a batch of 1 when ``spec.reduce_batch``.
    """
    operands = compat.match_varying(lhs, rhs, sizes, offset)
    dims = grouped_dims(spec, *(x.shape for x in operands))
    shape = out_shape(spec, dims)
    if dims.empty:
        return compat.zeros_like_varying(shape, spec.out_dtype, operands[0])
    wide = product_dtype(lhs.dtype, rhs.dtype, jnp.dtype(spec.out_dtype))
    one = _rows if spec.kind == M_GROUPED else _contract
    if dims.batch == 1:
        return one(*(x[0] for x in operands), spec, dims, wide)[None]
    batched = [x if x.shape[0] != 1 else None for x in operands]

    def element(slices: list[jax.Array | None], spec: GroupedSpec) -> jax.Array:
        full = (x[0] if s is None else s for x, s in zip(operands, slices, strict=True))
        return one(*full, spec, dims, wide)

    if not spec.reduce_batch:
        return lax.map(lambda slices: element(slices, spec), batched)
    unrounded = dataclasses.replace(spec, out_dtype=_accumulator(wide).name)
    total, _ = lax.scan(
        lambda total, slices: (total + element(slices, unrounded), None),
        compat.zeros_like_varying(shape[1:], unrounded.out_dtype, operands[0]),
        batched,
    )
    return total[None].astype(spec.out_dtype)


def _of_bytes(x: jax.Array, product: jnp.dtype) -> jax.Array:
    """An operand whose elements have whole bytes, of the same values.

    XLA's CPU backend multiplies narrower ones into their own type alone.
    """
    if jax.dtypes.itemsize_bits(x.dtype) >= 8 or jax.dtypes.itemsize_bits(product) < 8:
        return x
    if jnp.issubdtype(x.dtype, jnp.floating):
        return x.astype(product if product.name in ("float16", "bfloat16") else jnp.bfloat16)
    return x.astype(jnp.int8 if jnp.issubdtype(x.dtype, jnp.signedinteger) else jnp.uint8)


def _accumulator(product: jnp.dtype) -> jnp.dtype:
    """The type in which more than one product is summed."""
    narrow = jnp.issubdtype(product, jnp.floating) and product.itemsize < 4
    return jnp.dtype(jnp.float32) if narrow else product


class _Item(NamedTuple):
    """One iteration: a group and a block of rows that it touches.

    Attributes:
        expert: The matrix's index.
        first: First row of the block.
        mask: Which rows of the block are the group's, [block, 1].
        opens: Whether this is the group's first block.
    """

    expert: jax.Array
    first: jax.Array
    mask: jax.Array
    opens: jax.Array


def filled(x: jax.Array, rows: int, axis: int = 0) -> jax.Array:
    """An array with zeros after its rows, or with fewer of them: `rows` along an axis."""
    if x.shape[axis] == rows:
        return x
    # No slice: of a symbolic size it would have to be known to be inside.
    config = [(0, rows - x.shape[i] if i == axis else 0, 0) for i in range(x.ndim)]
    return lax.pad(x, jnp.zeros((), x.dtype), config)


class Schedule:
    """All items of one batch element, group after group.

    Attributes:
        rows: Rows that operands must have, zeros after their own: see `filled`.
        block: Rows of a block.
        starts: First row of every matrix's group.
        ends: Where it ends.
        count: Items, known while tracing.
    """

    def __init__(
        self, sizes: jax.Array, offset: jax.Array, dims: GroupedDims, block: int | None = None
    ) -> None:
        """``block``: blocks of so many rows, the last of which may pass the last row."""
        known = isinstance(dims.m, int)
        if block is not None or not known:
            self.block = block or SYMBOLIC_BLOCK
            self.rows = self.block * ((dims.m + self.block - 1) // self.block)
        else:
            mean = max(1, dims.m // min(dims.groups, dims.m))
            self.block = min(dims.m, max(MIN_BLOCK, min(MAX_BLOCK, 1 << (mean - 1).bit_length())))
            self.rows = dims.m
        bounds = group_bounds(sizes, dims.m)
        self.starts, self.ends = expert_bounds(*bounds, offset, dims.experts)
        last = (self.ends + self.block - 1) // self.block
        blocks = jnp.where(self.ends > self.starts, last - self.starts // self.block, 0)
        self.item_ends = jnp.cumsum(blocks)
        self.item_starts = self.item_ends - blocks
        # Every group but the first may share one block with the group before. Known while
        # tracing, so that no device waits for the host to decide whether to go on.
        whole = (dims.m + self.block - 1) // self.block
        self.count = whole + (min(dims.experts, dims.m) if known else dims.experts) - 1

    def item(self, i: jax.Array) -> _Item:
        exists = i < self.item_ends[-1]
        # Items past the last one repeat it with no rows, so that they change nothing.
        i = jnp.minimum(i, self.item_ends[-1] - 1)
        expert = count_until(self.item_ends, i)
        start, end = self.starts[expert], self.ends[expert]
        nth = i - self.item_starts[expert]
        begin = (start // self.block + nth) * self.block
        first = jnp.minimum(begin, self.rows - self.block)  # the last block overlaps its neighbour
        row = first + jnp.arange(self.block, dtype=jnp.int32)
        mask = (row >= jnp.maximum(begin, start)) & (row < end) & exists
        return _Item(expert, first, mask[:, None], exists & (nth == 0))


def _rows(
    lhs: jax.Array,
    rhs: jax.Array,
    sizes: jax.Array,
    offset: jax.Array,
    spec: GroupedSpec,
    dims: GroupedDims,
    wide: jnp.dtype,
) -> jax.Array:
    schedule = Schedule(sizes, offset, dims)
    lhs, rhs = (_of_bytes(x, wide) for x in (filled(lhs, schedule.rows), rhs))
    contracted = 0 if spec.b_major == "n" else 1

    def step(i: jax.Array, out: jax.Array) -> jax.Array:
        item = schedule.item(i)
        a = lax.dynamic_slice_in_dim(lhs, item.first, schedule.block)
        b = lax.dynamic_index_in_dim(rhs, item.expert, keepdims=False)
        product = lax.dot_general(
            a,
            b,
            (((1,), (contracted,)), ((), ())),
            precision=spec.policy.precision,
            preferred_element_type=wide,
        ).astype(spec.out_dtype)
        before = lax.dynamic_slice_in_dim(out, item.first, schedule.block)
        merged = jnp.where(item.mask, product, before)
        return lax.dynamic_update_slice_in_dim(out, merged, item.first, 0)

    zeros = compat.zeros_like_varying((schedule.rows, dims.n), spec.out_dtype, lhs)
    return filled(lax.fori_loop(0, schedule.count, step, zeros), dims.m)


def _contract(
    lhs: jax.Array,
    rhs: jax.Array,
    sizes: jax.Array,
    offset: jax.Array,
    spec: GroupedSpec,
    dims: GroupedDims,
    wide: jnp.dtype,
) -> jax.Array:
    schedule = Schedule(sizes, offset, dims)
    lhs, rhs = filled(lhs, schedule.rows), filled(rhs, schedule.rows)
    exact = _accumulator(wide)
    lhs, rhs = (_of_bytes(x, exact) for x in (lhs, rhs))

    def step(i: jax.Array, carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        out, total = carry
        item = schedule.item(i)
        a = lax.dynamic_slice_in_dim(lhs, item.first, schedule.block)
        b = lax.dynamic_slice_in_dim(rhs, item.first, schedule.block)
        # Both masked: a row of another group may hold anything, infinities included.
        product = lax.dot_general(
            jnp.where(item.mask, a, 0),
            jnp.where(item.mask, b, 0),
            (((0,), (0,)), ((), ())),
            precision=spec.policy.precision,
            preferred_element_type=exact,
        )
        total = jnp.where(item.opens, product, total + product)
        return lax.dynamic_update_index_in_dim(
            out, total.astype(spec.out_dtype), item.expert, 0
        ), total

    out = compat.zeros_like_varying((dims.experts, dims.k, dims.n), spec.out_dtype, lhs)
    total = compat.zeros_like_varying((dims.k, dims.n), exact, lhs)
    return lax.fori_loop(0, schedule.count, step, (out, total))[0]
