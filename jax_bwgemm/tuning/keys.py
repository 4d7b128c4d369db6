"""What selection knows of a problem when it chooses a kernel: the keys of tuning tables. Pure."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from typing import ClassVar

# Sizes of groups are kept in this many parts of their mean: what a router does is never the same
# twice, and near distributions shall find the same entry.
SHARE_PARTS = 16
SHARED = ("none", "lhs", "rhs")
GROUPED_SHARED = (*SHARED, "both")
KINDS = ("m-grouped", "k-grouped")

Shares = tuple[tuple[int, int], ...]


@dataclasses.dataclass(frozen=True, order=True)
class DenseKey:
    """A dense product: types, majors and padded sizes.

    Attributes:
        in_dtype: The operands' types, as `dtypes.operand_types` says them; ``"float32x3"`` and
            ``"float32x6"`` are float32 multiplied as so many products of bf16, ``"float32highest"``
            as accurately as f32.
        out_dtype: Type of the result.
        majors: Storage of both operands, as in kernel names.
        m: Rows of D, with the padding that alignment demands.
        n: Columns of D, likewise.
        k: Contracted size, likewise.
        batch: Number of products.
        shared: The operand that all of a batch share: ``"none"``, ``"lhs"`` or ``"rhs"``.
    """

    in_dtype: str
    out_dtype: str
    majors: str
    m: int
    n: int
    k: int
    batch: int = 1
    shared: str = "none"

    @property
    def macs(self) -> int:
        """Multiplications."""
        return self.m * self.n * self.k * self.batch

    def __str__(self) -> str:
        types = f"{self.in_dtype}->{self.out_dtype}"
        return f"{self.m}x{self.n}x{self.k}{_batch(self)} {self.majors} {types}"


def types_of(key: DenseKey | GroupedKey) -> str:
    """The operands' types, as `dtypes.operand_types` says them."""
    return "float32" if re.fullmatch("float32(x3|x6|highest)", key.in_dtype) else key.in_dtype


@dataclasses.dataclass(frozen=True, order=True)
class GroupedKey:
    """A grouped product: types, storage, padded sizes, and how large its groups are expected to be.

    Attributes:
        kind: ``"m-grouped"`` or ``"k-grouped"``, as in `GroupedSpec`.
        in_dtype: The operands' types, as `dtypes.operand_types` says them.
        out_dtype: Type of the result.
        b_major: Storage of B, as in `GroupedSpec`.
        m: Rows of A, those of all groups.
        n: Columns of B, with the padding that alignment demands.
        k: Columns of A, likewise.
        groups: Number of groups.
        experts: Number of matrices of B (of D where the rows are contracted).
        batch: Number of products.
        shared: The operands that all of a batch share: ``"none"``, ``"lhs"``, ``"rhs"`` or
            ``"both"``.
        shares: Expected sizes of the groups as (how many groups, size in sixteenths of the mean),
            smallest first; the order of the groups does not matter. Empty: nothing is known.
    """

    kind: str
    in_dtype: str
    out_dtype: str
    b_major: str
    m: int
    n: int
    k: int
    groups: int
    experts: int
    batch: int = 1
    shared: str = "none"
    shares: Shares = ()

    @property
    def macs(self) -> int:
        """Multiplications, if every row belongs to a group that has a matrix."""
        return self.m * self.n * self.k * self.batch

    def __str__(self) -> str:
        experts = f" ({self.experts} here)" if self.experts != self.groups else ""
        types = f"{self.in_dtype}->{self.out_dtype}"
        majors = f"k{self.b_major}" if self.kind == "m-grouped" else "mn"
        known = f", groups {text}" if (text := shares_text(self.shares)) else ""
        return (
            f"{self.kind} {self.m}x{self.n}x{self.k} in {self.groups}{experts}{_batch(self)} "
            f"{majors} {types}{known}"
        )


