"""The columns of a benchmark of layers, timed in turns, with their errors and ratios."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
from common import compiling, report, timing

# Name of the program, beside a case's columns, that computes the error of a column's result.
ERROR = "error of a column"


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
        call = functools.partial(_call, found.call, arrays)
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


def _call(compiled: Callable[..., Any], arrays: Sequence[Sequence[jax.Array]], copy: int) -> Any:
    return compiled(*arrays[copy % len(arrays)])
