"""What selection of m-grouped 8-bit kernels loses on recorded times of an H200, and their costs.

python scaled_cost_fit.py          # the loss with the costs of scaled/ragged_costs.py
python scaled_cost_fit.py --fit    # fits costs, and prints them and their loss
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import numpy as np
from scaled import grouped_choice

from jax_bwgemm import runtime
from jax_bwgemm.scaled.ragged_costs import COSTS


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--fit", action="store_true", help="fit the costs of tiles with times")
    args = parser.parse_args(argv)
    kernels = runtime.scaled_grouped_kernels()
    if not kernels:
        print("error: jax_bwgemm was installed without its compiled kernels", file=sys.stderr)
        return 2
    problems, costs = grouped_choice.load(), COSTS
    if args.fit:
        costs = grouped_choice.fit(problems, kernels, COSTS)
        for key, cost in costs.items():
            print(f"{key}: {cost.efficiency:.3f}, {cost.per_tile:.0f}, {cost.streaming:.3f}")
    found = [grouped_choice.regret(p, kernels, costs) for p in problems]
    mean = float(np.exp(np.mean(np.log(found))))
    print(f"{len(found)} problems: {mean:.4f} of the best time, at most {max(found):.3f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
