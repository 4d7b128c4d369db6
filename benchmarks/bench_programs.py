"""Training steps of many kinds of models, as users write them: XLA's and `accelerate` around them.

    python bench_programs.py
    python bench_programs.py --models bert-like lstm --steps 100
    python bench_programs.py --models dit-like --kernels 20     # where the time goes
    python bench_programs.py --models t5-like --control         # how far apart XLA is from itself

Kernel time of a step is that of all its kernels. Before it is timed, both steps train from the
same weights, and their losses are compared. `--control` trains a third step, XLA's without its own
kernels for products (Triton's): it rounds in other places, as any two compilations may.
"""

from __future__ import annotations

import argparse
import collections
import re
import sys
from collections.abc import Sequence

import jax
from common import options, report, timing
from models import language, other
from models.program import Program

PROGRAMS = (*language.PROGRAMS, *other.PROGRAMS)
# Of the largest difference of two losses, relative to the first one: products of bf16 round by
# 2^-9, and training carries differences on.
LOSS_BOUND = 1e-2
# A model whose losses of two compilations by XLA are further apart than that may be so with ours.
CONTROL_FACTOR = 3.0
CONTROL_OPTIONS = {"xla_gpu_enable_triton_gemm": False}


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = options.parser(__doc__.split("\n", 1)[0])
    names = [program.name for program in PROGRAMS]
    parser.add_argument("--models", nargs="+", choices=names, default=names)
    parser.add_argument("--rounds", type=options.positive, default=5)
    parser.add_argument(
        "--steps", type=options.positive, default=20, help="steps whose losses are compared"
    )
    parser.add_argument(
        "--control", action="store_true", help="also train XLA's step with other kernels"
    )
    parser.add_argument(
        "--kernels",
        type=options.positive,
        metavar="N",
        help="print the N kinds of kernels that take longest in each column",
    )
    return parser.parse_args(argv)


def apart(losses: Sequence[float], others: Sequence[float]) -> float:
    """The largest difference of two lists of losses, relative to the first loss."""
    return max(abs(a - b) for a, b in zip(losses, others, strict=True)) / abs(losses[0])


def by_kind(kernels: Sequence[tuple[str, float]]) -> list[tuple[str, int, float]]:
    """Kinds of kernels, how many of each and their microseconds together, the longest first."""
    counts: collections.Counter[str] = collections.Counter()
    times: collections.Counter[str] = collections.Counter()
    for name, us in kernels:
        kind = re.sub(r"_\d+$", "", name)  # XLA numbers its fusions
        counts[kind] += 1
        times[kind] += us
    return [(kind, counts[kind], us) for kind, us in times.most_common()]


def train(step: object, state: object, data: object, steps: int) -> tuple[list[float], object]:
    """The losses of so many steps, and the state after them."""
    losses = []
    for _ in range(steps):
        loss, state = step(state, data)
        losses.append(loss)
    return [float(loss) for loss in losses], state


def measure(
    program: Program, args: argparse.Namespace, out: report.Report, timer: timing.Timer
) -> list[dict]:
    """A row for each column."""
    import jax_bwgemm

    plain, state, data = program.build(args.small, args.seed)
    allowed = None if args.implementation in ("cutlass", "auto") else args.implementation
    accelerated = jax_bwgemm.accelerate(plain, implementation=allowed)
    decisions = jax_bwgemm.explain_program(accelerated, state, data).rewrites
    losses, found, control = {}, [], None
    steps = 2 if args.small else args.steps
    for name, step in (("xla", plain), ("accelerate", accelerated)):
        compiled = jax.jit(step).lower(state, data).compile()
        losses[name], trained = train(compiled, state, data, steps)
        call = lambda _, f=compiled, s=trained: f(s, data)  # noqa: E731
        found.append(timing.Candidate(name, call, jax.block_until_ready))
    if args.control:
        other = CONTROL_OPTIONS if jax.default_backend() == "gpu" else {}
        compiled = jax.jit(plain).lower(state, data).compile(compiler_options=other)
        control = apart(losses["xla"], train(compiled, state, data, steps)[0])
    for candidate in found:
        timing.warm_up(candidate, 0.0 if args.small else 0.1)
    rounds = 2 if args.small else args.rounds
    rows = []
    for candidate, times in zip(
        found, timing.interleave(timer, found, rounds=rounds, burst=1), strict=True
    ):
        rows.append(
            out.add(
                "model",
                model=program.name,
                impl=candidate.name,
                method=timer.method,
                loss=losses[candidate.name][-1],
                apart=apart(losses["xla"], losses["accelerate"]),
                control=control,
                rewritten=sum(d.times for d in decisions if d.rewritten),
                products=sum(d.times for d in decisions),
                kernels=len(times.kernels),
                kinds=by_kind(times.kernels)[: args.kernels] if args.kernels else None,
                **report.summarise(times.times_us),
            )
        )
    return rows


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_args(argv)
    chosen = [program for program in PROGRAMS if program.name in args.models]
    if args.dry_run:
        for program in chosen:
            print(f"{program.name}: {dict(program.sizes)}")
        return 0
    timer = timing.CuptiTimer() if options.prepare(args) == "gpu" else timing.WallTimer()
    out = report.Report(args.out, "bench_programs")
    rows, bad = [], []
    for program in chosen:
        xla, ours = measure(program, args, out, timer)
        rows += [xla, ours]
        print(
            f"{program.name}: {ours['rewritten']} of {ours['products']} products rewritten; xla's "
            f"time over accelerate's {xla['median_us'] / ours['median_us']:.3f}; losses at most "
            f"{ours['apart']:.1e} apart"
            + (f" (XLA's own: {ours['control']:.1e})" if args.control else ""),
            flush=True,
        )
        for row in (xla, ours) if args.kernels else ():
            for kind, count, us in row["kinds"]:
                print(f"  {row['impl']:10} {us:9.1f} us {count:4} x {kind}")
        if not ours["apart"] <= max(LOSS_BOUND, CONTROL_FACTOR * (ours["control"] or 0.0)):
            bad.append(f"{program.name}: losses {ours['apart']:.1e} apart")
    out.close()
    print(report.table(rows, ("model", "impl", "median_us", "loss", "kernels", "spread")))
    for line in bad:
        print(f"error: {line}", file=sys.stderr)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
