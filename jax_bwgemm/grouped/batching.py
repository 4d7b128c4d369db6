"""How a batched grouped GEMM becomes an unbatched one, without repeating a matrix of B.

Throughout, ``v`` is the mapped dimension and ``b`` the batch of the canonical grouped GEMM. Every
operand is first brought into the form [v, b, ...], with size 1 where it does not depend on one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp

from jax_bwgemm.grouped.regroup import regroup, return_rows, take_rows
from jax_bwgemm.grouped.spec import K_GROUPED, M_GROUPED, GroupedSpec

Bind = Callable[[jax.Array, jax.Array, jax.Array, jax.Array, GroupedSpec], jax.Array]


def batch_grouped(
    bind: Bind, operands: Sequence[jax.Array], axes: Sequence[int | None], spec: GroupedSpec
) -> tuple[jax.Array, int]:
    """Batches the canonical grouped GEMM; at least one operand is mapped.

    Args:
        bind: Binds the unbatched grouped GEMM.
        operands: A, B, sizes and offset, with ``v`` at the given axis if it is mapped.
        axes: Position of ``v`` in each operand, or None where it is not mapped.
        spec: The grouped GEMM of one element of the mapped dimension.

    Returns:
        D with ``v`` at the returned axis.
    """
    full = [x[None] if v is None else _to_front(x, v) for x, v in zip(operands, axes, strict=True)]
    size = next(x.shape[0] for x, v in zip(full, axes, strict=True) if v is not None)
    batch = next((x.shape[1] for x in full if x.shape[1] != 1), 1)
    if spec.reduce_batch:
        return _reduce(bind, full, size, batch, spec), 0
    # A symbolic size (`jax.export`) equals neither.
    if spec.kind == M_GROUPED and size not in (0, 1) and batch not in (0, 1):
        _, rhs, _, offset = full
        if rhs.shape[:2] == (1, batch) and offset.shape[0] == 1:
            return _fold_into_rows(bind, [x.swapaxes(0, 1) for x in full], size, spec), 1
        if rhs.shape[:2] == (size, 1) and offset.shape[1] == 1:
            return _fold_into_rows(bind, full, batch, spec), 0
    out = bind(*(_merge(x, size, batch) for x in full), spec)
    return out.reshape(size, batch, *out.shape[1:]), 0


def reduce_batch(bind: Bind, operands: Sequence[jax.Array], spec: GroupedSpec) -> jax.Array:
    """A batch-reducing grouped GEMM in terms of one that is not, for one device's operands."""
    full = [x[None] for x in operands]
    batch = next((x.shape[0] for x in operands if x.shape[0] != 1), 1)
    return _reduce(bind, full, 1, batch, spec)[0]


def _to_front(x: jax.Array, axis: int) -> jax.Array:
    """Moves ``axis`` to the front; a reshape where only a batch of 1 is in between."""
    if axis == 1 and x.shape[0] == 1:
        return x.reshape(x.shape[1], 1, *x.shape[2:])
    return jnp.moveaxis(x, axis, 0)


def _merge(x: jax.Array, size: int, batch: int) -> jax.Array:
    """[v, b, ...] as one batch; 1 if x depends on neither, repeated if it depends on one."""
    if x.shape[:2] == (1, 1):
        return x.reshape(x.shape[1:])
    x = jnp.broadcast_to(x, (size, batch, *x.shape[2:]))
    return x.reshape(size * batch, *x.shape[2:])


def _fold_into_rows(
    bind: Bind, full: Sequence[jax.Array], merged: int, spec: GroupedSpec
) -> jax.Array:
    """B depends on axis 0 only: axis 1 joins the rows, which are far smaller than copies of B.

    Args:
        bind: Binds the unbatched grouped GEMM.
        full: The operands, with both axes in front.
        merged: Size of axis 1.
        spec: The grouped GEMM.

    Returns:
        D, with both axes in front.
    """
    lhs, rhs, sizes, offset = full
    plan = regroup(sizes, lhs.shape[2], merged)
    out = bind(take_rows(lhs, plan), rhs[:, 0], plan.sizes, offset[:, 0], spec)
    return return_rows(out, plan)


def _reduce(
    bind: Bind, full: Sequence[jax.Array], size: int, batch: int, spec: GroupedSpec
) -> jax.Array:
    """The sum over b, for every v: [v, 1, ...]."""
    each = dataclasses.replace(spec, reduce_batch=False)
    lhs, rhs, sizes, offset = full
    if spec.kind == K_GROUPED and offset.shape[1] == 1:
        # The contracted rows of all b make one longer contraction.
        plan = regroup(sizes, lhs.shape[2], batch)
        out = bind(take_rows(lhs, plan), take_rows(rhs, plan), plan.sizes, offset[:, 0], each)
        return out[:, None]
    out_dtype = jnp.dtype(spec.out_dtype)
    if out_dtype.itemsize == 2:
        each = dataclasses.replace(each, out_dtype="float32")
    out = bind(*(_merge(x, size, batch) for x in full), each)
    out = out.reshape(size, batch, *out.shape[1:])
    return jnp.sum(out, axis=1, keepdims=True, dtype=each.out_dtype).astype(out_dtype)
