"""Host overhead: wall time per call of a chain of small products inside one jitted function.

    python bench_overhead.py                # 50 chained 512 x 512 x 512 products

The chain is x = x @ w, so that no two calls can overlap or be merged. The kernel time of the
chain is printed beside the wall time: their difference is what launching costs.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from common import options, report, timing


def chain(matmul: Callable, calls: int) -> Callable:
    """A function of (x [n, n], w [n, n]) that multiplies x by w `calls` times."""

    def run(x, w):
        for _ in range(calls):
            x = matmul(x, w)
        return x

    return run


def main(argv: Sequence[str] | None = None) -> int:
    parser = options.parser(__doc__.split("\n", 1)[0])
    parser.add_argument("--calls", type=options.positive, default=50)
    parser.add_argument("--size", type=options.positive, default=512, help="m, n and k")
    parser.add_argument("--rounds", type=options.positive, default=15)
    args = parser.parse_args(argv)
    if args.small:
        args.calls, args.size, args.rounds = min(args.calls, 4), min(args.size, 64), 3
    if args.dry_run:
        print(f"{args.calls} chained {args.size}^3 products in {args.dtype}, {args.rounds} rounds")
        return 0
    platform = options.prepare(args)
    import functools

    import jax
    import jax.numpy as jnp

    import jax_bwgemm

    out = report.Report(args.out, "bench_overhead")
    x_key, w_key = jax.random.split(jax.random.key(args.seed))
    n = args.size
    x = jax.random.normal(x_key, (n, n), args.dtype)
    # Variance 1/n keeps the size of x through the chain.
    w = (jax.random.normal(w_key, (n, n)) * n**-0.5).astype(args.dtype)
    ours = functools.partial(jax_bwgemm.matmul, implementation=options.implementation_of(args))
    found = []
    for name, matmul in (("bwgemm", ours), ("xla", jnp.dot)):
        compiled = jax.jit(chain(matmul, args.calls)).lower(x, w).compile()
        found.append(timing.Candidate(name, lambda _, f=compiled: f(x, w), jax.block_until_ready))
    for candidate in found:
        timing.warm_up(candidate, 0.0 if args.small else 0.2)
    # Bursts of one: the figure wanted includes the dispatch of the whole chain.
    walls = timing.interleave(timing.WallTimer(), found, rounds=args.rounds, burst=1)
    kernels = [None] * len(found)
    if platform == "gpu":
        timer = timing.CuptiTimer()
        times = timing.interleave(timer, found, rounds=5, burst=1)
        kernels = [report.summarise(t.times_us)["median_us"] / args.calls for t in times]
    rows = []
    for candidate, wall, kernel in zip(found, walls, kernels, strict=True):
        stats = report.summarise([t / args.calls for t in wall.times_us])
        rows.append(
            out.add(
                "overhead",
                impl=candidate.name,
                calls=args.calls,
                size=n,
                dtype=args.dtype,
                method="wall",
                kernel_us=kernel,
                **stats,
            )
        )
    out.close()
    columns = ("impl", "calls", "size", "median_us", "min_us", "kernel_us", "spread")
    print(report.table(rows, columns))
    ratio = rows[0]["median_us"] / rows[1]["median_us"]
    print(f"wall time per call, bwgemm over xla: {ratio:.3f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
