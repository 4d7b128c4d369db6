"""How long a scaled kernel takes for a problem: predicted by the model of dense kernels. Pure.

The tensor cores multiply 8-bit operands at twice the rate of 16-bit ones, and SM100's multiply
4-bit ones at four times that rate. A product therefore has the bytes, cycles and tiles of a 16-bit
dense one with half or a quarter of its K.

SM90's numbers are fitted to times of an H200 (fitted_costs.py). SM100's are assumed; in its
promoting kernels the tensor cores are taken to wait for the epilogue warps a third of the time.
"""

from __future__ import annotations

import dataclasses

from jax_bwgemm.config import Target
from jax_bwgemm.dense import costs, heuristics
from jax_bwgemm.dense.assumed_costs import SM100
from jax_bwgemm.dense.cost_parameters import Cost, Parameters, TileKey
from jax_bwgemm.dense.costs import Candidate
from jax_bwgemm.dense.spec import GemmDims
from jax_bwgemm.product.kernels import Kernel
from jax_bwgemm.scaled.fitted_costs import SM90
from jax_bwgemm.scaled.spec import ScaledDims

BYTES = 2  # of an element of the equivalent product

_PROMOTED_SM100 = Cost(0.6, 300, 4500, 0.9)
_SM100_TILES = {k._replace(scales=s): c for k, c in SM100.tiles.items() for s in ("sums", "mma")}
_SM100_TILES |= {
    TileKey("2sm", 256, 128, 2, 1, False, scales): _PROMOTED_SM100 for scales in ("blocks", "rows")
}
PARAMETERS = {
    "sm90": SM90,
    "sm100": dataclasses.replace(SM100, tiles=_SM100_TILES),
}


def parameters_of(kernel: Kernel) -> Parameters:
    """The model's numbers for a scaled kernel."""
    return PARAMETERS[kernel.arch]


def elements_in_16_bits(dtype: str) -> int:
    """Of the values of a scaled operand."""
    return 4 if dtype == "float4_e2m1fn" else 2


def in_16_bits(kernel: Kernel) -> Kernel:
    """The kernel of 16-bit operands that does as much with half of a K, or a quarter."""
    tile_k = kernel.tile_k // elements_in_16_bits(kernel.a_dtype)
    return dataclasses.replace(kernel, a_dtype="bfloat16", b_dtype="bfloat16", tile_k=tile_k)


def as_dense(kernel: Kernel) -> Kernel:
    """The same as a dense kernel, whatever its contraction."""
    return dataclasses.replace(in_16_bits(kernel), contraction="dense")


def as_dense_dims(dims: ScaledDims) -> GemmDims:
    """The sizes of the equivalent dense product."""
    k = -(-dims.k // elements_in_16_bits(dims.a_dtype))
    return GemmDims(dims.m, dims.n, k, dims.batch, dims.batch, dims.batch)


def candidates(
    kernel: Kernel, dims: ScaledDims, target: Target, splits: int | None = None
) -> list[Candidate]:
    """A kernel with each number of parts of K that is worth comparing.

    The candidates' kernel is the dense one that stands for it: `as_dense`.

    Args:
        kernel: The kernel.
        dims: The product's sizes.
        target: The GPU.
        splits: The only number of parts to try: none is found if the kernel cannot.
    """
    dense, sizes = as_dense(kernel), as_dense_dims(dims)
    parameters = parameters_of(kernel)

    def predict(splits: int) -> Candidate:
        return costs.evaluate(dense, sizes, target, splits, parameters=parameters)

    def possible(splits: int) -> bool:
        return heuristics.run_refusal(dense, sizes, splits, "heuristic", BYTES) is None

    if splits is not None:
        if kernel.uneven_parts:  # no part is shorter than a step of K
            splits = max(1, min(splits, costs.ceil_div(dims.k, kernel.tile_k)))
        can = splits == 1 or (kernel.contraction == "scaled" and possible(splits))
        return [predict(splits)] if can else []
    whole = predict(1)
    if not kernel.f32_twin:
        return [whole]
    tiles = whole.tiles_m * whole.tiles_n * dims.batch
    most = heuristics.MAX_SPLIT_WAVES * target.sm_count // tiles
    return [whole] + [
        predict(s)
        for s in heuristics.SPLITS
        if s <= most and sizes.k // s >= heuristics.MIN_SPLIT_K and possible(s)
    ]
