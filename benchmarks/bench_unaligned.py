"""Shapes whose rows TMA cannot address: pad and slice around the kernel, or XLA's own product?

    python bench_unaligned.py

Times three ways to multiply when a row pitch is no multiple of 16 bytes: zero-padding the operands
to the next multiple, the kernel, and slicing the result; XLA's product as it is; and what
`matmul(implementation=None)` chooses. The padding kernels are part of the first column.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from common import options, report, timing
from dense import shapes as shape_lists


def padded_matmul(implementation: str | None, multiple: int) -> Callable:
    """matmul([m, k], [k, n]) through operands padded with zeros to multiples in n and k."""
    import jax.numpy as jnp

    import jax_bwgemm

    def run(a, b):
        n, k = b.shape[1], b.shape[0]
        more_n, more_k = -n % multiple, -k % multiple
        a = jnp.pad(a, ((0, 0), (0, more_k)))
        b = jnp.pad(b, ((0, more_k), (0, more_n)))
        return jax_bwgemm.matmul(a, b, implementation=implementation)[:, :n]

    return run


def main(argv: Sequence[str] | None = None) -> int:
    parser = options.parser(__doc__.split("\n", 1)[0])
    parser.add_argument("--shapes", nargs="*", default=[], metavar="M,N,K")
    parser.add_argument("--rounds", type=options.positive, default=7)
    args = parser.parse_args(argv)
    small = ["33,35,37", "64,31,16"] if args.small else []
    tags = [] if args.shapes or args.small else ["unaligned"]
    try:
        selected = shape_lists.select(tags, args.shapes or small)
    except ValueError as error:
        parser.error(str(error))
    if args.dry_run:
        print("\n".join(s.name for s in selected))
        return 0
    platform = options.prepare(args)
    import jax.numpy as jnp
    from dense import candidates

    import jax_bwgemm

    out = report.Report(args.out, "bench_unaligned")
    timer = timing.make_timer("auto", platform)
    dtype = jnp.dtype(args.dtype)
    multiple = 16 // dtype.itemsize
    lines = []
    for shape in selected:
        nbytes = shape.bytes(dtype.itemsize, dtype.itemsize)
        copies = 2 if args.small else timing.copies_for(nbytes)
        operands = candidates.make_operands(shape, dtype, copies, args.seed)
        ways = {
            "pad+kernel": padded_matmul(options.implementation_of(args), multiple),
            "default": jax_bwgemm.matmul,
            "xla": jnp.matmul,
        }
        found = [candidates.from_function(name, f, operands) for name, f in ways.items()]
        for candidate in found:
            timing.warm_up(candidate)
        times = timing.interleave(timer, found, rounds=2 if args.small else args.rounds, burst=2)
        line = {"shape": shape.name}
        want = found[2].call(0).astype(jnp.float32)
        for candidate, measured in zip(found, times, strict=True):
            got = candidate.call(0).astype(jnp.float32)
            distance = float(jnp.sum((got - want) ** 2) / jnp.sum(want**2))
            stats = report.summarise(measured.times_us)
            out.add(
                "gemm",
                shape=shape.name,
                m=shape.m,
                n=shape.n,
                k=shape.k,
                batch=1,
                majors="kn",
                dtype=str(dtype),
                out_dtype=str(dtype),
                impl=candidate.name,
                status="ok" if distance <= 1e-5 else f"wrong: {distance:.2e} from xla",
                method=timer.method,
                kernels=measured.kernels,
                **stats,
            )
            line[f"{candidate.name} us"] = stats["median_us"]
        line["xla / pad+kernel"] = line["xla us"] / line["pad+kernel us"]
        lines.append(line)
        out.progress(f"  {shape.name}: {line}")
    out.close()
    print(report.table(lines, list(lines[0])))
    wrong = [r for r in out.rows("gemm") if r["status"] != "ok"]
    for row in wrong:
        print(f"error: {row['shape']} {row['impl']}: {row['status']}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
