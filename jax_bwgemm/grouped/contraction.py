"""Grouped products, as `jax_bwgemm.product` sees them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec

from jax_bwgemm import runtime
from jax_bwgemm.config import Target
from jax_bwgemm.dense.reference import gemm_reference
from jax_bwgemm.dense.spec import GemmSpec
from jax_bwgemm.grouped import heuristics, selection
from jax_bwgemm.grouped.batching import reduce_batch
from jax_bwgemm.grouped.groups import clamp_offset, local_sizes
from jax_bwgemm.grouped.reference import grouped_reference
from jax_bwgemm.grouped.spec import M_GROUPED, GroupedDims, GroupedSpec, grouped_dims, out_shape
from jax_bwgemm.product.contraction import (
    Contraction,
    FfiCall,
    KernelCall,
    NamedAxes,
    Operands,
    Run,
)
from jax_bwgemm.product.kernels import Kernel
from jax_bwgemm.product.selection import Selection
from jax_bwgemm.product.targets import configure

# Raster orders, as calls of grouped kernels name them.
ORDERS = {"heuristic": "heuristic", "n": "horizontal", "m": "vertical"}


class GroupedOperands(Operands):
    """What groups are when a product is divided over devices."""

    whole = "g"

    def claims_first(
        self, spec: GroupedSpec, dims: GroupedDims, b: NamedAxes, out: NamedAxes
    ) -> NamedAxes:
        """The matrices, unless bringing all of them to every device is cheaper than all rows."""
        axes = b.get("e", ()) if spec.kind == M_GROUPED else out.get("e", ())
        rows = dims.batch * dims.m * (dims.k + dims.n)
        matrices = dims.b_batch * dims.experts * dims.k * dims.n
        return {"e": axes} if axes and rows <= matrices else {}

    def on_shard_groups(
        self,
        spec: GroupedSpec,
        dims: GroupedDims,
        axes: NamedAxes,
        mesh_shape: Mapping[str, int],
        sizes: jax.Array,
        offset: jax.Array,
        local_rows: int,
    ) -> tuple[jax.Array, jax.Array, int]:
        """Sizes within one device's rows, the offset of its first matrix, and its ``experts``.

        Args:
            spec: The problem.
            dims: Its global sizes.
            axes: Mesh axes over which each dimension is sharded.
            mesh_shape: Size of each mesh axis.
            sizes: Of all groups.
            offset: Of the first matrix of all.
            local_rows: The device's rows.
        """
        shards = math.prod(mesh_shape[axis] for axis in axes["e"])
        if axes["m"]:
            first = lax.axis_index(axes["m"]) * local_rows
            sizes = local_sizes(sizes, dims.m, first, local_rows)
        if axes["e"]:
            first = lax.axis_index(axes["e"]) * (dims.experts // shards)
            offset = clamp_offset(offset, dims.groups) + first
        return sizes, offset, spec.experts // max(shards, 1)


class Grouped(GroupedOperands, Contraction):
    """m-grouped and k-grouped products: operands A, B, sizes and offset."""

    operands = 4
    missing = " for grouped GEMMs"

    def dims(self, spec: GroupedSpec, *shapes: Sequence[int]) -> GroupedDims:
        return grouped_dims(spec, *shapes)

    def out_shape(self, spec: GroupedSpec, dims: GroupedDims) -> tuple[int, ...]:
        return out_shape(spec, dims)

    def operand_names(self, spec: GroupedSpec) -> tuple[str, str, str, str]:
        if spec.kind != M_GROUPED:
            return "bmk", "bmn", "bg", "b"
        return "bmk", "bekn" if spec.b_major == "n" else "benk", "bg", "b"

    def out_names(self, spec: GroupedSpec) -> str:
        return "bmn" if spec.kind == M_GROUPED else "bekn"

    def on_shard(
        self,
        spec: GroupedSpec,
        dims: GroupedDims,
        axes: NamedAxes,
        mesh_shape: Mapping[str, int],
        operands: tuple[jax.Array, ...],
    ) -> tuple[GroupedSpec, tuple[jax.Array, ...]]:
        a, b, sizes, offset = operands
        sizes, offset, experts = self.on_shard_groups(
            spec, dims, axes, mesh_shape, sizes, offset, a.shape[1]
        )
        return dataclasses.replace(spec, experts=experts), (a, b, sizes, offset)

    def reference(self, operands: tuple[jax.Array, ...], spec: GroupedSpec) -> jax.Array:
        return grouped_reference(*operands, spec)

    def typed_like(self, operands: tuple[jax.Array, ...], spec: GroupedSpec) -> jax.Array:
        """A dense computation, which is less to trace than the reference's loop."""
        a, b, *_ = operands
        dims = grouped_dims(spec, *(x.shape for x in operands))
        if spec.out_sharding is not None:
            replicated = NamedSharding(spec.out_sharding.mesh, PartitionSpec())
            a, b = (jax.sharding.reshard(x, replicated) for x in (a, b))
        if spec.kind == M_GROUPED:
            dense = GemmSpec("k", spec.b_major, out_dtype=spec.out_dtype)
            out = gemm_reference(a, jnp.sum(b, axis=1), dense)
        else:
            out = gemm_reference(a, b, GemmSpec("m", "n", out_dtype=spec.out_dtype))
            out = jnp.repeat(out[:, None], dims.experts, axis=1)
        if spec.reduce_batch:
            out = jnp.sum(out, axis=0, keepdims=True)
        elif out.shape[0] != dims.batch:
            out = jnp.repeat(out, dims.batch, axis=0)
        return out if spec.out_sharding is None else jax.sharding.reshard(out, spec.out_sharding)

    def kernels(self, implementation: str) -> tuple[Kernel, ...]:
        if implementation == "cutlass":
            return runtime.grouped_kernels()
        return runtime.emulated_grouped_kernels()

    def largest(self, spec: GroupedSpec, dims: GroupedDims) -> int:
        rows = dims.m * (dims.batch if spec.reduce_batch else 1)
        return max(rows, dims.n, dims.k, dims.experts, dims.groups, dims.batch)

    def rewrite(
        self, run: Run, operands: tuple[jax.Array, ...], spec: GroupedSpec
    ) -> jax.Array | None:
        return reduce_batch(run, operands, spec) if spec.reduce_batch else None

    def aligned_dims(
        self, spec: GroupedSpec, dims: GroupedDims, in_bytes: int, out_bytes: int
    ) -> GroupedDims:
        del spec
        return heuristics.aligned_dims(dims, in_bytes, out_bytes)

    def padding_refusal(self, dims: GroupedDims, padded: GroupedDims) -> str | None:
        return heuristics.padding_refusal(dims, padded)

    def select(
        self,
        spec: GroupedSpec,
        in_dtype: str,
        dims: GroupedDims,
        target: Target,
        table: Sequence[Kernel],
    ) -> Selection | str:
        return selection.select(spec, in_dtype, dims, target, table)

    def ffi_call(self, call: KernelCall) -> FfiCall:
        selected, sizes = call.selection, call.padded
        cutlass = call.implementation == "cutlass"
        workspace = (
            runtime.grouped_workspace_bytes if cutlass else runtime.emulated_grouped_workspace_bytes
        )
        scratch = workspace(
            selected.kernel.name,
            sizes.m,
            sizes.n,
            sizes.k,
            sizes.groups,
            sizes.experts,
            sizes.batch,
            call.target.sm_count,
        )
        target, config = configure(
            call.implementation,
            selected.kernel.name,
            ("a", "b", "group_sizes", "group_offset"),
            order=ORDERS[selected.raster_order],
            swizzle=selected.swizzle,
        )
        return FfiCall(target, scratch, config)


GROUPED = Grouped()
