"""Gated linear units: both products in one kernel, as products and a pass, and by XLA.

    python bench_gated.py                   # every problem, the layer alone and with its products
    python bench_gated.py --kernels         # also every kernel of both products

A problem is M,N,K, each of the two weight matrices being [K, N]. Columns: `stacked` and `pair` are
`gated_linear_unit` of either form of the weights, `unfused` is the first without linked epilogues,
`product` our product of the stacked weights alone, `xla` the layer as users write it. `kept` layers
also return both products, as a forward pass does whose backward pass needs them.
"""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any

import bench_linear
import jax
import jax.numpy as jnp
from bench_linear import Layer, formula
from common import compiling, options, report, timing
from dense import layer_columns

ACTIVATIONS = ("silu", "gelu")


def parse_args(argv: Sequence[str] | None):
    parser = options.parser(__doc__.split("\n", 1)[0])
    options.add_turns(parser, rounds=5)
    parser.add_argument("--activations", nargs="+", choices=ACTIVATIONS, default=ACTIVATIONS[:1])
    parser.add_argument("--products", choices=("alone", "kept", "both"), default="both")
    parser.add_argument("--kernels", action="store_true", help="every kernel of both products, too")
    usual, small = bench_linear.LAYERS, bench_linear.SMALL
    return options.parse_problems(parser, argv, "M,N,K", Layer, usual, small)


def columns(args, activation: str, kept: bool) -> dict[str, Callable[..., Any]]:
    """Every column: a function of x and of the stacked weights, then of each of them."""
    import jax_bwgemm
    from jax_bwgemm import config, runtime
    from jax_bwgemm.epilogue.apply import Epilogue
    from jax_bwgemm.epilogue.gated_layer import gated_product

    implementation = options.implementation_of(args)
    function = formula(activation)
    epilogue = Epilogue(lambda gate, up: function(gate) * up.astype(jnp.float32), "bench_gated")

    def ours(form: str, x, both, gate, up, *, linked: bool = True, kernel: str | None = None):
        weights = both if form == "stacked" else (gate, up)
        with config.linked_epilogues(linked):
            return gated_product(
                x,
                weights,
                epilogue,
                keeps_products=kept,
                implementation=implementation,
                config=kernel,
            )

    def xla(x, both, gate, up):
        gates, ups = x @ gate, x @ up
        hidden = function(gates) * ups
        return (hidden, gates, ups) if kept else hidden

    def product(x, both, gate, up):
        k, _, n = both.shape
        return jax_bwgemm.matmul(x, both.reshape(k, 2 * n), implementation=implementation)

    found = {
        "stacked": functools.partial(ours, "stacked"),
        "pair": functools.partial(ours, "pair"),
        "unfused": functools.partial(ours, "stacked", linked=False),
        "product": product,
        "xla": xla,
    }
    if args.kernels and implementation != "xla":
        name = "emulator" if implementation == "emulator" else "cutlass"
        for kernel in runtime.gated_kernels(name):
            if kernel.a_dtype == args.dtype:
                tile = kernel.name.split("_kn_")[1].removesuffix("_pingpong_swap_gated")
                found[tile] = functools.partial(ours, "stacked", kernel=kernel.name)
    return found


@dataclasses.dataclass(frozen=True)
class Case:
    """A layer, and what it returns."""

    layer: Layer
    activation: str
    kept: bool

    def __str__(self) -> str:
        return f"{self.activation}{', products kept' if self.kept else ''}"


def cases(args) -> list[Case]:
    """What is measured."""
    forms = {"alone": [False], "kept": [True], "both": [False, True]}[args.products]
    return [Case(p, a, kept) for p in args.problems for a in args.activations for kept in forms]


def operands(layer: Layer, args, key: jax.Array) -> list[jax.Array]:
    """x, the stacked weights, and each of them."""
    keys = jax.random.split(key, 2)
    x = jax.random.normal(keys[0], (layer.m, layer.k)).astype(args.dtype)
    both = jax.random.normal(keys[1], (layer.k, 2, layer.n)) * layer.k**-0.5
    both = both.astype(args.dtype)
    return [x, both, both[:, 0], both[:, 1]]


