"""Two layers, forward and backward: `jax_bwgemm.mlp`, and XLA's of the same formula.

    python bench_mlp.py
    python bench_mlp.py --problems 8192,4096,14336:swiglu 16384,768,3072:gelu

A problem is ROWS,WIDTH,HIDDEN and the form: ``swiglu`` has a pair of weights, ``gelu`` has biases.
`mlp recomputed` keeps its arguments alone for the backward pass, `mlp in blocks` recomputes so many
blocks one after the other. The loss is the mean of squares; gradients are those of x, weights and
biases. Time is that of all kernels; `temporary_gb` is XLA's count of a step's temporary memory.
"""

from __future__ import annotations

import argparse
import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from common import options, report, timing

FORMS = ("swiglu", "gelu")
PROBLEMS = ("8192,4096,14336:swiglu", "4096,2048,8192:swiglu", "16384,768,3072:gelu")
SMALL = ("64,64,96:swiglu", "64,64,96:gelu")
Operands = dict[str, jax.Array]


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = options.parser(__doc__.split("\n", 1)[0])
    options.add_turns(parser, rounds=8)
    parser.add_argument("--problems", nargs="+", metavar="ROWS,WIDTH,HIDDEN:FORM")
    parser.add_argument("--blocks", type=options.positive, default=4, help="of hidden values")
    args = parser.parse_args(argv)
    problems = []
    for text in args.problems or (SMALL if args.small else PROBLEMS):
        sizes, _, form = text.partition(":")
        if form not in FORMS:
            parser.error(f"--problems: {text!r} is not ROWS,WIDTH,HIDDEN:{{{','.join(FORMS)}}}")
        numbers = options.sizes(parser, "--problems", sizes, "ROWS,WIDTH,HIDDEN")
        if numbers[2] % args.blocks:
            parser.error(f"--blocks: {args.blocks} does not divide the {numbers[2]} of {text!r}")
        problems.append((text, tuple(numbers), form))
    args.problems = problems
    return args


def operands(sizes: Sequence[int], form: str, args: argparse.Namespace) -> Operands:
    rows, width, hidden = sizes
    shapes = {"x": (rows, width), "up": (width, hidden), "down": (hidden, width)}
    shapes |= {"gate": (width, hidden)} if form == "swiglu" else {}
    shapes |= {} if form == "swiglu" else {"up bias": (hidden,), "down bias": (width,)}
    keys = jax.random.split(jax.random.key(args.seed), len(shapes))
    made = {}
    for key, (name, shape) in zip(keys, shapes.items(), strict=True):
        scale = shape[0] ** -0.5 if name in ("up", "gate", "down") else 1.0
        made[name] = (jax.random.normal(key, shape) * scale).astype(args.dtype)
    return made


def as_written(form: str, a: Operands) -> jax.Array:
    """The layers as users write them."""
    if form == "swiglu":
        return (jax.nn.silu(a["x"] @ a["gate"]) * (a["x"] @ a["up"])) @ a["down"]
    return jax.nn.gelu(a["x"] @ a["up"] + a["up bias"]) @ a["down"] + a["down bias"]


def columns(form: str, args: argparse.Namespace) -> dict[str, Callable[[Operands], jax.Array]]:
    import jax_bwgemm

    def ours(recompute: bool | int, a: Operands) -> jax.Array:
        rest = {"recompute": recompute, "implementation": options.implementation_of(args)}
        if form == "swiglu":
            pair = a["gate"], a["up"]
            return jax_bwgemm.mlp(a["x"], pair, a["down"], activation="silu", **rest)
        biases = {"up_bias": a["up bias"], "down_bias": a["down bias"]}
        return jax_bwgemm.mlp(a["x"], a["up"], a["down"], **biases, **rest)

    plain = functools.partial(as_written, form)
    return {
        "mlp": functools.partial(ours, False),
        "mlp recomputed": functools.partial(ours, True),
        "mlp in blocks": functools.partial(ours, args.blocks),
        "xla": plain,
        "xla checkpoint": jax.checkpoint(plain),
    }


def measure(problem: Any, args: argparse.Namespace, out: report.Report, timer: Any) -> list[dict]:
    """A row for each column."""
    text, sizes, form = problem
    a = operands(sizes, form, args)
    candidates = []
    for name, function in columns(form, args).items():
        loss = lambda a, f=function: jnp.mean(f(a).astype(jnp.float32) ** 2)  # noqa: E731
        compiled = jax.jit(jax.value_and_grad(loss)).lower(a).compile()
        memory = compiled.memory_analysis().temp_size_in_bytes / 2**30
        info = {"temporary_gb": memory, "loss": float(compiled(a)[0])}
        call = lambda _, f=compiled: f(a)  # noqa: E731
        candidates.append(timing.Candidate(name, call, jax.block_until_ready, info=info))
    found = timing.interleave(
        timer, candidates, rounds=args.rounds, burst=args.burst, turn_ms=args.turn_ms
    )
    flops = 6 * sizes[0] * sizes[1] * sizes[2] * (3 if form == "swiglu" else 2)
    rows = []
    for candidate, times in zip(candidates, found, strict=True):
        stats = report.summarise(times.times_us)
        rows.append(
            out.add(
                "mlp",
                problem=text,
                impl=candidate.name,
                dtype=args.dtype,
                method=timer.method,
                tflops=flops / stats["median_us"] / 1e6,
                kernels=times.kernels,
                **candidate.info,
                **stats,
            )
        )
    return rows


def summary(rows: Sequence[dict]) -> list[str]:
    """XLA's time and memory over ours, by problem."""
    by = {(r["problem"], r["impl"]): r for r in rows}
    lines = []
    for problem in dict.fromkeys(r["problem"] for r in rows):
        ours, xla = by[problem, "mlp"], by[problem, "xla"]
        lines.append(f"{problem}: xla time / mlp time {xla['median_us'] / ours['median_us']:.3f}")
        for name in ("mlp recomputed", "mlp in blocks"):
            row = by[problem, name]
            memory = row["temporary_gb"] / max(xla["temporary_gb"], 1e-9)
            time = xla["median_us"] / row["median_us"]
            lines[-1] += f"; {name} {time:.3f}, memory {memory:.2f} of xla's"
    return lines


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_args(argv)
    if args.dry_run:
        print(*(text for text, _, _ in args.problems), sep="\n")
        return 0
    platform = options.prepare(args)
    out = report.Report(args.out, "bench_mlp")
    timer = timing.make_timer("auto", platform)
    rows = []
    for problem in args.problems:
        out.progress(f"{problem[0]}: {options.turns(args)}")
        rows += measure(problem, args, out, timer)
    out.close()
    shown = ("problem", "impl", "median_us", "tflops", "temporary_gb", "loss", "spread")
    print(report.table(rows, shown))
    print(*summary(rows), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
