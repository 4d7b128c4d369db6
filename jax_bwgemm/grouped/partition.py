"""Sharding of the canonical grouped GEMM: `plan` (pure) and its custom_partitioning."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
from jax import lax
from jax.experimental.custom_partitioning import custom_partitioning
from jax.sharding import NamedSharding, PartitionSpec

from jax_bwgemm.grouped.groups import clamp_offset, local_sizes
from jax_bwgemm.grouped.local import local_grouped
from jax_bwgemm.grouped.spec import GroupedDims, GroupedSpec, grouped_dims

Axes = tuple[str, ...]
NamedAxes = Mapping[str, Axes]


@dataclasses.dataclass(frozen=True)
class GroupedPlan:
    """What each device computes.

    Attributes:
        operands: Mesh axes of the dimensions of A, B, sizes and offset, in storage order.
        out: Mesh axes of D's dimensions.
        rows: Mesh axes over which the ragged rows are sharded: sizes become those within each
            device's rows.
        experts: Mesh axes over which the matrices are sharded: the offset becomes that of each
            device's first.
        reduce_axes: Mesh axes over which the local results are summed, everywhere.
        scatter: (dimension of D, mesh axes) summed with each device keeping its part.
    """

    operands: tuple[tuple[Axes, ...], ...]
    out: tuple[Axes, ...]
    rows: Axes = ()
    experts: Axes = ()
    reduce_axes: Axes = ()
    scatter: tuple[tuple[int, Axes], ...] = ()


def operand_dims(spec: GroupedSpec) -> tuple[str, str, str, str]:
    """Names of the operands' dimensions in storage order."""
    if spec.kind == "contract":
        return "bmk", "bmn", "bg", "b"
    return "bmk", "bekn" if spec.rhs_major == "n" else "benk", "bg", "b"


def out_dims(spec: GroupedSpec) -> str:
    """Names of D's dimensions."""
    return "bmn" if spec.kind == "rows" else "bekn"


def plan(
    spec: GroupedSpec,
    dims: GroupedDims,
    mesh_shape: Mapping[str, int],
    lhs: NamedAxes,
    rhs: NamedAxes,
    out: NamedAxes,
) -> GroupedPlan:
    """Decides the shardings of one grouped GEMM from those its neighbours would like.

    1. b, n (and k, of kind contract) sharded: nothing to communicate.
    2. Ragged rows m sharded: nothing to communicate for rows, each device computes which part of
       each group it has; partial sums for contract.
    3. Matrices e sharded (expert parallel): each device computes the groups of its own matrices.
       Rows: all others are zero, so the results are summed. Contract: nothing to communicate.
    4. A summed dimension sharded: as in 2 and 3, local results are partial: all-reduce, or
       reduce-scatter where D wants one of its dimensions over the same axes.
    5. e and m over the same axes: the cheaper of bringing all rows to every device and bringing
       all matrices there.
    6. An axis no dimension can use (taken, or not dividing the size): the operand is gathered.

    Args:
        spec: The problem.
        dims: Its global sizes.
        mesh_shape: Size of each mesh axis.
        lhs: Mesh axes A arrives with, by dimension name.
        rhs: Mesh axes B arrives with.
        out: Mesh axes D is wanted with.
    """
    extents = {
        "b": dims.batch,
        "m": dims.m,
        "n": dims.n,
        "k": dims.k,
        "e": dims.experts,
    }
    taken: set[str] = set()
    chosen: dict[str, Axes] = {}

    def claim(dim: str, axes: Axes) -> None:
        """Gives a dimension the leading axes that are free and divide it evenly."""
        kept: list[str] = []
        for axis in axes:
            parts = math.prod(mesh_shape[a] for a in (*kept, axis))
            if axis in taken or axis in kept or extents[dim] % parts:
                break
            kept.append(axis)
        taken.update(kept)
        chosen[dim] = tuple(kept)

    names = out_dims(spec)
    summed = [d for d in "bkem" if d not in names or (d == "b" and spec.reduce_batch)]
    kept = [d for d in names if d not in summed]
    arrives = {d: lhs.get(d, ()) or rhs.get(d, ()) for d in "bmnke"}

    experts = rhs.get("e", ()) if spec.kind == "rows" else out.get("e", ())
    rows_bytes = dims.batch * dims.m * (dims.k + dims.n)
    if experts and rows_bytes <= dims.rhs_batch * dims.experts * dims.k * dims.n:
        claim("e", experts)
    for dim in summed:  # agreed by both operands
        if dim not in chosen and lhs.get(dim) and lhs.get(dim) == rhs.get(dim):
            claim(dim, lhs[dim])
    for dim in kept:  # what D wants comes before what one operand happens to have
        if dim not in chosen:
            claim(dim, out.get(dim, ()))
    for dim in kept:
        if not chosen[dim]:
            claim(dim, arrives[dim])
    for dim in summed:
        if dim not in chosen:
            claim(dim, arrives[dim])

    reduce_axes = [axis for dim in summed for axis in chosen[dim]]
    out_axes = [chosen[d] if d in kept else () for d in names]
    scatter: list[tuple[int, Axes]] = []
    for position, dim in enumerate(names):
        wanted_all = out.get(dim, ())
        wanted = wanted_all[len(out_axes[position]) :]
        parts = math.prod(mesh_shape[a] for a in wanted_all)
        continues = wanted_all[: len(out_axes[position])] == out_axes[position]
        partial = bool(wanted) and set(wanted) <= set(reduce_axes)
        if dim in kept and continues and partial and extents[dim] % parts == 0:
            scatter.append((position, wanted))
            out_axes[position] = wanted_all
            reduce_axes = [axis for axis in reduce_axes if axis not in wanted]

    batches = (dims.lhs_batch, dims.rhs_batch, dims.sizes_batch, dims.offset_batch)
    operands = tuple(
        tuple(() if d == "g" or (d == "b" and batch == 1) else chosen[d] for d in dimensions)
        for dimensions, batch in zip(operand_dims(spec), batches, strict=True)
    )
    return GroupedPlan(
        operands, tuple(out_axes), chosen["m"], chosen["e"], tuple(reduce_axes), tuple(scatter)
    )


