"""A training step of an MLP: in bf16 by XLA and by our kernels, and by each recipe.

    python bench_low_precision.py
    python bench_low_precision.py --problems 8192,4096,14336 --recipes blockwise
    python bench_low_precision.py --layer gelu --problems 16384,768,3072
    python bench_low_precision.py --problems 32768,4096,3584 --experts 8   # rows sorted by expert

The layer is x @ W1 [D, 2F], silu(gate) * up, @ W2 [F, D]; or x @ W1 [D, F] + b1, gelu, @ W2 [F, D]
+ b2. The step computes it and the gradients of x, weights and biases from a cotangent.
Quantization, forward and backward, is included. Each recipe is also measured within
`jax_bwgemm.accelerate`. `decibels` is the gradient of W1's distance from that of XLA's bf16.
"""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from common import options, report, timing
from grouped.problems import group_sizes
from jax import lax

import jax_bwgemm as bw


class Problem(NamedTuple):
    """Sizes of a layer."""

    rows: int
    d: int
    f: int

    def __str__(self) -> str:
        return f"{self.rows},{self.d},{self.f}"


PROBLEMS = (Problem(8192, 4096, 14336),)
SMALL = (Problem(128, 128, 256),)
RECIPES: dict[str, str | bw.Recipe] = {
    name: name for name in ("per_tensor", "per_tensor_delayed", "blockwise", "blockwise_2d")
}
# Gradients too with the hardware's accumulators.
RECIPES["per_tensor fast"] = bw.Recipe(
    "tensor",
    "tensor",
    "tensor",
    gradient_dtype="float8_e5m2",
    forward_accumulation="fast",
    gradient_accumulation="fast",
)
DIMENSIONS = (((1,), (0,)), ((), ()))

Step = Callable[..., Any]


def parse_args(argv: Sequence[str] | None):
    parser = options.parser(__doc__.split("\n", 1)[0])
    options.add_turns(parser, rounds=10)
    parser.add_argument("--recipes", nargs="+", choices=tuple(RECIPES), default=[*RECIPES])
    parser.add_argument("--layer", choices=tuple(LAYERS), default="swiglu")
    parser.add_argument("--experts", type=int, default=0, help="that the rows are divided among")
    return options.parse_problems(parser, argv, "ROWS,D,F", Problem, PROBLEMS, SMALL)


