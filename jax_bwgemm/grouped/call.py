"""A validated ragged dot product: canonicalise, then one canonical grouped GEMM."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from jax_bwgemm import compat
from jax_bwgemm.config import Target
from jax_bwgemm.dense.arrangement import arrange
from jax_bwgemm.dense.validation import DimensionNumbers
from jax_bwgemm.grouped.canonical import Arrangement, RaggedPlan, plan_ragged
from jax_bwgemm.grouped.grouped_config import GroupedConfig
from jax_bwgemm.grouped.groups import as_int32, first_group
from jax_bwgemm.grouped.primitive import grouped
from jax_bwgemm.grouped.spec import K_GROUPED, M_GROUPED, GroupedSpec
from jax_bwgemm.grouped.validation import Mode
from jax_bwgemm.product.spec import Policy
from jax_bwgemm.tuning.context import Tuning


@dataclasses.dataclass(frozen=True)
class RaggedCall:
    """Everything static about a call, normalised and hashable.

    Attributes:
        mode: Which dimension is ragged.
        numbers: Dimension numbers of the product.
        ragged: The ragged dimension of lhs.
        group: The dimension of rhs that counts matrices; None with a ragged contracted dimension.
        experts: Number of matrices: of rhs, or of the result.
        out_dtype: Name of the result's type.
        precision: Canonical.
        out_sharding: As in `jax_bwgemm.ragged_dot`.
        implementations: In order of preference.
        config: Constraints on the kernel.
        representative: Group sizes to choose the kernel for, as shares of the rows.
        target: The GPU asked for.
        tuning: Which tuned choices count.
        partial_sums: Type of the parts of sharded sums; None: the result's.
    """

    mode: Mode
    numbers: DimensionNumbers
    ragged: int
    group: int | None
    experts: int
    out_dtype: str
    precision: Any
    out_sharding: Any
    implementations: tuple[str, ...]
    config: GroupedConfig | None
    representative: tuple[float, ...] | None
    target: Target | None
    tuning: Tuning | None
    partial_sums: str | None


# Jitted as jax.numpy's functions are: eager calls are one dispatch, traced ones leave no trace.


@functools.partial(jax.jit, static_argnums=(4,), inline=compat.INLINE)
def run(
    lhs: jax.Array, rhs: jax.Array, sizes: jax.Array, offset: jax.Array | None, call: RaggedCall
) -> jax.Array:
    """Canonicalises a validated call and computes it.

    Args:
        lhs: Left operand.
        rhs: Right operand.
        sizes: Group sizes, any integer type, [G] or with further dimensions.
        offset: The group of the first matrix, an integer scalar; None is 0.
        call: Everything else.
    """
    plan, spec = _planned(lhs, rhs, call)
    sizes = as_int32(sizes)
    if plan.inner != 1:  # every ragged row stands for that many rows
        sizes = jnp.clip(sizes, 0, plan.ragged) * plan.inner
    canonical = _rows if call.mode is Mode.ROWS else _contract
    lhs, rhs, first = _apply(plan.lhs, lhs), _apply(plan.rhs, rhs), _first_group(offset)
    out = canonical(lhs, rhs, sizes, first, plan, spec)
    out = _apply(plan.out, out)
    return out if call.out_sharding is None else jax.sharding.reshard(out, call.out_sharding)


def canonical_rows(
    lhs: jax.Array, rhs: jax.Array, sizes: jax.Array, offset: jax.Array | None, call: RaggedCall
) -> tuple[tuple[jax.Array, ...], GroupedSpec]:
    """The operands of one m-grouped product, and that product: of lhs [M, K] and one list of sizes.

    Args:
        lhs: As in `run`.
        rhs: As in `run`.
        sizes: As in `run`.
        offset: As in `run`.
        call: As in `run`.
    """
    plan, spec = _planned(lhs, rhs, call)
    rows = _merge(_apply(plan.lhs, lhs))
    return (rows, _apply(plan.rhs, rhs), as_int32(sizes)[None], _first_group(offset)), spec


def _first_group(offset: jax.Array | None) -> jax.Array:
    return (first_group() if offset is None else as_int32(offset))[None]


def _planned(lhs: jax.Array, rhs: jax.Array, call: RaggedCall) -> tuple[RaggedPlan, GroupedSpec]:
    """How operands and result lie, and the canonical product."""
    plan = plan_ragged(
        call.mode, lhs.shape, rhs.shape, call.numbers, call.ragged, call.group, call.experts
    )
    spec = GroupedSpec(
        kind=M_GROUPED if call.mode is Mode.ROWS else K_GROUPED,
        b_major=plan.b_major,
        out_dtype=call.out_dtype,
        experts=0 if call.mode is Mode.ROWS else call.experts,
        out_sharding=_canonical_sharding(call.out_sharding, plan),
        representative=call.representative,
        policy=Policy(
            implementations=call.implementations,
            config=call.config,
            precision=call.precision,
            target=call.target,
            tuning=call.tuning,
            partial_sums=call.partial_sums,
        ),
    )
    return plan, spec


def _canonical_sharding(out_sharding: Any, plan: RaggedPlan) -> NamedSharding | None:
    """The sharding of the canonical result: replicated where dimensions would be merged.

    Raises:
        NotImplementedError: It leaves sums open, which `jax.lax.ragged_dot` does not do either.
    """
    if out_sharding is None:
        return None
    wanted = getattr(out_sharding, "spec", out_sharding)
    if wanted.unreduced or wanted.reduced:
        raise NotImplementedError(
            f"a ragged dot product with sums left open by out_sharding={out_sharding}"
        )
    if isinstance(out_sharding, PartitionSpec):
        mesh, spec = jax.sharding.get_abstract_mesh(), out_sharding
    else:
        mesh, spec = out_sharding.mesh.abstract_mesh, out_sharding.spec
    shape = plan.out.shape
    entries = [*spec, *[None] * (len(shape) - len(spec))]
    large = [[entries[d] for d in group if shape[d] != 1] for group in plan.out_groups]
    if max(map(len, large)) > 1:
        return NamedSharding(mesh, PartitionSpec())
    return NamedSharding(mesh, PartitionSpec(*(group[0] if group else None for group in large)))


def _rows(
    lhs: jax.Array,
    rhs: jax.Array,
    sizes: jax.Array,
    offset: jax.Array,
    plan: RaggedPlan,
    spec: GroupedSpec,
) -> jax.Array:
    """[b, x, rows, k] and matrices that depend on b only: b or x is the batch, or x is mapped."""
    if 1 in (plan.batch, plan.outer):
        batch = plan.batch * plan.outer
        return grouped(_merge(lhs), rhs, _sizes(sizes, batch), offset, spec)
    split = _sizes(sizes, plan.batch, plan.outer)
    mapped = jax.vmap(
        lambda a, s: grouped(a, rhs, s, offset, spec),
        in_axes=(1, 1 if split.ndim == 3 else None),
        out_axes=1,
    )
    return mapped(lhs, split)


def _contract(
    lhs: jax.Array,
    rhs: jax.Array,
    sizes: jax.Array,
    offset: jax.Array,
    plan: RaggedPlan,
    spec: GroupedSpec,
) -> jax.Array:
    """[b, x, rows, m] and [b, x, rows, n]: b is the batch, x one that is summed; or b is mapped."""
    if plan.outer != 1:
        spec = dataclasses.replace(spec, reduce_batch=True)
    if 1 in (plan.batch, plan.outer):
        batch = plan.batch * plan.outer
        return grouped(_merge(lhs), _merge(rhs), _sizes(sizes, batch), offset, spec)
    split = _sizes(sizes, plan.batch, plan.outer)
    mapped = jax.vmap(
        lambda a, b, s: grouped(a, b, s, offset, spec),
        in_axes=(0, 0, 0 if split.ndim == 3 else None),
    )
    return mapped(lhs, rhs, split)


def _merge(x: jax.Array) -> jax.Array:
    """Merges b and x, one of which is 1."""
    return x.reshape(x.shape[0] * x.shape[1], *x.shape[2:])


def _sizes(sizes: jax.Array, *batch: int) -> jax.Array:
    """Group sizes with their batch dimensions merged; with a batch of 1 if they are shared."""
    return sizes[None] if sizes.ndim == 1 else sizes.reshape(*batch, sizes.shape[-1])


def _apply(arrangement: Arrangement, x: jax.Array) -> jax.Array:
    return arrange(x, arrangement.squeezed, arrangement.perm, arrangement.shape)
