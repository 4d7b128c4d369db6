"""What a training step of one layer takes, in 16 bits and by a recipe: predicted cycles.

A step has three products: the layer's, and those of both gradients. By a recipe its three operands
are quantized too: each is read once and written twice, and read once more beforehand if a scale is
that of whole rows or of the tensor. What other passes and kernels could take along is not counted:
neither functions after a product nor what comes before a quantization.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator

import numpy as np

from jax_bwgemm.config import Target
from jax_bwgemm.dense.contraction import DENSE as DENSE_16_BITS
from jax_bwgemm.dense.costs import BYTES_PER_CYCLE, ceil_div
from jax_bwgemm.dense.selection import predicted_cycles
from jax_bwgemm.dense.spec import GemmDims, GemmSpec
from jax_bwgemm.epilogue.costs import PASS_BANDWIDTH
from jax_bwgemm.grouped import heuristics
from jax_bwgemm.grouped.contraction import GROUPED
from jax_bwgemm.grouped.heuristics import GroupedCost
from jax_bwgemm.grouped.spec import K_GROUPED, M_GROUPED, GroupedDims, GroupedSpec
from jax_bwgemm.product.kernels import Kernel
from jax_bwgemm.scaled import ragged_costs, ragged_selection, selection
from jax_bwgemm.scaled.costs import elements_in_16_bits, in_16_bits
from jax_bwgemm.scaled.fit import kernel_dtype
from jax_bwgemm.scaled.layouts import layout_of
from jax_bwgemm.scaled.primitive import DENSE
from jax_bwgemm.scaled.ragged_primitive import RAGGED
from jax_bwgemm.scaled.ragged_spec import ScaledRaggedDims, ScaledRaggedSpec
from jax_bwgemm.scaled.recipes import Recipe
from jax_bwgemm.scaled.spec import ScaledDims, ScaledSpec

# Fitted by benchmarks/recipe_cost_fit.py: both numbers of quantization and of largest magnitudes.
# All others are set by hand.
# Quantization by a kernel: cycles of a launch, and the share of the memory bandwidth reached.
QUANTIZE_FIXED, QUANTIZE_BANDWIDTH = 6000, 0.8
# The passes that find largest magnitudes: cycles whatever the size, the share of the memory
# bandwidth, and how often an operand is read for the scales of both its copies.
AMAX_FIXED, AMAX_BANDWIDTH = 6000, 0.85
AMAX_PASSES = {"tensor": 1, "row": 3}
# XLA quantizes block formats, in so many times the time of a kernel: what 1 x 128 takes there.
XLA_QUANTIZE = 10
# Of k-grouped kernels by their use of scales, as `ragged_costs.COSTS`: from five problems. They
# are not compared with each other. Assumed for block formats.
K_GROUPED_COSTS = {
    "sums": GroupedCost(0.79, 500, 0.7),
    "blocks": GroupedCost(0.69, 500, 0.7),
    "rows": GroupedCost(0.51, 500, 0.7),
    "mma": GroupedCost(0.7, 500, 0.8),
}


@dataclasses.dataclass(frozen=True)
class LayerSizes:
    """Of a product of rows and a weight.

    Attributes:
        rows: Of one matrix; of all matrices if they are grouped.
        columns: What the weight maps to.
        depth: What is contracted.
        matrices: How many weights there are.
        grouped: Whether each weight has some of the rows (`ragged_dot`).
    """

    rows: int
    columns: int
    depth: int
    matrices: int = 1
    grouped: bool = False


@dataclasses.dataclass(frozen=True)
class LayerTypes:
    """Names of a layer's types; those of rows and weights have 16 bits."""

    rows: str
    weights: str
    result: str


@dataclasses.dataclass(frozen=True)
class _Operand:
    """Layout and type of a quantized operand."""

    scaling: str
    dtype: str


@dataclasses.dataclass(frozen=True)
class _Product:
    """One of a step's three, of matrices [m, k] and [n, k]; k-grouped, [k, m] and [n, m]."""

    a: _Operand
    b: _Operand
    m: int
    n: int
    k: int
    accumulation: str
    out_dtype: str
    majors: str
    k_grouped: bool = False


