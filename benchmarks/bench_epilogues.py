"""Functions that read and write matrices, in every kernel that takes them, and as a pass.

    python bench_epilogues.py                  # every problem and function
    python bench_epilogues.py --write h200     # and keep the times in costs/epilogues/h200.json

Columns: the kernels that a function can be linked into, `apart` (our product and a pass of XLA's),
`product` (ours, alone) and `xla` (the product and the function as users write them). Times are of
all kernels of a call. `regret` is what the choice loses to the best kernel or `apart`;
tests/epilogue/test_choice_regret.py bounds it for the times that are kept.
"""

from __future__ import annotations

import functools
import json
import statistics
import sys
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from common import compiling, options, report, timing
from dense import epilogue_choice, layer_columns
from dense.epilogue_functions import FUNCTIONS
from dense.layer_columns import Layer

# What is no way to compute a function with our kernels.
OTHERS = ("product", "xla")


PROBLEMS = (
    Layer(16384, 128, 128),
    Layer(16384, 256, 512),
    Layer(4096, 512, 512),
    Layer(16384, 1024, 1024),
    Layer(8192, 3072, 768),
    Layer(1024, 3072, 768),
    Layer(512, 6144, 4096),
    Layer(2048, 1024, 4096),
    Layer(512, 4096, 1024),
    Layer(256, 1024, 1024),
    Layer(64, 4096, 1024),
)
SMALL = (Layer(32, 64, 64),)


def parse_args(argv: Sequence[str] | None):
    parser = options.parser(__doc__.split("\n", 1)[0])
    options.add_turns(parser, rounds=4)
    parser.add_argument("--functions", nargs="+", choices=FUNCTIONS, default=list(FUNCTIONS))
    parser.add_argument(
        "--write", metavar="NAME", help="keep the times as costs/epilogues/NAME.json"
    )
    return options.parse_problems(parser, argv, "M,N,K", Layer, PROBLEMS, SMALL)


def columns(args, name: str) -> dict[str, Callable[..., Any]]:
    """Every column: a function of x, w and the function's operands."""
    import jax_bwgemm
    from jax_bwgemm import config

    implementation, function = options.implementation_of(args), FUNCTIONS[name]

    def ours(x, w, *operands, linked: bool, kernel: str | None = None):
        with config.linked_epilogues(linked):
            return jax_bwgemm.matmul(
                x,
                w,
                epilogue=function.call,
                epilogue_operands=operands,
                implementation=implementation,
                config=kernel,
            )

    def xla(x, w, *operands):
        return jax.tree.map(lambda y: y.astype(args.dtype), function.call(jnp.dot(x, w), *operands))

    found = {
        epilogue_choice.APART: functools.partial(ours, linked=False),
        "product": lambda x, w, *_: jax_bwgemm.matmul(x, w, implementation=implementation),
        "xla": xla,
    }
    if implementation == "cutlass":
        for tile, kernel in layer_columns.linkable(args.dtype).items():
            found[tile] = functools.partial(ours, linked=True, kernel=kernel)
    return found


def types(args, problem: Layer, name: str) -> list[jax.ShapeDtypeStruct]:
    """Of x, w and the function's operands."""
    m, n, k = problem.m, problem.n, problem.k
    factors = [jax.ShapeDtypeStruct(s, jnp.dtype(args.dtype)) for s in ((m, k), (k, n))]
    return [*factors, *FUNCTIONS[name].types(m, n)]


def operands(key: jax.Array, like: Sequence[jax.ShapeDtypeStruct]) -> list[jax.Array]:
    """Random values; the weights are scaled so that the product's are, too."""
    keys = jax.random.split(key, len(like))
    made = [jax.random.normal(k, x.shape).astype(x.dtype) for k, x in zip(keys, like, strict=True)]
    made[1] = made[1] * jnp.asarray(like[1].shape[0] ** -0.5, made[1].dtype)
    return made


def measure(args, problem: Layer, name: str, timer, out: report.Report) -> dict[str, float]:
    """Median microseconds by column."""
    given = types(args, problem, name)
    programs = compiling.side_by_side(
        {label: (f, given) for label, f in columns(args, name).items()},
        lambda label: label == "xla",
    )
    size = sum(x.size * x.dtype.itemsize for x in given)
    copies = 2 if args.small else timing.copies_for(size)
    arrays = [operands(jax.random.key(args.seed + i), given) for i in range(copies)]
    candidates = [
        timing.Candidate(
            label,
            functools.partial(layer_columns.call_copy, program.call, arrays),
            jax.block_until_ready,
            copies,
        )
        for label, program in programs.items()
    ]
    for candidate in candidates:
        timing.warm_up(candidate)
    found = timing.interleave(
        timer, candidates, rounds=args.rounds, burst=args.burst, turn_ms=args.turn_ms
    )
    us = {}
    for candidate, times in zip(candidates, found, strict=True):
        us[candidate.name] = statistics.median(times.times_us)
        out.add(
            "epilogue",
            problem=str(problem),
            function=name,
            impl=candidate.name,
            method=timer.method,
            **report.summarise(times.times_us),
        )
    return us


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_args(argv)
    if args.dry_run:
        for problem in args.problems:
            print(f"{problem}: {', '.join(args.functions)}")
        return 0
    platform = options.prepare(args)
    out = report.Report(args.out, "bench_epilogues")
    timer = timing.make_timer("auto", platform)
    kept, regrets = [], []
    for problem in args.problems:
        rows, shape = [], (problem.m, problem.n, problem.k)
        for name in args.functions:
            out.progress(f"{problem} {name}: {options.turns(args)}")
            us = measure(args, problem, name, timer, out)
            row: dict[str, Any] = {"problem": str(problem), "function": name}
            own = {label: x for label, x in us.items() if label not in OTHERS}
            if len(own) > 1:
                choice = epilogue_choice.chosen(*shape, FUNCTIONS[name], args.dtype)
                row |= {"chosen": choice, "regret": own[choice] / min(own.values())}
                regrets.append(row["regret"])
            kept.append({"shape": shape, "function": name, "us": _rounded(own)})
            rows.append(row | us)
        print(report.table(rows, tuple(rows[0])))
    out.close()
    if regrets:
        mean, most = report.geomean(regrets), max(regrets)
        print(f"the choice takes {mean:.3f} of the best's time in the mean, at most {most:.2f}")
    if args.write:
        path = epilogue_choice.DATA / f"{args.write}.json"
        what = f"bench_epilogues.py on {jax.devices()[0].device_kind}: median microseconds"
        lines = ",\n".join(json.dumps(x) for x in kept)
        path.write_text(f'{{"what": {json.dumps(what)}, "problems": [\n{lines}\n]}}\n')
    return 0


def _rounded(us: dict[str, float]) -> dict[str, float]:
    return {label: round(x, 2) for label, x in us.items()}


if __name__ == "__main__":
    sys.exit(main())
