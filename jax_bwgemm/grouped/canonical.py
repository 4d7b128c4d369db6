"""From ragged dimension numbers to the canonical grouped GEMM, copying as little as possible. Pure.

Dimensions are grouped by their role: b (batch of both operands), x (outside of the ragged
dimension, with group sizes of their own), r (ragged), y (inside of it: every ragged row stands for
that many rows), then m, n and k as usual. Dimensions of size 1 have no place in memory, so they
never make a transpose necessary.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Iterable, Sequence

from jax_bwgemm.dense.validation import DimensionNumbers
from jax_bwgemm.grouped.validation import Mode

Shape = tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Arrangement:
    """How an array becomes another: drop size-1 dimensions, permute if needed, reshape.

    Attributes:
        squeezed: Shape without its size-1 dimensions.
        perm: Permutation of ``squeezed`` (a copy), or None.
        shape: Shape in the end.
    """

    squeezed: Shape
    perm: Shape | None
    shape: Shape

    @property
    def copied(self) -> int:
        """Elements that the permutation moves."""
        return 0 if self.perm is None else math.prod(self.squeezed)


@dataclasses.dataclass(frozen=True)
class RaggedPlan:
    """A ragged dot product as canonical grouped GEMMs.

    Attributes:
        lhs: To [b, x, rows, k]; in mode contract [b, x, rows, m].
        rhs: To [b, e, k, n] or [b, e, n, k]; in mode contract [b, x, rows, n].
        b_major: ``"n"`` or ``"k"``: which of these.
        out: From [b, x, rows, n]; in mode contract from [b, e, m, n].
        out_groups: The result's dimensions that b and x, rows and n stand for; in mode contract
            b, e, m and n.
        batch: Product of b.
        outer: Product of x.
        inner: Product of y.
        ragged: Size of r.
    """

    lhs: Arrangement
    rhs: Arrangement
    b_major: str
    out: Arrangement
    out_groups: tuple[Shape, ...]
    batch: int
    outer: int
    inner: int
    ragged: int


def arrange(shape: Sequence[int], groups: Sequence[Sequence[int]]) -> Arrangement:
    """Merges the dimensions of each group, in the order given, into one."""
    order = [d for group in groups for d in group if shape[d] != 1]
    present = sorted(order)
    perm = tuple(present.index(d) for d in order)
    return Arrangement(
        tuple(shape[d] for d in present),
        None if order == present else perm,
        tuple(math.prod(shape[d] for d in group) for group in groups),
    )


@functools.lru_cache(maxsize=4096)
def plan_ragged(
    mode: Mode,
    lhs: Shape,
    rhs: Shape,
    numbers: DimensionNumbers,
    ragged: int,
    group: int | None,
    experts: int,
) -> RaggedPlan:
    """Plans a ragged dot product of mode rows or contract.

    Args:
        mode: What is ragged.
        lhs: Shape of lhs.
        rhs: Shape of rhs.
        numbers: Dimension numbers of the dot product.
        ragged: The ragged dimension of lhs.
        group: The group dimension of rhs, in mode rows.
        experts: Number of matrices of rhs, or of the result in mode contract.

    Returns:
        The plan that copies the fewest elements.
    """
    if mode is Mode.ROWS:
        plans = _rows_plans(lhs, rhs, numbers, ragged, group)
    else:
        plans = _contract_plans(lhs, rhs, numbers, ragged, experts)
    return min(plans, key=lambda plan: plan.lhs.copied + plan.rhs.copied + plan.out.copied)


def _free(rank: int, *taken: Iterable[int]) -> list[int]:
    return [d for d in range(rank) if not any(d in dims for dims in taken)]


def _pair_orders(
    left: Sequence[int], right: Sequence[int]
) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Paired dimensions as they are listed, as they lie in lhs, and as they lie in rhs."""
    pairs = list(zip(left, right, strict=True))
    by_rhs = sorted(pairs, key=lambda pair: pair[1])
    orders = dict.fromkeys(tuple(order) for order in (pairs, sorted(pairs), by_rhs))
    return [(tuple(a for a, _ in order), tuple(b for _, b in order)) for order in orders]


def _consecutive(*counts: int) -> tuple[Shape, ...]:
    """Dimensions 0, 1, ... in groups of that many."""
    ends = list(itertools.accumulate(counts))
    return tuple(tuple(range(end - n, end)) for n, end in zip(counts, ends, strict=True))


def _sizes(shape: Shape, dims: Iterable[int]) -> Shape:
    return tuple(shape[d] for d in dims)


def _rows_plans(
    lhs: Shape, rhs: Shape, numbers: DimensionNumbers, ragged: int, group: int
) -> list[RaggedPlan]:
    (lhs_contract, rhs_contract), (lhs_batch, rhs_batch) = numbers
    free = _free(len(lhs), lhs_contract, lhs_batch)
    x, y = ([d for d in free if d < ragged], [d for d in free if d > ragged])
    n = _free(len(rhs), rhs_contract, rhs_batch, (group,))
    # The result has the dimensions b, m, n of lax, and m is x, r, y: nothing moves.
    shape = (*_sizes(lhs, lhs_batch), *_sizes(lhs, free), *_sizes(rhs, n))
    out = Arrangement(shape, None, shape)
    groups = _consecutive(len(lhs_batch) + len(x), 1 + len(y), len(n))
    plans = []
    for lhs_k, rhs_k in _pair_orders(lhs_contract, rhs_contract):
        for major, inner in (("n", (rhs_k, n)), ("k", (n, rhs_k))):
            plans.append(
                RaggedPlan(
                    arrange(lhs, (lhs_batch, x, (ragged, *y), lhs_k)),
                    arrange(rhs, (rhs_batch, (group,), *inner)),
                    major,
                    out,
                    groups,
                    math.prod(_sizes(lhs, lhs_batch)),
                    math.prod(_sizes(lhs, x)),
                    math.prod(_sizes(lhs, y)),
                    lhs[ragged],
                )
            )
    return plans


def _contract_plans(
    lhs: Shape, rhs: Shape, numbers: DimensionNumbers, ragged: int, experts: int
) -> list[RaggedPlan]:
    (lhs_contract, rhs_contract), (lhs_batch, rhs_batch) = numbers
    m = _free(len(lhs), lhs_contract, lhs_batch)
    n = _free(len(rhs), rhs_contract, rhs_batch)
    at = lhs_contract.index(ragged)
    x = (lhs_contract[:at], rhs_contract[:at])
    rows = (ragged, rhs_contract[at])
    # The groups come first in the result of lax, the batch in the canonical one.
    batch, outputs = _sizes(lhs, lhs_batch), (*_sizes(lhs, m), *_sizes(rhs, n))
    canonical = (*batch, experts, *outputs)
    rank = len(batch)
    order = (rank, *range(rank), *range(rank + 1, len(canonical)))
    moved = arrange(canonical, [(d,) for d in order])
    e, b, *outer = _consecutive(1, rank, len(m), len(n))
    groups = (b, e, *outer)
    plans = []
    for lhs_y, rhs_y in _pair_orders(lhs_contract[at + 1 :], rhs_contract[at + 1 :]):
        plans.append(
            RaggedPlan(
                arrange(lhs, (lhs_batch, x[0], (rows[0], *lhs_y), m)),
                arrange(rhs, (rhs_batch, x[1], (rows[1], *rhs_y), n)),
                "n",
                moved,
                groups,
                math.prod(batch),
                math.prod(_sizes(lhs, x[0])),
                math.prod(_sizes(lhs, lhs_y)),
                lhs[ragged],
            )
        )
    return plans