def speedup(
    recipe: Recipe, sizes: LayerSizes, types: LayerTypes, implementation: str, target: Target
) -> float:
    """Predicted time of a step in 16 bits over that by the recipe; 0 if a product has no kernel.

    Args:
        recipe: Layouts and types.
        sizes: Of the layer.
        types: Of the layer.
        implementation: ``"cutlass"`` or ``"emulator"``: whose kernels.
        target: The GPU.
    """
    low = low_precision_cycles(recipe, sizes, types, implementation, target)
    usual = usual_cycles(sizes, types, implementation, target)
    return 0.0 if low is None or usual is None else usual / low


@functools.lru_cache(maxsize=4096)
def usual_cycles(
    sizes: LayerSizes, types: LayerTypes, implementation: str, target: Target
) -> float | None:
    """A step's, in 16 bits; None if a product has no kernel. Arguments as of `speedup`."""
    found = 0.0
    for one in _products(None, sizes, types):
        cycles = _usual_product(one, sizes, types.rows, implementation, target)
        if cycles is None:
            return None
        found += cycles
    return found


@functools.lru_cache(maxsize=4096)
def low_precision_cycles(
    recipe: Recipe,
    sizes: LayerSizes,
    types: LayerTypes,
    implementation: str,
    target: Target,
) -> float | None:
    """A step's, by a recipe; None if a product has no kernel. Arguments as of `speedup`."""
    found = 0.0
    bandwidth = BYTES_PER_CYCLE[target.arch]
    for one in _products(recipe, sizes, types):
        cycles = _scaled_product(one, sizes, implementation, target)
        if cycles is None:
            return None
        found += cycles
        written = kernel_dtype(one.out_dtype)  # XLA converts it, in a pass
        if written != one.out_dtype:
            moved = np.dtype(written).itemsize + np.dtype(one.out_dtype).itemsize
            found += _results(one, sizes) * moved / (PASS_BANDWIDTH * bandwidth)
    weights, rows = sizes.matrices, sizes.rows * (1 if sizes.grouped else sizes.matrices)
    operands = (
        (recipe.lhs, recipe.dtype, rows * sizes.depth, types.rows),
        (recipe.rhs, recipe.dtype, weights * sizes.depth * sizes.columns, types.weights),
        (recipe.gradient, recipe.gradient_dtype, rows * sizes.columns, types.result),
    )
    return found + sum(
        _quantize(scaling, values, count, np.dtype(read).itemsize, bool(recipe.history), target)
        for scaling, values, count, read in operands
    )


