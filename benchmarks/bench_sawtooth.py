"""Utilisation against N, over several waves of tiles, for each scheduler.

    python bench_sawtooth.py --out sawtooth.jsonl        # M = 1024, K = 4096, N in steps of 256
    python plot.py sawtooth sawtooth.jsonl --out sawtooth.svg

Where the last wave of tiles is nearly empty, utilisation drops: a sawtooth. A fixed tile shows it
in full; splitting K trades it for a sum; stream-K shares one or two waves of tiles, the first ones
in the order, so that the rest are whole waves (hybrid: only where the last wave would not be half
full); the default selection, which chooses tile and splits for every N, should hardly show it.
Prints each column's largest drop below the best of all smaller N.
"""

from __future__ import annotations

import argparse
import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any

from common import options, report, timing
from dense import shapes as shape_lists


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = options.parser(__doc__.split("\n", 1)[0])
    parser.add_argument("--m", type=options.positive, default=1024)
    parser.add_argument("--k", type=options.positive, default=4096)
    parser.add_argument("--step", type=options.positive, default=256, help="step of N")
    parser.add_argument("--steps", type=options.positive, default=50, help="number of steps")
    parser.add_argument(
        "--tile", default="128x256", metavar="MxN", help="MMA tile of the fixed columns"
    )
    parser.add_argument(
        "--splits",
        nargs="*",
        type=options.positive,
        default=[1, 2, 4],
        help="splits of the fixed columns",
    )
    parser.add_argument("--no-xla", action="store_true", help="leave out XLA's column")
    parser.add_argument(
        "--timer",
        choices=("auto", "cupti", "wall"),
        default="auto",
        help="kernel times by CUPTI, or the wall clock",
    )
    options.add_turns(parser, rounds=5)
    args = parser.parse_args(argv)
    try:
        args.tile_m, args.tile_n = map(int, args.tile.split("x"))
    except ValueError:
        parser.error(f"--tile takes MxN, for example 128x256, got {args.tile!r}")
    if args.small:
        args.m, args.k, args.step, args.steps, args.rounds = 64, 64, 64, 3, 1
    return args


def columns(args: argparse.Namespace) -> dict[str, dict[str, Any] | None]:
    """Column name -> fields of its TuningConfig; None for the default selection."""
    found: dict[str, dict[str, Any] | None] = {"default": None}
    for splits in args.splits:
        name = "data-parallel" if splits == 1 else f"split-K {splits}"
        # Without swapped operands, so that the tile means the same along N in every build.
        found[f"{name}, {args.tile}"] = {
            "tile_m": args.tile_m,
            "tile_n": args.tile_n,
            "splits": splits,
            "swap_ab": False,
        }
    tile = {"tile_m": args.tile_m, "tile_n": args.tile_n, "scheduler": "stream_k"}
    found[f"stream-K, {args.tile}"] = tile | {"decomposition": "stream_k"}
    found[f"hybrid stream-K, {args.tile}"] = tile | {"decomposition": "heuristic"}
    return found


def builders(
    args: argparse.Namespace, shape: shape_lists.Shape, operands: list
) -> dict[str, Callable[[], timing.Candidate]]:
    """How to make each column of one shape."""
    from dense import candidates

    import jax_bwgemm
    from jax_bwgemm import runtime
    from jax_bwgemm.dense.tuning_config import SCHEDULERS

    implementation = options.implementation_of(args)
    found: dict[str, Callable[[], timing.Candidate]] = {}
    for name, fields in columns(args).items():
        # A rehearsal without kernels has no tiles to fix.
        if fields is not None and implementation == "xla":
            continue
        if fields is not None and "scheduler" not in fields:
            target = runtime.local_target().target
            fields |= {"scheduler": SCHEDULERS[target.arch]} if target else {}
        config = None if fields is None else jax_bwgemm.TuningConfig(**fields)
        found[name] = functools.partial(
            candidates.bwgemm, shape, operands, args.dtype, implementation, config
        )
    if not args.no_xla:
        found["xla"] = functools.partial(candidates.xla, shape, operands, args.dtype)
    return found


def measure(
    args: argparse.Namespace, shape: shape_lists.Shape, timer: timing.Timer, out: report.Report
) -> list[str]:
    """Measures one N; returns a text for each column."""
    import jax.numpy as jnp
    from dense import candidates

    size = jnp.dtype(args.dtype).itemsize
    copies = timing.copies_for(
        shape.bytes(size, size), 2**20 if args.small else timing.ROTATE_BYTES
    )
    operands = candidates.make_operands(shape, args.dtype, copies, args.seed)
    fields = {
        "shape": shape.name, "m": shape.m, "n": shape.n, "k": shape.k, "batch": 1,
        "majors": shape.majors, "dtype": args.dtype, "out_dtype": args.dtype,
        "method": timer.method, "turn_ms": args.turn_ms,
    }  # fmt: skip
    ready, texts = [], []
    for name, build in builders(args, shape, operands).items():
        try:
            candidate = build()
        except candidates.Unsupported as reason:
            out.add("gemm", impl=name, status=f"unsupported: {reason}", **fields)
            continue
        candidate.name = name
        timing.warm_up(candidate)
        ready.append(candidate)
    times = timing.interleave(
        timer, ready, rounds=args.rounds, burst=args.burst, turn_ms=args.turn_ms
    )
    for candidate, measured in zip(ready, times, strict=True):
        stats = report.summarise(measured.times_us)
        tflops = shape.flops / stats["median_us"] / 1e6
        out.add(
            "gemm", impl=candidate.name, status="ok", tflops=tflops, **fields, **stats,
            **candidate.info,
        )  # fmt: skip
        texts.append(f"{candidate.name} {tflops:.0f}")
    return texts


def largest_drop(rows: Sequence[dict]) -> tuple[float, int]:
    """How far a column falls below the best of its smaller N, at worst, and at which N.

    Args:
      rows: of one column.

    Returns:
      The drop as a share of that best, and the N.
    """
    best, worst, where = 0.0, 0.0, rows[0]["n"]
    for row in sorted(rows, key=lambda r: r["n"]):
        best = max(best, row["tflops"])
        drop = 1 - row["tflops"] / best
        if drop > worst:
            worst, where = drop, row["n"]
    return worst, where


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_args(argv)
    sizes = [args.step * (i + 1) for i in range(args.steps)]
    if args.dry_run:
        print(f"columns: {', '.join(columns(args))}{'' if args.no_xla else ', xla'}")
        print(f"M={args.m} K={args.k} N={sizes[0]}..{sizes[-1]} in steps of {args.step}")
        return 0
    platform = options.prepare(args)
    out = report.Report(args.out, "bench_sawtooth")
    timer = timing.make_timer(args.timer, platform)
    try:
        for n in sizes:
            texts = measure(args, shape_lists.Shape(args.m, n, args.k), timer, out)
            out.progress(f"  N={n:6d} TFLOP/s: {', '.join(texts)}")
    finally:
        out.close()
    done: dict[str, list[dict]] = {}
    for row in out.rows("gemm"):
        if row["status"] == "ok":
            done.setdefault(row["impl"], []).append(row)
    lines = []
    for name, rows in done.items():
        drop, where = largest_drop(rows)
        best = max(r["tflops"] for r in rows)
        lines.append({"column": name, "best TFLOP/s": best, "largest drop": drop, "at N": where})
    print(report.table(lines, ["column", "best TFLOP/s", "largest drop", "at N"]))
    return 0 if "default" in done else 1


if __name__ == "__main__":
    sys.exit(main())
