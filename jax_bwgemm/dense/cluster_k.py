"""Cluster-K kernels: how they divide K (a mirror of cc/dense) and what that costs. Pure.

The CTAs of a cluster share one tile of D along K and add their parts through each other's shared
memory. A launch has one CTA for each tile and part, all of which should run at once.
"""

from __future__ import annotations

from jax_bwgemm.dense.cost_parameters import Parameters
from jax_bwgemm.dense.spec import GemmDims
from jax_bwgemm.product.kernels import Kernel

MAX_PARTS = 8  # kMaxClusterParts of cc/dense/problem.h

# Two CTAs share a multiprocessor where not all clusters find one for each of their CTAs. If more
# than half of the multiprocessors need a second CTA, large clusters wait for others all the same.
MAX_CTAS_PER_SM = 1.5
MIN_BLOCKS = 4  # steps of K of a part; with fewer, it is over before its pipeline is full


def parts(splits: int) -> tuple[int, int]:
    """(CTAs of a cluster, partial results that are left for a second kernel to add)."""
    inside = next(p for p in range(MAX_PARTS, 0, -1) if splits % p == 0)
    return inside, splits // inside


def parts_apart(kernel: Kernel, splits: int) -> int:
    """How many parts of K a second kernel adds, of any dense kernel; 1: there is none."""
    if kernel.stream_k:
        return 1
    return parts(splits)[1] if kernel.cluster_k else splits


def cycles(
    kernel: Kernel,
    tiles: int,
    dims: GemmDims,
    splits: int,
    sm_count: int,
    memory_cycles: float,
    parameters: Parameters,
) -> float:
    """Predicts a launch, in clock cycles, without the second kernel.

    That clusters share multiprocessors before all are taken costs nothing that was measured.

    Args:
        kernel: The kernel.
        tiles: Tiles of D, all batches together.
        dims: Sizes.
        splits: Parts that K is split into.
        sm_count: Multiprocessors of the GPU.
        memory_cycles: What moving the operands and the result takes at the full bandwidth.
        parameters: The cost model's numbers.
    """
    p = parameters
    ctas = tiles * splits
    in_turn = -(-ctas // sm_count)
    steps = -(-dims.k // (kernel.tile_k * splits))
    # Rows of D, which lie along the tile's N. Of K-major operands no more are loaded.
    rows = min(dims.m, kernel.tile_n)
    loaded = kernel.tile_m + (rows if kernel.a_major == "k" else kernel.tile_n)
    loaded_bytes = 2 * loaded * kernel.tile_k * steps * ctas
    busy = max(
        in_turn * steps * p.cluster_k_step,
        loaded_bytes / (sm_count * p.cluster_k_bytes_per_cycle),
    )
    if ctas > MAX_CTAS_PER_SM * sm_count:
        busy *= p.cluster_k_crowded
    fixed = p.cluster_k_fixed + rows * p.cluster_k_row
    memory_cycles /= p.cluster_k_memory
    if in_turn > 1:
        fixed += p.cluster_k_turn * (in_turn - 1)
        # Multiprocessors with one CTA more than others have more to read at the end.
        memory_cycles *= in_turn * sm_count / ctas
    return max(busy, memory_cycles) + fixed


def worthwhile_splits(kernel: Kernel, k: int, tiles: int, sm_count: int) -> list[int]:
    """The numbers of parts worth comparing: as long as all CTAs run at once."""
    return [1] + [
        s
        for s in range(2, MAX_PARTS + 1)
        if tiles * s <= MAX_CTAS_PER_SM * sm_count and k // s >= MIN_BLOCKS * kernel.tile_k
    ]
