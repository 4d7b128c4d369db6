"""Fits the cost model of jax_bwgemm/dense/costs.py to recorded times, and says how well it chooses.

    python cost_fit.py                 # regret: what the chosen kernels lose to the best recorded
    python cost_fit.py --fit --write   # fits again and writes jax_bwgemm/dense/fitted_costs.py
    python cost_fit.py --fit --folds 4 # each problem's regret with its fold left out of the fit
    python cost_fit.py --fit --only 64x16 64x64_2x1_pingpong reduction_cycles  # whatever else stays
    python cost_fit.py --fit --refine 5000   # and random changes, which take minutes
    python cost_fit.py --scaled ...    # the same of 8-bit products

The records are benchmarks/costs/data/*.json (cost_record.py makes them), of 8-bit products
benchmarks/costs/scaled/*.json (scaled_cost_record.py). What is minimised is, over the problems, the
expected loss of a choice between kernels whose predicted times are nearly equal, and a little of
the error of the predictions themselves, which keeps them apart where the records say nothing.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import pathlib
import random
import sys
from collections.abc import Iterable, Sequence

from dense import records
from dense.records import Launch, Problem
from scaled import choice as scaled_choice

from jax_bwgemm.config import make_target
from jax_bwgemm.dense import costs
from jax_bwgemm.dense.cost_parameters import Cost, Parameters, TileKey
from jax_bwgemm.dense.spec import GemmDims

OUTPUT = pathlib.Path(costs.__file__).with_name("fitted_costs.py")
TARGET = make_target("sm90")
# Choices between kernels whose predicted times differ by this share are a draw.
NEARLY_EQUAL = 0.006
ERROR_WEIGHT = 0.05
MOST_ERROR = 0.3  # of one launch, so that a few odd ones do not bend the rest
START = Cost(0.96, 1500.0, 3400.0, 1.0)
BOUNDS = Cost((0.2, 0.99), (100.0, 4000.0), (1000.0, 8000.0), (0.8, 1.1))
# Of the parameters without a tile: factors between which each may change in a fit.
RANGE = (0.5, 2.0)
STEPS = (0.15, 0.05, 0.015)


def load(paths: Iterable[pathlib.Path] | None = None, *, scaled: bool = False) -> list[Problem]:
    """Reads records.

    Args:
      paths: the files; None: all that are committed.
      scaled: whether they are of 8-bit products.

    Raises:
      ValueError: there are none.
    """
    kind = scaled_choice if scaled else records
    return records.load(sorted(kind.DATA.glob("*.json")) if paths is None else paths, kind.read)


def tile_names(key: TileKey) -> set[str]:
    """A tile by its size, and by what else kernels' names say of it but the depth."""
    size = f"{key.scales}_" * bool(key.scales) + f"{key.tile_m}x{key.tile_n}"
    swap = "_swap" if key.swap_ab else ""
    return {size, f"{size}_{key.cluster_m}x{key.cluster_n}_{key.schedule}{swap}"}


def predict(launch: Launch, dims: GemmDims, parameters: Parameters) -> float:
    """Predicted clock cycles of a launch."""
    found = costs.evaluate(
        launch.kernel, dims, TARGET, launch.splits, launch.decomposition, parameters
    )
    return found.cycles


def regret(problem: Problem, parameters: Parameters) -> float:
    """How many times as long as the best launch the one takes that is predicted to be fastest."""
    chosen = min(problem.launches, key=lambda x: predict(x, problem.dims, parameters))
    return chosen.us / min(x.us for x in problem.launches)