def _quantize(
    scaling: str, values: str, count: int, read: int, delayed: bool, target: Target
) -> float:
    """Both copies of an operand of so many elements of ``read`` bytes."""
    bandwidth = BYTES_PER_CYCLE[target.arch]
    written = 2 / (elements_in_16_bits(values) // 2)
    cycles = QUANTIZE_FIXED + count * (read + written) / (QUANTIZE_BANDWIDTH * bandwidth)
    if layout_of(scaling).read_by_mma:
        return XLA_QUANTIZE * cycles
    if not delayed and (passes := AMAX_PASSES.get(scaling, 0)):
        cycles += passes * (AMAX_FIXED + count * read / (AMAX_BANDWIDTH * bandwidth))
    return cycles


def _products(recipe: Recipe | None, sizes: LayerSizes, types: LayerTypes) -> Iterator[_Product]:
    """A step's three; without a recipe layouts and accumulation mean nothing."""
    if recipe is None:
        x = w = g = _Operand("", types.rows)
        forward = backward = ""
    else:
        x, w = _operand(recipe.lhs, recipe.dtype), _operand(recipe.rhs, recipe.dtype)
        g = _operand(recipe.gradient, recipe.gradient_dtype)
        forward, backward = recipe.forward_accumulation, recipe.gradient_accumulation
    rows, columns, depth = sizes.rows, sizes.columns, sizes.depth
    yield _Product(x, w, rows, columns, depth, forward, types.result, "kn")
    yield _Product(g, w, rows, depth, columns, backward, types.rows, "kk")
    if sizes.grouped:
        yield _Product(x, g, rows, columns, depth, backward, types.weights, "mn", True)
    else:
        yield _Product(x, g, depth, columns, rows, backward, types.weights, "mn")


def _operand(scaling: str, dtype: str) -> _Operand:
    """As kernels see it, whose values may be wider."""
    widened = layout_of(scaling).multiplied_as
    if widened is None:
        return _Operand(scaling, dtype)
    return _Operand(widened, layout_of(widened).value_dtypes[0].name)


def _results(one: _Product, sizes: LayerSizes) -> int:
    """Elements of a product's result."""
    if one.k_grouped:
        return sizes.matrices * one.k * one.n
    return one.m * one.n * (1 if sizes.grouped else sizes.matrices)


def _usual_product(
    one: _Product, sizes: LayerSizes, dtype: str, implementation: str, target: Target
) -> float | None:
    # There are no kernels from bfloat16 to float16 or the other way: XLA takes as long as they do.
    out_dtype = one.out_dtype if one.out_dtype == "float32" else dtype
    if not sizes.grouped:
        spec = GemmSpec(out_dtype=out_dtype, a_major=one.majors[0], b_major=one.majors[1])
        dims = GemmDims(one.m, one.n, one.k, *[sizes.matrices] * 3)
        return predicted_cycles(spec, dtype, dims, target, DENSE_16_BITS.kernels(implementation))
    if one.k_grouped:
        kind = GroupedSpec(out_dtype=out_dtype, kind=K_GROUPED, experts=sizes.matrices)
    else:
        kind = GroupedSpec(out_dtype=out_dtype, b_major=one.majors[1])
    groups = GroupedDims(one.m, one.n, one.k, *[sizes.matrices] * 2)
    usable, _ = heuristics.rank(GROUPED.kernels(implementation), kind, dtype, groups, target)
    return usable[0].cycles if usable else None


def _scaled_product(
    one: _Product, sizes: LayerSizes, implementation: str, target: Target
) -> float | None:
    layouts = {"a_scaling": one.a.scaling, "b_scaling": one.b.scaling}
    layouts |= {"accumulation": one.accumulation, "out_dtype": one.out_dtype}
    types = one.a.dtype, one.b.dtype
    if not sizes.grouped:
        spec = ScaledSpec(**layouts)
        dims = ScaledDims(sizes.matrices, one.m, one.n, one.k, *types)
        table = DENSE.table_of(implementation)
        if selection.refusal(table, spec, dims) is not None:
            return None
        fitting = selection.kernels_for(table, spec, dims, target)
        ranked = [] if isinstance(fitting, str) else selection.ranked(fitting, dims, target)
        return ranked[0][1].cycles if ranked else None
    experts = {"kind": K_GROUPED, "experts": sizes.matrices} if one.k_grouped else {}
    of_groups = ScaledRaggedSpec(**layouts, **({"kind": M_GROUPED} | experts))
    count = sizes.matrices
    groups = ScaledRaggedDims(one.m, one.n, one.k, count, count, a_dtype=types[0], b_dtype=types[1])
    table = RAGGED.table_of(implementation)
    if ragged_selection.refusal(table, of_groups, groups) is not None:
        return None
    fitting = ragged_selection.kernels_for(table, of_groups, groups, target)
    if isinstance(fitting, str):
        return None
    chosen = ragged_selection.by_rule(fitting, of_groups, groups, target)
    return _grouped_cycles(chosen.kernel, of_groups, groups, target)


def _grouped_cycles(
    kernel: Kernel, spec: ScaledRaggedSpec, dims: ScaledRaggedDims, target: Target
) -> float:
    if spec.m_grouped:
        return ragged_costs.evaluate(kernel, spec, dims, target).cycles
    # What is contracted, in 16 bits.
    rows = ceil_div(dims.m, elements_in_16_bits(kernel.a_dtype))
    usual, cost = dataclasses.replace(dims, m=rows), K_GROUPED_COSTS[kernel.scales]
    return heuristics.evaluate(in_16_bits(kernel), spec, usual, target, cost=cost).cycles
