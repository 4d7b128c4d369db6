"""Arithmetic on group sizes, which are on the device. int32 throughout, and never overflowing."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jax_bwgemm import compat

_LARGEST = np.iinfo(np.int32).max


def as_int32(sizes: jax.Array) -> jax.Array:
    """Sizes of any integer type as int32, those that do not fit at its largest value."""
    if sizes.dtype == jnp.int32:
        return sizes
    info = jnp.iinfo(sizes.dtype)
    if info.max > _LARGEST:
        sizes = jnp.clip(sizes, max(info.min, -_LARGEST), _LARGEST)
    return sizes.astype(jnp.int32)


@functools.partial(jax.jit, inline=compat.INLINE)
def first_group() -> jax.Array:
    """The offset where none is given, made on the device: `jax.transfer_guard` allows that."""
    return jnp.zeros((), jnp.int32)


def group_bounds(sizes: jax.Array, rows: int) -> tuple[jax.Array, jax.Array]:
    """First row of every group, and the row after its last, as the kernels define them.

    Args:
        sizes: [..., G], int32, any values. Negative ones count as 0.
        rows: Rows there are, at most ``2**31 - 1``; the running sum stops there.

    Returns:
        Starts and ends, both [..., G], non-decreasing, from 0 to ``rows``.
    """
    sizes = jnp.clip(sizes, 0, rows)
    # min(a + b, rows) without computing a + b; associative.
    ends = lax.associative_scan(lambda a, b: a + jnp.minimum(b, rows - a), sizes, axis=-1)
    starts = jnp.concatenate([jnp.zeros_like(ends[..., :1]), ends[..., :-1]], axis=-1)
    return starts, ends


def expert_bounds(
    starts: jax.Array, ends: jax.Array, offset: jax.Array, experts: int
) -> tuple[jax.Array, jax.Array]:
    """Bounds of groups offset .. offset + experts.

    Where there is no such group, an empty one behind the last: bounds never decrease.

    Args:
        starts: First row of every group, [G].
        ends: End of every group, [G].
        offset: int32 scalar, any value; it is clamped into [0, G].
        experts: How many groups.

    Returns:
        Starts and ends, both [E].
    """
    groups = starts.shape[-1]
    index = clamp_offset(offset, groups) + jnp.arange(experts, dtype=jnp.int32)
    inside = jnp.minimum(index, groups - 1)
    ends = ends[inside]
    return jnp.where(index < groups, starts[inside], ends), ends


def clamp_offset(offset: jax.Array, groups: int) -> jax.Array:
    """The offset as the kernels take it: from 0 to the number of groups."""
    return jnp.clip(offset, 0, groups)


def local_sizes(sizes: jax.Array, rows: int, first: jax.Array, local_rows: int) -> jax.Array:
    """Sizes of the groups within a window of the rows.

    Args:
        sizes: [..., G], int32.
        rows: Rows there are in total.
        first: First row of the window, an int32 scalar.
        local_rows: Rows of the window.
    """
    starts, ends = group_bounds(sizes, rows)
    inside = [jnp.clip(bound, first, first + local_rows) for bound in (starts, ends)]
    return inside[1] - inside[0]


def group_of_rows(sizes: jax.Array, rows: int) -> jax.Array:
    """The group of every row, [..., M]; G for rows past the last group."""
    _, ends = group_bounds(sizes, rows)
    return count_until(ends, jnp.arange(rows, dtype=jnp.int32))


def count_until(bounds: jax.Array, positions: jax.Array) -> jax.Array:
    """How many bounds are at most each position: of ends of groups, the group that it is in.

    XLA fuses the comparisons into the sum. JAX's searchsorted cannot be traced where a mesh is
    partly manual.

    Args:
        bounds: [..., G].
        positions: [P] or a scalar.

    Returns:
        [..., P] or, for a scalar, [...], int32.
    """
    if positions.ndim == 0:
        return jnp.sum(bounds <= positions, axis=-1, dtype=jnp.int32)
    until = bounds[..., None] <= lax.expand_dims(positions, range(bounds.ndim))
    return jnp.sum(until, axis=-2, dtype=jnp.int32)


def rows_of_groups(
    arrays: Sequence[jax.Array], sizes: jax.Array, offset: jax.Array, rows: int
) -> list[jax.Array]:
    """The value or row of every row's matrix, [M, 1] or [M, N]; zeros where there is no matrix.

    Args:
        arrays: [E] or [E, N].
        sizes: [G], int32.
        offset: The group of the first matrix, an int32 scalar.
        rows: M.
    """
    if not arrays:
        return []
    groups = sizes.shape[-1]
    group = group_of_rows(sizes, rows)
    expert = group - clamp_offset(offset, groups)
    has_group = (group != groups) & (expert >= 0)
    found = [_taken(x, expert, has_group) for x in arrays]
    return [x[:, None] if x.ndim == 1 else x for x in found]


def _taken(x: jax.Array, index: jax.Array, wanted: jax.Array) -> jax.Array:
    """Elements of the first dimension; zeros where none is wanted, or the number is none of them.

    Numbers are clipped first: checkify would report those that are out of bounds.
    """
    if x.shape[0] == 0:
        return jnp.zeros((*index.shape, *x.shape[1:]), x.dtype)
    wanted = (wanted & (index < x.shape[0])).reshape(*index.shape, *[1] * (x.ndim - 1))
    return jnp.where(wanted, x[jnp.clip(index, 0, x.shape[0] - 1)], jnp.zeros((), x.dtype))
