"""Whether a layer takes less time by a recipe: what is predicted, and what following it loses."""

from __future__ import annotations

import json
import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from jax_bwgemm.config import make_target
from jax_bwgemm.scaled.layer_costs import LayerSizes, LayerTypes, speedup
from jax_bwgemm.scaled.recipes import as_recipe

DATA = pathlib.Path(__file__).resolve().parents[1] / "costs" / "recipes"
# The layer in 16 bits.
USUAL = "16 bits"


class Layer(NamedTuple):
    """Rows, contracted, columns; and matrices, if the rows are sorted by expert."""

    rows: int
    depth: int
    columns: int
    experts: int = 0

    def __str__(self) -> str:
        return ",".join(str(size) for size in self if size)


def predicted(layer: Layer, recipe: str) -> float:
    """Time in 16 bits over that by a recipe, of a training step of the layer on an H200."""
    sizes = LayerSizes(
        layer.rows, layer.columns, layer.depth, layer.experts or 1, grouped=layer.experts > 0
    )
    types = LayerTypes("bfloat16", "bfloat16", "bfloat16")
    return speedup(as_recipe(recipe), sizes, types, "cutlass", make_target("sm90"))


def load(files: str = "*") -> list[dict[str, Any]]:
    """Recorded layers: ``layer`` and ``us``, microseconds by recipe and `USUAL`."""
    found = []
    for path in sorted(DATA.glob(f"{files}.json")):
        found += json.loads(path.read_text(encoding="utf-8"))["layers"]
    return found


def errors(records: Sequence[Mapping[str, Any]]) -> list[float]:
    """Logarithms of predicted over measured speedups."""
    found = []
    for one in records:
        us = one["us"]
        for recipe in us.keys() - {USUAL}:
            given = predicted(Layer(*one["layer"]), recipe)
            found.append(math.log(given * us[recipe] / us[USUAL]))
    return found


def regret(layer: Layer, recipe: str, us: Mapping[str, float]) -> float:
    """What is lost by 8 bits where they are predicted to be faster, else by 16."""
    chosen = recipe if predicted(layer, recipe) > 1 else USUAL
    return us[chosen] / min(us[recipe], us[USUAL])
