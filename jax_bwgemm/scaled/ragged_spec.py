"""What is static about a grouped scaled product, and its sizes. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from jax_bwgemm.grouped.spec import M_GROUPED, GroupedDims, GroupedSpec, grouped_dims
from jax_bwgemm.product.spec import common_batch


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class ScaledRaggedSpec(GroupedSpec):
    """Everything static about a grouped scaled product. Hashable; the primitive's only parameter.

    m-grouped: A [B, M, K], B [B, E, N, K]. k-grouped, both with the ragged rows M last:
    A [B, K, M], B [B, N, M]; D [B, E, K, N].

    Attributes:
        a_scaling: Layout of A's scales.
        b_scaling: Layout of B's scales.
        accumulation: ``"promoted"`` or ``"fast"``.
    """

    b_major: str = "k"
    a_scaling: str
    b_scaling: str
    accumulation: str

    @property
    def majors(self) -> str:
        return "kk"

    @property
    def m_grouped(self) -> bool:
        """Whether rows of the result are ragged, not what is contracted."""
        return self.kind == M_GROUPED

    def _more(self) -> list[str]:
        return [f"{self.a_scaling} x {self.b_scaling}", self.accumulation, *super()._more()]


@dataclasses.dataclass(frozen=True)
class ScaledRaggedDims(GroupedDims):
    """Sizes of a grouped scaled product.

    Attributes:
        a_dtype: Name of the type of A's values.
        b_dtype: Name of the type of B's values.
        scale_batches: Batch of both operands' scales, and of alpha.
        blocked: Dimensions of which elements share a scale.
        block: How many do.
    """

    a_dtype: str = ""
    b_dtype: str = ""
    scale_batches: tuple[int, int, int] = (1, 1, 1)
    blocked: str = ""
    block: int = 128

    @property
    def extents(self) -> Mapping[str, int]:
        """Size of every dimension, by name; of one that has blocks, how many of these."""
        sizes = dict(super().extents)
        for dim in self.blocked:
            blocks, rest = divmod(sizes[dim], self.block)
            # With a shorter last block the dimension cannot be divided.
            sizes[dim] = 1 if rest else blocks
        return sizes

    @property
    def batches(self) -> tuple[int, ...]:
        """Batch of every operand."""
        return *super().batches, *self.scale_batches

    def describe(self, spec: ScaledRaggedSpec) -> str:
        """The product in one line, for messages."""
        return (
            f"scaled {spec.kind} GEMM {self.a_dtype} {spec.a_scaling} x {self.b_dtype} "
            f"{spec.b_scaling} -> {spec.out_dtype}, {spec.accumulation}, {self}"
        )


def ragged_dims(
    spec: ScaledRaggedSpec,
    shapes: Sequence[Sequence[int]],
    blocked: str,
    dtypes: tuple[str, str] = ("", ""),
    block: int = 128,
) -> ScaledRaggedDims:
    """Sizes from the shapes of A, B, group sizes, offset, the scales of A and B, and alpha.

    Raises:
        TypeError: The operands have the wrong rank or do not fit together.
    """
    a, b, sizes, offset, *scales = map(tuple, shapes)
    if not spec.m_grouped:
        a, b = ((x[0], x[2], x[1]) for x in (a, b))
    found = grouped_dims(spec, a, b, sizes, offset)
    fields = {f.name: getattr(found, f.name) for f in dataclasses.fields(GroupedDims)}
    fields["batch"] = common_batch((found.batch, *(s[0] for s in scales)))
    return ScaledRaggedDims(
        **fields,
        a_dtype=dtypes[0],
        b_dtype=dtypes[1],
        scale_batches=(scales[0][0], scales[1][0], scales[2][0]),
        blocked=blocked,
        block=block,
    )
