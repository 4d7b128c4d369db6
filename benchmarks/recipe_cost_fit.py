"""How far predicted speedups of layers in 8 bits are from recorded ones, and the numbers behind.

    python recipe_cost_fit.py          # the errors with the numbers of scaled/layer_costs.py
    python recipe_cost_fit.py --fit    # tries a grid of numbers, and prints the best

Fitted are the records of `FITTED`; those of `CHECKING` only check (benchmarks/costs/recipes).
"""

from __future__ import annotations

import argparse
import itertools
import math
import sys
from collections.abc import Sequence

from scaled import recipe_choice

from jax_bwgemm import runtime
from jax_bwgemm.scaled import layer_costs

FITTED, CHECKING = "h200", "h200_checking"
GRID = {
    "QUANTIZE_FIXED": (3000, 4000, 5000, 6000, 7000),
    "QUANTIZE_BANDWIDTH": (0.7, 0.75, 0.8, 0.85),
    "AMAX_FIXED": (3000, 4000, 6000, 8000),
    "AMAX_BANDWIDTH": (0.65, 0.75, 0.85, 0.95),
}


def error(records: Sequence[dict]) -> float:
    """Of the speedups, root mean square of the logarithms."""
    layer_costs.low_precision_cycles.cache_clear()  # it depends on the numbers
    found = recipe_choice.errors(records)
    return math.sqrt(sum(x**2 for x in found) / len(found))


def fit(records: Sequence[dict]) -> tuple[dict[str, float], float]:
    """The numbers of `GRID` with the least error, and that. The module keeps its own."""
    before = {name: getattr(layer_costs, name) for name in GRID}
    try:
        tried = {}
        for values in itertools.product(*GRID.values()):
            for name, value in zip(GRID, values, strict=True):
                setattr(layer_costs, name, value)
            tried[values] = error(records)
    finally:
        for name, value in before.items():
            setattr(layer_costs, name, value)
        layer_costs.low_precision_cycles.cache_clear()
    best = min(tried, key=tried.__getitem__)
    return dict(zip(GRID, best, strict=True)), tried[best]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--fit", action="store_true", help="try a grid of numbers")
    args = parser.parse_args(argv)
    if not runtime.scaled_kernels():
        print("error: jax_bwgemm was installed without its compiled kernels", file=sys.stderr)
        return 2
    if args.fit:
        best, least = fit(recipe_choice.load(FITTED))
        for name, value in best.items():
            print(f"{name} = {value}")
        print(f"error with these {least:.4f}")
    for name in (FITTED, CHECKING):
        records = recipe_choice.load(name)
        most = max(map(abs, recipe_choice.errors(records)))
        print(f"{name}: {len(records)} layers, error {error(records):.4f}, at most {most:.4f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
