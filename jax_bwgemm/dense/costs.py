"""How long a kernel takes for a problem: predicted, in clock cycles. Pure.

The numbers are fitted to times of an H200 by benchmarks/cost_fit.py (fitted_costs.py) and assumed
for SM100 (assumed_costs.py).
"""

from __future__ import annotations

import dataclasses

from jax_bwgemm.config import Target
from jax_bwgemm.dense import cluster_k, stream_k
from jax_bwgemm.dense.assumed_costs import SM90_F32, SM90_GATED, SM100
from jax_bwgemm.dense.cost_parameters import UNKNOWN_COST, Cost, Parameters, TileKey
from jax_bwgemm.dense.fitted_costs import SM90
from jax_bwgemm.dense.occupancy import concurrent_ctas
from jax_bwgemm.dense.spec import GemmDims
from jax_bwgemm.product.implementations import f32_algorithm
from jax_bwgemm.product.kernels import Kernel

PARAMETERS = {"sm90": SM90, "sm100": SM100}

# Memory bandwidth in bytes per cycle: of an H200 what copies reach
# (docs/performance/low_precision.md), of a B200 its data sheet's.
BYTES_PER_CYCLE = {"sm90": 2470, "sm100": 4300}

# Share of a product's time that our kernels save over XLA's: the middle of the geometric means of
# the lists of shapes in docs/performance/dense.md.
TYPICAL_GAIN = 0.04
# The same where operands are f32, as a share of the time of bf16's product: if one is bf16, and by
# `f32_algorithm` if both are f32.
MIXED_GAIN = 1.0
F32_GAINS = {"x3": 0.4, "x6": 0.4, "highest": 8.0}

# Bytes of an element.
BYTES = {"bfloat16": 2, "float16": 2, "float32": 4}

# Products (multiply-adds) one multiprocessor completes per cycle, 16-bit inputs.
MACS_PER_CYCLE = {"sm90": 2048, "sm100": 4096}
# Longer launches, of milliseconds, run at the power limit.
LONG_CYCLES = 3.4e6
# Fewest tiles in either direction with which the CTAs of a GPC share what they load.
GPC_MIN_TILES = 4
# As `Parameters.padded_tile`, for CUTLASS's kernels (SM100's), which load what lies outside the
# matrix.
PADDED_TILE_PENALTY_CUTLASS = 0.5
# Parts of K that a thread of the kernel that adds them loads at once (kBatch of
# cc/dense/split_k.cu).
SUM_ROUND = 16
# From so many parts on, their number hardly matters within a round.
FEW_PARTS = 8
# Elements of a 32-byte L2 sector.
SECTOR_ELEMENTS = 16
# Writing an operand's terms to memory: fixed cycles, and the share of the memory bandwidth reached.
PLANES_FIXED = 5000
PLANES_STREAMING = 0.8
# Finding the range of both operands' rows before that; the launches that then find nothing to do
# are in the fixed cycles.
RANGES_FIXED = 20000
RANGES_STREAMING = 0.8
# If the second CTA of a pair has no rows of the matrix, half of the tile is zeros, at the same cost
# in operands and power. Assumed: it makes one CTA per tile win up to its tile_m.
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
        cost: What its tile costs.
    """

    kernel: Kernel
    tiles_m: int
    tiles_n: int
    waves: int
    cycles: float
    splits: int = 1
    decomposition: str = "heuristic"
    cost: Cost = UNKNOWN_COST


def typical_gain(in_dtype: str, precision: object) -> float:
    """What our kernels save over XLA's, as a share of the time of bf16's product.

    Args:
        in_dtype: The operands' types, as `dtypes.operand_types` says them.
        precision: As `Policy.precision`.
    """
    if in_dtype == "float32":
        return F32_GAINS.get(f32_algorithm(precision), TYPICAL_GAIN)
    return MIXED_GAIN if "float32" in in_dtype else TYPICAL_GAIN


def is_known(kernel: Kernel) -> bool:
    """Whether times of the kernel's tile were measured."""
    return kernel.cluster_k or tile_key(kernel) in parameters_of(kernel).tiles


def parameters_of(kernel: Kernel) -> Parameters:
    """The model's numbers for a kernel: of its architecture, of some kinds others."""
    if kernel.contraction == "gated":
        return SM90_GATED
    return PARAMETERS[kernel.arch] if kernel.terms == 1 else SM90_F32


def tile_key(kernel: Kernel) -> TileKey:
    """What a kernel's cost is kept under."""
    k = kernel
    return TileKey(k.schedule, k.tile_m, k.tile_n, k.cluster_m, k.cluster_n, k.swap_ab, k.scales)


