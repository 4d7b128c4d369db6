"""A mixture-of-experts layer, forward and backward: fused, of single products, and by XLA.

    python bench_moe.py                            # every problem
    python bench_moe.py --problems 8192,2048,1024,64

A problem is TOKENS,WIDTH,HIDDEN,EXPERTS; tokens have two experts of up to eight, else eight. All
columns route, sort, multiply and combine, and compute the gradients of router, weights and tokens:
`fused` is `moe_mlp`, `unfused` the same layer with `ragged_dot` alone (examples/moe_layer.py),
`xla` that with `jax.lax.ragged_dot`. The router's product is ours in `fused`, of tokens as they are
and a router in two terms; in the others it is XLA's in float32. Times are sums over all kernels of
a step.
"""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from common import options, report, timing
from grouped import layer as grouped_layer
from grouped import problems as grouped_problems


@dataclasses.dataclass(frozen=True)
class Layer:
    """Sizes of a layer."""

    tokens: int
    width: int
    hidden: int
    experts: int

    def __str__(self) -> str:
        return f"{self.tokens},{self.width},{self.hidden},{self.experts}"

    @property
    def problem(self) -> grouped_problems.Problem:
        """The first product: a row for each of a token's experts, gate and up together."""
        one = grouped_problems.Problem(self.tokens, 2 * self.hidden, self.width, self.experts)
        return dataclasses.replace(one, m=self.tokens * grouped_problems.top_k(one))


PROBLEMS = (Layer(8192, 2048, 1024, 64), Layer(4096, 4096, 14336, 8))
SMALL = (Layer(32, 16, 8, 4),)


def parse_args(argv: Sequence[str] | None):
    parser = options.parser(__doc__.split("\n", 1)[0])
    options.add_turns(parser, rounds=5)
    parser.add_argument(
        "--no-xla",
        action="store_true",
        help="without lax.ragged_dot, whose memory is rows times width for each expert",
    )
    form = "TOKENS,WIDTH,HIDDEN,EXPERTS"
    return options.parse_problems(parser, argv, form, Layer, PROBLEMS, SMALL)


def steps(layer: Layer, implementation: str | None) -> dict[str, Any]:
    """Every column's step."""
    import jax_bwgemm

    code = grouped_layer.layer_code()
    ours = functools.partial(jax_bwgemm.ragged_dot, implementation=implementation)
    fused = functools.partial(
        code.fused_layer,
        top_k=grouped_problems.top_k(layer.problem),
        implementation=implementation,
    )
    return {
        "fused": grouped_layer.step_of(fused),
        "unfused": grouped_layer.make_step(layer.problem, ours),
        "xla": grouped_layer.make_step(layer.problem, jax.lax.ragged_dot),
    }


def measure(layer: Layer, args, out: report.Report, timer: Any) -> list[dict]:
    """One problem's rows.

    Raises:
        AssertionError: A column's loss or gradients are wrong.
    """
    inputs = grouped_layer.make_inputs(layer.problem, jnp.dtype(args.dtype), args.seed)
    candidates, want = [], None
    for name, step in steps(layer, options.implementation_of(args)).items():
        if name == "xla" and args.no_xla:
            continue
        compiled = step.lower(*inputs).compile()
        try:
            found = jax.block_until_ready(compiled(*inputs))
        except jax.errors.JaxRuntimeError as error:
            if name != "xla" or "RESOURCE_EXHAUSTED" not in str(error):
                raise
            out.progress(f"{layer}: no column of XLA's, whose step does not fit in memory")
            continue
        want = found if want is None else want
        info = {
            "distance": float(grouped_layer.distance(found, want)),  # to the first column
            "temp_bytes": compiled.memory_analysis().temp_size_in_bytes,
        }
        assert info["distance"] <= grouped_layer.BOUND, f"{layer} {name}: {info}"
        call = functools.partial(_call, compiled, inputs)
        candidates.append(timing.Candidate(name, call, jax.block_until_ready, 1, info))
    timings = timing.interleave(
        timer, candidates, rounds=args.rounds, burst=args.burst, turn_ms=args.turn_ms
    )
    rows = []
    for candidate, found in zip(candidates, timings, strict=True):
        stats = report.summarise(found.times_us)
        rows.append(
            {
                "impl": candidate.name,
                "problem": str(layer),
                "dtype": args.dtype,
                "method": timer.method,
                "kernels": found.kernels,
                "turn_ms": args.turn_ms,
                "tflops": grouped_layer.flops(layer.problem) / stats["median_us"] / 1e6,
                **candidate.info,
                **stats,
            }
        )
    for row in rows:
        row["over_fused"] = row["median_us"] / rows[0]["median_us"]
    return [out.add("moe", **row) for row in rows]


def _call(compiled: Any, inputs: Sequence[Any], copy: int) -> Any:
    return compiled(*inputs)


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_args(argv)
    if args.dry_run:
        for layer in args.problems:
            print(f"{layer}: {grouped_layer.flops(layer.problem) / 1e12:.2f} TFLOP")
        return 0
    platform = options.prepare(args)
    out = report.Report(args.out, "bench_moe")
    timer = timing.make_timer("auto", platform)
    for layer in args.problems:
        out.progress(f"{layer}: {options.turns(args)}")
        columns = ("problem", "impl", "median_us", "tflops", "over_fused", "distance", "spread")
        print(report.table(measure(layer, args, out, timer), columns))
    out.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
