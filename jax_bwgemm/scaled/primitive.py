"""The primitive ``bw_scaled_matmul_p``: scaled products that are not grouped."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.interpreters import ad

from jax_bwgemm import runtime
from jax_bwgemm.compat import DimensionNumbers
from jax_bwgemm.config import Target
from jax_bwgemm.product.kernels import Kernel
from jax_bwgemm.product.spec import common_batch
from jax_bwgemm.scaled import derivatives, selection
from jax_bwgemm.scaled.contraction import SCALED
from jax_bwgemm.scaled.family import Family
from jax_bwgemm.scaled.fit import by_mma
from jax_bwgemm.scaled.layouts import layout_of
from jax_bwgemm.scaled.mma_operands import in_tiles, packed
from jax_bwgemm.scaled.reference import scaled_reference
from jax_bwgemm.scaled.scaled_array import ScaledArray
from jax_bwgemm.scaled.selection import Choice, grouped_options
from jax_bwgemm.scaled.spec import ScaledDims, ScaledSpec


def for_one_group(kernel: Kernel) -> bool:
    """Whether a grouped kernel also computes products that are not grouped, as one group.

    SM100 has none but these that add the sums of every 128 of K in registers.
    """
    of_blocks = kernel.scales in ("blocks", "rows")
    return kernel.arch == "sm100" and kernel.contraction == "m_grouped" and of_blocks


class _Dense(Family):
    """A [B or 1, M, K], B [B or 1, N, K], the scales of both, alpha [B or 1]: [B, M, N].

    Alpha is the product of both global scales, and not read where layouts have none.
    """

    contraction = SCALED
    roles = ("a", "b", "a_scales", "b_scales", "alpha")

    def dims_of(self, operands: Sequence[Any], spec: ScaledSpec) -> ScaledDims:
        del spec
        a, b, *_ = operands
        batch = common_batch(x.shape[0] for x in operands)
        types = (jnp.dtype(x.dtype).name for x in (a, b))
        batches = a.shape[0], b.shape[0]
        return ScaledDims(batch, a.shape[1], b.shape[1], a.shape[2], *types, *batches)

    def out_shape(self, dims: ScaledDims, spec: ScaledSpec) -> tuple[int, ...]:
        del spec
        return (dims.batch, dims.m, dims.n)

    def table_of(self, implementation: str) -> tuple[Kernel, ...]:
        if implementation == "cutlass":
            table, grouped = runtime.scaled_kernels(), runtime.scaled_grouped_kernels()
        else:
            table = runtime.emulated_scaled_kernels()
            grouped = runtime.emulated_scaled_grouped_kernels()
        return (*table, *filter(for_one_group, grouped)) if table else ()

    def fitting(self, table: Sequence[Kernel], spec: ScaledSpec, dims: ScaledDims) -> list[Kernel]:
        return selection.fitting_kernels(table, spec, dims)

    def refusal(self, table: Sequence[Kernel], spec: ScaledSpec, dims: ScaledDims) -> str | None:
        return selection.refusal(table, spec, dims)

    def select(
        self, table: Sequence[Kernel], spec: ScaledSpec, dims: ScaledDims, target: Target
    ) -> Choice | str:
        return selection.select(table, spec, dims, target)

    def reference(self, *operands: jax.Array, spec: ScaledSpec) -> jax.Array:
        global_scale = layout_of(spec.a_scaling).has_global_scale

        def one(
            a: jax.Array, b: jax.Array, a_scales: jax.Array, b_scales: jax.Array, alpha: jax.Array
        ) -> jax.Array:
            factors = (alpha, jnp.float32(1)) if global_scale else (None, None)
            return scaled_reference(
                ScaledArray(a, a_scales, spec.a_scaling, factors[0]),
                ScaledArray(b, b_scales, spec.b_scaling, factors[1]),
                spec.out_dtype,
                spec.accumulation,
            )

        if all(x.shape[0] == 1 for x in operands):
            return one(*(x[0] for x in operands))[None]
        axes = tuple(None if x.shape[0] == 1 else 0 for x in operands)
        shared = [x[0] if axis is None else x for x, axis in zip(operands, axes, strict=True)]
        return jax.vmap(one, in_axes=axes)(*shared)

    def dot_numbers(self, a: Any, b: Any, *more: Any, spec: ScaledSpec) -> DimensionNumbers:
        del more, spec
        batched = a.shape[0] == b.shape[0] != 1
        return ((2,), (2,)), (((0,), (0,)) if batched else ((), ()))

    def kernel_operands(
        self, operands: Sequence[jax.Array], spec: ScaledSpec
    ) -> dict[str, jax.Array]:
        named = super().kernel_operands(operands, spec)
        if not layout_of(spec.a_scaling).has_global_scale:
            del named["alpha"]
        if by_mma(spec):
            for name in ("a", "b"):
                named[name] = packed(named[name])
                named[f"{name}_scales"] = in_tiles(named[f"{name}_scales"])
        return named

    def call_operands(
        self, operands: Sequence[jax.Array], spec: ScaledSpec, kernel: Kernel
    ) -> dict[str, jax.Array]:
        if kernel.contraction == "scaled":
            return super().call_operands(operands, spec, kernel)
        a, b, a_scales, b_scales, _ = operands
        return {
            "a": a,
            "b": b[:, None],
            "group_sizes": jnp.full((1, 1), a.shape[1], jnp.int32),
            "group_offset": jnp.zeros((1,), jnp.int32),
            "a_scales": a_scales,
            "b_scales": b_scales[:, None],
        }

    def emulated_arch(self, spec: ScaledSpec) -> str:
        return "sm100" if by_mma(spec) else super().emulated_arch(spec)

    def call_options(self, choice: Choice) -> dict[str, int | str]:
        if choice.kernel.contraction != "scaled":
            return grouped_options(choice)
        return {
            "raster_order": choice.raster_order,
            "swizzle": choice.swizzle,
            "splits": choice.splits,
        }

    def workspace(self, name: str, choice: Choice, dims: ScaledDims) -> int:
        of_groups = choice.kernel.contraction != "scaled"
        if choice.splits == 1 and not of_groups:
            return 0
        sizes = {"m": dims.m, "n": dims.n, "k": dims.k, "batch": dims.batch}
        more = {"groups": 1, "experts": 1} if of_groups else {"splits": choice.splits}
        return runtime.kernel_workspace_bytes(
            name, choice.kernel.name, **sizes, **more, sm_count=choice.sm_count
        )


DENSE = _Dense("bw_scaled_matmul")
bw_scaled_matmul_p = DENSE.primitive
ad.primitive_jvps[bw_scaled_matmul_p] = derivatives.of_product
