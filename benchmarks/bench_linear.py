"""Linear layers: bias, activation, residual. Linked into the kernel, after it, and by XLA.

    python bench_linear.py                  # every problem, GELU, SiLU and squared ReLU
    python bench_linear.py --kernels        # also every kernel that epilogues are linked into

Columns: `fused` is `linear` with the epilogue in the kernel, `unfused` the same with the epilogue
as a pass of XLA's, `product` our product alone, `xla` the layer as users write it. Time is that of
all kernels of a call. `fused / product` is what the epilogue costs; errors are against float32.
"""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from common import compiling, options, report, timing
from dense import layer_columns
from dense.layer_columns import Layer

ACTIVATIONS = ("gelu", "silu", "squared_relu", "none")


LAYERS = (
    Layer(8192, 14336, 4096),
    Layer(4096, 8192, 4096),
    Layer(2048, 11008, 4096),
    Layer(8192, 3072, 768),
    Layer(16384, 1024, 1024),
    Layer(512, 6144, 4096),
    Layer(16, 14336, 4096),
)
SMALL = (Layer(32, 48, 64),)


def parse_args(argv: Sequence[str] | None):
    parser = options.parser(__doc__.split("\n", 1)[0])
    options.add_turns(parser, rounds=5)
    parser.add_argument("--activations", nargs="+", choices=ACTIVATIONS, default=ACTIVATIONS[:3])
    parser.add_argument("--residual", choices=("without", "with", "both"), default="both")
    parser.add_argument("--kernels", action="store_true", help="every kernel for linking, too")
    return options.parse_problems(parser, argv, "M,N,K", Layer, LAYERS, SMALL)


def formula(name: str) -> Callable[[jax.Array], jax.Array]:
    """An activation as users write it."""
    from jax_bwgemm.epilogue.activations import ACTIVATIONS as KNOWN

    return (lambda x: x) if name == "none" else KNOWN[name]


def columns(args, activation: str, dtype: str) -> dict[str, Callable[..., jax.Array]]:
    """Every column: a function of x, w, b and perhaps a residual."""
    import jax_bwgemm
    from jax_bwgemm import config

    implementation = options.implementation_of(args)
    named = None if activation == "none" else activation

    def ours(x, w, b, *r, linked: bool, kernel: str | None = None):
        with config.linked_epilogues(linked):
            return jax_bwgemm.linear(
                x,
                w,
                b,
                activation=named,
                residual=r[0] if r else None,
                implementation=implementation,
                config=kernel,
            )

    def xla(x, w, b, *r):
        y = formula(activation)(x @ w + b)
        return y + r[0] if r else y

    found = {
        "fused": functools.partial(ours, linked=True),
        "unfused": functools.partial(ours, linked=False),
        "product": lambda x, w, *_: jax_bwgemm.matmul(x, w, implementation=implementation),
        "xla": xla,
    }
    if args.kernels:
        for tile, kernel in layer_columns.linkable(dtype).items():
            found[f"fused {tile}"] = functools.partial(ours, linked=True, kernel=kernel)
    return found


@dataclasses.dataclass(frozen=True)
class Case:
    """A layer, and what follows its product."""

    layer: Layer
    activation: str
    residual: bool

    def __str__(self) -> str:
        return f"{self.activation}{' + residual' if self.residual else ''}"


def cases(args) -> list[Case]:
    """What is measured."""
    residuals = {"without": [False], "with": [True], "both": [False, True]}[args.residual]
    return [Case(p, a, r) for p in args.problems for a in args.activations for r in residuals]


def operands(layer: Layer, args, key: jax.Array) -> list[jax.Array]:
    """x, w, b and a residual."""
    keys = jax.random.split(key, 4)
    x, w, b, r = (
        jax.random.normal(key, shape).astype(args.dtype)
        for key, shape in zip(keys, _shapes(layer), strict=True)
    )
    return [x, w * jnp.asarray(layer.k**-0.5, w.dtype), b, r]


def _shapes(layer: Layer) -> tuple[tuple[int, ...], ...]:
    return (layer.m, layer.k), (layer.k, layer.n), (layer.n,), (layer.m, layer.n)


def error_of(case: Case, y: jax.Array, x: jax.Array, w: jax.Array, *rest: jax.Array) -> jax.Array:
    """The largest error of a result over the root mean square of what is exact in float32."""
    x, w, b, *r = (v.astype(jnp.float32) for v in (x, w, *rest))
    exact = formula(case.activation)(jnp.dot(x, w, precision="highest") + b)
    exact = exact + r[0] if r else exact
    return jnp.max(jnp.abs(y.astype(jnp.float32) - exact)) / jnp.sqrt(jnp.mean(exact**2))


def compiled_programs(args) -> dict[Any, compiling.Compiled]:
    """Of every case its columns, by name, and its error; of every layer its operands."""
    programs: dict[Any, Any] = {}
    for layer in args.problems:
        key = jax.eval_shape(lambda: jax.random.key(0))
        programs[layer] = functools.partial(operands, layer, args), [key]
    for case in cases(args):
        types = [
            jax.ShapeDtypeStruct(shape, jnp.dtype(args.dtype)) for shape in _shapes(case.layer)
        ]
        used = types[: 4 if case.residual else 3]
        programs[case, layer_columns.ERROR] = functools.partial(error_of, case), [types[3], *used]
        for name, function in columns(args, case.activation, args.dtype).items():
            programs[case, name] = function, used
    xla = ("xla", layer_columns.ERROR)
    return compiling.side_by_side(programs, lambda key: isinstance(key, tuple) and key[1] in xla)


def measure(case: Case, programs, args, out, timer) -> list[dict]:
    """One case's rows."""
    layer = case.layer
    copies = 2 if args.small else timing.copies_for(layer.bytes)
    count = 4 if case.residual else 3
    keys = [jax.random.key(args.seed + i) for i in range(copies)]
    arrays = [programs[layer].call(key)[:count] for key in keys]
    names = list(columns(args, case.activation, args.dtype))
    describe = lambda text: {"linked": "epilogue_digest" in text}  # noqa: E731
    return layer_columns.measure(
        "linear", case, names, programs, arrays, describe, args, out, timer
    )


def summary(rows: Sequence[dict]) -> list[str]:
    """The fused layer against the product and against XLA, by kind of layer."""
    lines = []
    for layer in dict.fromkeys(r["layer"] for r in rows):
        fused = [r for r in rows if r["layer"] == layer and r["impl"] == "fused"]
        linked = sum(r["linked"] for r in fused)
        ratios, costs = [r["xla_over"] for r in fused], [r["of_product"] for r in fused]
        lines.append(
            f"{layer}: {linked} of {len(fused)} linked; fused / product {report.geomean(costs):.3f}"
            f", most {max(costs):.3f}; xla / fused {report.geomean(ratios):.3f}, least "
            f"{min(ratios):.3f}"
        )
    return lines


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_args(argv)
    if args.dry_run:
        for layer in args.problems:
            print(f"{layer}: {2 * layer.m * layer.n * layer.k / 1e12:.2f} TFLOP")
        return 0
    platform = options.prepare(args)
    out = report.Report(args.out, "bench_linear")
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
                ("problem", "layer", "impl", "linked", "median_us", "of_product", "xla_over",
                 "error", "spread"),
            )
        )  # fmt: skip
    out.close()
    print(*summary(rows), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
