"""Products of 8-bit operands: this package's, XLA's and torch's.

    python bench_scaled.py                             # all problems and kinds
    python bench_scaled.py --problems 4096,7168,16384 --kinds blockwise

Kinds are layouts of scales: `tensor` and `row` with fast accumulation, `blockwise` (1x128 by
128x128), `dW` (1x128 by 1x128), and `tensor promoted`, which is `tensor` with promoted
accumulation. `xla raw fp8` multiplies the values without scales. Operands were quantized before;
`difference` is 1 - 2xy / (xx + yy) against f32 products of what they stand for (of the raw
product, which has no scales, it is not given).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import jax
from common import options, report, timing
from scaled import candidates as peers


def parse_args(argv: Sequence[str] | None):
    parser = options.parser(__doc__.split("\n", 1)[0])
    options.add_turns(parser, rounds=20)
    parser.add_argument("--kinds", nargs="+", choices=tuple(peers.KINDS), default=[*peers.KINDS])
    problem, usual, small = peers.ScaledProblem, peers.PROBLEMS, peers.SMALL
    return options.parse_problems(parser, argv, "M,N,K", problem, usual, small)


def operands(problem: peers.ScaledProblem, args: Any, copies: int) -> list[Any]:
    """Pairs of normal numbers, bfloat16."""
    found = []
    for key in jax.random.split(jax.random.key(args.seed), copies):
        keys = jax.random.split(key)
        shapes = ((problem.m, problem.k), (problem.n, problem.k))
        found.append(
            tuple(
                jax.random.normal(k, shape, args.dtype)
                for k, shape in zip(keys, shapes, strict=True)
            )
        )
    return found


def measure(problem: peers.ScaledProblem, args: Any, out: report.Report, timer: Any) -> list[dict]:
    """One problem's rows: every candidate in turns."""
    implementation = options.implementation_of(args)
    pairs = operands(problem, args, min(8, timing.copies_for(problem.bytes)))
    found = [
        (peers.ours_bf16(pairs, implementation), pairs[0]),
        (peers.xla_bf16(pairs), pairs[0]),
    ]
    for kind in args.kinds:
        quantized = peers.quantized(pairs, kind)
        found.append((peers.ours(kind, quantized, implementation), quantized[0]))
        if kind == "tensor":
            found.append((peers.xla_raw(quantized), None))
        if kind.startswith("dW"):
            continue  # torch has it for other layouts of memory only
        try:
            found.append((peers.torch(kind, quantized), quantized[0]))
        except peers.Unsupported as reason:
            out.progress(f"{problem}: no torch {kind}: {reason}")
    for candidate, pair in found:
        timing.warm_up(candidate)
        if pair is not None:
            candidate.info["difference"] = peers.difference(candidate.call(0), pair)
    timings = timing.interleave(
        timer,
        [candidate for candidate, _ in found],
        rounds=args.rounds,
        burst=args.burst,
        turn_ms=args.turn_ms,
    )
    rows = []
    for (candidate, _), times in zip(found, timings, strict=True):
        stats = report.summarise(times.times_us)
        rows.append(
            out.add(
                "scaled",
                impl=candidate.name,
                problem=str(problem),
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
    """The fastest peer's time over ours: geometric means and the least, by kind."""
    times = {(r["impl"], r["problem"]): r["median_us"] for r in rows}
    problems = list(dict.fromkeys(r["problem"] for r in rows))
    lines = []
    for kind in peers.KINDS:
        rivals = [f"torch {kind}", *(["xla raw fp8"] if kind == "tensor" else [])]
        against = {
            f"fastest of {', '.join(rivals)}": rivals,
            "bwgemm bf16": ["bwgemm bf16"],
            "xla bf16": ["xla bf16"],
        }
        for name, those in against.items():
            ratios = []
            for p in problems:
                known = [times[r, p] for r in those if (r, p) in times]
                if known and (f"bwgemm {kind}", p) in times:
                    ratios.append(min(known) / times[f"bwgemm {kind}", p])
            if ratios:
                mean = report.geomean(ratios)
                lines.append(
                    f"{name} time / bwgemm {kind} time {mean:.3f}, least {min(ratios):.3f} "
                    f"({len(ratios)} problems)"
                )
    return lines


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_args(argv)
    if args.dry_run:
        for problem in args.problems:
            print(f"{problem}: {problem.flops / 1e12:.2f} TFLOP, {', '.join(args.kinds)}")
        return 0
    platform = options.prepare(args, share_gpu=options.has_torch())
    out = report.Report(args.out, "bench_scaled")
    timer = timing.make_timer("auto", platform)
    rows = []
    for problem in args.problems:
        out.progress(f"{problem}: {options.turns(args)}")
        rows += measure(problem, args, out, timer)
        shown = [r for r in rows if r["problem"] == str(problem)]
        columns = ("problem", "impl", "median_us", "tflops", "spread", "difference")
        print(report.table(shown, columns))
    out.close()
    print(*summary(rows), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
