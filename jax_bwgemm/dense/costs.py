"""How long a kernel takes for a problem: predicted, in clock cycles. Pure.

Every constant that a measurement may change is at the top of this file, cluster-K's in
cluster_k.py.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

from jax_bwgemm.config import Target
from jax_bwgemm.dense import cluster_k, stream_k
from jax_bwgemm.dense.occupancy import concurrent_ctas
from jax_bwgemm.dense.spec import GemmDims
from jax_bwgemm.runtime import KernelInfo


class Cost(NamedTuple):
    """What a tile costs, in clock cycles.

    Attributes:
        efficiency: Share of the tensor cores' peak that a long mainloop reaches.
        per_wave: Cycles of every wave that no mainloop hides; what a cooperative kernel's
            epilogue costs, since both its warpgroups work on the same tile.
        fixed: Cycles of a launch whatever the size: filling the pipeline, writing the last tile.
        streaming: Share of the memory bandwidth it reaches when that is the limit.
    """

    efficiency: float
    per_wave: float
    fixed: float
    streaming: float


# (arch, schedule, tile_m, tile_n, cluster_m, swap_ab) -> Cost. sm90: fitted to kernel times of one
# H200, bf16, 163 problems from M=1 to 8192 x 28672 x 4096 (benchmarks/data has them), together with
# the constants below that say so, so that what is chosen is nearly the best. sm100: never
# measured; it only has to rank the tiles (large problems: the largest 2-CTA tile; few tiles: the
# 1-CTA tile; few rows: swapped operands).
COSTS = {
    ("sm90", "cooperative", 128, 256, 2, False): Cost(0.990, 2188, 5188, 1.08),
    ("sm90", "pingpong", 128, 192, 2, False): Cost(0.990, 150, 4701, 0.96),
    ("sm90", "pingpong", 128, 128, 2, False): Cost(0.951, 200, 4472, 1.00),
    ("sm90", "cooperative", 128, 128, 1, False): Cost(0.964, 1820, 2736, 1.01),
    ("sm90", "pingpong", 64, 256, 1, False): Cost(0.834, 1702, 2538, 1.04),
    ("sm90", "pingpong", 64, 192, 2, False): Cost(0.835, 1225, 2997, 1.08),
    ("sm90", "pingpong", 64, 192, 1, False): Cost(0.984, 1382, 2229, 0.95),
    ("sm90", "pingpong", 64, 128, 2, False): Cost(0.855, 914, 2521, 1.01),
    ("sm90", "pingpong", 64, 128, 1, False): Cost(0.990, 1268, 2618, 0.96),
    ("sm90", "pingpong", 64, 64, 2, False): Cost(0.652, 729, 3455, 1.08),
    ("sm90", "cooperative", 128, 224, 2, True): Cost(0.990, 2800, 4445, 0.96),
    ("sm90", "cooperative", 128, 208, 2, True): Cost(0.937, 2021, 2023, 1.03),
    ("sm90", "pingpong", 128, 192, 2, True): Cost(0.963, 1670, 3421, 1.08),
    ("sm90", "pingpong", 128, 160, 2, True): Cost(0.968, 1146, 3011, 0.93),
    ("sm90", "pingpong", 128, 144, 2, True): Cost(0.982, 1784, 3382, 0.99),
    ("sm90", "pingpong", 128, 112, 2, True): Cost(0.956, 1267, 3512, 1.04),
    ("sm90", "pingpong", 128, 80, 2, True): Cost(0.919, 872, 3154, 1.02),
    ("sm90", "pingpong", 64, 208, 1, True): Cost(0.990, 1133, 2943, 1.01),
    ("sm90", "pingpong", 64, 176, 1, True): Cost(0.961, 690, 3641, 1.05),
    ("sm90", "pingpong", 64, 144, 4, True): Cost(0.941, 692, 5600, 1.02),
    ("sm90", "pingpong", 64, 96, 1, True): Cost(0.658, 535, 3340, 1.00),
    ("sm90", "pingpong", 64, 64, 1, True): Cost(0.690, 1162, 2678, 0.99),
    ("sm90", "pingpong", 64, 32, 1, True): Cost(0.562, 778, 4000, 1.01),
    ("sm90", "pingpong", 64, 16, 1, True): Cost(0.301, 3200, 2902, 1.05),
    ("sm90", "pingpong", 256, 16, 1, True): Cost(0.288, 1116, 1560, 1.08),
    ("sm100", "2sm", 256, 256, 2, False): Cost(0.95, 400, 5000, 0.90),
    ("sm100", "2sm", 256, 128, 2, False): Cost(0.85, 300, 4500, 0.90),
    ("sm100", "1sm", 128, 128, 1, False): Cost(0.80, 300, 4000, 0.90),
    ("sm100", "1sm", 128, 64, 1, True): Cost(0.45, 300, 4000, 0.95),
    ("sm100", "1sm", 128, 32, 1, True): Cost(0.24, 300, 4000, 0.95),
    ("sm100", "1sm", 128, 16, 1, True): Cost(0.14, 300, 4000, 1.00),
}
# For tiles not listed: the smaller, the less reuse of what was read.
UNKNOWN_COST = Cost(0.5, 500, 4500, 0.9)

# Memory bandwidth in bytes per cycle: H200 4.2 TB/s measured at 1.7 GHz; B200 from its data sheet.
BYTES_PER_CYCLE = {"sm90": 2470, "sm100": 4300}

# Computing, memory and L2 overlap, not perfectly where they take about equally long: the exponent
# of the norm that adds them. Infinity would be their maximum.
OVERLAP = 4.6

# What all multiprocessors together take from L2, bytes per cycle; a multicast counts once. H200:
# fitted; B200: a guess.
L2_BYTES_PER_CYCLE = {"sm90": 11670, "sm100": 12700}

# What one of them takes, which bounds small tiles. H200: fitted; B200: a guess.
SM_BYTES_PER_CYCLE = {"sm90": 100, "sm100": 200}

# CTAs that form no cluster but neighbouring tiles in a GPC, whose path to L2 merges their requests
# (cc/sm90/gpc.h), take so much of what they load, where there are tiles to share with in both
# directions. Fitted; with clusters it made no difference.
GPC_SHARE = {"sm90": 0.30, "sm100": 1.0}
GPC_SHARE_LATER = 0.98  # after the first wave, as the CTAs drift apart
GPC_MIN_TILES = 4

# Rows that do not begin at sectors of L2 cost so many times as much there, and are not merged:
# their 128 bytes lie in two lines (1000 x 1000 x 3000 on an H200 in 64 x 128 tiles: 22.5 us, in
# clusters of two 15.8, where 11 were predicted without this; stream-K 1500 x 3000 x 3000: 88 for
# 46).
SECTOR_ELEMENTS = 16
UNALIGNED_SHARE = 2.40
UNALIGNED_STREAM_K = 2.0

# Writing a result from registers takes a CTA at least so many cycles, main loop or not: the limit
# where K is short. Fitted (H200); SM100 takes it over.
EPILOGUE_CYCLES = 0.10

# Split-K adds a kernel that reads every part's f32 result: a launch, and bytes from L2 (H200).
REDUCTION_CYCLES = 2198
REDUCTION_BYTES_PER_CYCLE = 3391
# Stream-K: counters are cleared before the launch, and each further part of a tile is written to L2
# and read by the next one's CTA while that waits (bytes per cycle of one multiprocessor). Fitted to
# 102 launches on an H200 (mean error 2.4 %); the margin leaves ties to the kernels without a second
# launch.
STREAM_K_CYCLES = 6000
STREAM_K_BYTES_PER_CYCLE = 60
STREAM_K_MARGIN = 1.04

# Products (multiply-adds) one multiprocessor completes per cycle, 16-bit inputs.
MACS_PER_CYCLE = {"sm90": 2048, "sm100": 4096}
# Launches of milliseconds run at the power limit, where cooperative kernels lost 3 to 5 % to
# ping-pong ones on an H200 (8192 x 28672 x 4096 and its gradients).
LONG_CYCLES = 3.4e6
LONG_COOPERATIVE_PENALTY = 1.03
# CTAs of a cluster that have no tile of their own still take part in its multicasts, which shows
# once the GPU is full: 1152 x 1536 x 8192 in 9 (10 launched) rows of 128 x 128 tiles took 3 %
# longer on an H200 than a wave of 9; 20 % by CUTLASS's kernels (all but the plain SM90 ones), which
# load what lies outside of the matrix.
PADDED_TILE_PENALTY = 0.3
PADDED_TILE_PENALTY_CUTLASS = 0.5
# A CTA pair whose second CTA has no rows of the matrix multiplies zeros in half of its tile, at the
# same price in operands and power. Not measured; it makes one CTA per tile win up to its tile_m.
IDLE_HALF_PENALTY = 0.5


def ceil_div(a: int, b: int) -> int:
    """``a / b`` rounded up."""
    return -(-a // b)


def round_up(a: int, multiple: int) -> int:
    """``a`` rounded up to a multiple."""
    return ceil_div(a, multiple) * multiple


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A kernel with the predicted cost of a problem.

    Attributes:
        kernel: The kernel.
        tiles_m: MMA tiles along M, per batch; along N if the kernel swaps its operands.
        tiles_n: MMA tiles along N, per batch; along M if the kernel swaps its operands.
        waves: Rounds of tiles that the GPU needs.
        cycles: Predicted duration in clock cycles.
        splits: Parts that K is split into.
        decomposition: How a stream-K kernel divides the work.
    """

    kernel: KernelInfo
    tiles_m: int
    tiles_n: int
    waves: int
    cycles: float
    splits: int = 1
    decomposition: str = "heuristic"