def evaluate(
    kernel: Kernel,
    dims: GemmDims,
    target: Target,
    splits: int = 1,
    decomposition: str = "heuristic",
    parameters: Parameters | None = None,
) -> Candidate:
    """Predicts how long a kernel takes for a problem that it can run.

    Args:
        kernel: The kernel.
        dims: Sizes.
        target: The GPU.
        splits: Parts that K is split into.
        decomposition: How a stream-K kernel divides the work.
        parameters: The model's numbers, by default those of `parameters_of`.
    """
    p = parameters or parameters_of(kernel)
    a_bytes, b_bytes, out_bytes = map(BYTES.get, (kernel.a_dtype, kernel.b_dtype, kernel.out_dtype))
    moved_bytes = (a_bytes * dims.a_batch * dims.m + b_bytes * dims.b_batch * dims.n) * dims.k
    moved_bytes += out_bytes * dims.m * dims.n * dims.batch
    if kernel.cluster_k:
        return _evaluate_cluster_k(kernel, dims, target, splits, p, moved_bytes)
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
    cost = p.tiles.get(tile_key(kernel), UNKNOWN_COST)
    rate = MACS_PER_CYCLE[kernel.arch] * sms_per_tile * cost.efficiency / kernel.mmas
    depth = round_up(ceil_div(max(dims.k, 1), 1 if kernel.stream_k else splits), kernel.tile_k)
    if kernel.stream_k:
        step = kernel.tile_m * kernel.tile_n * kernel.tile_k / rate
        steps = ceil_div(max(dims.k, 1), kernel.tile_k)
        plan = stream_k_plan(kernel, launched, steps, target, splits, decomposition)
        busy = _stream_k_cycles(kernel, plan, concurrent * sms_per_tile, step, cost.per_wave, p)
    else:
        results = kernel.tile_m * kernel.tile_n
        tile = results * depth / rate + cost.per_wave
        tile = max(tile, p.epilogue_cycles * results / sms_per_tile)
        busy = waves * tile
    if launched > concurrent // 2:
        ours = kernel.arch == "sm90"
        busy *= 1 + (p.padded_tile if ours else PADDED_TILE_PENALTY_CUTLASS) * padding
    if pair and rows <= kernel.tile_m // 2:
        busy *= 1 + IDLE_HALF_PENALTY
    streaming = moved_bytes / (BYTES_PER_CYCLE[kernel.arch] * cost.streaming)
    if not kernel.stream_k:
        streaming = _with_last_wave(streaming, launched / concurrent, tile)
    # Parts of K have different operands. Unless all CTAs of a part are in one GPC, few share loads.
    merged = 1.0
    single = kernel.cluster_m * kernel.cluster_n == 1
    if single and min(tiles_m, tiles_n) >= GPC_MIN_TILES and splits == 1:
        first = p.gpc_share
        merged = first if waves == 1 else max(first, p.gpc_share_later)
    aligned = tuple(pitch % SECTOR_ELEMENTS == 0 for pitch in _pitches(kernel, dims))
    part_k = dims.k / (1 if kernel.stream_k else splits)
    from_l2 = launched * part_k * _bytes_per_k(kernel, merged, aligned, p.unaligned_share)
    rounds = launched / concurrent if kernel.stream_k else waves
    into_sm = rounds * depth * _bytes_per_k(kernel, 1.0, aligned, p.unaligned_share) / sms_per_tile
    limits = (
        busy,
        streaming,
        from_l2 / p.l2_bytes_per_cycle,
        into_sm / p.sm_bytes_per_cycle,
    )
    cycles = _together(limits, p.overlap) + cost.fixed
    if kernel.schedule == "cooperative" and cycles > LONG_CYCLES:
        cycles *= p.long_cooperative
    cycles += _plane_cycles(kernel, dims)
    if kernel.stream_k:
        cycles *= p.stream_k_margin if all(aligned) else p.unaligned_stream_k
        return Candidate(kernel, tiles_m, tiles_n, waves, cycles, splits, decomposition, cost)
    cycles += _sum_cycles(dims, splits, p)
    return Candidate(kernel, tiles_m, tiles_n, waves, cycles, splits, cost=cost)


def _evaluate_cluster_k(
    kernel: Kernel, dims: GemmDims, target: Target, splits: int, p: Parameters, moved_bytes: int
) -> Candidate:
    """As `evaluate`, of a cluster-K kernel. moved_bytes: of the operands and the result."""
    tiles = ceil_div(dims.n, kernel.tile_m), ceil_div(dims.m, kernel.tile_n)
    count = tiles[0] * tiles[1] * dims.batch
    memory = moved_bytes / BYTES_PER_CYCLE[kernel.arch]
    cycles = cluster_k.cycles(kernel, count, dims, splits, target.sm_count, memory, p)
    cycles += _sum_cycles(dims, cluster_k.parts_apart(kernel, splits), p)
    waves = ceil_div(count * splits, target.sm_count)
    return Candidate(kernel, *tiles, waves, cycles, splits)


