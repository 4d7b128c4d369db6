"""Fits costs/model.py's constants for H200 to measured kernel times, and says how well they hold.

    python cost_fit.py                         # held-out error; the fitted constants
    python cost_fit.py --data gemm.jsonl       # the same from a run of bench_gemm.py --all-kernels

Held out means: each shape is predicted with constants fitted to all other shapes.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import pathlib
import statistics
import sys
from collections.abc import Sequence

import numpy as np
from common import report
from costs import model as cost_model
from dense import shapes as shape_lists
from scipy.optimize import least_squares

from jax_bwgemm.runtime import KernelInfo

DATA = pathlib.Path(__file__).resolve().parent / "costs" / "data" / "h200_kernels.json"
# What is fitted, with bounds; everything else about the machine is known or measured by itself.
FITTED = {
    "efficiency": (0.6, 1.0),
    "l2_bytes": (20.0, 128.0),
    "l2_port": (20.0, 256.0),
    "sharpness": (1.5, 12.0),
    "epilogue_bytes": (4.0, 128.0),
    "launch_cycles": (500.0, 12000.0),
    "reduce_us": (0.5, 6.0),
}


@dataclasses.dataclass(frozen=True)
class Sample:
    """One measured launch.

    Attributes:
        shape: The problem.
        label: Kernel, raster order, swizzle.
        amount: The work of it.
        us: Median kernel time.
    """

    shape: shape_lists.Shape
    label: str
    amount: cost_model.Work
    us: float


def kernel_from_label(label: str) -> KernelInfo:
    """The kernel of a label such as ``128x256x64_2x1_cooperative`` (``_swap`` for swapped)."""
    tile, cluster, schedule, *swap = label.split("_")
    if not is_modelled(label):
        raise ValueError(f"the model has no stream-K and no cluster-K kernels: {label}")
    sizes = (*map(int, tile.split("x")), *map(int, cluster.split("x")))
    return KernelInfo(
        label, "sm90", "bfloat16", "bfloat16", "k", "n", *sizes, schedule, 4, 16, bool(swap)
    )


def is_modelled(label: str) -> bool:
    """Whether the kernel of a label is part of the model."""
    return cost_model.models(label.split("_")[2], label.endswith("_streamk"))


def load(path: pathlib.Path) -> list[Sample]:
    """Reads samples: the JSON in data/, or JSON lines of ``bench_gemm.py --all-kernels``.

    Raises:
      ValueError: neither.
    """
    rows: list[tuple[shape_lists.Shape, str, str, int, int, float]] = []
    if path.suffix == ".jsonl":
        for r in report.load(path):
            if r["record"] == "gemm" and r["status"] == "ok" and r.get("kernel"):
                shape = shape_lists.Shape(r["m"], r["n"], r["k"], r["batch"], r["majors"])
                label = r["kernel"].split("_", 4)[4]
                if not is_modelled(label):
                    continue
                order = (r["raster_order"], r["swizzle"], r.get("splits") or 1)
                rows.append((shape, label, *order, r["median_us"]))
    else:
        for entry in json.loads(path.read_text(encoding="utf-8"))["shapes"]:
            shape = shape_lists.Shape(*entry["shape"])
            for label, us in entry["us"].items():
                kernel, raster, swizzle, *splits = label.split("|")
                rows.append((shape, kernel, raster, int(swizzle), int(*splits or (1,)), us))
    machine = cost_model.H200
    samples = []
    for shape, name, raster, swizzle, splits, us in rows:
        amount = cost_model.work(
            kernel_from_label(name), shape, machine.sm_count, machine.l2_mb, raster, swizzle, splits
        )
        samples.append(Sample(shape, f"{name} {raster}{swizzle} /{splits}", amount, us))
    if not samples:
        raise ValueError(f"{path}: no measured kernels")
    return samples


def fit(samples: Sequence[Sample]) -> cost_model.Machine:
    """The machine whose predictions are nearest in relative terms."""
    names = list(FITTED)
    # The same launch under many tile orders is one fact about the constants: each shape and
    # kernel weighs the same, and the logarithm makes errors relative.
    groups: dict[tuple[str, str], int] = {}
    for sample in samples:
        group = (sample.shape.name, sample.label.split(" ", 1)[0])
        groups[group] = groups.get(group, 0) + 1
    weights = np.array([groups[s.shape.name, s.label.split(" ", 1)[0]] ** -0.5 for s in samples])
    measured = np.log([s.us for s in samples])

    def residuals(values: np.ndarray) -> np.ndarray:
        machine = dataclasses.replace(
            cost_model.H200, **dict(zip(names, map(float, values), strict=True))
        )
        predicted = np.log([cost_model.predict(s.amount, machine) for s in samples])
        return (predicted - measured) * weights

    start = [min(max(getattr(cost_model.H200, n), lo), hi) for n, (lo, hi) in FITTED.items()]
    bounds = tuple(zip(*FITTED.values(), strict=True))
    # A robust loss: a few kernels that are odd in ways the model lacks must not bend the rest.
    scale = [max(abs(x), 1e-3) for x in start]
    found = least_squares(
        residuals, start, bounds=bounds, loss="soft_l1", f_scale=0.1, x_scale=scale
    )
    values = dict(zip(names, (float(f"{x:.4g}") for x in found.x), strict=True))
    return dataclasses.replace(cost_model.H200, **values)


def held_out_errors(
    samples: Sequence[Sample], folds: int | None = None
) -> list[tuple[float, Sample]]:
    """Relative error of every sample, predicted without its shape's samples; worst first.

    Args:
      samples: all of them.
      folds: parts that the shapes are divided into, each left out in turn; None leaves out each
        shape by itself, which takes as many fits as there are shapes.
    """
    errors = []
    names = list(dict.fromkeys(s.shape.name for s in samples))
    for fold in range(folds or len(names)):
        left_out = set(names[fold :: folds or len(names)])
        machine = fit([s for s in samples if s.shape.name not in left_out])
        for sample in samples:
            if sample.shape.name in left_out:
                predicted = cost_model.predict(sample.amount, machine)
                errors.append((predicted / sample.us - 1, sample))
    return sorted(errors, key=lambda row: -abs(row[0]))


def best_kernel_errors(errors: Sequence[tuple[float, Sample]]) -> dict[str, float]:
    """Of each shape, the error at the launch that was measured fastest: what would be used."""
    best: dict[str, tuple[float, Sample]] = {}
    for row in errors:
        name = row[1].shape.name
        if name not in best or row[1].us < best[name][1].us:
            best[name] = row
    return {name: error for name, (error, _) in best.items()}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--data", type=pathlib.Path, default=DATA, help="JSON or JSON lines")
    args = parser.parse_args(argv)
    try:
        samples = load(args.data)
    except (OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    errors = held_out_errors(samples)
    sizes = sorted(abs(e) for e, _ in errors)
    shown = best_kernel_errors(errors)
    print(f"{len(samples)} launches of {len(shown)} shapes, predicted with the shape left out:")
    print(f"  median error {statistics.median(sizes):.1%}, nine in ten within "
          f"{sizes[int(0.9 * len(sizes))]:.1%}, worst {sizes[-1]:.1%}")  # fmt: skip
    absolute = sorted(abs(e) for e in shown.values())
    print(f"  at each shape's fastest launch: median {statistics.median(absolute):.1%}, "
          f"worst {absolute[-1]:.1%}")  # fmt: skip
    rows = [
        {"shape": name, "error at its fastest launch": f"{error:+.1%}"}
        for name, error in shown.items()
    ]
    print(report.table(sorted(rows, key=lambda r: r["shape"]), list(rows[0])))
    print("worst launches:")
    for error, sample in errors[:5]:
        print(f"  {error:+.1%}  {sample.shape.name}  {sample.label}  measured {sample.us:.1f} us")
    machine = fit(samples)
    print("constants fitted to all:")
    for name in FITTED:
        print(f"    {name}={getattr(machine, name)},")
    return 0


if __name__ == "__main__":
    sys.exit(main())