def evaluate(
    kernel: KernelInfo,
    dims: GemmDims,
    target: Target,
    splits: int = 1,
    decomposition: str = "heuristic",
) -> Candidate:
    """Predicts how long a kernel takes for a problem that it can run."""
    moved_bytes = 2 * (dims.lhs_batch * dims.m + dims.rhs_batch * dims.n) * dims.k
    moved_bytes += (4 if kernel.out_dtype == "float32" else 2) * dims.m * dims.n * dims.batch
    if kernel.cluster_k:
        tiles = ceil_div(dims.n, kernel.tile_m), ceil_div(dims.m, kernel.tile_n)
        count = tiles[0] * tiles[1] * dims.batch
        memory = moved_bytes / BYTES_PER_CYCLE[kernel.arch]
        cycles = cluster_k.cycles(kernel, count, dims.k, splits, target.sm_count, memory)
        apart = cluster_k.parts(splits)[1]
        waves = ceil_div(count * splits, target.sm_count)
        return Candidate(kernel, *tiles, waves, cycles + _sum_cycles(dims, apart), splits)
    pair = kernel.schedule == "2sm"
    sms_per_tile = 2 if pair else 1
    rows, columns = (dims.n, dims.m) if kernel.swap_ab else (dims.m, dims.n)
    tiles_m = ceil_div(rows, kernel.tile_m)
    tiles_n = ceil_div(columns, kernel.tile_n)
    # A cluster is scheduled as a whole, so the grid is a whole number of clusters.
    clusters_m = max(1, kernel.cluster_m // sms_per_tile)
    launched = round_up(tiles_m, clusters_m) * round_up(tiles_n, kernel.cluster_n)
    padding = launched / max(tiles_m * tiles_n, 1) - 1  # an empty problem has no tiles
    launched *= dims.batch
    if not kernel.stream_k:
        launched *= splits
    if kernel.arch == "sm90":
        concurrent = concurrent_ctas(target.sm_count, kernel.cluster_m * kernel.cluster_n)
    else:
        concurrent = max(1, target.sm_count // sms_per_tile)
    waves = max(1, ceil_div(launched, concurrent))
    cost = COSTS.get(
        (
            kernel.arch,
            kernel.schedule,
            kernel.tile_m,
            kernel.tile_n,
            kernel.cluster_m,
            kernel.swap_ab,
        ),
        UNKNOWN_COST,
    )
    rate = MACS_PER_CYCLE[kernel.arch] * sms_per_tile * cost.efficiency
    depth = round_up(ceil_div(max(dims.k, 1), 1 if kernel.stream_k else splits), kernel.tile_k)
    if kernel.stream_k:
        step = kernel.tile_m * kernel.tile_n * kernel.tile_k / rate
        steps = ceil_div(max(dims.k, 1), kernel.tile_k)
        plan = stream_k_plan(kernel, launched, steps, target, splits, decomposition)
        busy = _stream_k_cycles(kernel, plan, concurrent * sms_per_tile, step, cost.per_wave)
    else:
        results = kernel.tile_m * kernel.tile_n
        tile = results * depth / rate + cost.per_wave
        busy = waves * max(tile, EPILOGUE_CYCLES * results / sms_per_tile)
    if launched > concurrent // 2:
        plain = kernel.arch == "sm90" and not kernel.stream_k
        busy *= 1 + (PADDED_TILE_PENALTY if plain else PADDED_TILE_PENALTY_CUTLASS) * padding
    if pair and rows <= kernel.tile_m // 2:
        busy *= 1 + IDLE_HALF_PENALTY
    streaming = moved_bytes / (BYTES_PER_CYCLE[kernel.arch] * cost.streaming)
    # Parts of K have operands of their own: where a part's CTAs do not all come to one GPC, as
    # happens (36 instead of 32 us for 256 x 512 x 65536 in 64 x 128 tiles), few are left to share.
    merged = 1.0
    single = kernel.cluster_m * kernel.cluster_n == 1
    if single and min(tiles_m, tiles_n) >= GPC_MIN_TILES and splits == 1:
        first = GPC_SHARE[kernel.arch]
        merged = first if waves == 1 else max(first, GPC_SHARE_LATER)
    aligned = tuple(pitch % SECTOR_ELEMENTS == 0 for pitch in _pitches(kernel, dims))
    part_k = dims.k / (1 if kernel.stream_k else splits)
    from_l2 = launched * part_k * _bytes_per_k(kernel, merged, aligned)
    rounds = launched / concurrent if kernel.stream_k else waves
    into_sm = rounds * depth * _bytes_per_k(kernel, 1.0, aligned) / sms_per_tile
    limits = (
        busy,
        streaming,
        from_l2 / L2_BYTES_PER_CYCLE[kernel.arch],
        into_sm / SM_BYTES_PER_CYCLE[kernel.arch],
    )
    cycles = _together(limits) + cost.fixed
    if kernel.schedule == "cooperative" and cycles > LONG_CYCLES:
        cycles *= LONG_COOPERATIVE_PENALTY
    if kernel.stream_k:
        cycles *= STREAM_K_MARGIN if all(aligned) else UNALIGNED_STREAM_K
        return Candidate(kernel, tiles_m, tiles_n, waves, cycles, splits, decomposition)
    cycles += _sum_cycles(dims, splits)
    return Candidate(kernel, tiles_m, tiles_n, waves, cycles, splits)


def _bytes_per_k(kernel: KernelInfo, share: float, aligned: tuple[bool, bool]) -> float:
    """Bytes that a tile's CTAs ask L2 for, for each k: 16-bit operands, a multicast once.

    Args:
        kernel: The kernel.
        share: What is left of them where rows are aligned.
        aligned: Whether rows begin at sectors: of the operand on the MMA's M side, on its N side.
    """
    clusters_m = max(1, kernel.cluster_m // (2 if kernel.schedule == "2sm" else 1))
    p_share, q_share = (share if a else UNALIGNED_SHARE for a in aligned)
    return 2 * (p_share * kernel.tile_m / kernel.cluster_n + q_share * kernel.tile_n / clusters_m)


def _pitches(kernel: KernelInfo, dims: GemmDims) -> tuple[int, int]:
    """Elements between rows in memory, of the operand on the MMA's M side and on its N side."""
    lhs = dims.k if kernel.lhs_major == "k" else dims.m
    rhs = dims.n if kernel.rhs_major == "n" else dims.k
    return (rhs, lhs) if kernel.swap_ab else (lhs, rhs)


def _together(limits: tuple[float, ...]) -> float:
    """The longest, and more where another is nearly as long."""
    longest = max(limits)
    if longest == 0:
        return 0.0
    return longest * sum((x / longest) ** OVERLAP for x in limits) ** (1 / OVERLAP)


def _sum_cycles(dims: GemmDims, parts: int) -> float:
    """What it costs to add parts of K in a kernel of its own."""
    if parts == 1:
        return 0.0
    partial_bytes = 2 * 4 * dims.m * dims.n * parts  # written, then read
    return REDUCTION_CYCLES + partial_bytes / REDUCTION_BYTES_PER_CYCLE


def stream_k_plan(
    kernel: KernelInfo, tiles: int, steps: int, target: Target, splits: int, decomposition: str
) -> stream_k.Plan:
    """How a stream-K kernel divides a launch of so many MMA tiles, whatever their order."""
    cluster = kernel.cluster_m * kernel.cluster_n
    pair = 2 if kernel.schedule == "2sm" else 1
    ctas = max(1, target.sm_count // cluster) * cluster
    return stream_k.plan(
        tiles * pair, ctas, cluster, steps, 1, target.sm_count, splits, decomposition
    )


def _stream_k_cycles(
    kernel: KernelInfo, plan: stream_k.Plan, ctas: int, step: float, per_tile: float
) -> float:
    """The busiest CTA's cycles for what it multiplies and hands on."""
    if plan.kind == "data_parallel":
        return ceil_div(plan.tiles, ctas) * (plan.steps * step + per_tile)
    if plan.kind == "split_k":
        waves, parts = ceil_div(plan.units, ctas), plan.splits
        busy = waves * (ceil_div(plan.steps, parts) * step + per_tile)
    else:
        waves = ceil_div(plan.tiles - plan.shared_tiles, ctas)
        shared = ceil_div(plan.shared_tiles * plan.steps, plan.shared_units)
        begun = ceil_div(plan.shared_tiles, plan.shared_units) + 1
        parts = ceil_div(plan.shared_units, plan.shared_tiles) + 1
        busy = (waves * plan.steps + shared) * step + (waves + begun) * per_tile
    pair = 2 if kernel.schedule == "2sm" else 1
    part_bytes = 2 * 4 * kernel.tile_m // pair * kernel.tile_n  # written, then read
    return busy + (parts - 1) * part_bytes / STREAM_K_BYTES_PER_CYCLE + STREAM_K_CYCLES
