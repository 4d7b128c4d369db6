"""Operands of a dense product as the canonical GEMM's, and its result back.

Under explicit mesh axes types have shardings. Merged dimensions are sharded as the outermost of
them, so that no element moves between devices. If an inner one is sharded, a device's elements are
not consecutive in the merged dimension, and no type says that.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec

from jax_bwgemm import compat
from jax_bwgemm.dense.canonical import CanonicalPlan, OperandPlan

Entries = tuple[Any, ...]


def operand_entries(spec: Any, shape: Sequence[int], plan: OperandPlan) -> Entries | None:
    """How a canonical operand is sharded; None where no type says it.

    Args:
        spec: The operand's, one entry for each dimension.
        shape: The operand's.
        plan: What happens to it.
    """
    entries = _large(spec, shape)
    if plan.perm is not None:
        entries = tuple(entries[d] for d in plan.perm)
    return _merged(entries, plan.groups)


def result_entries(spec: Any, plan: CanonicalPlan) -> Entries | None:
    """How [b, m, n] is sharded if the result is as asked for; None where no type says it."""
    rank = len(plan.shape)
    named = [*spec, *[None] * rank][:rank]  # JAX 0.10 takes a spec with more of None than that
    entries = list(_large(named, plan.shape))
    if plan.perm is not None:
        moved = dict(zip(plan.perm, entries, strict=True))
        entries = [moved[d] for d in range(len(entries))]
    return _merged(tuple(entries), plan.groups)


def arrange(
    x: jax.Array, before: tuple[int, ...], perm: tuple[int, ...] | None, after: tuple[int, ...]
) -> jax.Array:
    """Reshape, transpose, reshape; one reshape when nothing moves, none when nothing changes."""
    if perm is not None:
        x = x.reshape(before).transpose(perm)
    return x if x.shape == after else x.reshape(after)


def arrange_operand(x: jax.Array, plan: OperandPlan) -> jax.Array:
    """An operand as the canonical one, whose dimensions are sharded as its own were."""
    sharding = compat.explicit_sharding(jax.typeof(x))
    if sharding is None:
        return arrange(x, plan.squeezed, plan.perm, plan.shape)
    entries = operand_entries(tuple(sharding.spec), x.shape, plan)
    assert entries is not None, "other calls are left to XLA"
    x = _unsharded_ones(x, sharding)
    perm = tuple(range(len(plan.squeezed))) if plan.perm is None else plan.perm
    return _reshaped(x.reshape(plan.squeezed).transpose(perm), plan.shape, sharding.mesh, entries)


def arrange_result(out: jax.Array, plan: CanonicalPlan) -> jax.Array:
    """The result of a call from the canonical one, which need not be sharded as asked for."""
    sharding = compat.explicit_sharding(jax.typeof(out))
    if sharding is not None:
        entries: list[Any] = []
        for entry, size in zip(tuple(sharding.spec), plan.groups, strict=True):
            entries += [entry, *[None] * (size - 1)][:size]
        out = _reshaped(out, plan.unfolded, sharding.mesh, tuple(entries))
    return arrange(out, plan.unfolded, plan.perm, plan.shape)


def _large(spec: Any, shape: Sequence[int]) -> Entries:
    """Entries of the dimensions that have a place in the GEMM."""
    return tuple(e for e, size in zip(spec, shape, strict=True) if size != 1)


def _merged(entries: Entries, groups: tuple[int, ...]) -> Entries | None:
    merged: list[Any] = []
    for size in groups:
        own, entries = entries[:size], entries[size:]
        if any(e is not None for e in own[1:]):
            return None
        merged.append(own[0] if own else None)
    return tuple(merged)


def _reshaped(x: jax.Array, shape: tuple[int, ...], mesh: Any, entries: Entries) -> jax.Array:
    if x.shape == shape:
        return x
    return lax.reshape(x, shape, out_sharding=NamedSharding(mesh, PartitionSpec(*entries)))


def _unsharded_ones(x: jax.Array, sharding: NamedSharding) -> jax.Array:
    """An operand whose dimensions of size 1, which have no place in the GEMM, are not sharded.

    Under explicit mesh axes they may be, over axes of size 1. Nothing moves.
    """
    entries = tuple(sharding.spec)
    plain = tuple(None if size == 1 else e for e, size in zip(entries, x.shape, strict=True))
    if plain == entries:
        return x
    return jax.sharding.reshard(x, NamedSharding(sharding.mesh, PartitionSpec(*plain)))
