"""Which kernel for which problem: filter the table, then compare predicted times. Pure.

Every constant that a measurement may change is at the top of this file.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from jax_bwgemm.config import Target
from jax_bwgemm.gemm.spec import GemmDims, GemmSpec
from jax_bwgemm.runtime import KernelInfo

# Share of the tensor cores' rate that a full wave of tiles reaches on a long mainloop. Larger
# tiles read less per product. sm90: one H200, bf16. sm100: ranks the tiles only, not measured.
EFFICIENCY = {
    ("sm90", "cooperative", 128, 256): 1.00,
    ("sm90", "pingpong", 128, 128): 0.95,
    ("sm90", "pingpong", 64, 128): 0.80,
    ("sm100", "2sm", 256, 256): 1.00,
    ("sm100", "2sm", 256, 128): 0.90,
    ("sm100", "1sm", 128, 128): 0.80,
}
# For tiles not listed: the smaller, the less reuse of what was read.
UNKNOWN_EFFICIENCY = 0.75

# Products (multiply-adds) one multiprocessor completes per cycle, 16-bit inputs.
MACS_PER_CYCLE = {"sm90": 4096, "sm100": 8192}
# Cycles of a wave that no mainloop hides: filling the pipeline and writing the last tile.
# Overlapped between tiles by ping-pong and sm100 kernels, so it counts once, not per wave.
FIXED_CYCLES = 1500
COOPERATIVE_EPILOGUE_CYCLES = 700  # per wave: both consumer warpgroups work on the same tile

# Padding copies the unaligned operands and the result. It pays when the copies are small beside
# what the kernel gains over XLA's own handling of unaligned shapes.
PAD_MIN_SIZE = 512

# Swizzle (bands of this many clusters) keeps operands in L2 when the grid is large both ways; with
# few rows of tiles it only shortens the runs (M=512 on H200: 4 and more cost 10 %).
SWIZZLE = 8
SWIZZLE_MIN_TILES = 16
# With few rows of tiles, walking along N keeps the rows' operand in L2 (M=2048 on H200: 2-3 %).
RASTER_N_MAX_TILES = 16


def ceil_div(a: int, b: int) -> int:
    """``a / b`` rounded up."""
    return -(-a // b)


def round_up(a: int, multiple: int) -> int:
    """``a`` rounded up to a multiple."""
    return ceil_div(a, multiple) * multiple


def aligned_dims(spec: GemmSpec, dims: GemmDims, in_bytes: int, out_bytes: int) -> GemmDims:
    """Sizes padded so that the contiguous extent of A, B and D is a multiple of 16 bytes."""
    in_multiple, out_multiple = 16 // in_bytes, 16 // out_bytes
    m, n, k = dims.m, round_up(dims.n, out_multiple), dims.k
    if "k" in (spec.lhs_major, spec.rhs_major):
        k = round_up(k, in_multiple)
    if spec.lhs_major == "m":
        m = round_up(m, in_multiple)
    if spec.rhs_major == "n":
        n = round_up(n, in_multiple)
    return dataclasses.replace(dims, m=m, n=n, k=k)


def padding_refusal(dims: GemmDims, padded: GemmDims) -> str | None:
    """Why an unaligned problem is left to XLA when the choice is free; None when padding pays.

    The rule: pad when M, N and K are all at least `PAD_MIN_SIZE`. The copies cost
    O(MK + KN + MN) bytes against O(MNK) work, so it is the smallest size that decides.
    """
    if padded == dims or min(dims.m, dims.n, dims.k) >= PAD_MIN_SIZE:
        return None
    return (
        f"row pitches are not multiples of 16 bytes, and padding {dims} to {padded} does not pay "
        f"when a size is below {PAD_MIN_SIZE}"
    )


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A kernel with the predicted cost of a problem.

    Attributes:
        kernel: The kernel.
        tiles_m: MMA tiles along M, per batch.
        tiles_n: MMA tiles along N, per batch.
        waves: Rounds of tiles that the GPU needs.
        cycles: Predicted duration in clock cycles.
    """

    kernel: KernelInfo
    tiles_m: int
    tiles_n: int
    waves: int
    cycles: float


