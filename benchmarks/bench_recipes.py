"""A layer's training step in 16 bits and by recipes, beside what is predicted of both.

    python bench_recipes.py
    python bench_recipes.py --layers 16384,768,3072 32768,2048,1024,64 --recipes blockwise_2d
    python bench_recipes.py --write h200      # a record: benchmarks/costs/recipes

A layer is x[ROWS, DEPTH] @ w[DEPTH, COLUMNS], or rows sorted by expert times one matrix for each of
EXPERTS. A step is the product and both gradients; by a recipe it also quantizes x, w and the
cotangent. `autocast(only="faster")` takes 8 bits where they are predicted to be faster: `loses` is
the time of that choice over the shorter one.
"""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from common import options, report, timing
from scaled import recipe_choice
from scaled.recipe_choice import USUAL, Layer

import jax_bwgemm as bw

LAYERS = (
    Layer(16384, 768, 768),
    Layer(16384, 768, 3072),
    Layer(8192, 1024, 4096),
    Layer(8192, 2048, 2048),
    Layer(4096, 4096, 4096),
    Layer(8192, 4096, 14336),
    Layer(1024, 4096, 14336),
    Layer(2048, 2048, 2048),
    Layer(32768, 2048, 2048, 64),
    Layer(32768, 4096, 7168, 8),
)
SMALL = (Layer(128, 128, 256), Layer(128, 128, 256, 2))
RECIPES = ("per_tensor", "blockwise", "blockwise_2d")
DIMENSIONS = (((1,), (0,)), ((), ()))


def parse_args(argv: Sequence[str] | None):
    parser = options.parser(__doc__.split("\n", 1)[0])
    options.add_turns(parser, rounds=5)
    parser.add_argument("--recipes", nargs="+", choices=RECIPES, default=[*RECIPES])
    parser.add_argument("--layers", nargs="+", metavar="ROWS,DEPTH,COLUMNS[,EXPERTS]")
    parser.add_argument("--write", metavar="NAME", help=f"record as {recipe_choice.DATA}/NAME.json")
    args = parser.parse_args(argv)
    if args.layers:
        args.layers = [_layer(parser, text) for text in args.layers]
    else:
        args.layers = list(SMALL if args.small else LAYERS)
    if args.small:
        args.rounds, args.burst = 2, 1
    return args


def _layer(parser: Any, text: str) -> Layer:
    form = "ROWS,DEPTH,COLUMNS" + ",EXPERTS" * (text.count(",") == 3)
    return Layer(*options.sizes(parser, "--layers", text, form))


def steps(layer: Layer, args: Any) -> dict[str, Callable[..., Any]]:
    """Result and gradients from cotangent, x and w, by every way."""
    ours = options.implementation_of(args)
    if layer.experts:
        sizes = jnp.full(layer.experts, layer.rows // layer.experts, jnp.int32)
        usual, low, what = bw.ragged_dot, bw.fp8_ragged_dot, {"group_sizes": sizes}
    else:
        usual, low, what = bw.dot_general, bw.fp8_dot_general, {"dimension_numbers": DIMENSIONS}
    products = {USUAL: functools.partial(usual, implementation=ours)}
    products |= {name: low(name, implementation=ours) for name in args.recipes}

    def step(dot: Any, g: jax.Array, x: jax.Array, w: jax.Array) -> Any:
        out, back = jax.vjp(lambda x, w: dot(x, w, **what), x, w)
        return out, *back(g)

    return {name: functools.partial(step, dot) for name, dot in products.items()}


def measure(layer: Layer, args: Any, out: report.Report, timer: Any) -> dict[str, float]:
    """Median microseconds of every way, in turns."""
    matrices = (layer.experts,) if layer.experts else ()
    shapes = (
        (layer.rows, layer.columns),
        (layer.rows, layer.depth),
        (*matrices, layer.depth, layer.columns),
    )
    keys = jax.random.split(jax.random.key(args.seed), len(shapes))
    factors = (1.0, 1.0, layer.depth**-0.5)
    operands = [
        (jax.random.normal(key, shape) * factor).astype(args.dtype)
        for key, shape, factor in zip(keys, shapes, factors, strict=True)
    ]
    # What a call reads must not be in L2 from the call before.
    nbytes = sum(x.nbytes for x in operands)
    copies = [[jnp.copy(x) for x in operands] for _ in range(timing.copies_for(nbytes))]
    candidates = []
    for name, step in steps(layer, args).items():
        compiled = jax.jit(step).lower(*operands).compile()
        candidates.append(
            timing.Candidate(
                name,
                lambda i, compiled=compiled: compiled(*copies[i]),
                jax.block_until_ready,
                copies=len(copies),
            )
        )
        timing.warm_up(candidates[-1])
    timings = timing.interleave(
        timer, candidates, rounds=args.rounds, burst=args.burst, turn_ms=args.turn_ms
    )
    found = {}
    for one, times in zip(candidates, timings, strict=True):
        stats = report.summarise(times.times_us)
        found[one.name] = stats["median_us"]
        out.add("recipe", layer=str(layer), impl=one.name, method=timer.method, **stats)
    return found


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_args(argv)
    if args.dry_run:
        for layer in args.layers:
            print(f"{layer}: {', '.join(args.recipes)}")
        return 0
    platform = options.prepare(args)
    out = report.Report(args.out, "bench_recipes")
    timer = timing.make_timer("auto", platform)
    rows, kept, losses = [], [], []
    for layer in args.layers:
        out.progress(f"{layer}: {options.turns(args)}")
        us = measure(layer, args, out, timer)
        kept.append({"layer": layer, "us": {name: round(x, 1) for name, x in us.items()}})
        for recipe in args.recipes:
            row = {"layer": str(layer), "recipe": recipe, USUAL: us[USUAL], "8 bits": us[recipe]}
            row |= {"speedup": us[USUAL] / us[recipe]}
            row |= {"predicted": recipe_choice.predicted(layer, recipe)}
            row |= {"loses": recipe_choice.regret(layer, recipe, us)}
            losses.append(row["loses"])
            rows.append(row)
    out.close()
    print(report.table(rows, tuple(rows[0])))
    print(f"the choice takes {report.geomean(losses):.3f} of the best, at most {max(losses):.2f}")
    if args.write:
        what = f"bench_recipes.py on {jax.devices()[0].device_kind}: median microseconds"
        lines = ",\n".join(json.dumps(x) for x in kept)
        path = recipe_choice.DATA / f"{args.write}.json"
        path.write_text(f'{{"what": {json.dumps(what)}, "layers": [\n{lines}\n]}}\n')
    return 0


if __name__ == "__main__":
    sys.exit(main())
