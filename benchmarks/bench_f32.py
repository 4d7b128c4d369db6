"""Products of f32 operands: this package's kernels against XLA's and against our bf16 product.

    python bench_f32.py                     # squares and the gradients of an LM head
    python bench_f32.py --shapes 4096,4096,4096 --f32 lhs rhs
    python bench_f32.py --f32 both          # f32 x f32, squares and few rows

Columns of f32 x bf16: `two terms` splits the f32 operand into two bf16 terms (what `precision=None`
gets); `one term` is `precision="BF16_BF16_F32"`: the f32 operand rounded to bf16, the rounding
included; `bf16` has both operands in bf16; `xla` is `lax.dot_general`, whose f32 products are TF32.

Of f32 x f32: `x3` and `x6` multiply as many products of bf16 terms (`precision` HIGH and
BF16_BF16_F32_X6), `highest` three products of f16 terms where the operands' range allows (HIGHEST);
`xla x3`, `xla x6`, `xla tf32` and `xla f32` are XLA's algorithms. Their result is f32.

Errors are those of f32 results: the largest of sampled rows against f64, over the root mean square.
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
from dense import candidates
from dense import shapes as shape_lists
from jax import lax

SIDES = ("lhs", "rhs")
BOTH = "both"
# XLA's algorithms for two f32 operands, by the names of columns.
ALGORITHMS = {
    "x3": lax.DotAlgorithmPreset.BF16_BF16_F32_X3,
    "x6": lax.DotAlgorithmPreset.BF16_BF16_F32_X6,
    "tf32": lax.DotAlgorithmPreset.TF32_TF32_F32,
    "f32": lax.DotAlgorithmPreset.F32_F32_F32,
}
# Columns whose ratio is shown, the longer time first: of f32 x bf16, of f32 x f32.
TIMES = {
    False: (
        ("two terms", "bf16"),
        ("one term", "bf16"),
        ("xla", "two terms"),
        ("xla", "one term"),
    ),
    True: (
        ("xla x3", "x3"),
        ("xla x6", "x6"),
        ("xla f32", "highest"),
        ("x3", "bf16"),
        ("x6", "bf16"),
        ("highest", "bf16"),
    ),
}
ERRORS = {
    False: (("xla", "two terms"),),
    True: (("xla x3", "x3"), ("xla x6", "x6"), ("xla f32", "highest")),
}
SAMPLED_ROWS = 64


def parse_args(argv: Sequence[str] | None):
    parser = options.parser(__doc__.split("\n", 1)[0])
    options.add_turns(parser, rounds=5)
    parser.add_argument("--shapes", nargs="*", default=[], metavar="M,N,K[xB][:MAJORS]")
    parser.add_argument(
        "--f32", nargs="+", choices=(*SIDES, BOTH), default=SIDES, help="which operand is f32"
    )
    parser.add_argument("--out-dtype", choices=("bfloat16", "float32"), default="bfloat16")
    args = parser.parse_args(argv)
    if args.dtype != "bfloat16":
        parser.error(f"--dtype {args.dtype}: the other operand is bfloat16")
    if args.small:
        args.rounds, args.burst = 2, 1
    try:
        args.selected = [
            (shape, side)
            for side in args.f32
            for shape in shape_lists.select(_tags(args, side), args.shapes, [])
        ]
    except ValueError as error:
        parser.error(str(error))
    return args


def _tags(args, side: str) -> list[str]:
    if args.shapes:
        return []
    return ["small" if args.small else f"f32-{side}"]


def columns(shape: shape_lists.Shape, side: str, args) -> list[timing.Candidate]:
    """Every column on the same values, rounded to its types."""
    import jax_bwgemm

    bytes_per_call = shape.bytes(4, jnp.dtype(args.out_dtype).itemsize)
    copies = 1 if args.small else min(timing.copies_for(bytes_per_call), 4)
    wide = candidates.make_operands(shape, jnp.float32, copies, args.seed)
    if side == BOTH:
        return _f32_columns(shape, args, wide)
    f32 = 0 if side == "lhs" else 1
    mixed = [
        tuple(x if i == f32 else x.astype(jnp.bfloat16) for i, x in enumerate(pair))
        for pair in wide
    ]
    narrow = [tuple(x.astype(jnp.bfloat16) for x in pair) for pair in wide]
    ours = functools.partial(jax_bwgemm.dot_general, implementation=options.implementation_of(args))
    one_term = lax.DotAlgorithmPreset.BF16_BF16_F32
    of: dict[str, tuple[Callable[..., Any], list]] = {
        "two terms": (ours, mixed),
        "one term": (functools.partial(ours, precision=one_term), mixed),
        "bf16": (ours, narrow),
        "xla": (lax.dot_general, mixed),
    }
    made = []
    for name, (product, operands) in of.items():
        call = functools.partial(product, dimension_numbers=shape.dimension_numbers)
        wide_result = functools.partial(call, preferred_element_type=jnp.float32)
        # XLA has no product of f32 operands into a narrower type: it rounds in a fusion.
        rounds = name == "xla" and args.out_dtype != "float32"
        timed = functools.partial(call, preferred_element_type=args.out_dtype)
        function = functools.partial(_rounded, wide_result, args.out_dtype) if rounds else timed
        candidate = candidates.from_function(name, function, operands)
        result = jax.jit(wide_result)(*operands[0])
        candidate.info["error"] = error(shape, result, operands[0])
        made.append(candidate)
    return made


def _f32_columns(shape: shape_lists.Shape, args, wide: list) -> list[timing.Candidate]:
    """The columns of two f32 operands."""
    import jax_bwgemm

    ours = functools.partial(jax_bwgemm.dot_general, implementation=options.implementation_of(args))
    of = {
        "x3": functools.partial(ours, precision=lax.Precision.HIGH),
        "x6": functools.partial(ours, precision=ALGORITHMS["x6"]),
        "highest": functools.partial(ours, precision=lax.Precision.HIGHEST),
        "bf16": ours,
    }
    for name, algorithm in ALGORITHMS.items():
        known = algorithm if jax.default_backend() == "gpu" else None  # the CPU has few
        of[f"xla {name}"] = functools.partial(lax.dot_general, precision=known)
    narrow = [tuple(x.astype(jnp.bfloat16) for x in pair) for pair in wide]
    made = []
    for name, product in of.items():
        operands = narrow if name == "bf16" else wide
        call = functools.partial(
            product,
            dimension_numbers=shape.dimension_numbers,
            preferred_element_type=jnp.float32,
        )
        candidate = candidates.from_function(name, call, operands)
        candidate.info["error"] = error(shape, jax.jit(call)(*operands[0]), operands[0])
        made.append(candidate)
    return made


def _rounded(call: Callable, dtype: str, x: jax.Array, y: jax.Array) -> jax.Array:
    return call(x, y).astype(dtype)


def error(shape: shape_lists.Shape, out: jax.Array, operands: tuple) -> float:
    """Largest error of the first rows, over the root mean square. Of a batch: the first matrix."""
    first, rows = (0,) * (out.ndim - 2), slice(0, SAMPLED_ROWS)
    lhs, rhs = (x[first] for x in operands)
    lhs = lhs[rows] if shape.majors[0] == "k" else lhs[:, rows].T
    rhs = rhs if shape.majors[1] == "n" else rhs.T
    exact = np.asarray(lhs, np.float64) @ np.asarray(rhs, np.float64)
    difference = np.asarray(out[first][rows], np.float64) - exact
    return float(np.max(np.abs(difference)) / np.sqrt(np.mean(exact**2)))


def measure(shape: shape_lists.Shape, side: str, args, out: report.Report, timer) -> list[dict]:
    """The rows of one product."""
    made = columns(shape, side, args)
    timings = timing.interleave(
        timer, made, rounds=args.rounds, burst=args.burst, turn_ms=args.turn_ms
    )
    rows = []
    for candidate, found in zip(made, timings, strict=True):
        stats = report.summarise(found.times_us)
        rows.append(
            out.add(
                "f32",
                shape=shape.name,
                f32=side,
                out_dtype="float32" if side == BOTH else args.out_dtype,
                impl=candidate.name,
                tflops=shape.flops / stats["median_us"] / 1e6,
                method=timer.method,
                turn_ms=args.turn_ms,
                kernels=found.kernels,
                **candidate.info,
                **stats,
            )
        )
    return rows


def summary(rows: Sequence[dict]) -> list[str]:
    """Ratios of times and of errors, over all products."""
    of = {(r["impl"], r["shape"], r["f32"]): r for r in rows}
    lines = []
    for both in (False, True):
        products = [(r["shape"], r["f32"]) for r in rows if (r["f32"] == BOTH) == both]
        products = list(dict.fromkeys(products))
        if not products:
            continue
        for field, pairs in (("median_us", TIMES[both]), ("error", ERRORS[both])):
            for above, below in pairs:
                found = [of[(above, *p)][field] / of[(below, *p)][field] for p in products]
                what = "time" if field == "median_us" else "error"
                lines.append(
                    f"{what} {above} / {below}: mean {report.geomean(found):.3f}, "
                    f"least {min(found):.3f}, most {max(found):.3f}"
                )
    return lines


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_args(argv)
    if args.dry_run:
        for shape, side in args.selected:
            print(f"{shape.name}, f32 {side}: {shape.flops / 1e12:.2f} TFLOP")
        return 0
    platform = options.prepare(args)
    out = report.Report(args.out, "bench_f32")
    timer = timing.make_timer("auto", platform)
    rows = []
    for shape, side in args.selected:
        out.progress(f"{shape.name}, f32 {side}: {options.turns(args)}")
        found = measure(shape, side, args, out, timer)
        rows += found
        columns_shown = ("shape", "f32", "impl", "median_us", "tflops", "spread", "error")
        print(report.table(found, columns_shown))
    out.close()
    print(*summary(rows), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
