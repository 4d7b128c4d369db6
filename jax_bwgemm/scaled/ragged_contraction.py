"""Grouped scaled products as `jax_bwgemm.product.partition` sees them. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import jax

from jax_bwgemm.grouped.contraction import GroupedOperands
from jax_bwgemm.product.contraction import NamedAxes
from jax_bwgemm.scaled.contraction import block_of, scales_names
from jax_bwgemm.scaled.ragged_spec import ScaledRaggedDims, ScaledRaggedSpec, ragged_dims


class ScaledRagged(GroupedOperands):
    """Operands A, B, group sizes, offset, the scales of A and B, and alpha."""

    operands = 7

    def block_of(self, spec: ScaledRaggedSpec) -> int:
        return block_of(spec)

    def dims(self, spec: ScaledRaggedSpec, *shapes: Sequence[int]) -> ScaledRaggedDims:
        blocked = {d.lower() for names in self.operand_names(spec) for d in names if d.isupper()}
        return ragged_dims(spec, shapes, "".join(sorted(blocked)), block=self.block_of(spec))

    def operand_names(self, spec: ScaledRaggedSpec) -> tuple[str, ...]:
        if spec.m_grouped:
            scales = scales_names(spec.a_scaling, "m"), scales_names(spec.b_scaling, "n", of="be")
            return "bmk", "benk", "bg", "b", *scales, "be"
        sides = ((spec.a_scaling, "k"), (spec.b_scaling, "n"))
        scales = (scales_names(scaling, rows, "m") for scaling, rows in sides)
        return "bkm", "bnm", "bg", "b", *scales, "b"

    def out_names(self, spec: ScaledRaggedSpec) -> str:
        return "bmn" if spec.m_grouped else "bekn"

    def on_shard(
        self,
        spec: ScaledRaggedSpec,
        dims: ScaledRaggedDims,
        axes: NamedAxes,
        mesh_shape: Mapping[str, int],
        operands: tuple[jax.Array, ...],
    ) -> tuple[ScaledRaggedSpec, tuple[jax.Array, ...]]:
        a, b, sizes, offset, *scales = operands  # and alpha
        rows = a.shape[1 if spec.m_grouped else 2]
        sizes, offset, experts = self.on_shard_groups(
            spec, dims, axes, mesh_shape, sizes, offset, rows
        )
        return dataclasses.replace(spec, experts=experts), (a, b, sizes, offset, *scales)


SCALED_RAGGED = ScaledRagged()
