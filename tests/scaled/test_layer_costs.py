"""What is predicted of layers in 8 bits, and what following it loses, on times of one H200."""

from __future__ import annotations

import functools
import math
from typing import Any

import pytest

from jax_bwgemm.config import make_target
from jax_bwgemm.dense.costs import BYTES_PER_CYCLE
from jax_bwgemm.epilogue.costs import PASS_BANDWIDTH
from jax_bwgemm.scaled import layer_costs
from jax_bwgemm.scaled.layer_costs import (
    LayerSizes,
    LayerTypes,
    low_precision_cycles,
    speedup,
    usual_cycles,
)
from jax_bwgemm.scaled.recipes import Recipe, as_recipe

BF16, F16 = (LayerTypes(*[name] * 3) for name in ("bfloat16", "float16"))
ACCUMULATION = ("forward_accumulation", "gradient_accumulation")
LARGE = LayerSizes(8192, 14336, 4096)
SM90, SM100 = map(make_target, ("sm90", "sm100"))


@functools.cache
def recorded() -> list[tuple[str, float, float, float]]:
    """Name, what is predicted, what was measured and what the choice loses."""
    from scaled import recipe_choice

    found = []
    for one in recipe_choice.load():
        layer, us = recipe_choice.Layer(*one["layer"]), one["us"]
        for recipe in us.keys() - {recipe_choice.USUAL}:
            given = recipe_choice.predicted(layer, recipe)
            gain = us[recipe_choice.USUAL] / us[recipe]
            found.append(
                (f"{layer} {recipe}", given, gain, recipe_choice.regret(layer, recipe, us))
            )
    return found


@pytest.mark.usefixtures("benchmark_programs")
def test_predictions_are_those_of_an_h200() -> None:
    found = recorded()
    assert len(found) >= 100
    apart = {name: abs(math.log(given / gain)) for name, given, gain, _ in found}
    assert math.sqrt(sum(x**2 for x in apart.values()) / len(apart)) < 0.05
    assert {name: x for name, x in apart.items() if x > 0.1} == {}


@pytest.mark.usefixtures("benchmark_programs")
def test_the_choice_loses_little() -> None:
    losses = {name: loss for name, _, _, loss in recorded()}
    assert sum(losses.values()) / len(losses) < 1.005
    assert {name: x for name, x in losses.items() if x > 1.06} == {}


@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize(("target", "recipe", "kernels"), [
    (SM90, "per_tensor", True), (SM90, "blockwise_2d", True), (SM90, "mxfp8", False),
    (SM90, Recipe("row", "row", "row"), True),
    (SM100, "blockwise", True), (SM100, "mxfp8", True), (SM100, "nvfp4", True),
])  # fmt: skip
def test_which_recipes_have_kernels(
    target: object, recipe: object, kernels: bool, grouped: bool
) -> None:
    sizes = LayerSizes(8192, 4096, 2048, 8, grouped=grouped)
    assert (speedup(as_recipe(recipe), sizes, BF16, "cutlass", target) > 0) == kernels


def cycles(recipe: object, sizes: LayerSizes = LARGE, types: LayerTypes = BF16) -> float:
    found = low_precision_cycles(as_recipe(recipe), sizes, types, "cutlass", SM90)
    assert found is not None
    return found


def products(recipe: object, sizes: LayerSizes, types: LayerTypes, target: Any = SM90) -> list[Any]:
    """Cycles of the three products alone."""
    found = layer_costs._products(as_recipe(recipe), sizes, types)
    return [layer_costs._scaled_product(one, sizes, "cutlass", target) for one in found]


