"""Scaled products as `jax_bwgemm.product.partition` sees them. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from jax_bwgemm.product.contraction import Operands
from jax_bwgemm.product.spec import common_batch
from jax_bwgemm.scaled.layouts import layout_of
from jax_bwgemm.scaled.spec import ScaledSpec


@dataclasses.dataclass(frozen=True)
class ShardedDims:
    """Sizes of a product, as `jax_bwgemm.product.contraction.Dims` has them."""

    batch: int
    extents: Mapping[str, int]
    batches: tuple[int, ...]

    @property
    def empty(self) -> bool:
        """Whether there is nothing to multiply."""
        return 0 in self.extents.values()


class Scaled(Operands):
    """``D[B, M, N] = alpha * A[B, M, K] @ B[B, N, K].mT``; A, B, the scales of both, alpha [B]."""

    operands = 5

    def block_of(self, spec: ScaledSpec) -> int:
        return block_of(spec)

    def dims(self, spec: ScaledSpec, *shapes: Sequence[int]) -> ShardedDims:
        a, b, *_ = shapes
        batches = tuple(shape[0] for shape in shapes)
        sizes = {"b": common_batch(batches), "m": a[1], "n": b[1], "k": a[2]}
        blocked = {d.lower() for names in self.operand_names(spec) for d in names if d.isupper()}
        for dim in blocked:
            size, last = divmod(sizes[dim], self.block_of(spec))
            # With a shorter last block the dimension cannot be divided.
            sizes[dim] = 1 if last else size
        return ShardedDims(sizes["b"], sizes, batches)

    def operand_names(self, spec: ScaledSpec) -> tuple[str, ...]:
        scales = scales_names(spec.a_scaling, "m"), scales_names(spec.b_scaling, "n")
        return "bmk", "bnk", *scales, "b"

    def out_names(self, spec: ScaledSpec) -> str:
        del spec
        return "bmn"


def block_of(spec: Any) -> int:
    """Elements along K that share a scale, where a layout of the product has blocks; else 1.

    All blocks of a product have the same size: `jax_bwgemm.scaled.selection.refusal` sees to it.
    """
    sizes = (layout_of(name).block_k for name in (spec.a_scaling, spec.b_scaling))
    return max((size for size in sizes if size is not None), default=1)


def scales_names(scaling: str, rows: str, k: str = "k", of: str = "b") -> str:
    """Names of the dimensions of an operand's scales.

    Args:
        scaling: Their layout.
        rows: Name of the operand's rows.
        k: Name of what it contracts.
        of: Names of its leading dimensions.
    """
    return (
        of
        + {
            "tensor": "",
            "row": rows,
            "1x128": f"{k.upper()}{rows}",
            "128x128": f"{rows.upper()}{k.upper()}",
            "mxfp8": f"{rows}{k.upper()}",
            "mxfp4": f"{rows}{k.upper()}",
            "nvfp4": f"{rows}{k.upper()}",
        }[layout_of(scaling).name]
    )


SCALED = Scaled()
