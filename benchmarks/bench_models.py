"""Training steps of whole models: XLA's, `accelerate` around the same code, and two more.

    python bench_models.py
    python bench_models.py --models gpt2-124m --logits float32
    python bench_models.py --models llama-8b-layers --recipes per_tensor blockwise

Column *loss* is `accelerate` around the model with `linear_softmax_cross_entropy_loss` in the place
of its last product and loss. Column *all* calls `jax_bwgemm.dot_general` in the model, so that XLA
can fuse nothing into any product: what `accelerate` leaves to XLA is the difference to it. With
``--recipes``, each has a column with all layers but the last in low precision: `autocast` around
the loss, `accelerate` around the step; and one with those of them that are predicted to be faster.
Kernel time of a step is that of all its kernels.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import sys
from collections.abc import Sequence

import jax
from common import options, report, timing
from models.transformer import MODELS, Model, dot_by, init, make_step

# Relative. Losses are near log(vocabulary); products of bf16 round by 2^-9, here through a few
# dozen layers, and of low precision by 2^-4.
LOSS_BOUND = 1e-2


def parse_args(argv: Sequence[str] | None):
    parser = options.parser(__doc__.split("\n", 1)[0])
    names = [model.name for model in MODELS]
    parser.add_argument("--models", nargs="+", choices=names, default=names)
    parser.add_argument("--logits", choices=options.DTYPES, help="type of the logits")
    recipes = ("per_tensor", "blockwise", "blockwise_2d", "mxfp8")
    parser.add_argument("--recipes", nargs="+", choices=recipes, default=[])
    parser.add_argument("--rounds", type=options.positive, default=5)
    return parser.parse_args(argv)


def measure(model: Model, args: argparse.Namespace, out: report.Report, timer) -> list[dict]:
    """A row for each column."""
    import jax_bwgemm

    weights = init(model, args.dtype, args.seed)
    shape = (model.batch, model.sequence)
    tokens = jax.random.randint(jax.random.key(args.seed + 1), shape, 0, model.vocabulary)
    attention = "xla" if timer.method == "wall" else "cudnn"
    plain = make_step(model, dot_by(jax.lax.dot_general), attention, args.logits)
    allowed = None if args.implementation in ("cutlass", "auto") else args.implementation
    accelerated = jax_bwgemm.accelerate(plain, implementation=allowed)
    ours = functools.partial(jax_bwgemm.dot_general, implementation=allowed)
    by_hand = make_step(model, dot_by(ours), attention, args.logits)
    head_loss = functools.partial(
        jax_bwgemm.linear_softmax_cross_entropy_loss, reduction="mean", implementation=allowed
    )
    with_loss = make_step(model, dot_by(jax.lax.dot_general), attention, args.logits, head_loss)
    steps = {
        "xla": plain,
        "accelerate": accelerated,
        "loss": jax_bwgemm.accelerate(with_loss, implementation=allowed),
        "all": by_hand,
    }
    which = {
        "": lambda p: p.scope != "head",
        ", faster": lambda p: p.scope != "head" and p.speedup > 1,
    }
    for (how, only), recipe in itertools.product(which.items(), args.recipes):
        low = jax_bwgemm.autocast(recipe=recipe, only=only, implementation=allowed)
        step = make_step(model, dot_by(jax.lax.dot_general), attention, args.logits, change=low)
        steps[recipe + how] = jax_bwgemm.accelerate(step, implementation=allowed)
    decisions = jax_bwgemm.explain_program(accelerated, weights, tokens).rewrites
    rewritten = sum(one.times for one in decisions if one.rewritten)
    losses, found = {}, []
    for name, step in steps.items():
        compiled = jax.jit(step).lower(weights, tokens).compile()
        losses[name] = float(compiled(weights, tokens)[0])
        found.append(
            timing.Candidate(name, lambda _, f=compiled: f(weights, tokens), jax.block_until_ready)
        )
    for candidate in found:
        timing.warm_up(candidate, 0.0 if args.small else 0.2)
    rounds = 2 if args.small else args.rounds
    rows = []
    for candidate, times in zip(
        found, timing.interleave(timer, found, rounds=rounds, burst=1), strict=True
    ):
        name, stats = candidate.name, report.summarise(times.times_us)
        rows.append(
            out.add(
                "model",
                model=model.name,
                impl=name,
                dtype=args.dtype,
                logits=args.logits,
                method=timer.method,
                loss=losses[name],
                rewritten=rewritten if name == "accelerate" else None,
                products=sum(one.times for one in decisions),
                kernels=len(times.kernels),
                tflops=model.step_flops / stats["median_us"] / 1e6,
                **stats,
            )
        )
    return rows


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_args(argv)
    chosen = [model.tiny if args.small else model for model in MODELS if model.name in args.models]
    if args.dry_run:
        for model in chosen:
            print(f"{model}: {model.step_flops / 1e12:.3g} TFLOP a step")
        return 0
    timer = timing.CuptiTimer() if options.prepare(args) == "gpu" else timing.WallTimer()
    out = report.Report(args.out, "bench_models")
    rows, bad = [], []
    for model in chosen:
        xla, accelerated, with_loss, ours, *low = found = measure(model, args, out, timer)
        rows += found
        print(
            f"{model.name}: {accelerated['rewritten']} of {xla['products']} products rewritten; "
            f"xla's time over accelerate's {xla['median_us'] / accelerated['median_us']:.3f}, "
            f"over that with our loss {xla['median_us'] / with_loss['median_us']:.3f}, "
            f"over that with all products ours {xla['median_us'] / ours['median_us']:.3f}"
            + "".join(f", {one['impl']} {xla['median_us'] / one['median_us']:.3f}" for one in low),
            flush=True,
        )
        for row in (accelerated, with_loss, *low):
            if not abs(row["loss"] - xla["loss"]) <= LOSS_BOUND * abs(xla["loss"]):
                bad.append(f"{model.name}: loss {row['loss']} instead of {xla['loss']}")
    out.close()
    print(report.table(rows, ("model", "impl", "median_us", "tflops", "loss", "spread")))
    for line in bad:
        print(f"error: {line}", file=sys.stderr)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
