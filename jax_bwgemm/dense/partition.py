"""Sharding of the canonical GEMM: `plan` (pure) and its wiring into custom_partitioning."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
from jax import lax
from jax.experimental.custom_partitioning import custom_partitioning
from jax.sharding import NamedSharding, PartitionSpec

from jax_bwgemm.dense.local import local_gemm
from jax_bwgemm.dense.spec import GemmDims, GemmSpec, gemm_dims

Axes = tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Dims3:
    """Mesh axes of a canonical operand or result, by dimension name."""

    axes: Mapping[str, Axes]

    def __getitem__(self, dim: str) -> Axes:
        return self.axes.get(dim, ())


@dataclasses.dataclass(frozen=True)
class PartitionPlan:
    """What each device computes.

    Attributes:
        lhs: Mesh axes of A's dimensions (b, m, k), in storage order.
        rhs: Mesh axes of B's dimensions (b, k, n), in storage order.
        out: Mesh axes of D's dimensions (b, m, n).
        reduce_axes: Mesh axes over which the local products are summed, everywhere.
        scatter: (dimension of D, mesh axes) summed with each device keeping its part.
    """

    lhs: tuple[Axes, ...]
    rhs: tuple[Axes, ...]
    out: tuple[Axes, ...]
    reduce_axes: Axes = ()
    scatter: tuple[tuple[int, Axes], ...] = ()


def lhs_dims(spec: GemmSpec) -> str:
    """Names of A's dimensions in storage order."""
    return "bmk" if spec.lhs_major == "k" else "bkm"


def rhs_dims(spec: GemmSpec) -> str:
    """Names of B's dimensions in storage order."""
    return "bkn" if spec.rhs_major == "n" else "bnk"


def plan(
    spec: GemmSpec,
    dims: GemmDims,
    mesh_shape: Mapping[str, int],
    lhs: Dims3,
    rhs: Dims3,
    out: Dims3,
) -> PartitionPlan:
    """Decides the shardings of one GEMM from those its neighbours would like.

    1. b, m, n sharded: nothing to communicate, each device computes its block of D.
    2. k sharded alike in A and B: local products are partial; all-reduce.
    3. As 2, and D wants b, m or n over the same axes: reduce-scatter.
    4. k sharded in one operand only: the other is sliced (free); then as 2 or 3. But not when
       those axes shard D: then that operand is gathered (weights sharded over the data axis).
    5. An axis no dimension can use (taken, or not dividing the size): the operand is gathered.

    Args:
        spec: The problem.
        dims: Its global sizes.
        mesh_shape: Size of each mesh axis.
        lhs: Mesh axes A arrives with.
        rhs: Mesh axes B arrives with.
        out: Mesh axes D is wanted with.
    """
    sizes = {"b": dims.batch, "m": dims.m, "n": dims.n, "k": dims.k}
    taken: set[str] = set()

    def claim(dim: str, axes: Axes) -> Axes:
        """The leading axes that are free and divide the dimension evenly, now taken."""
        kept: list[str] = []
        for axis in axes:
            parts = math.prod(mesh_shape[a] for a in (*kept, axis))
            if axis in taken or axis in kept or sizes[dim] % parts:
                break
            kept.append(axis)
        taken.update(kept)
        return tuple(kept)

    summed = "bk" if spec.reduce_batch else "k"
    kept = "mn" if spec.reduce_batch else "bmn"
    chosen: dict[str, Axes] = {}
    for dim in summed:  # agreed by both operands: cases 2 and 3
        if lhs[dim] and lhs[dim] == rhs[dim]:
            chosen[dim] = claim(dim, lhs[dim])
    for dim in kept:  # what D wants comes before what one operand happens to have
        chosen[dim] = claim(dim, out[dim])
    for dim in kept:
        if not chosen[dim]:
            chosen[dim] = claim(dim, lhs[dim] or rhs[dim])
    for dim in summed:  # case 4
        if dim not in chosen:
            chosen[dim] = claim(dim, lhs[dim] or rhs[dim])

    reduce_axes = [axis for dim in summed for axis in chosen[dim]]
    out_axes = [chosen[d] if d in kept else () for d in "bmn"]
    scatter: list[tuple[int, Axes]] = []
    for position, dim in enumerate("bmn"):
        wanted = out[dim][len(out_axes[position]) :]
        parts = math.prod(mesh_shape[a] for a in out[dim])
        continues = out[dim][: len(out_axes[position])] == out_axes[position]
        partial = bool(wanted) and set(wanted) <= set(reduce_axes)
        if dim in kept and continues and partial and sizes[dim] % parts == 0:
            scatter.append((position, wanted))
            out_axes[position] = out[dim]
            reduce_axes = [axis for axis in reduce_axes if axis not in wanted]

    def operand(names: str, batch: int) -> tuple[Axes, ...]:
        shared = batch == 1
        return tuple(() if d == "b" and shared else chosen[d] for d in names)

    return PartitionPlan(
        operand(lhs_dims(spec), dims.lhs_batch),
        operand(rhs_dims(spec), dims.rhs_batch),
        tuple(out_axes),
        tuple(reduce_axes),
        tuple(scatter),
    )