class Fit:
    """The loss of parameters over problems, and its descent one number at a time.

    Keeps the predicted times, so that a change of one tile's cost predicts only that tile again.

    Args:
        problems: The records.
        start: The parameters to begin with.
        only: Tiles (`tile_names`) and names of parameters that may change; None: all.
    """

    def __init__(
        self, problems: Sequence[Problem], start: Parameters, only: Sequence[str] | None = None
    ) -> None:
        self.problems = problems
        self.only = only
        self.parameters = start
        self.logs = [[math.log(x.us) for x in p.launches] for p in problems]
        self.uses: dict[TileKey, list[int]] = {}
        for i, problem in enumerate(problems):
            for key in {costs.tile_key(x.kernel) for x in problem.launches}:
                self.uses.setdefault(key, []).append(i)
        self.cycles = [self._predicted(i, start) for i in range(len(problems))]
        self.losses = [self._loss(i, c) for i, c in enumerate(self.cycles)]

    def _predicted(self, i: int, parameters: Parameters) -> list[float]:
        problem = self.problems[i]
        return [math.log(predict(x, problem.dims, parameters)) for x in problem.launches]

    def _loss(self, i: int, predicted: Sequence[float]) -> float:
        logs = self.logs[i]
        least, best = min(predicted), min(logs)
        weights = [math.exp((least - x) / NEARLY_EQUAL) for x in predicted]
        lost = sum(w * (u - best) for w, u in zip(weights, logs, strict=True)) / sum(weights)
        # Of predictions relative to the best launch: a common factor does not matter.
        at_best = predicted[logs.index(best)]
        errors = [
            min(MOST_ERROR, abs((x - at_best) - (u - best)))
            for x, u in zip(predicted, logs, strict=True)
        ]
        return lost + ERROR_WEIGHT * sum(errors) / len(errors)

    def _try(self, changed: Parameters, where: Sequence[int]) -> bool:
        cycles = {i: self._predicted(i, changed) for i in where}
        losses = {i: self._loss(i, c) for i, c in cycles.items()}
        if sum(losses.values()) >= sum(self.losses[i] for i in where) - 1e-9:
            return False
        self.parameters = changed
        for i in where:
            self.cycles[i], self.losses[i] = cycles[i], losses[i]
        return True

    def _descend_tile(self, key: TileKey, step: float) -> None:
        for field in Cost._fields:
            for direction in (1 + step, 1 - step):
                cost = self.parameters.tiles[key]
                least, most = getattr(BOUNDS, field)
                share = 1 + (direction - 1) * (0.3 if field in ("efficiency", "streaming") else 2)
                value = min(most, max(least, getattr(cost, field) * share))
                tiles = {**self.parameters.tiles, key: cost._replace(**{field: value})}
                changed = dataclasses.replace(self.parameters, tiles=tiles)
                if self._try(changed, self.uses[key]):
                    break

    def _descend_others(self, start: Parameters, step: float) -> None:
        everywhere = range(len(self.problems))
        for field in dataclasses.fields(Parameters):
            if field.name == "tiles" or not self._may_change(field.name):
                continue
            for direction in (1 + step, 1 - step):
                value = getattr(self.parameters, field.name) * direction
                first = getattr(start, field.name)
                value = min(first * RANGE[1], max(first * RANGE[0], value))
                if self._try(
                    dataclasses.replace(self.parameters, **{field.name: value}), everywhere
                ):
                    break

    def _may_change(self, *names: str) -> bool:
        return self.only is None or not set(names).isdisjoint(self.only)

    def refine(self, steps: int) -> Parameters:
        """Changes one tile's numbers at random, so many times; returns the parameters found.

        The descent ends where no change of a single number gains, and many choices are then
        nearly a draw.
        """
        chance = random.Random(0)
        keys = self._tiles()
        for _ in range(steps):
            key = chance.choice(keys)
            values = []
            for field, value in self.parameters.tiles[key]._asdict().items():
                share = 0.006 if field in ("efficiency", "streaming") else 0.05
                least, most = getattr(BOUNDS, field)
                values.append(min(most, max(least, value * (1 + chance.gauss(0, share)))))
            tiles = {**self.parameters.tiles, key: Cost(*values)}
            self._try(dataclasses.replace(self.parameters, tiles=tiles), self.uses[key])
        return self.parameters

    def _tiles(self) -> list[TileKey]:
        """The tiles whose costs may change."""
        return sorted(
            k for k in self.uses if k in self.parameters.tiles and self._may_change(*tile_names(k))
        )

    def run(self, rounds: int) -> Parameters:
        """Descends; returns the parameters found."""
        start, order = self.parameters, random.Random(0)
        for step in STEPS:
            for _ in range(rounds):
                keys = self._tiles()
                order.shuffle(keys)
                for key in keys:
                    self._descend_tile(key, step)
                self._descend_others(start, step)
        return self.parameters


def with_all_tiles(parameters: Parameters, problems: Sequence[Problem]) -> Parameters:
    """The parameters with a first cost for every recorded tile that has none."""
    keys = {
        costs.tile_key(x.kernel) for p in problems for x in p.launches if not x.kernel.cluster_k
    }
    missing = sorted(keys - set(parameters.tiles))
    return dataclasses.replace(
        parameters, tiles={**parameters.tiles, **dict.fromkeys(missing, START)}
    )


def fit(
    problems: Sequence[Problem],
    start: Parameters,
    rounds: int = 2,
    only: Sequence[str] | None = None,
    refine: int = 0,
) -> Parameters:
    """Parameters with which the chosen kernels lose little to the best.

    Args:
        problems: The records.
        start: The parameters to begin with.
        rounds: Of the descent, for each step size.
        only: As of `Fit`.
        refine: Random changes after the descent.
    """
    descent = Fit(problems, with_all_tiles(start, problems), only)
    descent.run(rounds)
    return descent.refine(refine)


