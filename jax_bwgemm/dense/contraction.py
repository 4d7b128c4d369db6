"""The dense product, as `jax_bwgemm.product` sees it."""

from __future__ import annotations

from collections.abc import Sequence

import jax

from jax_bwgemm import runtime
from jax_bwgemm.config import Target
from jax_bwgemm.dense import cluster_k, heuristics
from jax_bwgemm.dense.reference import gemm_reference
from jax_bwgemm.dense.selection import select
from jax_bwgemm.dense.spec import GemmDims, GemmSpec, fold, gemm_dims, out_shape
from jax_bwgemm.product.contraction import Contraction, FfiCall, Folded, KernelCall
from jax_bwgemm.product.kernels import Kernel
from jax_bwgemm.product.selection import Selection
from jax_bwgemm.product.targets import configure


class Dense(Contraction):
    """``D[B, M, N] = A[B, M, K] @ B[B, K, N]``."""

    operands = 2

    def dims(self, spec: GemmSpec, *shapes: Sequence[int]) -> GemmDims:
        return gemm_dims(spec, *shapes)

    def out_shape(self, spec: GemmSpec, dims: GemmDims) -> tuple[int, ...]:
        return out_shape(spec, dims)

    def operand_names(self, spec: GemmSpec) -> tuple[str, str]:
        return (
            "bmk" if spec.a_major == "k" else "bkm",
            "bkn" if spec.b_major == "n" else "bnk",
        )

    def out_names(self, spec: GemmSpec) -> str:
        del spec
        return "bmn"

    def reference(self, operands: tuple[jax.Array, ...], spec: GemmSpec) -> jax.Array:
        return gemm_reference(*operands, spec)

    typed_like = reference

    def kernels(self, implementation: str) -> tuple[Kernel, ...]:
        return runtime.kernels() if implementation == "cutlass" else runtime.emulated_kernels()

    def largest(self, spec: GemmSpec, dims: GemmDims) -> int:
        depth = dims.k * (dims.batch if spec.reduce_batch else 1)
        return max(dims.m, dims.n, depth, dims.batch)

    def fold(self, spec: GemmSpec, shapes: Sequence[Sequence[int]]) -> Folded:
        return fold(spec, *shapes)

    def aligned_dims(
        self, spec: GemmSpec, dims: GemmDims, in_bytes: int, out_bytes: int
    ) -> GemmDims:
        return heuristics.aligned_dims(spec, dims, in_bytes, out_bytes)

    def padding_refusal(self, dims: GemmDims, padded: GemmDims) -> str | None:
        return heuristics.padding_refusal(dims, padded)

    def select(
        self,
        spec: GemmSpec,
        in_dtype: str,
        dims: GemmDims,
        target: Target,
        table: Sequence[Kernel],
    ) -> Selection | str:
        return select(spec, in_dtype, dims, target, table)

    def writes_windows(self, call: KernelCall) -> bool:
        alone = cluster_k.parts_apart(call.selection.kernel, call.selection.splits) == 1
        return alone and call.dims == call.padded and call.dims.batch == 1

    def ffi_call(self, call: KernelCall) -> FfiCall:
        selected, sizes = call.selection, call.padded
        cutlass = call.implementation == "cutlass"
        workspace = runtime.workspace_bytes if cutlass else runtime.emulated_workspace_bytes
        order = {
            "raster_order": selected.raster_order,
            "swizzle": selected.swizzle,
            "decomposition": selected.decomposition,
        }
        scratch = workspace(
            selected.kernel.name,
            sizes.m,
            sizes.n,
            sizes.k,
            sizes.batch,
            selected.splits,
            call.target.sm_count,
            **order,  # a grid of SM100 may have no room for it
        )
        target, config = configure(
            call.implementation, selected.kernel.name, ("a", "b"), splits=selected.splits, **order
        )
        return FfiCall(target, scratch, config)


DENSE = Dense()