def sharding_rule(spec: GemmSpec, mesh: Any, operands: Sequence[Any], results: Any) -> Any:
    """The Shardy rule, for example ``'b m k, b k n -> b m n'`` reducing over k.

    A shared batch (size 1) gets a factor of its own, so that sharding b never touches it.
    """
    del mesh, results
    lhs_shape, rhs_shape = (tuple(t.shape) for t in operands)
    dims = gemm_dims(spec, lhs_shape, rhs_shape)

    def names(dimensions: str, factor: str, batch: int) -> str:
        first = "b" if batch == dims.batch else factor
        return " ".join([first, *dimensions[1:]])

    lhs = names(lhs_dims(spec), "p", dims.lhs_batch)
    rhs = names(rhs_dims(spec), "q", dims.rhs_batch)
    out = "r m n" if spec.reduce_batch else "b m n"
    reduction = ("b", "k") if spec.reduce_batch else ("k",)
    return f"{lhs}, {rhs} -> {out}", {"reduction_factors": reduction}


def _named_axes(shape: jax.ShapeDtypeStruct, names: str) -> Dims3:
    sharding = shape.sharding
    entries = tuple(sharding.spec) if isinstance(sharding, NamedSharding) else ()
    as_tuple = (
        () if entry is None else entry if isinstance(entry, tuple) else (entry,)
        for entry in entries
    )
    return Dims3(dict(zip(names, as_tuple, strict=False)))


def _partition(
    spec: GemmSpec,
    mesh: Any,
    operands: tuple[jax.ShapeDtypeStruct, jax.ShapeDtypeStruct],
    result: jax.ShapeDtypeStruct,
) -> Any:
    lhs, rhs = operands
    decided = plan(
        spec,
        gemm_dims(spec, lhs.shape, rhs.shape),
        dict(mesh.shape),
        _named_axes(lhs, lhs_dims(spec)),
        _named_axes(rhs, rhs_dims(spec)),
        _named_axes(result, "bmn"),
    )

    local_spec = dataclasses.replace(spec, out_sharding=None)

    def local(a: jax.Array, b: jax.Array) -> jax.Array:
        # One device's arrays have no mesh. With the user's explicit one in context, the sum's
        # reduction would be given a sharding, which XLA's all-reduce passes abort on.
        with jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((), ())):
            out = local_gemm(a, b, local_spec)
            for dimension, axes in decided.scatter:
                out = lax.psum_scatter(out, axes, scatter_dimension=dimension, tiled=True)
            return lax.psum(out, decided.reduce_axes) if decided.reduce_axes else out

    def named(axes: tuple[Axes, ...]) -> NamedSharding:
        return NamedSharding(mesh, PartitionSpec(*(a or None for a in axes)))

    return mesh, local, named(decided.out), (named(decided.lhs), named(decided.rhs))


partitioned_gemm = custom_partitioning(local_gemm, static_argnums=(2,))
partitioned_gemm.def_partition(partition=_partition, sharding_rule=sharding_rule)
