"""Recorded times of 8-bit products that are not grouped, as problems of cost_fit.py."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Mapping
from typing import Any

from dense.records import Launch, Problem

from jax_bwgemm.product.kernels import Kernel
from jax_bwgemm.scaled import costs, fitted_costs
from jax_bwgemm.scaled.spec import ScaledDims

DATA = pathlib.Path(__file__).resolve().parents[1] / "costs" / "scaled"
OUTPUT = pathlib.Path(fitted_costs.__file__)
PARAMETERS = fitted_costs.SM90
DTYPE = "float8_e4m3fn"


def read_kernel(label: str) -> tuple[Kernel, int]:
    """The 16-bit kernel that stands for that of a record's label, and the parts of K."""
    name, _, _, *rest = label.split("|")
    scales, tile, cluster, schedule, *variant = name.split("_")
    kernel = Kernel.of_tile(
        "sm90",
        tuple(map(int, tile.split("x"))),
        tuple(map(int, cluster.split("x"))),
        schedule,
        name=name,
        swap_ab=variant == ["swap"],
    )
    types = {"a_dtype": DTYPE, "b_dtype": DTYPE, "out_dtype": "bfloat16", "scales": scales}
    return costs.as_dense(dataclasses.replace(kernel, **types)), int(rest[0]) if rest else 1


def read(entry: Mapping[str, Any]) -> Problem:
    """A record, with the sizes of the equivalent 16-bit product."""
    m, n, k = entry["shape"]
    dims = costs.as_dense_dims(ScaledDims(1, m, n, k, DTYPE, DTYPE))
    launches = []
    for label, us in entry["us"].items():
        if label not in entry.get("wrong", ()):
            kernel, splits = read_kernel(label)
            launches.append(Launch(kernel, splits, "heuristic", us))
    return Problem(f"{m},{n},{k} {entry['kind']}", dims, tuple(launches))
