"""What is predicted of layers in 8 bits, and what following it loses, on times of one H200."""

from __future__ import annotations

import functools
import math

import pytest

from jax_bwgemm.config import make_target
from jax_bwgemm.scaled.layer_costs import LayerSizes, low_precision_cycles, speedup, usual_cycles
from jax_bwgemm.scaled.recipes import Recipe, as_recipe

BF16, F16 = ("bfloat16",) * 2, ("float16",) * 2
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


def test_what_counts() -> None:
    """Every pass makes a step longer: largest magnitudes, a conversion, one more matrix."""

    def cycles(recipe: object, sizes: LayerSizes = LARGE, types: tuple[str, str] = BF16) -> float:
        found = low_precision_cycles(as_recipe(recipe), sizes, types, "cutlass", SM90)
        assert found is not None
        return found

    assert cycles("per_tensor_delayed") < cycles("per_tensor")
    assert cycles("blockwise_2d") < cycles("blockwise")
    assert cycles("blockwise") < cycles("blockwise", types=F16)  # kernels write float32
    two = LayerSizes(8192, 14336, 4096, 2)
    usual = usual_cycles(two, BF16, "cutlass", SM90)
    assert usual is not None
    assert cycles("blockwise", two) > 1.9 * cycles("blockwise")
    few, many = (LayerSizes(32768, 1024, 2048, e, grouped=True) for e in (8, 64))
    assert cycles("blockwise", few) < cycles("blockwise", many)
    # The emulator has the same kernels.
    assert speedup(as_recipe("blockwise"), LARGE, BF16, "emulator", SM90) == pytest.approx(
        speedup(as_recipe("blockwise"), LARGE, BF16, "cutlass", SM90)
    )
