"""Grouped products of 8-bit operands: this package's, its own of bf16, torch's.

    python bench_scaled_grouped.py
    python bench_scaled_grouped.py --problems 32768,4096,7168,4 --kinds blockwise --modes forward
    python bench_scaled_grouped.py --modes forward --epilogues gelu gradient weights

A problem is x[m, k] @ w[groups, k, n]; its modes are those of bench_grouped.py. Kinds are layouts
of scales, of rows and of weights; `blockwise` has 1x128 for both operands of dw. Operands were
quantized before; `difference` is 1 - 2xy / (xx + yy) against the product of 16 bits. An epilogue
adds two columns to forward products: in the kernel, and as a pass of XLA's after it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from common import options, report, timing
from grouped.problems import MODES, Problem
from scaled import grouped_candidates as peers
from scaled.candidates import Unsupported

PROBLEMS = (
    Problem(32768, 4096, 7168, 4, "uniform"),
    Problem(32768, 7168, 2048, 4, "uniform"),
    Problem(65536, 1536, 2048, 128),
    Problem(4096, 2048, 7168, 64),
    Problem(512, 2048, 7168, 64),
)
SMALL = (Problem(144, 128, 160, 3),)


def parse_args(argv: Sequence[str] | None):
    parser = options.parser(__doc__.split("\n", 1)[0])
    options.add_turns(parser, rounds=10)
    parser.add_argument("--kinds", nargs="+", choices=tuple(peers.KINDS), default=[*peers.KINDS])
    parser.add_argument("--modes", nargs="+", choices=MODES, default=[*MODES])
    parser.add_argument("--epilogues", nargs="+", choices=tuple(peers.EPILOGUES), default=[])
    return options.parse_problems(parser, argv, "M,N,K,GROUPS", Problem, PROBLEMS, SMALL)


def measure(problem: Problem, args: Any, out: report.Report, timer: Any) -> list[dict]:
    """One problem's rows: every mode's candidates in turns."""
    implementation = options.implementation_of(args)
    given = peers.operands(problem, args.seed)
    rows = []
    for mode in args.modes:
        found = [peers.bf16(mode, given, implementation)]
        for kind in args.kinds:
            pair = peers.quantized(kind, mode, given)
            found.append(peers.ours(kind, mode, pair, given.sizes, implementation))
            for name in args.epilogues if mode == "forward" else ():
                for linked in (True, False):
                    more = given.sizes, implementation, name
                    found.append(peers.with_epilogue(kind, pair, *more, linked=linked))
            if kind == "row" and mode == "forward":
                try:
                    found.append(peers.torch(pair, given.sizes))
                except Unsupported as reason:
                    out.progress(f"{problem.name}: no torch: {reason}")
        for candidate in found:
            timing.warm_up(candidate)
        want = found[0].call(0)
        for candidate in found[1:]:
            result = candidate.call(0)
            if candidate.name.split()[-1] not in ("linked", "pass"):
                candidate.info["difference"] = peers.difference(result, want)
        timings = timing.interleave(
            timer, found, rounds=args.rounds, burst=args.burst, turn_ms=args.turn_ms
        )
        for candidate, times in zip(found, timings, strict=True):
            stats = report.summarise(times.times_us)
            rows.append(
                out.add(
                    "scaled_grouped",
                    impl=candidate.name,
                    problem=problem.name,
                    mode=mode,
                    method=timer.method,
                    tflops=problem.flops / stats["median_us"] / 1e6,
                    kernels=times.kernels,
                    turn_ms=args.turn_ms,
                    **candidate.info,
                    **stats,
                )
            )
    return rows


def summary(rows: Sequence[dict]) -> list[str]:
    """Of each problem and kind: bf16's time over ours by mode, and rates over the forward rate."""
    times = {(r["problem"], r["impl"]): r["median_us"] for r in rows}
    lines = []
    for problem in dict.fromkeys(r["problem"] for r in rows):
        for kind in peers.KINDS:
            own = {m: times.get((problem, f"bwgemm {kind} {m}")) for m in MODES}
            known = {m: t for m, t in own.items() if t}
            gains = [f"{m} {times[problem, f'bwgemm bf16 {m}'] / t:.2f}" for m, t in known.items()]
            rates = (
                [f"{m} {known['forward'] / t:.2f}" for m, t in known.items()]
                if own.get("forward")
                else []
            )
            for name in peers.EPILOGUES:
                column = f"bwgemm {kind} {name}"
                linked = times.get((problem, f"{column} linked"))
                if linked:
                    apart, product = times[problem, f"{column} pass"], own["forward"]
                    lines.append(
                        f"{problem} {kind} {name}: linked / product {linked / product:.2f}, "
                        f"pass / linked {apart / linked:.2f}"
                    )
            if gains:
                text = f"{problem} {kind}: bf16 time / ours {', '.join(gains)}"
                lines.append(text + (f"; of the forward rate {', '.join(rates)}" if rates else ""))
    return lines


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_args(argv)
    if args.dry_run:
        for problem in args.problems:
            print(f"{problem.name}: {problem.flops / 1e12:.2f} TFLOP, {', '.join(args.kinds)}")
        return 0
    platform = options.prepare(args, share_gpu=options.has_torch())
    out = report.Report(args.out, "bench_scaled_grouped")
    timer = timing.make_timer("auto", platform)
    rows = []
    for problem in args.problems:
        out.progress(f"{problem.name}: {options.turns(args)}")
        found = measure(problem, args, out, timer)
        columns = ("problem", "impl", "median_us", "tflops", "spread", "difference")
        print(report.table(found, columns))
        rows += found
    out.close()
    print(*summary(rows), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