def _plane_cycles(kernel: Kernel, dims: GemmDims) -> float:
    """Cycles of what is done to two f32 operands before the product: terms of one are written."""
    if not kernel.splits_both:
        return 0.0
    bandwidth = BYTES_PER_CYCLE[kernel.arch]
    a_rows, b_rows = dims.m * dims.a_batch, dims.n * dims.b_batch
    rows = a_rows if kernel.swap_ab else b_rows
    moved_bytes = rows * dims.k * (BYTES["float32"] + kernel.terms * BYTES["bfloat16"])
    cycles = PLANES_FIXED + moved_bytes / (PLANES_STREAMING * bandwidth)
    if kernel.term_dtype == "float16":
        read_bytes = (a_rows + b_rows) * dims.k * BYTES["float32"]
        cycles += RANGES_FIXED + read_bytes / (RANGES_STREAMING * bandwidth)
    return cycles


def _bytes_per_k(
    kernel: Kernel, share: float, aligned: tuple[bool, bool], unaligned: float
) -> float:
    """Bytes that a tile's CTAs ask L2 for, for each k: a multicast once.

    Args:
        kernel: The kernel.
        share: What is left of them where rows are aligned.
        aligned: Whether rows begin at sectors: of the operand on the MMA's M side, on its N side.
        unaligned: `Parameters.unaligned_share`.
    """
    clusters_m = max(1, kernel.cluster_m // (2 if kernel.schedule == "2sm" else 1))
    p_share, q_share = (share if a else unaligned for a in aligned)
    p_bytes, q_bytes = BYTES[kernel.a_dtype], BYTES[kernel.b_dtype]
    if kernel.swap_ab:
        p_bytes, q_bytes = q_bytes, p_bytes
    if kernel.splits_both:
        q_bytes = kernel.terms * BYTES["bfloat16"]
    p_loaded = p_bytes * p_share * kernel.tile_m / kernel.cluster_n
    return p_loaded + q_bytes * q_share * kernel.tile_n / clusters_m


def _pitches(kernel: Kernel, dims: GemmDims) -> tuple[int, int]:
    """Elements between rows in memory, of the operand on the MMA's M side and on its N side."""
    lhs = dims.k if kernel.a_major == "k" else dims.m
    rhs = dims.n if kernel.b_major == "n" else dims.k
    return (rhs, lhs) if kernel.swap_ab else (lhs, rhs)


def _with_last_wave(streaming: float, waves: float, tile: float) -> float:
    """Cycles for all bytes: a last wave of few CTAs cannot use the full bandwidth.

    Less than a wave in all is left to the tiles' costs, which are fitted to such launches too.

    Args:
        streaming: Cycles at the full bandwidth.
        waves: Rounds of tiles; the last one may be a part of a round.
        tile: Cycles of one tile alone.
    """
    last = waves % 1
    if waves < 1 or last == 0:
        return streaming
    return streaming * (1 - last / waves) + max(streaming * last / waves, tile)


def _together(limits: tuple[float, ...], overlap: float) -> float:
    """The longest, and more where another is nearly as long."""
    longest = max(limits)
    if longest == 0:
        return 0.0
    return longest * sum((x / longest) ** overlap for x in limits) ** (1 / overlap)


def _sum_cycles(dims: GemmDims, parts: int, p: Parameters) -> float:
    """What it costs to add parts of K in a kernel of its own."""
    if parts == 1:
        return 0.0
    partial_bytes = 2 * 4 * dims.m * dims.n * parts  # written, then read
    rounds = ceil_div(parts, SUM_ROUND)
    latency = p.reduction_cycles + (min(parts, FEW_PARTS) - 2) * p.reduction_part
    latency += (rounds - 1) * p.reduction_round
    return latency + partial_bytes / p.reduction_bytes_per_cycle


def stream_k_plan(
    kernel: Kernel, tiles: int, steps: int, target: Target, splits: int, decomposition: str
) -> stream_k.Plan:
    """How a stream-K kernel divides a launch of so many MMA tiles, whatever their order."""
    cluster = kernel.cluster_m * kernel.cluster_n
    pair = 2 if kernel.schedule == "2sm" else 1
    ctas = max(1, target.sm_count // cluster) * cluster
    return stream_k.plan(
        tiles * pair, ctas, cluster, steps, 1, target.sm_count, splits, decomposition
    )


def _stream_k_cycles(
    kernel: Kernel, plan: stream_k.Plan, ctas: int, step: float, per_tile: float, p: Parameters
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
    return busy + (parts - 1) * part_bytes / p.stream_k_bytes_per_cycle + p.stream_k_cycles