def swiglu(dot: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    """A function of x and weights, its products by `dot` of rows and weights."""

    def layer(x: jax.Array, w1: jax.Array, w2: jax.Array, *histories: Any) -> jax.Array:
        first, second = ({"amax_history": h} for h in histories) if histories else ({}, {})
        gate, up = jnp.split(dot(x, w1, **first), 2, axis=1)
        return dot(jax.nn.silu(gate) * up, w2, **second)

    return layer


def gelu(dot: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    """The same of x, weights and biases."""

    def layer(
        x: jax.Array, w1: jax.Array, w2: jax.Array, b1: jax.Array, b2: jax.Array, *histories: Any
    ) -> jax.Array:
        first, second = ({"amax_history": h} for h in histories) if histories else ({}, {})
        return dot(jax.nn.gelu(dot(x, w1, **first) + b1), w2, **second) + b2

    return layer


LAYERS = {"swiglu": swiglu, "gelu": gelu}


def shapes(name: str, problem: Problem, experts: int) -> tuple[tuple[int, ...], ...]:
    """Of the cotangent, x, weights and biases."""
    rows, d, f = problem
    matrices = (experts,) if experts else ()
    wide, biases = (2 * f, ()) if name == "swiglu" else (f, ((f,), (d,)))
    return ((rows, d), (rows, d), (*matrices, d, wide), (*matrices, f, d), *biases)


def flops_of(name: str, problem: Problem) -> int:
    """Of the products of a step: each once forward, twice backward."""
    return (18 if name == "swiglu" else 12) * math.prod(problem)


def stepper(function: Callable[..., jax.Array], *state: Any) -> Step:
    """Result, gradients and new states."""

    def step(g: jax.Array, *args: jax.Array) -> Any:
        out, back = jax.vjp(function, *args, *state)
        return out, *back(g)

    return step


def steps(args: Any, sizes: jax.Array | None) -> dict[str, Step]:
    """Every way. sizes: rows of each expert, if there are any."""
    ours, layer = options.implementation_of(args), LAYERS[args.layer]
    products: tuple[Any, ...] = (lax.dot_general, bw.dot_general, bw.fp8_dot_general)
    what: dict[str, Any] = {"dimension_numbers": DIMENSIONS}
    if sizes is not None:
        products, what = (lax.ragged_dot, bw.ragged_dot, bw.fp8_ragged_dot), {"group_sizes": sizes}
    xla, own, low = products
    found = {
        "xla bf16": stepper(layer(functools.partial(xla, **what))),
        "bwgemm bf16": stepper(layer(functools.partial(own, **what, implementation=ours))),
    }
    for recipe in args.recipes:
        dot = low(RECIPES[recipe], implementation=ours)
        delayed = recipe.endswith("delayed")
        state = (dot.new_history() + 4.0,) * 2 if delayed else ()
        found[recipe] = stepper(layer(functools.partial(dot, **what)), *state)
        found[f"{recipe}, accelerate"] = bw.accelerate(found[recipe])
    return found


def decibels(got: jax.Array, want: jax.Array) -> float:
    got, want = (np.asarray(x, np.float32).astype(np.float64) for x in (got, want))
    return float(10 * np.log10(np.sum(want**2) / max(np.sum((got - want) ** 2), 1e-30)))


def measure(problem: Problem, args: Any, out: report.Report, timer: Any) -> list[dict]:
    """One problem's rows: every way in turns."""
    _, d, f = problem
    sizes = None
    if args.experts:
        sizes = jnp.asarray(group_sizes("random", problem.rows, args.experts, args.seed))
    wanted = shapes(args.layer, problem, args.experts)
    keys = jax.random.split(jax.random.key(args.seed), len(wanted))
    scales = (1, 1, d**-0.5, f**-0.5, 1, 1)
    operands = [
        (jax.random.normal(k, s) * c).astype(args.dtype)
        for k, s, c in zip(keys, wanted, scales, strict=False)
    ]
    candidates, first = [], None
    for name, step in steps(args, sizes).items():
        compiled = jax.jit(step).lower(*operands).compile()
        one = timing.Candidate(
            name, lambda i, compiled=compiled: compiled(*operands), jax.block_until_ready
        )
        timing.warm_up(one)
        gradient = compiled(*operands)[2]
        first = gradient if first is None else first
        one.info["decibels"] = decibels(gradient, first)
        candidates.append(one)
    timings = timing.interleave(
        timer, candidates, rounds=args.rounds, burst=args.burst, turn_ms=args.turn_ms
    )
    found: list[dict] = []
    for one, times in zip(candidates, timings, strict=True):
        stats = report.summarise(times.times_us)
        found.append(
            out.add(
                "low_precision",
                impl=one.name,
                problem=str(problem) + f",{args.experts}" * bool(args.experts),
                method=timer.method,
                tflops=flops_of(args.layer, problem) / stats["median_us"] / 1e6,
                speedup=(found[0]["median_us"] if found else stats["median_us"])
                / stats["median_us"],
                kernels=times.kernels,
                turn_ms=args.turn_ms,
                **one.info,
                **stats,
            )
        )
    return found


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_args(argv)
    if args.dry_run:
        for problem in args.problems:
            flops = flops_of(args.layer, problem)
            print(f"{problem}: {flops / 1e12:.2f} TFLOP, {', '.join(args.recipes)}")
        return 0
    platform = options.prepare(args)
    out = report.Report(args.out, "bench_low_precision")
    timer = timing.make_timer("auto", platform)
    for problem in args.problems:
        out.progress(f"{problem}: {options.turns(args)}")
        rows = measure(problem, args, out, timer)
        columns = ("problem", "impl", "median_us", "tflops", "speedup", "spread", "decibels")
        print(report.table(rows, columns))
    out.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
