"""The columns of a benchmark of layers, timed in turns, with their errors and ratios."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
from common import compiling, report, timing

# Name of the program, beside a case's columns, that computes the error of a column's result.
ERROR = "error of a column"


@dataclasses.dataclass(frozen=True)
class Layer:
    """x [m, k] @ w [k, n]."""

    m: int
    n: int
    k: int

    def __str__(self) -> str:
        return f"{self.m},{self.n},{self.k}"

    @property
    def bytes(self) -> int:
        """Of 16-bit operands and result."""
        return 2 * (self.m * self.k + self.k * self.n + self.m * self.n)


def linkable(dtype: str) -> dict[str, str]:
    """Kernels of this GPU that epilogues are linked into, by their tiles.

    Args:
        dtype: Of operands and results.
    """
    from jax_bwgemm import config, runtime
    from jax_bwgemm.epilogue.linkable import linkable_kernels

    short = {"bfloat16": "bf16", "float16": "f16"}[dtype]
    arch = (runtime.local_target().target or config.make_target("sm90")).arch
    prefix = f"{arch}_{short}_{short}_kn_"
    return {
        kernel.removeprefix(prefix): kernel
        for kernel in linkable_kernels()
        if kernel.startswith(prefix) and not kernel.endswith("_gated")
    }


def measure(
    event: str,
    case: Any,
    names: Sequence[str],
    programs: Mapping[Any, compiling.Compiled],
    arrays: Sequence[Sequence[jax.Array]],
    describe: Callable[[str], dict[str, Any]],
    args: Any,
    out: report.Report,
    timer: timing.Timer,
) -> list[dict]:
    """One case's rows: a row for each column.

    Args:
        event: Name of the rows.
        case: What is measured; its ``layer`` is the problem.
        names: Of the columns; ``"product"`` and ``"xla"`` are among them.
        programs: The compiled columns, by case and name, and the error's.
        arrays: Operands, several copies.
        describe: What a program's text says of it, for its row.
        args: The arguments that `options` knows.
        out: Where the rows go.
        timer: Measures.
    """
    candidates = []
    for name in names:
        found = programs[case, name]
        info = describe(found.text)
        result = jax.tree.leaves(found.call(*arrays[0]))[0]
        if name != "product":
            info["error"] = float(programs[case, ERROR].call(result, *arrays[0]))
        call = functools.partial(call_copy, found.call, arrays)
        candidates.append(timing.Candidate(name, call, jax.block_until_ready, len(arrays), info))
    timings = timing.interleave(
        timer, candidates, rounds=args.rounds, burst=args.burst, turn_ms=args.turn_ms
    )
    rows, medians = [], {}
    for candidate, found in zip(candidates, timings, strict=True):
        stats = report.summarise(found.times_us)
        medians[candidate.name] = stats["median_us"]
        rows.append(
            {
                "impl": candidate.name,
                "problem": str(case.layer),
                "layer": str(case),
                "dtype": args.dtype,
                "method": timer.method,
                "kernels": found.kernels,
                "turn_ms": args.turn_ms,
                **candidate.info,
                **stats,
            }
        )
    for row in rows:
        row["of_product"] = row["median_us"] / medians["product"]
        row["xla_over"] = medians["xla"] / row["median_us"]
    return [out.add(event, **row) for row in rows]


def call_copy(
    compiled: Callable[..., Any], arrays: Sequence[Sequence[jax.Array]], copy: int
) -> Any:
    """Runs a program on one of the copies of its operands."""
    return compiled(*arrays[copy % len(arrays)])
