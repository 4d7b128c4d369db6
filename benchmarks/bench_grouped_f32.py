"""Grouped products of an f32 and a bf16 operand, against our bf16 ones and XLA's.

    python bench_grouped_f32.py
    python bench_grouped_f32.py --shapes 8192,4096,4096,8:zipf --modes dx dw

The operand that is f32 is what it is in training: the rows x of `forward`, the cotangent dy of `dx`
and `dw`. Columns: `two terms` splits it into two bf16 terms (what `precision=None` gets); `one
term` is `precision="BF16_BF16_F32"`, the rounding included; `bf16` has both operands in bf16; `xla`
is `lax.ragged_dot` of f32 operands. Results are bf16.

Errors are those of f32 results: the largest of the first rows of a group against f64, over the root
mean square. XLA's column is left out with `--no-xla`.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from common import options, report, timing
from grouped import problems as grouped_problems
from grouped.candidates import NUMBERS
from grouped.problems import Problem
from jax import lax

DEFAULT = (Problem(32768, 4096, 7168, 8),)
# Which operand of a mode is f32.
F32_OPERAND = {"forward": 0, "dx": 0, "dw": 1}
SAMPLED_ROWS = 64
TIMES = (("two terms", "bf16"), ("one term", "bf16"), ("xla", "two terms"))


def parse_args(argv: Sequence[str] | None):
    parser = options.parser(__doc__.split("\n", 1)[0])
    options.add_turns(parser, rounds=5)
    parser.add_argument("--shapes", nargs="*", default=[], metavar="M,N,K,G[:DISTRIBUTION]")
    modes = grouped_problems.MODES
    parser.add_argument("--modes", nargs="+", choices=modes, default=list(modes))
    parser.add_argument("--no-xla", action="store_true", help="without lax.ragged_dot")
    args = parser.parse_args(argv)
    if args.dtype != "bfloat16":
        parser.error(f"--dtype {args.dtype}: the other operand is bfloat16")
    if args.small:
        args.rounds, args.burst = 2, 1
    try:
        named = [grouped_problems.parse(text) for text in args.shapes]
    except ValueError as error:
        parser.error(str(error))
    args.problems = named or list(grouped_problems.SMALL[:1] if args.small else DEFAULT)
    return args


def columns(problem: Problem, mode: str, args) -> list[timing.Candidate]:
    """Every column on the same values, rounded to its types."""
    import jax_bwgemm

    (wide,) = grouped_problems.make_operands(problem, mode, jnp.float32, 1, args.seed)
    left, right, sizes = wide
    f32 = F32_OPERAND[mode]
    mixed = [x if i == f32 else x.astype(jnp.bfloat16) for i, x in enumerate((left, right))]
    narrow = [x.astype(jnp.bfloat16) for x in (left, right)]
    ours = functools.partial(
        jax_bwgemm.ragged_dot_general, implementation=options.implementation_of(args)
    )
    one_term = lax.DotAlgorithmPreset.BF16_BF16_F32
    of: dict[str, tuple[Callable[..., Any], list]] = {
        "two terms": (ours, mixed),
        "one term": (functools.partial(ours, precision=one_term), mixed),
        "bf16": (ours, narrow),
    }
    if not args.no_xla:
        of["xla"] = (lax.ragged_dot_general, mixed)
    exact = reference(mode, *mixed, problem.sizes(args.seed))
    made = []
    for name, (product, operands) in of.items():
        call = functools.partial(product, ragged_dot_dimension_numbers=NUMBERS[mode])
        wide_call = functools.partial(call, preferred_element_type=jnp.float32)
        # XLA has no product of f32 operands into a narrower type: it rounds in a fusion.
        timed = functools.partial(_rounded, wide_call)
        if name != "xla":
            timed = functools.partial(call, preferred_element_type=jnp.bfloat16)
        compiled = jax.jit(timed).lower(*operands, sizes).compile()
        info = {"error": error(mode, jax.jit(wide_call)(*operands, sizes), exact)}
        run = functools.partial(_call, compiled, (*operands, sizes))
        made.append(timing.Candidate(name, run, jax.block_until_ready, info=info))
    return made


def _call(compiled, operands, copy: int):
    del copy
    return compiled(*operands)


def _rounded(call: Callable, x: jax.Array, y: jax.Array, sizes: jax.Array) -> jax.Array:
    return call(x, y, sizes).astype(jnp.bfloat16)


def reference(mode: str, left: jax.Array, right: jax.Array, sizes: np.ndarray) -> np.ndarray:
    """The first rows of the first group's result, in float64."""
    end = int(sizes[0])
    if mode == "dw":
        lhs, rhs = left[:end, :SAMPLED_ROWS].T, right[:end]
    else:
        lhs = left[: min(end, SAMPLED_ROWS)]
        rhs = right[0] if mode == "forward" else right[0].T
    return np.asarray(lhs, np.float64) @ np.asarray(rhs, np.float64)


def error(mode: str, out: jax.Array, exact: np.ndarray) -> float:
    """Largest error of the sampled rows, over their root mean square."""
    got = out[0] if mode == "dw" else out
    difference = np.asarray(got[: exact.shape[0]], np.float64) - exact
    return float(np.max(np.abs(difference)) / np.sqrt(np.mean(exact**2)))


def measure(problem: Problem, mode: str, args, out: report.Report, timer) -> list[dict]:
    """The rows of one product."""
    made = columns(problem, mode, args)
    timings = timing.interleave(
        timer, made, rounds=args.rounds, burst=args.burst, turn_ms=args.turn_ms
    )
    rows = []
    for candidate, found in zip(made, timings, strict=True):
        stats = report.summarise(found.times_us)
        rows.append(
            out.add(
                "grouped_f32",
                shape=problem.name,
                mode=mode,
                impl=candidate.name,
                tflops=problem.flops / stats["median_us"] / 1e6,
                method=timer.method,
                turn_ms=args.turn_ms,
                kernels=found.kernels,
                **candidate.info,
                **stats,
            )
        )
    return rows


def summary(rows: Sequence[dict]) -> list[str]:
    """Ratios of times, over all products."""
    of = {(r["impl"], r["shape"], r["mode"]): r["median_us"] for r in rows}
    products = list(dict.fromkeys((r["shape"], r["mode"]) for r in rows))
    lines = []
    for above, below in TIMES:
        if (above, *products[0]) in of:
            found = [of[(above, *p)] / of[(below, *p)] for p in products]
            ends = f"least {min(found):.3f}, most {max(found):.3f}"
            lines.append(f"time {above} / {below}: mean {report.geomean(found):.3f}, {ends}")
    return lines


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_args(argv)
    if args.dry_run:
        for problem in args.problems:
            print(f"{problem.name}: {problem.flops / 1e12:.2f} TFLOP in each of {args.modes}")
        return 0
    platform = options.prepare(args)
    out = report.Report(args.out, "bench_grouped_f32")
    timer = timing.make_timer("auto", platform)
    rows = []
    for problem in args.problems:
        for mode in args.modes:
            out.progress(f"{problem.name} {mode}: {options.turns(args)}")
            found = measure(problem, mode, args, out, timer)
            rows += found
            shown = ("shape", "mode", "impl", "median_us", "tflops", "spread", "error")
            print(report.table(found, shown))
    out.close()
    print(*summary(rows), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
