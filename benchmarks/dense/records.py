"""Recorded times of 16-bit products: what cost_record.py writes."""

from __future__ import annotations

import dataclasses
import json
import pathlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from jax_bwgemm.dense.spec import GemmDims
from jax_bwgemm.product.kernels import Kernel

DATA = pathlib.Path(__file__).resolve().parents[1] / "costs" / "data"


@dataclasses.dataclass(frozen=True)
class Launch:
    """One way to run a problem, with its recorded time in microseconds."""

    kernel: Kernel
    splits: int
    decomposition: str
    us: float


@dataclasses.dataclass(frozen=True)
class Problem:
    """A problem and its recorded launches, each kernel in its best tile order."""

    name: str
    dims: GemmDims
    launches: tuple[Launch, ...]


def read_kernel(label: str, dtypes: Sequence[str], majors: str) -> Launch:
    """The kernel of a record's label, with its splits; the time is not known yet."""
    name, _, _, *rest = label.split("|")
    tile, cluster, schedule, *variant = name.split("_")
    tile_m, tile_n, tile_k = map(int, tile.split("x"))
    cluster_m, cluster_n = map(int, cluster.split("x"))
    kernel = dataclasses.replace(
        Kernel.of_tile(
            "sm90",
            (tile_m, tile_n, tile_k),
            (cluster_m, cluster_n),
            schedule,
            name=name,
            swap_ab=variant == ["swap"],
            stream_k=variant == ["streamk"],
        ),
        a_dtype=dtypes[0],
        b_dtype=dtypes[0],
        out_dtype=dtypes[1],
        a_major=majors[0],
        b_major=majors[1],
    )
    return Launch(kernel, int(rest[0]) if rest else 1, (rest + ["heuristic"] * 2)[1], 0.0)


def read(entry: Mapping[str, Any]) -> Problem:
    """A record."""
    m, n, k, *rest = entry["shape"]
    batch, majors = rest or (1, "kn")
    dtypes = entry.get("dtypes", ("bfloat16", "bfloat16"))
    fastest: dict[tuple, Launch] = {}
    for label, us in entry["us"].items():
        if label in entry.get("wrong", ()):
            continue
        launch = dataclasses.replace(read_kernel(label, dtypes, majors), us=us)
        key = launch.kernel, launch.splits, launch.decomposition
        if key not in fastest or us < fastest[key].us:
            fastest[key] = launch
    types = "" if dtypes[1] == "bfloat16" == dtypes[0] else f" {dtypes[0]}->{dtypes[1]}"
    name = f"{m},{n},{k}" + (f"x{batch}" if batch > 1 else "") + f":{majors}{types}"
    return Problem(name, GemmDims(m, n, k, batch, batch, batch), tuple(fastest.values()))


def load(
    paths: Iterable[pathlib.Path], read_one: Callable[[Mapping[str, Any]], Problem] = read
) -> list[Problem]:
    """Reads JSON files with a list of records, or JSON lines, a record each.

    Raises:
        ValueError: There are none of several launches.
    """
    problems = []
    for path in paths:
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".jsonl":
            entries = [json.loads(line) for line in text.splitlines()]
        else:
            entries = json.loads(text)["shapes"]
        problems += [read_one(entry) for entry in entries]
    problems = [p for p in problems if len(p.launches) > 1]
    if not problems:
        raise ValueError("no recorded kernels")
    return problems
