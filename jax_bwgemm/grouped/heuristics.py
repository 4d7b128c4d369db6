"""Which kernel for which grouped GEMM: filter the table, then compare predicted times. Pure.

Every constant that a measurement may change is at the top of this file.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import NamedTuple

from jax_bwgemm.config import Target
from jax_bwgemm.dense.costs import (
    BYTES,
    BYTES_PER_CYCLE,
    LONG_CYCLES,
    MACS_PER_CYCLE,
    ceil_div,
    round_up,
)
from jax_bwgemm.dense.heuristics import PAD_MIN_SIZE
from jax_bwgemm.grouped.spec import M_GROUPED, GroupedDims, GroupedSpec
from jax_bwgemm.product.kernels import Kernel


class GroupedCost(NamedTuple):
    """What a tile costs.

    Attributes:
        efficiency: Share of the tensor cores' peak that a long mainloop reaches.
        per_tile: Cycles of every tile that no mainloop hides.
        streaming: Share of the memory bandwidth reached when that is the limit.
    """

    efficiency: float
    per_tile: float
    streaming: float


# (arch, tile_m, tile_n, cluster_m, swap_ab, schedule) -> cost. They only have to rank the tiles of
# one architecture. SM90's choose the fastest kernel in each of 18 problems on an H200; SM100's are
# assumed. Kernels of f32 operands need none: they have one tile for each product.
COSTS = {
    ("sm90", 128, 192, 2, True, "pingpong"): GroupedCost(0.89, 300, 0.93),
    ("sm90", 128, 192, 1, True, "pingpong"): GroupedCost(0.87, 300, 0.94),
    ("sm90", 128, 32, 1, True, "cooperative"): GroupedCost(0.30, 700, 0.955),
    ("sm90", 128, 256, 2, False, "cooperative"): GroupedCost(0.90, 2500, 0.85),
    ("sm90", 128, 192, 2, False, "pingpong"): GroupedCost(0.88, 300, 0.90),
    ("sm100", 256, 256, 2, False, "2sm"): GroupedCost(0.92, 800, 0.88),
    ("sm100", 256, 256, 2, True, "2sm"): GroupedCost(0.92, 800, 0.88),
    ("sm100", 128, 128, 1, True, "1sm"): GroupedCost(0.70, 500, 0.90),
    ("sm100", 128, 32, 1, True, "1sm"): GroupedCost(0.24, 500, 0.94),
}
# For tiles not listed. They rank by size: smaller tiles reuse less of what they read.
UNKNOWN_COST = GroupedCost(0.5, 1000, 0.9)
# What cooperative kernels lose to ping-pong ones in launches of milliseconds.
LONG_COOPERATIVE_PENALTY = 1.03
# Every further row tile of a group reads the same weights from L2, in this share of the time that
# they took from memory. SM90: fitted to the same problems; SM100: unknown.
REREAD = {"sm90": 0.2, "sm100": 0.0}
# The same for the rows of lhs and every further tile along N.
LHS_REREAD = {"sm90": 0.05, "sm100": 0.0}
# The norm that adds the times of computing and memory: neither hides all of the other.
LIMITS_NORM = 4
# Cycles of a launch whatever the size: the schedule, filling the pipeline, the last tile.
LAUNCH_CYCLES = 6000
# Tiles are counted in 32 bits on the device, with room to spare.
MAX_TILES = 2**30
# Height of the bands of tiles that keep one operand in L2, where the operands are larger than
# SWIZZLE_MIN_OPERAND_BYTES.
SWIZZLE = 8
# Higher for SM90's row tiles, which are lower than a cluster's columns are wide.
SWIZZLE_SM90_ROWS = 12
# None for f32 rows, which take twice the room in L2: their bands leave none for the matrices.
SWIZZLE_F32_ROWS = 1
SWIZZLE_MIN_OPERAND_BYTES = 32 * 2**20


def aligned_dims(dims: GroupedDims, in_bytes: int, out_bytes: int) -> GroupedDims:
    """Sizes padded so that every contiguous extent, K and N, is a multiple of 16 bytes."""
    multiple = max(16 // in_bytes, 16 // out_bytes)
    return dataclasses.replace(dims, n=round_up(dims.n, multiple), k=round_up(dims.k, multiple))


def padding_refusal(dims: GroupedDims, padded: GroupedDims) -> str | None:
    """Why an unaligned problem is left to XLA when the choice is free; None when padding pays.

    As for the dense GEMM: pad when M, N and K are all at least `PAD_MIN_SIZE`.
    """
    if padded == dims or min(dims.m, dims.n, dims.k) >= PAD_MIN_SIZE:
        return None
    return (
        f"row pitches are not multiples of 16 bytes, and padding {dims} to N={padded.n} "
        f"K={padded.k} does not pay when M, N or K is below {PAD_MIN_SIZE}"
    )


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A kernel with the predicted cost of a problem.

    Attributes:
        kernel: The kernel.
        tiles: Expected number of tiles.
        waves: Rounds of tiles that the GPU needs.
        cycles: Predicted duration in clock cycles.
        limit: What decides the duration: ``"compute"`` or ``"memory"``.
    """

    kernel: Kernel
    tiles: float
    waves: int
    cycles: float
    limit: str


