"""The primitive ``bw_scaled_ragged_p``: grouped scaled products, with ragged rows or ragged K."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jax_bwgemm import runtime
from jax_bwgemm.config import Target
from jax_bwgemm.grouped.spec import out_shape
from jax_bwgemm.product.kernels import Kernel
from jax_bwgemm.scaled import ragged_selection
from jax_bwgemm.scaled.family import Family
from jax_bwgemm.scaled.ragged_contraction import SCALED_RAGGED
from jax_bwgemm.scaled.ragged_reference import ragged_reference
from jax_bwgemm.scaled.ragged_spec import ScaledRaggedDims, ScaledRaggedSpec, ragged_dims
from jax_bwgemm.scaled.selection import Choice


class _Ragged(Family):
    """A, B, group sizes, offset, and the scales of A and B, as `ScaledRaggedSpec` has them."""

    contraction = SCALED_RAGGED
    roles = ("a", "b", "group_sizes", "group_offset", "a_scales", "b_scales")

    def dims_of(self, operands: Sequence[Any], spec: ScaledRaggedSpec) -> ScaledRaggedDims:
        types = tuple(jnp.dtype(x.dtype).name for x in operands[:2])
        return ragged_dims(spec, [x.shape for x in operands], "", types)

    def out_shape(self, dims: ScaledRaggedDims, spec: ScaledRaggedSpec) -> tuple[int, ...]:
        return out_shape(spec, dims)

    def table_of(self, implementation: str) -> tuple[Kernel, ...]:
        if implementation == "cutlass":
            return runtime.scaled_grouped_kernels()
        return runtime.emulated_scaled_grouped_kernels()

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

    def call_options(self, choice: Choice) -> dict[str, int | str]:
        return {"swizzle": choice.swizzle}

    def workspace(self, name: str, choice: Choice, dims: ScaledRaggedDims) -> int:
        sizes = {"m": dims.m, "n": dims.n, "k": dims.k, "batch": dims.batch}
        groups = {"groups": dims.groups, "experts": dims.experts}
        return runtime.kernel_workspace_bytes(
            name, choice.kernel.name, **sizes, **groups, sm_count=choice.sm_count
        )


RAGGED = _Ragged("bw_scaled_ragged")
bw_scaled_ragged_p = RAGGED.primitive