def kernel_mismatch(kernel: KernelInfo, spec: GemmSpec, in_dtype: str, arch: str) -> str | None:
    """Why a kernel cannot run a (padded) problem; None when it can."""
    if kernel.arch != arch:
        return f"for {kernel.arch}"
    if kernel.in_dtype != in_dtype or kernel.out_dtype != spec.out_dtype:
        return f"multiplies {kernel.in_dtype} into {kernel.out_dtype}"
    if kernel.lhs_major + kernel.rhs_major != spec.majors:
        return f"majors {kernel.lhs_major}{kernel.rhs_major}"
    return spec.config.mismatch(kernel) if spec.config is not None else None


def evaluate(kernel: KernelInfo, dims: GemmDims, target: Target) -> Candidate:
    """Predicts how long a kernel takes for a problem that it can run."""
    pair = kernel.schedule == "2sm"
    sms_per_tile = 2 if pair else 1
    tiles_m = ceil_div(dims.m, kernel.tile_m)
    tiles_n = ceil_div(dims.n, kernel.tile_n)
    # A cluster is scheduled as a whole, so the grid is a whole number of clusters.
    clusters_m = max(1, kernel.cluster_m // sms_per_tile)
    launched = round_up(tiles_m, clusters_m) * round_up(tiles_n, kernel.cluster_n) * dims.batch
    concurrent = max(1, target.sm_count // sms_per_tile)
    waves = max(1, ceil_div(launched, concurrent))
    efficiency = EFFICIENCY.get(
        (kernel.arch, kernel.schedule, kernel.tile_m, kernel.tile_n), UNKNOWN_EFFICIENCY
    )
    rate = MACS_PER_CYCLE[kernel.arch] * sms_per_tile * efficiency
    depth = round_up(max(dims.k, 1), kernel.tile_k)
    per_tile = kernel.tile_m * kernel.tile_n * depth / rate
    if kernel.schedule == "cooperative":
        per_tile += COOPERATIVE_EPILOGUE_CYCLES
    return Candidate(kernel, tiles_m, tiles_n, waves, waves * per_tile + FIXED_CYCLES)


def rank(
    table: Sequence[KernelInfo], spec: GemmSpec, in_dtype: str, dims: GemmDims, target: Target
) -> tuple[list[Candidate], list[tuple[str, str]]]:
    """All usable kernels, best first, and the others with the reason each is not usable."""
    usable: list[Candidate] = []
    rejected: list[tuple[str, str]] = []
    for kernel in table:
        reason = kernel_mismatch(kernel, spec, in_dtype, target.arch)
        if reason is None:
            usable.append(evaluate(kernel, dims, target))
        else:
            rejected.append((kernel.name, reason))
    usable.sort(key=_order)
    return usable, rejected


def _order(candidate: Candidate) -> tuple[float, int, int, str]:
    kernel = candidate.kernel
    return (
        # The shorter predicted time wins.
        candidate.cycles,
        # At equal time, less computed outside the matrix.
        candidate.tiles_m * candidate.tiles_n * kernel.tile_m * kernel.tile_n,
        # Then fewer, larger tiles: they read less.
        candidate.tiles_m * candidate.tiles_n,
        # Then the name, so that the order of kernels.def does not matter.
        kernel.name,
    )


def tile_order(candidate: Candidate) -> tuple[str, int]:
    """Raster order and swizzle for a kernel on a problem, both run-time attributes."""
    tiles = min(candidate.tiles_m, candidate.tiles_n)
    swizzle = SWIZZLE if tiles >= SWIZZLE_MIN_TILES else 1
    few_rows = candidate.tiles_m <= RASTER_N_MAX_TILES < candidate.tiles_n
    return ("n" if few_rows and swizzle > 1 else "heuristic", swizzle)


def reuse_fraction(candidate: Candidate, dims: GemmDims) -> float:
    """Share of the computed tiles that lies inside the matrix, for explanations."""
    kernel = candidate.kernel
    computed = candidate.tiles_m * kernel.tile_m * candidate.tiles_n * kernel.tile_n
    return dims.m * dims.n / computed if computed else math.nan