def test_what_counts() -> None:
    """Every pass makes a step longer: largest magnitudes, a conversion, one more matrix."""
    assert cycles("per_tensor_delayed") < cycles("per_tensor")
    assert cycles("blockwise_2d") < cycles("blockwise")
    two = LayerSizes(8192, 14336, 4096, 2)
    assert cycles("blockwise", two) > 1.9 * cycles("blockwise")
    few, many = (LayerSizes(32768, 1024, 2048, e, grouped=True) for e in (8, 64))
    assert cycles("blockwise", few) < cycles("blockwise", many)
    # Rows have scales of their own along both dimensions, and are read again for each.
    quantize = functools.partial(layer_costs._quantize, values="float8_e4m3fn", count=1 << 26)
    row, tensor = (quantize(x, read=2, delayed=False, target=SM90) for x in ("row", "tensor"))
    assert row > tensor
    # XLA quantizes block formats in several passes.
    mx, blocks = (
        speedup(as_recipe(x), LARGE, BF16, "cutlass", SM100) for x in ("mxfp8", "blockwise")
    )
    assert mx < blocks
    # Grouped gradients of matrices that promote their sums take longer.
    groups, fast = (
        LayerSizes(32768, 4096, 2048, 8, grouped=True),
        dict.fromkeys(ACCUMULATION, "fast"),
    )
    assert cycles(Recipe(*["tensor"] * 3, **fast), groups) < cycles(Recipe(*["tensor"] * 3), groups)
    # The emulator has the same kernels.
    assert speedup(as_recipe("blockwise"), LARGE, BF16, "emulator", SM90) == pytest.approx(
        speedup(as_recipe("blockwise"), LARGE, BF16, "cutlass", SM90)
    )


@pytest.mark.parametrize(
    "sizes",
    [LARGE, LayerSizes(8192, 4096, 2048, 3), LayerSizes(8192, 4096, 2048, 4, grouped=True)],
    ids=["one", "batch", "groups"],
)
def test_passes_move_what_there_is(sizes: LayerSizes) -> None:
    """Conversions of float16 results, which kernels write as float32; f32 cotangents."""
    rows = sizes.rows * (1 if sizes.grouped else sizes.matrices)
    of_x, of_g = rows * sizes.depth, rows * sizes.columns
    of_w = sizes.matrices * sizes.depth * sizes.columns
    bandwidth = BYTES_PER_CYCLE["sm90"]
    quantized = cycles("blockwise", sizes) - sum(products("blockwise", sizes, BF16))
    written = (of_x + of_w + of_g) * 4 / (layer_costs.QUANTIZE_BANDWIDTH * bandwidth)
    assert quantized == pytest.approx(written + 3 * layer_costs.QUANTIZE_FIXED)
    f16 = cycles("blockwise", sizes, F16) - sum(products("blockwise", sizes, F16)) - quantized
    converted = (of_x + of_w + of_g) * 6 / (PASS_BANDWIDTH * bandwidth)
    assert f16 == pytest.approx(converted)
    to_f32 = LayerTypes("bfloat16", "bfloat16", "float32")
    f32 = cycles("blockwise", sizes, to_f32) - sum(products("blockwise", sizes, to_f32)) - quantized
    assert f32 == pytest.approx(2 * of_g / (layer_costs.QUANTIZE_BANDWIDTH * bandwidth))


def test_types_of_the_three_products() -> None:
    mixed = LayerTypes("float16", "bfloat16", "float32")
    for sizes in (LARGE, LayerSizes(8192, 4096, 2048, 4, grouped=True)):
        found = layer_costs._products(as_recipe("blockwise"), sizes, mixed)
        assert [one.out_dtype for one in found] == ["float32", "float16", "bfloat16"]
    # What no 16-bit kernel writes, XLA computes.
    other = LayerTypes("bfloat16", "bfloat16", "float16")
    assert usual_cycles(LARGE, other, "cutlass", SM90) == usual_cycles(LARGE, BF16, "cutlass", SM90)


def test_widened_values_take_what_the_wider_layout_takes() -> None:
    four = "float4_e2m1fn"
    narrow = Recipe(*["mxfp4"] * 3, dtype=four, gradient_dtype=four)
    for sizes in (LARGE, LayerSizes(32768, 4096, 2048, 8, grouped=True)):
        assert products(narrow, sizes, BF16, SM100) == products("mxfp8", sizes, BF16, SM100)