def rounded(parameters: Parameters) -> Parameters:
    """Four digits of every number: what is written is what was judged."""

    def four(x: float) -> float:
        value = float(f"{x:.4g}")
        return int(value) if value == int(value) else value

    tiles = {k: Cost(*map(four, c)) for k, c in parameters.tiles.items()}
    others = {
        f.name: four(getattr(parameters, f.name))
        for f in dataclasses.fields(Parameters)
        if f.name != "tiles"
    }
    return Parameters(tiles=tiles, **others)


def module_text(parameters: Parameters, *, scaled: bool = False) -> str:
    """The Python module that keeps the parameters."""
    folder, option = ("scaled", " --scaled") if scaled else ("data", "")
    rows = []
    for key, cost in parameters.tiles.items():
        named = key if key.scales else key[:-1]
        fields = ", ".join(f'"{x}"' if isinstance(x, str) else repr(x) for x in named)
        rows.append(f"        TileKey({fields}): Cost({', '.join(map(repr, cost))}),\n")
    others = [
        f"    {f.name}={getattr(parameters, f.name)!r},\n"
        for f in dataclasses.fields(Parameters)
        if f.name != "tiles"
    ]
    return (
        f'"""Generated from benchmarks/costs/{folder} by benchmarks/cost_fit.py{option} --fit '
        '--write."""\n'
        "\nfrom __future__ import annotations\n\n"
        "from jax_bwgemm.dense.cost_parameters import Cost, Parameters, TileKey\n\n"
        "# fmt: off\nSM90 = Parameters(\n    tiles={\n"
        f"{''.join(rows)}    }},\n{''.join(others)})\n"
    )


def report(regrets: Sequence[tuple[str, float]]) -> str:
    """A few lines about what is lost over the records, of which one problem may have several."""
    values = sorted(x for _, x in regrets)
    mean = math.exp(sum(map(math.log, values)) / len(values)) - 1
    worst = sorted(regrets, key=lambda x: -x[1])[:10]
    lines = [
        f"{len(values)} records: the choice loses {mean:.2%} in the mean, at most "
        f"{values[-1] - 1:.1%}; more than 3 %: {sum(x > 1.03 for x in values)}",
        *(f"  {x - 1:6.1%}  {name}" for name, x in worst),
    ]
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument(
        "--data", nargs="*", type=pathlib.Path, help="records (default: costs/data/*.json)"
    )
    parser.add_argument("--fit", action="store_true", help="fit, starting from what is committed")
    parser.add_argument(
        "--rounds", type=int, default=2, help="of the descent, for each step size (default: 2)"
    )
    parser.add_argument(
        "--refine",
        type=int,
        default=0,
        metavar="STEPS",
        help="after the descent, so many random changes of a tile (5,000 take five minutes)",
    )
    parser.add_argument(
        "--folds",
        type=int,
        default=0,
        help="cross-validate: fit so often, each time without a part",
    )
    parser.add_argument(
        "--only",
        nargs="+",
        metavar="NAME",
        help="tiles (64x128 or 64x128_2x1_pingpong) and parameters of the model that a fit may "
        "change (default: all)",
    )
    parser.add_argument(
        "--scaled",
        action="store_true",
        help="8-bit products; their tiles' names begin with what scales multiply: sums_128x192",
    )
    parser.add_argument("--write", action="store_true", help=f"write {OUTPUT.name}")
    args = parser.parse_args(argv)
    try:
        problems = load(args.data, scaled=args.scaled)
    except (OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    parameters = scaled_choice.PARAMETERS if args.scaled else costs.SM90
    recorded = with_all_tiles(parameters, problems).tiles
    names = set().union(*map(tile_names, recorded))
    names |= {field.name for field in dataclasses.fields(Parameters)} - {"tiles"}
    if unknown := sorted({*(args.only or ())} - names):
        known = " ".join(sorted(names))
        print(f"error: --only {' '.join(unknown)}: known are {known}", file=sys.stderr)
        return 2
    if args.folds:
        left_out = []
        for fold in range(args.folds):
            held = problems[fold :: args.folds]
            names = {p.name for p in held}
            kept = [p for p in problems if p.name not in names]
            found = fit(kept, parameters, args.rounds, args.only, args.refine)
            left_out += [(p.name, regret(p, found)) for p in held]
        print(f"left out of the fit: {report(left_out)}")
    if args.fit:
        parameters = rounded(fit(problems, parameters, args.rounds, args.only, args.refine))
    print(report([(p.name, regret(p, parameters)) for p in problems]))
    if args.write:
        output = scaled_choice.OUTPUT if args.scaled else OUTPUT
        output.write_text(module_text(parameters, scaled=args.scaled), encoding="utf-8")
        print(f"wrote {output}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
