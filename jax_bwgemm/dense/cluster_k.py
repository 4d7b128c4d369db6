"""Cluster-K kernels: how they divide K (a mirror of cc/dense) and what that costs. Pure.

The CTAs of a cluster share one tile of D along K and add their parts through each other's shared
memory. A launch has one CTA for each tile and part, all of which should run at once.
"""

from __future__ import annotations

from jax_bwgemm.runtime import KernelInfo

MAX_PARTS = 8  # kMaxClusterParts of cc/dense/problem.h

# Fitted to 30 launches of the 64 x 64 tile on one H200. The operands' tiles come from L2 without
# multicast, which is what limits a multiprocessor: bytes per cycle.
L2_BYTES_PER_CYCLE = 48
FIXED_CYCLES = 6200  # by hand from 6000: 64 x 4096 x 4096 took 11.4 us, in a plain tile 10.9
MEMORY_SHARE = 1.08  # of the bandwidth that the caller counts with
# CTAs that share a multiprocessor have half of the pipeline each; larger clusters and more CTAs
# find no place (1.4 to 1.5 times as slow).
SHARED_CYCLES = 2000
MAX_CTAS_PER_SM = 1.5
CROWDED_PENALTY = 1.4
MAX_WORTHWHILE = 3
MIN_BLOCKS = 8  # a part of fewer pipeline stages does not fill its pipeline


def parts(splits: int) -> tuple[int, int]:
    """(CTAs of a cluster, launches' worth of partial results that a second kernel adds)."""
    inside = next(p for p in range(MAX_PARTS, 0, -1) if splits % p == 0)
    return inside, splits // inside


def cycles(
    kernel: KernelInfo, tiles: int, k: int, splits: int, sm_count: int, memory_cycles: float
) -> float:
    """Predicts a launch, in clock cycles, without adding what clusters leave apart.

    Args:
        kernel: The kernel.
        tiles: Tiles of D, all batches together.
        k: Contracted size.
        splits: Parts that K is split into.
        sm_count: Multiprocessors of the GPU.
        memory_cycles: What moving the operands and the result takes at the full bandwidth.
    """
    ctas = tiles * splits
    in_turn = -(-ctas // sm_count)
    steps = -(-k // (kernel.tile_k * splits))
    stage_bytes = 2 * (kernel.tile_m + kernel.tile_n) * kernel.tile_k
    busy = in_turn * steps * stage_bytes / L2_BYTES_PER_CYCLE
    if ctas > MAX_CTAS_PER_SM * sm_count:
        busy *= CROWDED_PENALTY
    fixed = FIXED_CYCLES
    memory_cycles /= MEMORY_SHARE
    if in_turn > 1:
        fixed += SHARED_CYCLES
        # Multiprocessors with a CTA more than others have that much more to read at the end.
        memory_cycles *= in_turn * sm_count / ctas
    return max(busy, memory_cycles) + fixed


def worthwhile_splits(kernel: KernelInfo, k: int, tiles: int, sm_count: int) -> list[int]:
    """The numbers of parts worth comparing: as long as all CTAs run at once."""
    return [1] + [
        s
        for s in range(2, MAX_WORTHWHILE + 1)
        if tiles * s <= MAX_CTAS_PER_SM * sm_count and k // s >= MIN_BLOCKS * kernel.tile_k
    ]
