"""The canonical grouped GEMM: `GroupedSpec` (everything static) and `GroupedDims`. Pure.

Two kinds, both over the rows of a matrix that lie in consecutive groups:

* ``"rows"``: ``D[m] = A[m] @ B[e]`` for every row m of group e. A [B, M, K], B [B, E, K, N],
  D [B, M, N]. Rows of no group are zero.
* ``"contract"``: ``D[e] = A[rows of e]^T @ B[rows of e]``. A [B, M, K], B [B, M, N],
  D [B, E, K, N]. Groups without rows are zero.

Matrix e belongs to group ``offset + e`` of the sizes [B, G]; rows of groups outside of
[offset, offset + E) count as rows of no group. Any operand's batch may be 1: it is then shared.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Sequence

from jax_bwgemm.config import Target
from jax_bwgemm.grouped.grouped_config import GroupedConfig

KINDS = ("rows", "contract")


@dataclasses.dataclass(frozen=True)
class GroupedSpec:
    """Everything static about a grouped GEMM. Hashable; the primitives' only parameter.

    Attributes:
        kind: ``"rows"`` or ``"contract"``.
        rhs_major: How B of kind ``"rows"`` is stored: ``"n"`` for [B, E, K, N], ``"k"`` for
            [B, E, N, K]. Always ``"n"`` for ``"contract"``.
        out_dtype: Name of the result's dtype.
        experts: E of kind ``"contract"``, which no operand shows; 0 for ``"rows"``.
        reduce_batch: Sum the results over the batch, giving a batch of 1. This is what the
            gradient of a shared (batch 1) operand is.
        implementations: Names to try in order, as in the public ``implementation=``.
        config: The user's constraints on the kernel.
        precision: The user's ``precision=``, for the XLA path.
        out_sharding: Sharding of D in its type, under a mesh with explicit axes; None lets it
            follow from the operands'.
        target: Architecture chosen explicitly; None means that of the device at lowering.
        representative: Share of the rows that each group is expected to have; None assumes equal
            groups.
    """

    kind: str = "rows"
    rhs_major: str = "n"
    out_dtype: str = "bfloat16"
    experts: int = 0
    reduce_batch: bool = False
    implementations: tuple[str, ...] = ("cutlass", "xla")
    config: GroupedConfig | None = None
    precision: Hashable = None
    out_sharding: Hashable = None
    target: Target | None = None
    representative: tuple[float, ...] | None = None

    def __str__(self) -> str:
        default = GroupedSpec()
        parts = [self.out_dtype]
        if self.kind == "rows":
            parts.insert(0, f"rhs {self.rhs_major}-major")
        for field in (
            "experts",
            "reduce_batch",
            "implementations",
            "config",
            "precision",
            "out_sharding",
            "target",
        ):
            value = getattr(self, field)
            if value != getattr(default, field):
                parts.append(f"{field}={value}")
        return f"<{' '.join(parts)}>"

    __repr__ = __str__


@dataclasses.dataclass(frozen=True)
class GroupedDims:
    """Sizes of one grouped GEMM. ``batch`` is the largest of the operands' batches."""

    m: int
    n: int
    k: int
    experts: int
    groups: int
    batch: int = 1
    lhs_batch: int = 1
    rhs_batch: int = 1
    sizes_batch: int = 1
    offset_batch: int = 1

    @property
    def empty(self) -> bool:
        """Whether there is nothing to multiply: the result is empty or all zeros."""
        return 0 in (self.m, self.n, self.k, self.experts, self.groups, self.batch)

    def __str__(self) -> str:
        text = f"M={self.m} N={self.n} K={self.k} E={self.experts} G={self.groups}"
        if self.batch == 1:
            return text
        batches = (("A", self.lhs_batch), ("B", self.rhs_batch), ("sizes", self.sizes_batch))
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
    name = f"bw_grouped_{spec.kind}"
    ranks = (3, 4 if spec.kind == "rows" else 3, 2, 1)
    if tuple(map(len, shapes)) != ranks:
        raise TypeError(
            f"{name} operands must have ranks {', '.join(map(str, ranks))}, got shapes "
            f"{', '.join(map(str, shapes))}"
        )
    (lhs_batch, m, k), rhs_batch, (sizes_batch, groups) = shapes[0], shapes[1][0], shapes[2]
    if spec.kind == "rows":
        experts, rhs_k, n = shapes[1][1:]
        if spec.rhs_major == "k":
            rhs_k, n = n, rhs_k
        if k != rhs_k:
            raise TypeError(
                f"{name} contracts K={k} of lhs {shapes[0]} with K={rhs_k} of rhs {shapes[1]} "
                f"(rhs major {spec.rhs_major})"
            )
    else:
        experts, rhs_m, n = spec.experts, *shapes[1][1:]
        if m != rhs_m:
            raise TypeError(
                f"{name} contracts M={m} of lhs {shapes[0]} with M={rhs_m} of rhs {shapes[1]}"
            )
    batches = (lhs_batch, rhs_batch, sizes_batch, shapes[3][0])
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
    if spec.kind == "rows":
        return (batch, dims.m, dims.n)
    return (batch, dims.experts, dims.k, dims.n)


def transpose_spec(
    spec: GroupedSpec, operand: str, operand_batch: int, dims: GroupedDims, dtype: str
) -> GroupedSpec:
    """Spec of the grouped GEMM that gives the cotangent of an operand, in its storage order.

    With dD the cotangent of D, called with operands

    * rows, A: (dD, B), B being read in its other major,
    * rows, B: (A, dD) if B is n-major, (dD, A) if it is k-major,
    * contract, A: (B, dD), dD [E, K, N] being read as a k-major right operand,
    * contract, B: (A, dD).

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
        config=None,  # another problem: the user's constraints were for the forward one
    )
    if spec.kind == "rows" and operand == "rhs":
        return dataclasses.replace(common, kind="contract", rhs_major="n", experts=dims.experts)
    if spec.kind == "rows":
        return dataclasses.replace(common, rhs_major="k" if spec.rhs_major == "n" else "n")
    return dataclasses.replace(common, kind="rows", rhs_major="k" if operand == "lhs" else "n")
