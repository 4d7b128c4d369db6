"""Recorded times of m-grouped 8-bit products: what the cost model's choices lose, and its fit."""

from __future__ import annotations

import dataclasses
import json
import math
import pathlib
from collections.abc import Mapping, Sequence

import numpy as np
from scipy.optimize import minimize

from jax_bwgemm.config import make_target
from jax_bwgemm.grouped.heuristics import GroupedCost
from jax_bwgemm.product.kernels import Kernel
from jax_bwgemm.scaled.ragged_costs import Key, evaluate, key_of
from jax_bwgemm.scaled.ragged_spec import ScaledRaggedDims, ScaledRaggedSpec

DATA = pathlib.Path(__file__).resolve().parents[1] / "costs" / "scaled_grouped"
TARGET = make_target("sm90")
CYCLES_PER_US = 1755  # an H200 at its highest clock
Costs = Mapping[Key, GroupedCost]


@dataclasses.dataclass(frozen=True)
class Recorded:
    """One product and how long kernels took for it.

    Attributes:
        scalings: Layouts of A and B.
        n, k: Sizes.
        groups: How many.
        rows: Of an average group.
        sizes: How groups were made: ``"even"``, ``"multinomial"`` or ``"exponential"``.
        us: Microseconds by a kernel's name after its types.
    """

    scalings: tuple[str, str]
    n: int
    k: int
    groups: int
    rows: int
    sizes: str
    us: Mapping[str, float]

    def predicted(self, kernel: Kernel, costs: Costs) -> float:
        """Microseconds of a kernel."""
        dtypes = {"a_dtype": kernel.a_dtype, "b_dtype": kernel.b_dtype}
        m = self.rows * self.groups
        dims = ScaledRaggedDims(m, self.n, self.k, self.groups, self.groups, **dtypes)
        accumulation = "fast" if kernel.scales == "sums" else "promoted"
        a, b = self.scalings
        spec = ScaledRaggedSpec(a_scaling=a, b_scaling=b, accumulation=accumulation)
        return evaluate(kernel, spec, dims, TARGET, costs).cycles / CYCLES_PER_US


def load() -> list[Recorded]:
    """All recorded problems."""
    found = []
    for path in sorted(DATA.glob("*.json")):
        for one in json.loads(path.read_text(encoding="utf-8")):
            found.append(Recorded(**one | {"scalings": tuple(one["scalings"])}))
    return found


def timed(problem: Recorded, kernels: Sequence[Kernel]) -> dict[Kernel, float]:
    """The kernels of bf16 results of e4m3 operands that have times for a problem."""
    types = ("float8_e4m3fn", "float8_e4m3fn", "bfloat16")
    found = {k: problem.us.get(k.name.rpartition("_bf16_")[2]) for k in kernels
             if (k.a_dtype, k.b_dtype, k.out_dtype) == types
             and k.name.startswith("sm90_scaled_rows_")}  # fmt: skip
    return {k: us for k, us in found.items() if us is not None}


def regret(problem: Recorded, kernels: Sequence[Kernel], costs: Costs) -> float:
    """The time of the kernel with the shortest predicted time over that of the fastest."""
    us = timed(problem, kernels)
    return us[min(us, key=lambda k: problem.predicted(k, costs))] / min(us.values())


def with_predicted_times(problem: Recorded, kernels: Sequence[Kernel], costs: Costs) -> Recorded:
    """The problem as if the model were right."""
    us = {
        k.name.rpartition("_bf16_")[2]: problem.predicted(k, costs) for k in timed(problem, kernels)
    }
    return dataclasses.replace(problem, us=us)


def error(problems: Sequence[Recorded], kernels: Sequence[Kernel], costs: Costs) -> float:
    """Root mean square of the logarithms of predicted over recorded times."""
    pairs = [(p.predicted(k, costs), us) for p in problems for k, us in timed(p, kernels).items()]
    return math.sqrt(sum(math.log(a / b) ** 2 for a, b in pairs) / len(pairs))


def fit(problems: Sequence[Recorded], kernels: Sequence[Kernel], start: Costs) -> Costs:
    """Costs with the least `error`, for each tile that has times."""
    found = dict(start)
    for kernel in {k for p in problems for k in timed(p, kernels)}:
        key = key_of(kernel)
        own = [p for p in problems if kernel in timed(p, kernels)]

        def loss(x: np.ndarray, own: list[Recorded] = own, kernel: Kernel = kernel) -> float:
            return error(own, [kernel], {key_of(kernel): _cost(x)})

        first = start[key]
        x = [first.efficiency, first.per_tile / 1000, first.streaming]
        done = minimize(loss, x, method="Nelder-Mead", options={"maxiter": 300})
        found[key] = _cost(done.x)
    return found


def _cost(x: Sequence[float]) -> GroupedCost:
    """Shares are between 0 and 1; cycles are fitted in thousands and not negative."""
    efficiency, streaming = (min(max(float(x[i]), 0.01), 1.0) for i in (0, 2))
    return GroupedCost(efficiency, max(float(x[1]), 0.0) * 1000, streaming)
