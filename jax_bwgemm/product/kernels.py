"""The record of one compiled kernel, the same for all products."""

from __future__ import annotations

import dataclasses
from typing import Self

from jax_bwgemm.product.dtypes import operand_types


@dataclasses.dataclass(frozen=True, kw_only=True)
class Kernel:
    """One compiled kernel. The C++ record with the same fields is ``cc/core/kernel.h``.

    Every fact is a field: nothing is read out of the name.

    Attributes:
        name: Stable name, which exported programs carry.
        arch: ``"sm90"`` or ``"sm100"``.
        contraction: ``"dense"``, ``"m_grouped"`` (every row times its group's matrix),
            ``"k_grouped"`` (one product for each group, over its rows), ``"scaled"`` (dense, of
            values with scales) or ``"gated"`` (dense with two matrices B, of which a tile has half
            its columns each).
        a_dtype: Type of A.
        b_dtype: Type of B.
        out_dtype: Type of the result.
        a_major: ``"k"`` ([B, M, K] in memory) or ``"m"`` ([B, K, M]). A k-grouped kernel contracts
            M: its A is [B, M, K] for ``"m"`` and, with scales, [B, K, M] for ``"k"``.
        b_major: ``"n"`` ([B, K, N] in memory, m-grouped [B, E, K, N]) or ``"k"`` ([B, N, K]).
        tile_m: Rows of one MMA tile: per CTA pair for schedule ``2sm``, otherwise per CTA.
        tile_n: Columns of one MMA tile.
        tile_k: Elements of the contracted dimension per pipeline stage.
        cluster_m: CTAs of a cluster along M.
        cluster_n: CTAs of a cluster along N.
        schedule: ``cooperative``, ``pingpong`` or ``clusterk`` (sm90), ``1sm`` or ``2sm`` (sm100).
        swap_ab: Whether the kernel computes the transposed problem: ``tile_m`` then lies along N
            of D and ``tile_n`` along M, and the cluster likewise.
        stream_k: Whether CTAs may share a tile along K, so that none is idle in the last wave.
        stages: Depth of the mainloop pipeline.
        alignment_bytes: Required multiple of every operand's contiguous extent.
        terms: That the kernel splits an f32 operand into; 1: it splits none.
        term_dtype: The terms' type: ``"bfloat16"``, or ``"float16"`` for rows that are scaled.
        uneven_parts: Whether parts of K may differ by a block, so that any K has any number of
            parts.
        scales: Of kernels of scaled operands, grouped ones too, where scales are applied:
            ``"sums"`` over all of K, ``"blocks"`` (sums of 128, where the operand along tile_n has
            one scale for 128 rows), ``"rows"`` (sums of 128, where each of its rows has its own) or
            ``"mma"`` (by the MMA itself).
        f32_twin: Name of the kernel that computes parts of K in float32; empty when the build has
            none. Stream-K kernels add parts themselves and have none either.
    """

    name: str
    arch: str
    contraction: str = "dense"
    a_dtype: str = "bfloat16"
    b_dtype: str = "bfloat16"
    out_dtype: str = "bfloat16"
    a_major: str = "k"
    b_major: str = "n"
    tile_m: int
    tile_n: int
    tile_k: int
    cluster_m: int
    cluster_n: int
    schedule: str
    swap_ab: bool = False
    stream_k: bool = False
    stages: int = 4
    alignment_bytes: int = 16
    terms: int = 1
    term_dtype: str = "bfloat16"
    uneven_parts: bool = False
    scales: str = ""
    f32_twin: str = ""

    @classmethod
    def of_tile(
        cls,
        arch: str,
        tile: tuple[int, int, int],
        cluster: tuple[int, int],
        schedule: str,
        *,
        name: str = "described",
        swap_ab: bool = False,
        stream_k: bool = False,
    ) -> Self:
        """A dense bfloat16 kernel of that tile, built or not: for models and drawings.

        Args:
            arch: As the field.
            tile: M, N and K.
            cluster: CTAs along M and N.
            schedule: As the field.
            name: As the field.
            swap_ab: As the field.
            stream_k: As the field.
        """
        return cls(
            name=name,
            arch=arch,
            tile_m=tile[0],
            tile_n=tile[1],
            tile_k=tile[2],
            cluster_m=cluster[0],
            cluster_n=cluster[1],
            schedule=schedule,
            swap_ab=swap_ab,
            stream_k=stream_k,
            uneven_parts=not stream_k and schedule in ("cooperative", "pingpong"),
            f32_twin="" if stream_k else name,
        )

    @property
    def cluster_k(self) -> bool:
        """Whether the CTAs of a cluster share one tile along K, as many as the call's splits."""
        return self.schedule == "clusterk"

    @property
    def splits_both(self) -> bool:
        """Whether both operands are f32 and split into terms."""
        return self.terms > 1 and self.a_dtype == self.b_dtype

    @property
    def f32_algorithms(self) -> tuple[str, ...]:
        """What a kernel of two f32 operands answers of `f32_algorithm`, its own first."""
        if not self.splits_both:
            return ()
        if self.term_dtype == "float16":
            return ("highest", "x3")
        return ("x3",) if self.terms == 2 else ("x6", "highest", "x3")

    @property
    def mmas(self) -> int:
        """MMAs for each product: of every term; of two split operands the larger products."""
        return self.terms * (self.terms + 1) // 2 if self.splits_both else self.terms

    @property
    def splits_k(self) -> bool:
        """Whether K can be divided into parts: the kernel adds them, or has a twin for them."""
        return self.stream_k or bool(self.f32_twin)

    @property
    def majors(self) -> str:
        """Contiguous dimensions of A and B, as `ProductSpec.majors` says it."""
        return self.a_major + self.b_major

    @property
    def in_dtype(self) -> str:
        """The types of A and B, as `dtypes.operand_types` says them."""
        return operand_types(self.a_dtype, self.b_dtype)

    @property
    def kind(self) -> str:
        """`contraction` as `ProductSpec.kind` says it: ``"m-grouped"`` for ``"m_grouped"``."""
        return self.contraction.replace("_", "-")
