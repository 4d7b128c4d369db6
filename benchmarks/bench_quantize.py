"""Quantization: this package's kernel, XLA's fusions of the same formulas, and a plain copy.

    python bench_quantize.py                                    # all sizes and cases
    python bench_quantize.py --sizes 8192,8192 --cases 1x128+T

A case is a layout of scales; `+T` also writes the transposed copy with scales of its own, `+SR`
rounds stochastically. `tensor` has the pass that finds the largest magnitude. `gb_per_s` counts
each element of x once, each value and each scale once; `of_copy` is that over the copy's (negation
of x by XLA, which reads and writes it). Of `equal` bytes all but those where the compiler divides
otherwise should be XLA's.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from common import options, report, timing

import jax_bwgemm as bw


class Size(NamedTuple):
    """Of a matrix."""

    rows: int
    k: int

    def __str__(self) -> str:
        return f"{self.rows},{self.k}"


SIZES = (Size(4096, 8192), Size(8192, 8192), Size(8192, 28672))
SMALL = (Size(64, 256), Size(40, 136))
CASES = ("1x128", "1x128+T", "1x128+T+SR", "128x128", "128x128+T", "row+T", "tensor", "tensor+T")


def parse_args(argv: Sequence[str] | None):
    parser = options.parser(__doc__.split("\n", 1)[0])
    options.add_turns(parser, rounds=20)
    parser.add_argument("--cases", nargs="+", default=[*CASES], metavar="LAYOUT[+T][+SR]")
    args = options.parse_problems(parser, argv, "R,K", Size, SIZES, SMALL, option="--sizes")
    for case in args.cases:
        layout, *flags = case.split("+")
        if layout not in ("tensor", "row", "1x128", "128x128") or not {*flags} <= {"T", "SR"}:
            parser.error(f"--cases: {case!r} is not LAYOUT[+T][+SR]")
    return args


def quantizer(case: str, implementation: str | None) -> Callable[[jax.Array], Any]:
    layout, *flags = case.split("+")
    return functools.partial(
        bw.quantize,
        scaling=layout,
        transposed="T" in flags,
        key=jax.random.key(0) if "SR" in flags else None,
        implementation=implementation,
    )


def candidate(name: str, f: Callable[[jax.Array], Any], arrays: Sequence[jax.Array]):
    compiled = jax.jit(f).lower(arrays[0]).compile()
    return timing.Candidate(
        name, lambda i: compiled(arrays[i]), jax.block_until_ready, copies=len(arrays)
    )


def equal(got: Any, want: Any) -> float:
    """The part of all bytes that are equal."""
    pairs = [
        (np.asarray(x).reshape(-1).view(np.uint8), np.asarray(y).reshape(-1).view(np.uint8))
        for x, y in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True)
    ]
    return sum(int(np.sum(x == y)) for x, y in pairs) / sum(x.size for x, _ in pairs)


def measure(size: tuple[int, ...], args: Any, out: report.Report, timer: Any) -> list[dict]:
    """One size's rows: every candidate in turns."""
    x_bytes = size[0] * size[1] * jnp.dtype(args.dtype).itemsize
    count = min(8, timing.copies_for(x_bytes))
    keys = jax.random.split(jax.random.key(args.seed), count)
    arrays = [jax.random.normal(key, size, args.dtype) for key in keys]
    ours = options.implementation_of(args)
    found = [candidate("copy", jnp.negative, arrays)]
    for case in args.cases:
        found.append(candidate(f"bwgemm {case}", quantizer(case, ours), arrays))
        found.append(candidate(f"xla {case}", quantizer(case, "xla"), arrays))
    results = {c.name: c.call(0) for c in found}
    for one in found:
        timing.warm_up(one)
        one.info["bytes"] = x_bytes + sum(x.nbytes for x in jax.tree.leaves(results[one.name]))
    for case in args.cases:
        pair = results[f"bwgemm {case}"], results[f"xla {case}"]
        next(c for c in found if c.name == f"bwgemm {case}").info["equal"] = equal(*pair)
    del results
    timings = timing.interleave(
        timer, found, rounds=args.rounds, burst=args.burst, turn_ms=args.turn_ms
    )
    rows: list[dict] = []
    for one, times in zip(found, timings, strict=True):
        stats = report.summarise(times.times_us)
        rate = one.info["bytes"] / stats["median_us"] / 1e3
        rows.append(
            out.add(
                "quantize",
                impl=one.name,
                size=str(size),
                method=timer.method,
                gb_per_s=rate,
                of_copy=rate / (rows[0]["gb_per_s"] if rows else rate),
                kernels=times.kernels,
                turn_ms=args.turn_ms,
                **one.info,
                **stats,
            )
        )
    return rows


def summary(rows: Sequence[dict]) -> list[str]:
    """For each case the least part of the copy's rate, and XLA's time over ours."""
    lines = []
    times = {(r["impl"], r["size"]): r for r in rows}
    for case in dict.fromkeys(r["impl"].removeprefix("bwgemm ") for r in rows):
        mine = [r for r in rows if r["impl"] == f"bwgemm {case}"]
        if mine:
            ratios = [times[f"xla {case}", r["size"]]["median_us"] / r["median_us"] for r in mine]
            lines.append(
                f"{case}: at least {min(r['of_copy'] for r in mine):.3f} of the copy's rate; xla "
                f"time / bwgemm time {report.geomean(ratios):.2f}, least {min(ratios):.2f}"
            )
    return lines


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_args(argv)
    if args.dry_run:
        for size in args.sizes:
            print(f"{size}: {', '.join(args.cases)}")
        return 0
    platform = options.prepare(args)
    out = report.Report(args.out, "bench_quantize")
    timer = timing.make_timer("auto", platform)
    rows = []
    for size in args.sizes:
        out.progress(f"{size}: {options.turns(args)}")
        shown = measure(size, args, out, timer)
        rows += shown
        columns = ("size", "impl", "median_us", "gb_per_s", "of_copy", "spread", "equal")
        print(report.table(shown, columns))
    out.close()
    print(*summary(rows), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