@dataclasses.dataclass(frozen=True, order=True)
class _ScaledKey:
    """What is the same in all products of scaled operands.

    Attributes:
        a_dtype: Type of A's values.
        b_dtype: Type of B's values.
        a_scaling: Layout of A's scales.
        b_scaling: Layout of B's scales.
        accumulation: ``"fast"`` where scales multiply sums over all of K, else ``"promoted"``.
        out_dtype: Type that kernels write.
    """

    a_dtype: str
    b_dtype: str
    a_scaling: str
    b_scaling: str
    accumulation: str
    out_dtype: str

    @property
    def types(self) -> str:
        """Types and layouts in a few words."""
        a, b = f"{self.a_dtype} {self.a_scaling}", f"{self.b_dtype} {self.b_scaling}"
        return f"{a} x {b}->{self.out_dtype}, {self.accumulation}"


@dataclasses.dataclass(frozen=True, order=True)
class ScaledKey(_ScaledKey):
    """A product of scaled operands.

    Attributes:
        m: Rows of A.
        n: Rows of B.
        k: What is contracted.
        batch: Number of products.
        shared: The operand that all of a batch share: ``"none"``, ``"lhs"`` or ``"rhs"``.
    """

    m: int
    n: int
    k: int
    batch: int = 1
    shared: str = "none"

    @property
    def macs(self) -> int:
        """Multiplications."""
        return self.m * self.n * self.k * self.batch

    def __str__(self) -> str:
        return f"scaled {self.m}x{self.n}x{self.k}{_batch(self)} {self.types}"


@dataclasses.dataclass(frozen=True, order=True)
class ScaledGroupedKey(_ScaledKey):
    """A grouped product of scaled operands, without a batch. Sizes as of `GroupedKey`."""

    kind: str
    m: int
    n: int
    k: int
    groups: int
    experts: int

    batch: ClassVar[int] = 1
    shares: ClassVar[Shares] = ()

    @property
    def macs(self) -> int:
        """Multiplications, if every row belongs to a group that has a matrix."""
        return self.m * self.n * self.k

    def __str__(self) -> str:
        experts = f" ({self.experts} here)" if self.experts != self.groups else ""
        return (
            f"scaled {self.kind} {self.m}x{self.n}x{self.k} in {self.groups}{experts} {self.types}"
        )


Key = DenseKey | GroupedKey | ScaledKey | ScaledGroupedKey


def _batch(key: DenseKey | GroupedKey | ScaledKey) -> str:
    shared = f" ({key.shared} shared)" if key.shared != "none" else ""
    return (f" x{key.batch}" if key.batch != 1 else "") + shared


def canonical_shares(representative: Sequence[float] | None) -> Shares:
    """`GroupedKey.shares` of each group's expected share of the rows; empty for None."""
    if representative is None:
        return ()
    counts: dict[int, int] = {}
    for share in sorted(representative):
        size = round(share * len(representative) * SHARE_PARTS)
        counts[size] = counts.get(size, 0) + 1
    return tuple((count, size) for size, count in counts.items())


def shares_of(key: GroupedKey | ScaledGroupedKey) -> tuple[float, ...] | None:
    """Share of the rows of each group, smallest first, as `GroupedSpec.representative`.

    Rounding may have made the shares add up to more than all rows; they are scaled then.
    """
    if not key.shares:
        return None
    shares = [size / (SHARE_PARTS * key.groups) for count, size in key.shares for _ in range(count)]
    total = max(1.0, sum(shares))
    return tuple(share / total for share in shares)


def shares_text(shares: Shares) -> str:
    """The expected sizes in a few words: ``"0.5 to 3.25 of the mean"``; nothing when unknown."""
    if not shares:
        return ""
    small, large = shares[0][1] / SHARE_PARTS, shares[-1][1] / SHARE_PARTS
    return f"{small:g} of the mean" if small == large else f"{small:g} to {large:g} of the mean"
