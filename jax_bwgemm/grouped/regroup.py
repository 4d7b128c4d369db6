"""Merges a batch into the rows: the rows of a group, from all batch elements, brought together.

What one group multiplies must lie in consecutive rows. Where many batch elements share a matrix (or
its gradient) a gather of the rows is much smaller than a copy of the matrix for every element.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jax_bwgemm.grouped.groups import group_bounds, group_of_rows


class Regrouping(NamedTuple):
    """How the rows of S batch elements become one ragged matrix.

    Attributes:
        sizes: Group sizes of the merged rows, [P, G].
        order: For every merged row, where it was: element times M plus row, [P, S * M].
        rows: M.
        merged: S.
    """

    sizes: jax.Array
    order: jax.Array
    rows: int
    merged: int


def regroup(sizes: jax.Array, rows: int, merged: int) -> Regrouping:
    """Plans the merge.

    Args:
        sizes: Group sizes, [P, S or 1, G], int32, any values.
        rows: M, the rows of every element.
        merged: S, how many elements are merged.
    """
    sizes = jnp.broadcast_to(sizes, (sizes.shape[0], merged, sizes.shape[2]))
    starts, ends = group_bounds(sizes, rows)
    groups = group_of_rows(sizes, rows).reshape(sizes.shape[0], merged * rows)
    order = jnp.argsort(groups, axis=-1, stable=True).astype(jnp.int32)
    return Regrouping(jnp.sum(ends - starts, axis=1), order, rows, merged)


def take_rows(x: jax.Array, plan: Regrouping) -> jax.Array:
    """The merged rows of an operand: [P or 1, S or 1, M, C] to [P or 1, S * M, C]."""
    order = plan.order % plan.rows if x.shape[1] == 1 else plan.order
    return _take(x.reshape(x.shape[0], x.shape[1] * x.shape[2], x.shape[-1]), order)


def return_rows(x: jax.Array, plan: Regrouping) -> jax.Array:
    """Undoes `take_rows` for a result: [P, S * M, C] to [P, S, M, C]."""
    back = _take(x, jnp.argsort(plan.order, axis=-1))
    return back.reshape(back.shape[0], plan.merged, plan.rows, back.shape[-1])


def _take(x: jax.Array, order: jax.Array) -> jax.Array:
    """``x[p, order[p]]`` for every p, either of them being shared if its first size is 1."""

    def one(matrix: jax.Array, index: jax.Array) -> jax.Array:
        return matrix.at[index].get(mode="promise_in_bounds")

    if x.shape[0] == order.shape[0]:
        return jax.vmap(one)(x, order)
    if x.shape[0] == 1:
        return jax.vmap(one, in_axes=(None, 0))(x[0], order)
    return jax.vmap(one, in_axes=(0, None))(x, order[0])
