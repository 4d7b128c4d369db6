"""The last layer of a language model and its cross-entropy: this package's loss and XLA's.

    python bench_loss.py                    # forward, and forward with both gradients

Columns: `stored` and `recomputed` are the two forms of `linear_softmax_cross_entropy_loss`; `xla
f32` and `xla 16-bit` write logits of these types as users do; `xla chunks` computes f32 logits of
1024 rows at a time, twice. `tokamax` is its chunked XLA form, where that package is installed.

Errors are against `xla f32` with `precision="highest"` on f32 operands: of the value, and of the
gradients the largest over the root mean square.
"""

from __future__ import annotations

import functools
import importlib.util
import sys
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from common import options, report, timing
from dense import losses


def parse_args(argv: Sequence[str] | None):
    parser = options.parser(__doc__.split("\n", 1)[0])
    options.add_turns(parser, rounds=5)
    parser.add_argument("--columns", nargs="+", metavar="NAME", help="only these (default: all)")
    form = "ROWS,WIDTH,VOCABULARY"
    problem, usual, small = losses.LossProblem, losses.PROBLEMS, losses.SMALL
    return options.parse_problems(parser, argv, form, problem, usual, small)


def columns(args) -> dict:
    """Every column's loss: a function of x, labels and weights."""
    from jax_bwgemm import linear_softmax_cross_entropy_loss

    ours = functools.partial(
        linear_softmax_cross_entropy_loss,
        reduction="mean",
        implementation=options.implementation_of(args),
    )
    found = {
        "stored": functools.partial(ours, logits="stored"),
        "recomputed": functools.partial(ours, logits="recomputed"),
        "xla f32": losses.as_written(jnp.float32),
        "xla 16-bit": losses.as_written(None),
        "xla chunks": losses.in_chunks,
    }
    if importlib.util.find_spec("tokamax") is not None:
        import tokamax

        found["tokamax"] = functools.partial(
            tokamax.linear_softmax_cross_entropy_loss, reduction="mean"
        )
    if unknown := set(args.columns or ()) - set(found):
        raise SystemExit(f"no columns {sorted(unknown)}; there are {', '.join(found)}")
    return {name: loss for name, loss in found.items() if name in (args.columns or found)}


def exact(x: jax.Array, labels: jax.Array, weights: jax.Array):
    """Value and gradients of f32 operands by exact f32 products, in chunks."""
    with jax.default_matmul_precision("highest"):
        wide = x.astype(jnp.float32), labels, weights.astype(jnp.float32)
        return jax.jit(jax.value_and_grad(losses.in_chunks, (0, 2)))(*wide)


def measure(problem: losses.LossProblem, args, out: report.Report, timer) -> list[dict]:
    """One problem's rows: every column, forward and forward with gradients."""
    keys = jax.random.split(jax.random.key(args.seed), 3)
    x = jax.random.normal(keys[0], (problem.rows, problem.width)).astype(args.dtype)
    weights = jax.random.normal(keys[1], (problem.width, problem.vocabulary), args.dtype)
    weights *= jnp.asarray(problem.width**-0.5, args.dtype)
    labels = jax.random.randint(keys[2], (problem.rows,), 0, problem.vocabulary)
    value, gradients = jax.device_get(exact(x, labels, weights))
    candidates = []
    for name, loss in columns(args).items():
        both = jax.value_and_grad(loss, (0, 2))
        for what, function in (("forward", loss), ("forward+backward", both)):
            compiled = jax.jit(function).lower(x, labels, weights).compile()
            info = {
                "what": what,
                "temporary_gb": compiled.memory_analysis().temp_size_in_bytes / 2**30,
            }
            result = compiled(x, labels, weights)
            if what == "forward+backward":
                info["value_error"] = abs(float(result[0]) - float(value))
                info["gradient_error"] = losses.gradient_errors(result[1], gradients)
            del result
            call = functools.partial(_call, compiled, (x, labels, weights))
            candidates.append(timing.Candidate(name, call, jax.block_until_ready, info=info))
    timings = timing.interleave(
        timer, candidates, rounds=args.rounds, burst=args.burst, turn_ms=args.turn_ms
    )
    rows = []
    for candidate, found in zip(candidates, timings, strict=True):
        stats = report.summarise(found.times_us)
        products = 1 if candidate.info["what"] == "forward" else 3
        rows.append(
            out.add(
                "loss",
                impl=candidate.name,
                problem=str(problem),
                dtype=args.dtype,
                method=timer.method,
                tflops=products * problem.product_flops / stats["median_us"] / 1e6,
                kernels=found.kernels,
                turn_ms=args.turn_ms,
                **candidate.info,
                **stats,
            )
        )
    return rows


def _call(compiled, operands, copy: int):
    del copy
    return compiled(*operands)


def summary(rows: Sequence[dict]) -> list[str]:
    """XLA's time over ours, geometric means over the problems."""
    times = {(r["impl"], r["what"], r["problem"]): r["median_us"] for r in rows}
    problems = sorted({r["problem"] for r in rows})
    peers = [n for n in dict.fromkeys(r["impl"] for r in rows) if n not in ("stored", "recomputed")]
    lines = []
    for what in ("forward", "forward+backward"):
        for ours in [n for n in ("stored", "recomputed") if n in {r["impl"] for r in rows}]:
            for peer in peers:
                ratios = [times[peer, what, p] / times[ours, what, p] for p in problems]
                mean = report.geomean(ratios)
                lines.append(
                    f"{what}: {peer} time / {ours} time {mean:.3f}, least {min(ratios):.3f}"
                )
    return lines


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_args(argv)
    if args.dry_run:
        for problem in args.problems:
            print(f"{problem}: {3 * problem.product_flops / 1e12:.2f} TFLOP in three products")
        return 0
    platform = options.prepare(args)
    out = report.Report(args.out, "bench_loss")
    timer = timing.make_timer("auto", platform)
    rows = []
    for problem in args.problems:
        out.progress(f"{problem}: {options.turns(args)}")
        rows += measure(problem, args, out, timer)
        shown = [r for r in rows if r["problem"] == str(problem)]
        print(
            report.table(
                shown,
                (
                    *("problem", "impl", "what", "median_us", "tflops", "spread"),
                    *("temporary_gb", "value_error", "gradient_error"),
                ),
            )
        )
    out.close()
    print(*summary(rows), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