def sharding_rule(spec: GroupedSpec, mesh: Any, operands: Sequence[Any], results: Any) -> Any:
    """The Shardy rule, for example ``'b m k, b e k n, b g, b -> b m n'`` reducing over k and e.

    A shared batch (size 1) gets a factor of its own, so that sharding b never touches it. The
    groups are never sharded.
    """
    del mesh, results
    dims = grouped_dims(spec, *(tuple(t.shape) for t in operands))
    batches = (dims.lhs_batch, dims.rhs_batch, dims.sizes_batch, dims.offset_batch)
    sides = [
        " ".join(["b" if batch == dims.batch else shared, *dimensions[1:]])
        for dimensions, batch, shared in zip(operand_dims(spec), batches, "pqst", strict=True)
    ]
    out = " ".join(["r" if spec.reduce_batch else "b", *out_dims(spec)[1:]])
    rule = f"{', '.join(sides)} -> {out}"
    summed = {"e", "k"} if spec.kind == "rows" else {"m"}
    summed |= {"b"} if spec.reduce_batch else set()
    # Shardy wants them in the order in which the rule first has them.
    reduction = tuple(sorted(summed, key=rule.index))
    return rule, {"reduction_factors": reduction, "need_replication_factors": ("g",)}


def _named_axes(shape: jax.ShapeDtypeStruct, names: str) -> NamedAxes:
    sharding = shape.sharding
    entries = tuple(sharding.spec) if isinstance(sharding, NamedSharding) else ()
    as_tuple = (
        () if entry is None else entry if isinstance(entry, tuple) else (entry,)
        for entry in entries
    )
    return dict(zip(names, as_tuple, strict=False))


def _partition(
    spec: GroupedSpec,
    mesh: Any,
    operands: tuple[jax.ShapeDtypeStruct, ...],
    result: jax.ShapeDtypeStruct,
) -> Any:
    dims = grouped_dims(spec, *(x.shape for x in operands))
    lhs_names, rhs_names, _, _ = operand_dims(spec)
    decided = plan(
        spec,
        dims,
        dict(mesh.shape),
        _named_axes(operands[0], lhs_names),
        _named_axes(operands[1], rhs_names),
        _named_axes(result, out_dims(spec)),
    )
    shards = math.prod(mesh.shape[axis] for axis in decided.experts)
    local_spec = dataclasses.replace(
        spec, out_sharding=None, experts=spec.experts // max(shards, 1)
    )

    def local(lhs: jax.Array, rhs: jax.Array, sizes: jax.Array, offset: jax.Array) -> jax.Array:
        # One device's arrays have no mesh. With the user's explicit one in context, the sum's
        # reduction would be given a sharding, which XLA's all-reduce passes abort on.
        with jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((), ())):
            if decided.rows:
                first = lax.axis_index(decided.rows) * lhs.shape[1]
                sizes = local_sizes(sizes, dims.m, first, lhs.shape[1])
            if decided.experts:
                first = lax.axis_index(decided.experts) * (dims.experts // shards)
                offset = clamp_offset(offset, dims.groups) + first
            out = local_grouped(lhs, rhs, sizes, offset, local_spec)
            for dimension, axes in decided.scatter:
                out = lax.psum_scatter(out, axes, scatter_dimension=dimension, tiled=True)
            return lax.psum(out, decided.reduce_axes) if decided.reduce_axes else out

    def named(axes: tuple[Axes, ...]) -> NamedSharding:
        return NamedSharding(mesh, PartitionSpec(*(a or None for a in axes)))

    return mesh, local, named(decided.out), tuple(map(named, decided.operands))


partitioned_grouped = custom_partitioning(local_grouped, static_argnums=(4,))
partitioned_grouped.def_partition(partition=_partition, sharding_rule=sharding_rule)
