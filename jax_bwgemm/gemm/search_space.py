"""What autotuning tries for a problem: kernels and splits by predicted time, then tile orders."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from jax_bwgemm.config import Target
from jax_bwgemm.gemm import heuristics
from jax_bwgemm.gemm.spec import GemmDims, GemmSpec
from jax_bwgemm.gemm.tile_schedule import tile_order
from jax_bwgemm.runtime import KernelInfo
from jax_bwgemm.tuning_cache import ProblemKey

# Tile orders tried for the fastest kernels. Which of them differ depends on kernel and problem.
ORDERS = tuple((raster, swizzle) for swizzle in (1, 8, 4, 2) for raster in ("n", "m"))
SPLITS: tuple[int, ...] = (2, 3, 4, 5, 6, 8, 10, 12, 16, 24, 32, 48, 64)
# K elements that a split must keep, for its mainloop to be worth starting.
MIN_SPLIT_K = 512
# Rounds of tiles that splits may make; with more, the unsplit kernel fills the GPU too.
MAX_SPLIT_WAVES = 2
# Cycles of the kernel that adds the partial results: launch, and each f32 it reads.
REDUCE_FIXED, REDUCE_PER_ELEMENT = 4000, 0.0025
# No kernel predicted to take this many times as long as the best is tried.
MAX_PREDICTED_RATIO = 2.5


@dataclasses.dataclass(frozen=True)
class Choice:
    """A kernel with its run-time attributes: one thing to measure.

    Attributes:
        kernel: The kernel.
        raster_order: ``"heuristic"``, ``"m"`` or ``"n"``.
        swizzle: 1, 2, 4, 8 or 16.
        splits: Parts that K is split into.
    """

    kernel: KernelInfo
    raster_order: str
    swizzle: int
    splits: int = 1

    def __str__(self) -> str:
        splits = f", {self.splits} splits" if self.splits != 1 else ""
        return f"{self.kernel.name}, raster {self.raster_order}, swizzle {self.swizzle}{splits}"


def spec_of(key: ProblemKey) -> GemmSpec:
    """The problem as selection sees it."""
    return GemmSpec(key.majors[0], key.majors[1], key.out_dtype)


def split_refusal(key: ProblemKey, splits: int) -> str | None:
    """Why a problem cannot be split so; None when it can."""
    if key.batch != 1:
        return f"a batch of {key.batch} cannot be split along K"
    multiple = 8 * splits  # every part starts at a multiple of 16 bytes
    return f"K={key.k} is no multiple of {multiple}" if key.k % multiple else None


def possible_splits(key: ProblemKey, kernel: KernelInfo, target: Target) -> tuple[int, ...]:
    """The numbers of parts that K can usefully be split into, 1 first."""
    order = tile_order(kernel, key.m, key.n, key.batch, target.sm_count)
    most = MAX_SPLIT_WAVES * target.sm_count // len(order.tiles)
    return (
        1,
        *(
            s
            for s in SPLITS
            if s <= most and key.k // s >= MIN_SPLIT_K and split_refusal(key, s) is None
        ),
    )


def split_cycles(kernel: KernelInfo, dims: GemmDims, target: Target, splits: int) -> float:
    """Predicted cycles of a kernel that treats ``splits`` parts of K as a batch."""
    if splits == 1:
        return heuristics.evaluate(kernel, dims, target).cycles
    parts = dataclasses.replace(
        dims, k=dims.k // splits, batch=splits, lhs_batch=splits, rhs_batch=splits
    )
    reduction = REDUCE_FIXED + REDUCE_PER_ELEMENT * dims.m * dims.n * splits
    return heuristics.evaluate(kernel, parts, target).cycles + reduction


def kernels_to_try(
    key: ProblemKey, table: Sequence[KernelInfo], target: Target, limit: int
) -> list[Choice]:
    """The heuristic's choice, then the kernels and splits with the best predicted times.

    Args:
        key: The problem.
        table: The kernels of this build.
        target: The GPU.
        limit: How many to return at most.

    Raises:
        ValueError: No kernel can run the problem.
    """
    from jax_bwgemm import tuning  # which looks tuned choices up, and so imports this package

    selected = tuning.select_by_heuristic(spec_of(key), key.in_dtype, key.dims, target, table)
    if isinstance(selected, str):
        raise ValueError(f"{key}: {selected}")
    first = Choice(selected.kernel, selected.raster_order, selected.swizzle, selected.splits)
    usable, _ = heuristics.rank(table, spec_of(key), key.in_dtype, key.dims, target)
    predicted = sorted(
        (
            (split_cycles(c.kernel, key.dims, target, splits), c.kernel.name, splits, c)
            for c in usable
            for splits in possible_splits(key, c.kernel, target)
        ),
        key=lambda row: row[:3],
    )
    in_bytes = 2 if key.in_dtype != "float32" else 4
    choices = [first]
    seen = {(first.kernel.name, first.splits)}
    for cycles, name, splits, candidate in predicted:
        if len(choices) == limit or cycles > MAX_PREDICTED_RATIO * predicted[0][0]:
            break
        # Several splits of one kernel are alike; neighbours of the best are tried, not all.
        if (name, splits) in seen or sum(c.kernel.name == name for c in choices) >= 3:
            continue
        seen.add((name, splits))
        raster, swizzle = heuristics.tile_order(candidate, key.dims, in_bytes)
        choices.append(Choice(candidate.kernel, raster, swizzle, splits))
    return choices


def orders_to_try(
    choice: Choice, key: ProblemKey, target: Target, known: Sequence[Choice]
) -> list[Choice]:
    """Other tile orders of a kernel, without those that give the CTAs the same tiles."""

    def order(c: Choice) -> object:
        return tile_order(
            c.kernel, key.m, key.n, key.batch, target.sm_count, c.raster_order, c.swizzle, c.splits
        ).tiles

    same = [c for c in known if (c.kernel, c.splits) == (choice.kernel, choice.splits)]
    seen = [order(c) for c in same]
    found = []
    for raster, swizzle in ORDERS:
        other = dataclasses.replace(choice, raster_order=raster, swizzle=swizzle)
        if (tiles := order(other)) not in seen:
            seen.append(tiles)
            found.append(other)
    return found