def error_of(case: Case, hidden: jax.Array, x: jax.Array, *weights: jax.Array) -> jax.Array:
    """The largest error of a result over the root mean square of what is exact in float32."""
    x, _, gate, up = (v.astype(jnp.float32) for v in (x, *weights))
    gates, ups = (jnp.dot(x, w, precision="highest") for w in (gate, up))
    exact = formula(case.activation)(gates) * ups
    return jnp.max(jnp.abs(hidden.astype(jnp.float32) - exact)) / jnp.sqrt(jnp.mean(exact**2))


def compiled_programs(args) -> dict[Any, compiling.Compiled]:
    """Of every case its columns, by name, and its error; of every layer its operands."""
    programs: dict[Any, Any] = {}
    of_layer = {}
    for layer in args.problems:
        key = jax.eval_shape(lambda: jax.random.key(0))
        function = functools.partial(operands, layer, args)
        programs[layer] = function, [key]
        of_layer[layer] = jax.eval_shape(function, key)
    for case in cases(args):
        types = of_layer[case.layer]
        hidden = jax.ShapeDtypeStruct((case.layer.m, case.layer.n), types[0].dtype)
        programs[case, layer_columns.ERROR] = functools.partial(error_of, case), [hidden, *types]
        for name, function in columns(args, case.activation, case.kept).items():
            programs[case, name] = function, types
    xla = ("xla", layer_columns.ERROR)
    return compiling.side_by_side(programs, lambda key: isinstance(key, tuple) and key[1] in xla)


def measure(case: Case, programs, args, out, timer) -> list[dict]:
    """One case's rows."""
    layer = case.layer
    size = layer.bytes + 2 * layer.k * layer.n + (4 * layer.m * layer.n if case.kept else 0)
    copies = 2 if args.small else timing.copies_for(size)
    arrays = [programs[layer].call(jax.random.key(args.seed + i)) for i in range(copies)]
    names = list(columns(args, case.activation, case.kept))
    describe = lambda text: {"kernel": _kernel_of(text)}  # noqa: E731
    return layer_columns.measure("gated", case, names, programs, arrays, describe, args, out, timer)


def _kernel_of(text: str) -> str:
    """The kernel of both products that a program calls; ``""``: none."""
    names = [part.split('"')[0] for part in text.split('kernel = "')[1:]]
    return next((name.split("_kn_")[1] for name in names if name.endswith("_gated")), "")


def summary(rows: Sequence[dict]) -> list[str]:
    """The layer against XLA's, by form."""
    lines = []
    for layer in dict.fromkeys(r["layer"] for r in rows):
        for form in ("stacked", "pair"):
            ours = [r for r in rows if r["layer"] == layer and r["impl"] == form]
            ratios, costs = [r["xla_over"] for r in ours], [r["of_product"] for r in ours]
            lines.append(
                f"{layer}, {form}: {sum(bool(r['kernel']) for r in ours)} of {len(ours)} in one "
                f"kernel; of the product {report.geomean(costs):.3f}; xla over it "
                f"{report.geomean(ratios):.3f}, least {min(ratios):.3f}"
            )
    return lines


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_args(argv)
    if args.dry_run:
        for layer in args.problems:
            print(f"{layer}: {4 * layer.m * layer.n * layer.k / 1e12:.2f} TFLOP")
        return 0
    platform = options.prepare(args)
    out = report.Report(args.out, "bench_gated")
    timer = timing.make_timer("auto", platform)
    programs = compiled_programs(args)
    rows = []
    for case in cases(args):
        out.progress(f"{case.layer} {case}: {options.turns(args)}")
        shown = measure(case, programs, args, out, timer)
        rows += shown
        print(
            report.table(
                shown,
                ("problem", "layer", "impl", "kernel", "median_us", "of_product", "xla_over",
                 "error", "spread"),
            )
        )  # fmt: skip
    out.close()
    print(*summary(rows), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
