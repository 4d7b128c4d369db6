"""What selection's cost model expects of the kernels, by default on B200: PREDICTED, not measured.

python cost_table.py                     # B200, all named shapes of the suite
python cost_table.py --machine h200      # the same for H200, to hold against measurements
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Sequence
from typing import Any

from common import report
from dense import shapes as shape_lists

from jax_bwgemm.config import Target, make_target
from jax_bwgemm.dense import heuristics
from jax_bwgemm.dense.costs import Candidate
from jax_bwgemm.dense.spec import GemmDims, GemmSpec
from jax_bwgemm.product.kernels import Kernel


@dataclasses.dataclass(frozen=True)
class Machine:
    """A GPU whose clock turns the model's cycles into time.

    Attributes:
        name: Its name.
        target: What selection knows of it.
        gigahertz: Its clock under load.
        assumptions: What was never measured.
    """

    name: str
    target: Target
    gigahertz: float
    assumptions: tuple[str, ...] = ()


# Cycles of the records in costs/data, which were taken at about this clock.
H200 = Machine("NVIDIA H200", make_target("sm90"), 1.7)
# Never measured by this project. Every figure is an assumption.
B200 = Machine(
    "NVIDIA B200",
    make_target("sm100"),
    1.54,
    (
        "the numbers of jax_bwgemm/dense/assumed_costs.py, which selection uses",
        "148 multiprocessors, 4096 multiply-adds a cycle each, at 1.54 GHz under load: chosen so "
        "that the large shapes come out near what others publish",
        "device memory 4300 bytes a cycle: 6.6 TB/s of 8 at that clock",
        "accumulators are double-buffered in tensor memory: epilogues run under the next mainloop",
    ),
)
MACHINES = {"b200": B200, "h200": H200}
# TFLOP/s of bf16 or f16 products on B200 that others report, m,n,k -> (least, most): JAX's Pallas
# Blackwell tutorial, ThunderKittens, pyptx.dev, vLLM pull requests 19566 and 20071.
PUBLISHED = {
    "4096,8192,4096": (1426, 1562),
    "4096,4096,4096": (1532, 1540),
    "2048,2048,2048": (1006, 1006),
    "4096,8192,8192": (1652, 1652),
    "8192,8192,8192": (1610, 1610),
    "512,4096,4096": (1336, 1336),
    "1024,4096,4096": (1363, 1363),
}


def best(
    kernels: Sequence[Kernel], shape: shape_lists.Shape, machine: Machine
) -> tuple[Candidate, float]:
    """The kernel that selection would choose, and its predicted microseconds.

    Raises:
      ValueError: There are no kernels.
    """
    dims = GemmDims(shape.m, shape.n, shape.k, shape.batch, shape.batch, shape.batch)
    spec = GemmSpec(*shape.majors)
    usable, _ = heuristics.rank(kernels, spec, "bfloat16", dims, machine.target)
    if not usable:
        raise ValueError(f"no kernels to predict {shape.name} with")
    return usable[0], usable[0].cycles / machine.gigahertz / 1e3


def expected(
    kernels: Sequence[Kernel], selected: Sequence[shape_lists.Shape], machine: Machine
) -> list[dict[str, Any]]:
    """One row per shape: the chosen kernel and its predicted time."""
    rows = []
    for shape in selected:
        found, us = best(kernels, shape, machine)
        kernel = found.kernel
        rows.append(
            {
                "shape": shape.name,
                "predicted us": us,
                "predicted TFLOP/s": shape.flops / us / 1e6,
                "tile": kernel.name.split("_", 4)[4],
                "splits": found.splits,
                "waves": found.waves,
            }
        )
        if machine is B200:
            published = PUBLISHED.get(shape.name)
            rows[-1]["others publish TFLOP/s"] = (
                "-".join(str(x) for x in sorted(set(published))) if published else None
            )
    return rows


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--machine", choices=tuple(MACHINES), default="b200")
    parser.add_argument("--tags", nargs="*", default=["suite"], choices=shape_lists.TAGS)
    args = parser.parse_args(argv)
    machine = MACHINES[args.machine]
    print(f"PREDICTED for {machine.name}, bf16, by a model; nothing here was measured on one.")
    if machine.assumptions:
        print("Assumptions:")
        print("\n".join(f"- {line}" for line in machine.assumptions))
    from jax_bwgemm import runtime

    names = list(PUBLISHED) if machine is B200 else []
    try:
        rows = expected(runtime.kernels(), shape_lists.select(args.tags, names), machine)
    except ValueError as error:
        raise SystemExit(f"error: {error}") from error
    print(report.table(rows, list(rows[0])))
    return 0


if __name__ == "__main__":
    sys.exit(main())
