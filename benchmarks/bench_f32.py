"""f32 x bf16 products: this package's kernels against XLA's and against our bf16 product.

    python bench_f32.py                     # squares and the gradients of an LM head
    python bench_f32.py --shapes 4096,4096,4096 --f32 lhs rhs

Columns: `two terms` splits the f32 operand into two bf16 terms (what `precision=None` gets); `one
term` is `precision="BF16_BF16_F32"`: the f32 operand rounded to bf16, the rounding included;
`bf16` has both operands in bf16; `xla` is `lax.dot_general`, whose f32 products are TF32.

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
SAMPLED_ROWS = 64


def parse_args(argv: Sequence[str] | None):
    parser = options.parser(__doc__.split("\n", 1)[0])
    options.add_turns(parser, rounds=5)
    parser.add_argument("--shapes", nargs="*", default=[], metavar="M,N,K[xB][:MAJORS]")
    parser.add_argument(
        "--f32", nargs="+", choices=SIDES, default=SIDES, help="which operand is f32"
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
                out_dtype=args.out_dtype,
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
    products = list(dict.fromkeys((r["shape"], r["f32"]) for r in rows))

    def ratios(field: str, above: str, below: str) -> list[float]:
        return [of[(above, *p)][field] / of[(below, *p)][field] for p in products]

    lines = []
    for above, below in (
        ("two terms", "bf16"),
        ("one term", "bf16"),
        ("xla", "two terms"),
        ("xla", "one term"),
    ):
        found = ratios("median_us", above, below)
        lines.append(
            f"time {above} / {below}: mean {report.geomean(found):.3f}, "
            f"least {min(found):.3f}, most {max(found):.3f}"
        )
    found = ratios("error", "xla", "two terms")
    lines.append(f"error xla / two terms: mean {report.geomean(found):.1f}, least {min(found):.1f}")
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
