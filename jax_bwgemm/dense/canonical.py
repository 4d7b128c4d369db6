"""From labelled dimensions to the canonical GEMM, with as few copied elements as possible. Pure.

Every dot product is written with one label per dimension, as in einsum. Dimensions of size 1 are
dropped; the others are grouped into b, m, n and k so that each operand, as it lies in memory, is
already [b, m, k] or [b, k, m] (right: [b, k, n] or [b, n, k]) and the result [b, m, n]. Where no
grouping achieves that, the one that transposes the fewest elements wins.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

Labels = tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class OperandPlan:
    """How one operand becomes rank 3: drop size-1 dimensions, permute if needed, reshape.

    Attributes:
        squeezed: Shape without its size-1 dimensions.
        perm: Permutation of ``squeezed`` (a copy), or None.
        shape: Rank-3 shape.
        groups: How many dimensions (of size other than 1) each one of ``shape`` stands for.
        major: Which canonical dimension is contiguous: ``"k"``, ``"m"`` or ``"n"``.
    """

    squeezed: tuple[int, ...]
    perm: tuple[int, ...] | None
    shape: tuple[int, int, int]
    groups: tuple[int, int, int]
    major: str


@dataclasses.dataclass(frozen=True)
class CanonicalPlan:
    """A dot product as one canonical GEMM.

    Attributes:
        lhs: What happens to the left operand.
        rhs: What happens to the right operand.
        unfolded: Shape of the result [b, m, n] with its groups split into dimensions.
        perm: Permutation of ``unfolded`` (a copy), or None.
        shape: Final shape, with the size-1 dimensions.
        copied: Elements that the permutations move.
        groups: How many dimensions (of size other than 1) b, m and n of the result each have.
    """

    lhs: OperandPlan
    rhs: OperandPlan
    unfolded: tuple[int, ...]
    perm: tuple[int, ...] | None
    shape: tuple[int, ...]
    copied: int
    groups: tuple[int, int, int]


@dataclasses.dataclass(frozen=True)
class _Grouping:
    """Labels of each group, in order. A batch may belong to one operand only (shared other)."""

    batch: Labels
    lhs_batched: bool
    rhs_batched: bool
    m: Labels
    n: Labels
    k: Labels


@functools.lru_cache(maxsize=4096)
def canonicalize(
    lhs: Labels, rhs: Labels, out: Labels, sizes: tuple[tuple[int, int], ...]
) -> CanonicalPlan:
    """Plans a dot product given by labels.

    Args:
        lhs: One label per dimension of the left operand.
        rhs: One label per dimension of the right operand. A label of both operands is a batch
            dimension if ``out`` has it, else contracted.
        out: Labels of the result.
        sizes: (label, size) pairs.

    Returns:
        The plan that copies the fewest elements.
    """
    size = dict(sizes)
    kept_lhs, kept_rhs, kept_out = (
        tuple(x for x in labels if size[x] != 1) for labels in (lhs, rhs, out)
    )
    best: CanonicalPlan | None = None
    for grouping in _groupings(kept_lhs, kept_rhs, kept_out):
        plan = _plan(grouping, kept_lhs, kept_rhs, kept_out, size, tuple(size[x] for x in out))
        if best is None or plan.copied < best.copied:
            best = plan
        if not best.copied:
            break
    assert best is not None  # at least one grouping always exists
    return best


def _groupings(lhs: Labels, rhs: Labels, out: Labels) -> Iterator[_Grouping]:
    """Candidate groupings, preferred ones first."""
    shared = tuple(x for x in lhs if x in rhs)
    summed = tuple(x for x in shared if x not in out)
    batch = tuple(x for x in shared if x in out)
    only_lhs = tuple(x for x in lhs if x not in rhs)
    only_rhs = tuple(x for x in rhs if x not in lhs)

    def orders(labels: Labels, *references: Labels) -> list[Labels]:
        found = [tuple(x for x in reference if x in labels) for reference in references]
        return list(dict.fromkeys(found))

    k_orders = orders(summed, lhs, rhs)
    m_orders, n_orders = orders(only_lhs, out, lhs), orders(only_rhs, out, rhs)
    if batch:
        for b, m, n, k in itertools.product(
            orders(batch, out, lhs, rhs), m_orders, n_orders, k_orders
        ):
            yield _Grouping(b, True, True, m, n, k)
        return
    for m, n, k in itertools.product(m_orders, n_orders, k_orders):
        # A leading free dimension becomes the batch, the other operand being shared: it stays
        # shardable on its own, and one device's GEMM folds it into m again. Never all of them:
        # that would make every product a matrix-vector one.
        for count in (1, 0, *range(2, len(m))) if len(m) > 1 else (0,):
            yield _Grouping(m[:count], True, False, m[count:], n, k)
        for count in range(1, len(n)):
            yield _Grouping(n[:count], False, True, m, n[count:], k)


def _plan(
    grouping: _Grouping,
    lhs: Labels,
    rhs: Labels,
    out: Labels,
    size: dict[int, int],
    shape: tuple[int, ...],
) -> CanonicalPlan:
    g = grouping

    def operand(labels: Labels, batched: bool, free: Labels, major: str) -> OperandPlan:
        """``major`` is that of [b, free, k]'s counterpart: the free dimension's name."""
        batch = g.batch if batched else ()
        first = (free, g.k) if major == "m" else (g.k, free)
        names = ("m", "k") if major == "m" else ("k", "n")
        squeezed = tuple(size[x] for x in labels)

        def merged(outer: Labels, inner: Labels) -> tuple[Any, Any]:
            three = (batch, outer, inner)
            return tuple(math.prod(size[x] for x in g) for g in three), tuple(map(len, three))

        for (outer, inner), contiguous in ((first, names[1]), (first[::-1], names[0])):
            if labels == batch + outer + inner:
                return OperandPlan(squeezed, None, *merged(outer, inner), contiguous)
        outer, inner = first
        perm = tuple(labels.index(x) for x in batch + outer + inner)
        return OperandPlan(squeezed, perm, *merged(outer, inner), names[1])

    left = operand(lhs, g.lhs_batched, g.m, "m")
    right = operand(rhs, g.rhs_batched, g.n, "n")
    natural = g.batch + g.m + g.n
    perm = None if natural == out else tuple(natural.index(x) for x in out)
    copied = sum(math.prod(p.squeezed) for p in (left, right) if p.perm is not None)
    copied += 0 if perm is None else math.prod(shape)
    unfolded = tuple(size[x] for x in natural)
    groups = (len(g.batch), len(g.m), len(g.n))
    return CanonicalPlan(left, right, unfolded, perm, shape, copied, groups)


def dot_labels(
    lhs_rank: int,
    rhs_rank: int,
    contract: tuple[Sequence[int], Sequence[int]],
    batch: tuple[Sequence[int], Sequence[int]],
) -> tuple[Labels, Labels, Labels]:
    """Labels for `jax.lax.dot_general` dimension numbers: result is batch, lhs free, rhs free."""
    lhs = list(range(lhs_rank))
    rhs = list(range(lhs_rank, lhs_rank + rhs_rank))
    for left, right in zip((*contract[0], *batch[0]), (*contract[1], *batch[1]), strict=True):
        rhs[right] = lhs[left]
    out = [lhs[i] for i in batch[0]]
    out += [x for x in lhs if x not in rhs]
    out += [x for x in rhs if x not in lhs]
    return tuple(lhs), tuple(rhs), tuple(out)


def matmul_labels(
    lhs_shape: Sequence[int], rhs_shape: Sequence[int]
) -> tuple[Labels, Labels, Labels]:
    """Labels for `jax.numpy.matmul`: vectors lose their dimension, batches broadcast.

    A broadcast (size 1) batch dimension gets a label of its own that the result lacks when the
    other operand's is larger, so that it is dropped rather than repeated.
    """
    lhs_batch, rhs_batch = lhs_shape[:-2], rhs_shape[:-2]
    rank = max(len(lhs_batch), len(rhs_batch))
    fresh = itertools.count(rank + 3)
    m, n, k = rank, rank + 1, rank + 2

    def batch_labels(own: Sequence[int], other: Sequence[int]) -> list[int]:
        offset = rank - len(own)
        labels = []
        for i, extent in enumerate(own, offset):
            across = i - (rank - len(other))
            broadcast = extent == 1 and across >= 0 and other[across] != 1
            labels.append(next(fresh) if broadcast else i)
        return labels

    lhs = batch_labels(lhs_batch, rhs_batch) + ([m] if len(lhs_shape) > 1 else []) + [k]
    rhs = batch_labels(rhs_batch, lhs_batch) + [k] + ([n] if len(rhs_shape) > 1 else [])
    out = list(range(rank))
    out += [m] if len(lhs_shape) > 1 else []
    out += [n] if len(rhs_shape) > 1 else []
    return tuple(lhs), tuple(rhs), tuple(out)
