"""How long an m-grouped kernel of scaled operands takes: the model of grouped 16-bit kernels. Pure.

As in `jax_bwgemm.scaled.costs`, a product has the bytes, cycles and tiles of a 16-bit one with half
or a quarter of its K.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from jax_bwgemm.config import Target
from jax_bwgemm.grouped import heuristics
from jax_bwgemm.grouped.heuristics import Candidate, GroupedCost
from jax_bwgemm.product.kernels import Kernel
from jax_bwgemm.scaled.costs import elements_in_16_bits, in_16_bits
from jax_bwgemm.scaled.ragged_spec import ScaledRaggedDims, ScaledRaggedSpec

# (architecture, scales, tile_m, tile_n, swap_ab), which name one m-grouped tile.
Key = tuple[str, str, int, int, bool]

# Of SM90, fitted to times of an H200 by benchmarks/scaled_cost_fit.py, but for rows without swapped
# operands: their efficiency is that of the k-grouped kernel. SM100 has one tile for each product.
COSTS: Mapping[Key, GroupedCost] = {
    ("sm90", "sums", 128, 256, False): GroupedCost(0.78, 761, 0.886),
    ("sm90", "sums", 128, 192, True): GroupedCost(0.788, 0, 0.853),
    ("sm90", "sums", 128, 128, True): GroupedCost(0.674, 0, 0.968),
    ("sm90", "blocks", 128, 256, False): GroupedCost(0.677, 0, 0.98),
    ("sm90", "rows", 128, 128, False): GroupedCost(0.45, 0, 0.952),
    ("sm90", "rows", 128, 128, True): GroupedCost(0.414, 144, 0.952),
}


def key_of(kernel: Kernel) -> Key:
    """The tile of an m-grouped kernel."""
    return kernel.arch, kernel.scales, kernel.tile_m, kernel.tile_n, kernel.swap_ab


def sizes_in_16_bits(dims: ScaledRaggedDims) -> ScaledRaggedDims:
    """The sizes of the equivalent 16-bit product."""
    return dataclasses.replace(dims, k=-(-dims.k // elements_in_16_bits(dims.a_dtype)))


def evaluate(
    kernel: Kernel,
    spec: ScaledRaggedSpec,
    dims: ScaledRaggedDims,
    target: Target,
    costs: Mapping[Key, GroupedCost] = COSTS,
) -> Candidate:
    """Predicts how long a kernel takes for a product. The candidate's kernel is the 16-bit one."""
    cost, sizes = costs.get(key_of(kernel)), sizes_in_16_bits(dims)
    return heuristics.evaluate(in_16_bits(kernel), spec, sizes, target, cost=cost)
