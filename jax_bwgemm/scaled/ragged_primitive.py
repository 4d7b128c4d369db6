"""The primitive ``bw_scaled_ragged_p``: grouped scaled products, with ragged rows or ragged K."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.interpreters import ad

from jax_bwgemm import runtime
from jax_bwgemm.compat import DimensionNumbers
from jax_bwgemm.config import Target
from jax_bwgemm.grouped.spec import out_shape
from jax_bwgemm.product.kernels import Kernel
from jax_bwgemm.scaled import derivatives, ragged_selection
from jax_bwgemm.scaled.family import Family
from jax_bwgemm.scaled.fit import by_mma
from jax_bwgemm.scaled.layouts import layout_of
from jax_bwgemm.scaled.mma_operands import in_ragged_tiles, in_tiles, packed
from jax_bwgemm.scaled.ragged_contraction import SCALED_RAGGED
from jax_bwgemm.scaled.ragged_reference import ragged_reference
from jax_bwgemm.scaled.ragged_spec import ScaledRaggedDims, ScaledRaggedSpec, ragged_dims
from jax_bwgemm.scaled.selection import Choice, grouped_options


class _Ragged(Family):
    """A, B, group sizes, offset, the scales of A and B, and alpha, as `ScaledRaggedSpec` has them.

    Alpha, [B or 1, E] or, k-grouped, [B or 1], is the product of both global scales, and not read
    where layouts have none.
    """

    contraction = SCALED_RAGGED
    roles = ("a", "b", "group_sizes", "group_offset", "a_scales", "b_scales", "alpha")

    def dims_of(self, operands: Sequence[Any], spec: ScaledRaggedSpec) -> ScaledRaggedDims:
        types = tuple(jnp.dtype(x.dtype).name for x in operands[:2])
        return ragged_dims(spec, [x.shape for x in operands], "", types)

    def out_shape(self, dims: ScaledRaggedDims, spec: ScaledRaggedSpec) -> tuple[int, ...]:
        return out_shape(spec, dims)

    def table_of(self, implementation: str) -> tuple[Kernel, ...]:
        if implementation == "cutlass":
            return runtime.scaled_grouped_kernels()
        return runtime.emulated_scaled_grouped_kernels()

    def fitting(
        self, table: Sequence[Kernel], spec: ScaledRaggedSpec, dims: ScaledRaggedDims
    ) -> list[Kernel]:
        return ragged_selection.fitting_kernels(table, spec, dims)

    def refusal(
        self, table: Sequence[Kernel], spec: ScaledRaggedSpec, dims: ScaledRaggedDims
    ) -> str | None:
        return ragged_selection.refusal(table, spec, dims)

    def select(
        self,
        table: Sequence[Kernel],
        spec: ScaledRaggedSpec,
        dims: ScaledRaggedDims,
        target: Target,
    ) -> Choice | str:
        return ragged_selection.select(table, spec, dims, target)

    def reference(self, *operands: jax.Array, spec: ScaledRaggedSpec) -> jax.Array:
        return ragged_reference(operands, spec, self.dims_of(operands, spec))

    def dot_numbers(self, a: Any, b: Any, *more: Any, spec: ScaledRaggedSpec) -> DimensionNumbers:
        del more
        batched = a.shape[0] == b.shape[0] != 1
        return ((2,), (b.ndim - 1,)), (((0,), (0,)) if batched else ((), ()))

    def kernel_operands(
        self, operands: Sequence[jax.Array], spec: ScaledRaggedSpec
    ) -> dict[str, jax.Array]:
        named = super().kernel_operands(operands, spec)
        if not layout_of(spec.a_scaling).has_global_scale:
            del named["alpha"]
        if not by_mma(spec):
            return named
        a_scales, sizes, offset = (named[x] for x in ("a_scales", "group_sizes", "group_offset"))
        experts = named["b"].shape[1]
        named["a"], named["b"] = packed(named["a"]), packed(named["b"])
        named["b_scales"] = in_tiles(named["b_scales"])
        named["a_scales"] = (
            in_ragged_tiles(a_scales, sizes, offset, experts)
            if spec.m_grouped
            else in_tiles(a_scales)
        )
        return named

    def emulated_arch(self, spec: ScaledRaggedSpec) -> str:
        return "sm100" if by_mma(spec) else super().emulated_arch(spec)

    def call_options(self, choice: Choice) -> dict[str, int | str]:
        return grouped_options(choice)

    def workspace(self, name: str, choice: Choice, dims: ScaledRaggedDims) -> int:
        sizes = {"m": dims.m, "n": dims.n, "k": dims.k, "batch": dims.batch}
        groups = {"groups": dims.groups, "experts": dims.experts}
        return runtime.kernel_workspace_bytes(
            name, choice.kernel.name, **sizes, **groups, sm_count=choice.sm_count
        )


RAGGED = _Ragged("bw_scaled_ragged")
bw_scaled_ragged_p = RAGGED.primitive
ad.primitive_jvps[bw_scaled_ragged_p] = derivatives.of_grouped_product
