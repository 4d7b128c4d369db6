"""The canonical grouped GEMM: `GroupedSpec` (everything static) and `GroupedDims`. Pure.

Two kinds, both over the rows of a matrix that lie in consecutive groups:

* ``"m-grouped"``: ``D[m] = A[m] @ B[e]`` for every row m of group e. A [B, M, K], B [B, E, K, N],
  D [B, M, N]. Rows of no group are zero.
* ``"k-grouped"``: ``D[e] = A[rows of e]^T @ B[rows of e]``. A [B, M, K], B [B, M, N],
  D [B, E, K, N]. Groups without rows are zero.

Matrix e belongs to group ``offset + e`` of the sizes [B, G]; rows of groups outside of
[offset, offset + E) count as rows of no group. Any operand's batch may be 1: it is then shared.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from jax_bwgemm.product.spec import ProductSpec

M_GROUPED, K_GROUPED = "m-grouped", "k-grouped"


@dataclasses.dataclass(frozen=True, repr=False)
class GroupedSpec(ProductSpec):
    """Everything static about a grouped GEMM. Hashable; the primitives' only parameter.

    Attributes:
        kind: ``"m-grouped"`` or ``"k-grouped"``.
        b_major: How B of an m-grouped product is stored: ``"n"`` for [B, E, K, N], ``"k"`` for
            [B, E, N, K]. Always ``"n"`` for a k-grouped one.
        experts: E of a k-grouped product, which no operand shows; 0 for an m-grouped one.
        representative: Share of the rows that each group is expected to have; None assumes equal
            groups.
    """

    kind: str = M_GROUPED
    b_major: str = "n"
    experts: int = 0
    representative: tuple[float, ...] | None = None

    @property
    def majors(self) -> str:
        return f"k{self.b_major}" if self.kind == M_GROUPED else "mn"

    def _more(self) -> list[str]:
        return [f"experts={self.experts}"] if self.experts else []

    __repr__ = ProductSpec.__str__


@dataclasses.dataclass(frozen=True)
class GroupedDims:
    """Sizes of one grouped GEMM. ``batch`` is the largest of the operands' batches."""

    m: int
    n: int
    k: int
    experts: int
    groups: int
    batch: int = 1
    a_batch: int = 1
    b_batch: int = 1
    sizes_batch: int = 1
    offset_batch: int = 1

    @property
    def empty(self) -> bool:
        """Whether there is nothing to multiply: the result is empty or all zeros."""
        return 0 in (self.m, self.n, self.k, self.experts, self.groups, self.batch)

    @property
    def extents(self) -> dict[str, int]:
        """Size of every dimension, by name."""
        sizes = {"b": self.batch, "m": self.m, "n": self.n, "k": self.k}
        return sizes | {"e": self.experts, "g": self.groups}

    @property
    def batches(self) -> tuple[int, int, int, int]:
        """Batch of every operand."""
        return self.a_batch, self.b_batch, self.sizes_batch, self.offset_batch

    def __str__(self) -> str:
        text = f"M={self.m} N={self.n} K={self.k} E={self.experts} G={self.groups}"
        if self.batch == 1:
            return text
        batches = (("A", self.a_batch), ("B", self.b_batch), ("sizes", self.sizes_batch))
        shared = [name for name, batch in batches if batch != self.batch]
        note = f" ({', '.join(shared)} shared)" if shared else ""
        return f"{text} batch={self.batch}{note}"


def grouped_dims(
    spec: GroupedSpec,
    lhs: Sequence[int],
    rhs: Sequence[int],
    sizes: Sequence[int],
    offset: Sequence[int],
) -> GroupedDims:
    """Sizes of a grouped GEMM from its operands' shapes.

    Raises:
        TypeError: The operands have the wrong rank or do not fit together.
    """
    shapes = tuple(map(tuple, (lhs, rhs, sizes, offset)))
    name = f"bw_{spec.kind.replace('-', '_')}"
    ranks = (3, 4 if spec.kind == M_GROUPED else 3, 2, 1)
    if tuple(map(len, shapes)) != ranks:
        raise TypeError(
            f"{name} operands must have ranks {', '.join(map(str, ranks))}, got shapes "
            f"{', '.join(map(str, shapes))}"
        )
    (a_batch, m, k), b_batch, (sizes_batch, groups) = shapes[0], shapes[1][0], shapes[2]
    if spec.kind == M_GROUPED:
        experts, rhs_k, n = shapes[1][1:]
        if spec.b_major == "k":
            rhs_k, n = n, rhs_k
        if k != rhs_k:
            raise TypeError(
                f"{name} contracts K={k} of lhs {shapes[0]} with K={rhs_k} of rhs {shapes[1]} "
                f"(B major {spec.b_major})"
            )
    else:
        experts, rhs_m, n = spec.experts, *shapes[1][1:]
        if m != rhs_m:
            raise TypeError(
                f"{name} contracts M={m} of lhs {shapes[0]} with M={rhs_m} of rhs {shapes[1]}"
            )
    batches = (a_batch, b_batch, sizes_batch, shapes[3][0])
    larger = {batch for batch in batches if batch != 1}
    if len(larger) > 1:
        raise TypeError(
            f"{name} batches {', '.join(map(str, batches))} of operands "
            f"{', '.join(map(str, shapes))} differ"
        )
    return GroupedDims(m, n, k, experts, groups, *(larger or {1}), *batches)


def out_shape(spec: GroupedSpec, dims: GroupedDims) -> tuple[int, ...]:
    """Shape of D."""
    batch = 1 if spec.reduce_batch else dims.batch
    if spec.kind == M_GROUPED:
        return (batch, dims.m, dims.n)
    return (batch, dims.experts, dims.k, dims.n)


def transpose_spec(
    spec: GroupedSpec, operand: str, operand_batch: int, dims: GroupedDims, dtype: str
) -> GroupedSpec:
    """Spec of the grouped GEMM that gives the cotangent of an operand, in its storage order.

    With dD the cotangent of D, called with operands

    * m-grouped, A: (dD, B), B being read in its other major,
    * m-grouped, B: (A, dD) if B is n-major, (dD, A) if it is k-major,
    * k-grouped, A: (B, dD), dD [E, K, N] being read as a k-major right operand,
    * k-grouped, B: (A, dD).

    Args:
        spec: The grouped GEMM.
        operand: ``"lhs"`` or ``"rhs"``.
        operand_batch: The operand's batch, 1 or that of ``dims``.
        dims: Sizes of the grouped GEMM.
        dtype: The operand's type.
    """
    # D of a batch-reducing GEMM is shared by all batches: its transpose broadcasts instead.
    common = dataclasses.replace(
        spec,
        out_dtype=dtype,
        experts=0,
        reduce_batch=operand_batch == 1 and dims.batch != 1,
        out_sharding=None,  # the caller knows the operand's
    ).with_policy(config=None)  # another problem: the user's constraints were for the forward one
    if spec.kind == M_GROUPED and operand == "rhs":
        return dataclasses.replace(common, kind=K_GROUPED, b_major="n", experts=dims.experts)
    if spec.kind == M_GROUPED:
        return dataclasses.replace(common, b_major="k" if spec.b_major == "n" else "n")
    return dataclasses.replace(common, kind=M_GROUPED, b_major="k" if operand == "lhs" else "n")