def expected_sizes(spec: GroupedSpec, dims: GroupedDims) -> tuple[float, ...]:
    """Rows of each matrix's group: as the user expects them, else all rows in equal parts.

    With fewer matrices than groups (expert parallel), which groups is not known: every so many, in
    order of size.
    """
    count = min(dims.experts, dims.groups)
    if spec.representative is None:
        return (dims.m / dims.groups,) * count
    ordered = sorted(share * dims.m for share in spec.representative)
    return tuple(ordered[(2 * i + 1) * dims.groups // (2 * count)] for i in range(count))


def kernel_mismatch(kernel: Kernel, spec: GroupedSpec, in_dtype: str, arch: str) -> str | None:
    """Why a kernel cannot run a (padded) problem; None when it can."""
    if kernel.arch != arch:
        return f"for {kernel.arch}"
    if kernel.kind != spec.kind:
        return kernel.kind
    if kernel.in_dtype != in_dtype or kernel.out_dtype != spec.out_dtype:
        return f"multiplies {kernel.in_dtype} into {kernel.out_dtype}"
    if kernel.b_major != spec.b_major:
        return f"B major {kernel.b_major}"
    return spec.policy.config.mismatch(kernel) if spec.policy.config is not None else None


def evaluate(
    kernel: Kernel,
    spec: GroupedSpec,
    dims: GroupedDims,
    target: Target,
    *,
    linked: bool = False,
    cost: GroupedCost | None = None,
) -> Candidate:
    """Predicts how long a kernel takes for a problem that it can run.

    Args:
        kernel: The kernel.
        spec: The problem.
        dims: Its sizes.
        target: The GPU.
        linked: Whether an epilogue is linked into it, whose own time is not counted.
        cost: What its tiles cost, if that is not in `COSTS`.
    """
    if cost is None:
        tile = (kernel.arch, kernel.tile_m, kernel.tile_n, kernel.cluster_m)
        cost = COSTS.get((*tile, kernel.swap_ab, kernel.schedule), UNKNOWN_COST)
    sms = 2 if _paired(kernel) else 1
    sizes = expected_sizes(spec, dims)
    rate = MACS_PER_CYCLE[kernel.arch] * sms * cost.efficiency / kernel.mmas
    if kernel.kind == M_GROUPED:
        rows, _ = tile_extents(kernel)
        row_tiles = sum(_row_tiles(s, rows, known=spec.representative) for s in sizes)
        tiles = row_tiles * _column_tiles(kernel, dims.n) * dims.batch
        macs = kernel.tile_m * kernel.tile_n * round_up(dims.k, kernel.tile_k)
        longest = macs
        # SM100's tiles become narrower for few rows too; its costs only rank and leave that out.
        if kernel.arch == "sm90" and row_tiles > 0:
            step = row_step(kernel, linked=linked)
            computed = sum(_computed_rows(s, step, known=spec.representative) for s in sizes)
            macs *= min(1.0, computed / (row_tiles * rows))
    else:
        tiles = most_tiles(kernel, dims)
        depths = [max(kernel.tile_k, round(s)) for s in sizes]
        macs = kernel.tile_m * kernel.tile_n * sum(depths) / len(depths)
        longest = kernel.tile_m * kernel.tile_n * max(depths)
    concurrent = max(1, target.sm_count // sms)
    waves = max(1, ceil_div(max(1, round(tiles)), concurrent))
    # SM90's clusters take a tile whenever they are free, short tiles last: waves need not be whole.
    rounds = tiles / concurrent if kernel.arch == "sm90" else waves
    compute = max(rounds * (macs / rate + cost.per_tile), longest / rate + cost.per_tile)
    traffic = _bytes(kernel, dims, sizes)
    if kernel.kind == M_GROUPED:
        traffic += _rereads(kernel, dims, sizes, row_tiles)
    memory = traffic / (BYTES_PER_CYCLE[kernel.arch] * cost.streaming)
    limit = "compute" if compute >= memory else "memory"
    cycles = (compute**LIMITS_NORM + memory**LIMITS_NORM) ** (1 / LIMITS_NORM) + LAUNCH_CYCLES
    if kernel.schedule == "cooperative" and cycles > LONG_CYCLES:
        cycles *= LONG_COOPERATIVE_PENALTY
    return Candidate(kernel, tiles, waves, cycles, limit)


def row_step(kernel: Kernel, *, linked: bool = False) -> int:
    """An SM90 tile's rows are computed in multiples of this (kRowStep of its config.h)."""
    if not kernel.swap_ab:
        return kernel.tile_m
    if linked:
        return min(48, kernel.tile_n)
    if kernel.terms > 1:
        return 64
    return 16 if kernel.cluster_m == 2 and kernel.out_dtype != "float32" else 32


def _paired(kernel: Kernel) -> bool:
    """Whether a tile is computed by two CTAs together."""
    return kernel.arch == "sm100" and kernel.cluster_m == 2


def _column_tiles(kernel: Kernel, n: int) -> int:
    """Tiles along the columns of D, in whole clusters."""
    _, columns = tile_extents(kernel)
    cluster = kernel.cluster_n
    if kernel.swap_ab:
        cluster = 1 if _paired(kernel) else kernel.cluster_m
    return round_up(ceil_div(n, columns), cluster)


def tile_extents(kernel: Kernel) -> tuple[int, int]:
    """Extent of a tile along the rows of D and along its columns."""
    if kernel.swap_ab:
        return kernel.tile_n, kernel.tile_m
    return kernel.tile_m, kernel.tile_n


def most_tiles(kernel: Kernel, dims: GroupedDims) -> int:
    """Tiles of the result, whatever the sizes: at worst one part-filled for every group."""
    along_rows, _ = tile_extents(kernel)
    if kernel.kind == M_GROUPED:
        rows = ceil_div(dims.m, along_rows) + 1 + dims.groups
    else:
        cluster = 1 if _paired(kernel) or kernel.swap_ab else kernel.cluster_m
        rows = round_up(ceil_div(dims.k, along_rows), cluster) * dims.experts
    return rows * _column_tiles(kernel, dims.n) * dims.batch


def tiles_refusal(kernel: Kernel, dims: GroupedDims) -> str | None:
    """Why a kernel cannot count a problem's tiles; None when it can."""
    tiles = most_tiles(kernel, dims)
    return f"{tiles} tiles are more than {MAX_TILES}" if tiles > MAX_TILES else None


def _row_tiles(size: float, tile: int, *, known: object) -> float:
    """Tiles of a group. A size that is not known is random: expected with exponential sizes."""
    if size <= 0:
        return 0.0
    if known is not None:
        return float(ceil_div(max(1, round(size)), tile))
    return -1 / math.expm1(-tile / size)


def _computed_rows(size: float, step: int, *, known: object) -> float:
    """Rows that a group is computed as."""
    return _row_tiles(size, step, known=known) * step


def _bytes(kernel: Kernel, dims: GroupedDims, sizes: Sequence[float]) -> float:
    """Bytes that must be read and written at least once."""
    rows = sum(sizes)
    used = sum(1 for size in sizes if size > 0)
    a_bytes, b_bytes, out_bytes = (
        BYTES[dtype] for dtype in (kernel.a_dtype, kernel.b_dtype, kernel.out_dtype)
    )
    if kernel.kind == M_GROUPED:
        read = a_bytes * dims.a_batch * rows * dims.k
        read += b_bytes * dims.b_batch * used * dims.k * dims.n
        return read + out_bytes * dims.batch * dims.m * dims.n
    read = rows * (a_bytes * dims.a_batch * dims.k + b_bytes * dims.b_batch * dims.n)
    return read + out_bytes * dims.batch * dims.experts * dims.k * dims.n


def _rereads(kernel: Kernel, dims: GroupedDims, sizes: Sequence[float], row_tiles: float) -> float:
    """What tiles of m-grouped products read again, as bytes from memory."""
    used = sum(1 for size in sizes if size > 0)
    weights = BYTES[kernel.b_dtype] * dims.b_batch * dims.k * dims.n
    lhs = BYTES[kernel.a_dtype] * dims.a_batch * dims.k * sum(sizes)
    # CTAs of a cluster side by side along N read rows of lhs once.
    sharing = kernel.cluster_m if kernel.swap_ab else kernel.cluster_n
    readers = _column_tiles(kernel, dims.n) / sharing
    return REREAD[kernel.arch] * weights * max(0.0, row_tiles - used) + LHS_REREAD[
        kernel.arch
    ] * lhs * (readers - 1)


def rank(
    table: Sequence[Kernel],
    spec: GroupedSpec,
    in_dtype: str,
    dims: GroupedDims,
    target: Target,
) -> tuple[list[Candidate], list[tuple[str, str]]]:
    """All usable kernels, best first; the others with the reason."""
    usable: list[Candidate] = []
    rejected: list[tuple[str, str]] = []
    for kernel in table:
        reason = kernel_mismatch(kernel, spec, in_dtype, target.arch)
        reason = reason or tiles_refusal(kernel, dims)
        if reason is not None:
            rejected.append((kernel.name, reason))
        else:
            usable.append(evaluate(kernel, spec, dims, target))
    usable.sort(key=_order)
    return usable, rejected


def _order(candidate: Candidate) -> tuple[float, float, bool, str]:
    return (
        # The shorter predicted time wins.
        candidate.cycles,
        # At equal time (bound by memory), fewer and larger tiles: they read less.
        candidate.tiles,
        # Then swapped operands: their MMAs are only as wide as a tile has rows.
        not candidate.kernel.swap_ab,
        # Then the name, so that the order of the table does not matter.
        candidate.kernel.name,
    )


def swizzle_of(kernel: Kernel, dims: GroupedDims) -> int:
    """Height of the bands of tiles: 1 where L2 holds the operands anyway."""
    operands = 2 * dims.k * (dims.m + dims.experts * dims.n)
    if operands < SWIZZLE_MIN_OPERAND_BYTES:
        return 1
    if (kernel.arch, kernel.kind) != ("sm90", M_GROUPED):
        return SWIZZLE
    return SWIZZLE_F32_ROWS if kernel.terms > 1 else SWIZZLE_SM90_ROWS
