"""How a batched GEMM becomes an unbatched one, with as few copies as the storage order allows.

The batching rule is split from the primitive because it is a table of cases. Throughout, ``v`` is
the mapped dimension and b, m, n, k are those of the canonical GEMM.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from jax_bwgemm.dense.spec import GemmSpec

Bind = Callable[[jax.Array, jax.Array, GemmSpec], jax.Array]


def batch_gemm(
    bind: Bind, lhs: jax.Array, rhs: jax.Array, lhs_v: int | None, rhs_v: int | None, spec: GemmSpec
) -> tuple[jax.Array, int]:
    """Batches the canonical GEMM; at least one operand is mapped.

    Args:
        bind: Binds the unbatched GEMM.
        lhs: A with ``v`` at axis ``lhs_v``, or not mapped when that is None.
        rhs: B with ``v`` at axis ``rhs_v``, or not mapped when that is None.
        lhs_v: Position of ``v`` in ``lhs``.
        rhs_v: Position of ``v`` in ``rhs``.
        spec: The GEMM of one element of the mapped dimension.

    Returns:
        D with ``v`` at the returned axis.
    """
    if lhs_v is not None and rhs_v is not None:
        return _batch_both(bind, jnp.moveaxis(lhs, lhs_v, 0), jnp.moveaxis(rhs, rhs_v, 0), spec)
    if lhs_v is not None:
        if rhs.shape[0] == 1:
            return _batch_with_shared(bind, lhs, rhs, lhs_v, spec, mapped_lhs=True)
        return _fold_into_rows(bind, lhs, rhs, lhs_v, spec)
    if lhs.shape[0] == 1:
        return _batch_with_shared(bind, rhs, lhs, rhs_v, spec, mapped_lhs=False)
    return _fold_into_columns(bind, lhs, rhs, rhs_v, spec)


def _merge(x: jax.Array, axis: int) -> jax.Array:
    """Merges ``axis`` with the next one."""
    shape = x.shape
    return x.reshape(*shape[:axis], shape[axis] * shape[axis + 1], *shape[axis + 2 :])


def _split(x: jax.Array, axis: int, outer: int, inner: int) -> jax.Array:
    """Undoes `_merge`."""
    return x.reshape(*x.shape[:axis], outer, inner, *x.shape[axis + 1 :])


def _batch_with_shared(
    bind: Bind, mapped: jax.Array, shared: jax.Array, v: int, spec: GemmSpec, *, mapped_lhs: bool
) -> tuple[jax.Array, int]:
    """One operand is shared by b and v alike: v joins b, without a copy if it is beside it."""
    at = v if v in (0, 1) else 0
    mapped = jnp.moveaxis(mapped, v, at)
    outer, inner = mapped.shape[:2]
    merged = _merge(mapped, 0)
    out = bind(merged, shared, spec) if mapped_lhs else bind(shared, merged, spec)
    return _split(out, 0, outer, inner), at


def _fold_into_rows(
    bind: Bind, lhs: jax.Array, rhs: jax.Array, v: int, spec: GemmSpec
) -> tuple[jax.Array, int]:
    """Only A is mapped and B has a batch: v joins m, so that B is read once and never copied."""
    m_axis = 1 if spec.a_major == "k" else 2
    lhs = jnp.moveaxis(lhs, v, m_axis)
    size, m = lhs.shape[m_axis : m_axis + 2]
    return _split(bind(_merge(lhs, m_axis), rhs, spec), 1, size, m), 1


def _fold_into_columns(
    bind: Bind, lhs: jax.Array, rhs: jax.Array, v: int, spec: GemmSpec
) -> tuple[jax.Array, int]:
    """Only B is mapped and A has a batch: v joins n, so that A is read once and never copied."""
    n_axis = 2 if spec.b_major == "n" else 1
    rhs = jnp.moveaxis(rhs, v, n_axis)
    size, n = rhs.shape[n_axis : n_axis + 2]
    return _split(bind(lhs, _merge(rhs, n_axis), spec), 2, size, n), 2


def _batch_both(
    bind: Bind, lhs: jax.Array, rhs: jax.Array, spec: GemmSpec
) -> tuple[jax.Array, int]:
    """Both operands are mapped, at axis 0: v becomes, or joins, the batch."""
    size, lhs_batch = lhs.shape[:2]
    rhs_batch = rhs.shape[1]
    if spec.reduce_batch:
        # v becomes the batch, and b joins k: D[v] = sum over (b, k).
        spec = dataclasses.replace(spec, reduce_batch=False)
        lhs = _merge(lhs if spec.a_major == "m" else jnp.swapaxes(lhs, 1, 2), _k_axis(spec, 0))
        rhs = _merge(rhs if spec.b_major == "n" else jnp.swapaxes(rhs, 1, 2), _k_axis(spec, 1))
        return bind(lhs, rhs, spec)[:, None], 0
    if lhs_batch == rhs_batch:
        return _split(bind(_merge(lhs, 0), _merge(rhs, 0), spec), 0, size, lhs_batch), 0
    if rhs_batch == 1 and spec.a_major == "k":
        # All of b share B: b joins m, which is next to it in memory.
        m = lhs.shape[2]
        return _split(bind(_merge(lhs, 1), rhs[:, 0], spec), 1, lhs_batch, m), 0
    # A stride of 0 inside v cannot be expressed, so the shared operand is repeated.
    batch = rhs_batch if lhs_batch == 1 else lhs_batch
    lhs = lax.broadcast_in_dim(lhs, (size, batch, *lhs.shape[2:]), range(4))
    rhs = lax.broadcast_in_dim(rhs, (size, batch, *rhs.shape[2:]), range(4))
    return _split(bind(_merge(lhs, 0), _merge(rhs, 0), spec), 0, size, batch), 0


def _k_axis(spec: GemmSpec, operand: int) -> int:
    """Where b lies in [v, ...] once it stands directly before k."""
    k_outer = spec.a_major == "m" if operand == 0 else spec.b_major == "n"
    return 1 if k_outer else 2
