"""Dense GEMM: this package against jnp.dot (XLA), torch and JAX's Pallas Hopper kernel.

    python bench_gemm.py --out gemm.jsonl                 # eleven shapes
    python bench_gemm.py --tags suite --pallas-grid full  # the long list
    python bench_gemm.py --shapes 4096,4096,4096 --majors kn kk mn mk
    python bench_gemm.py --shapes 4096,4096,4096 --all-kernels   # what the heuristic should pick

All columns of a shape are measured in turns on the same operands. Ratios are peer time over this
package's time: above 1 this package is faster.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from common import options, report, timing
from dense import shapes as shape_lists
from dense import tables as gemm_tables

PEERS = ("xla", "xla-cublas", "torch", "pallas")
# Relative squared distance above which two bf16 or f16 products are not the same product; rounding
# to bf16 alone gives about 3e-6.
WRONG = 1e-5
# Beginnings of the status of a row that makes the program fail.
BAD = ("wrong", "error")


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = options.parser(__doc__.split("\n", 1)[0])
    parser.add_argument("--tags", nargs="*", default=[], help=f"of {', '.join(shape_lists.TAGS)}")
    parser.add_argument("--shapes", nargs="*", default=[], metavar="M,N,K[xB][:MAJORS]")
    parser.add_argument(
        "--majors",
        nargs="*",
        default=[],
        choices=shape_lists.MAJORS,
        help="majors to run each shape with",
    )
    parser.add_argument("--out-dtype", choices=options.DTYPES, help="result type, default --dtype")
    parser.add_argument(
        "--peers",
        nargs="*",
        choices=PEERS,
        default=["xla", "torch", "pallas"],
        help="what to compare with",
    )
    options.add_peers(parser, rounds=7)
    parser.add_argument(
        "--all-kernels",
        action="store_true",
        help="time every kernel of this build that fits, under every raster order and swizzle, "
        "beside the default choice",
    )
    parser.add_argument(
        "--swizzles", nargs="*", type=int, default=[1, 2, 4, 8, 16], help="with --all-kernels"
    )
    args = parser.parse_args(argv)
    if not args.tags and not args.shapes:
        args.tags = ["small"] if args.small else ["design"]
    if args.small:
        args.rotate_mb, args.rounds = min(args.rotate_mb, 1.0), min(args.rounds, 2)
    args.out_dtype = args.out_dtype or args.dtype
    try:
        args.selected = shape_lists.select(args.tags, args.shapes, args.majors)
    except ValueError as error:
        parser.error(str(error))
    return args


class Bench:
    """One run: builds the columns of each shape, checks and times them, writes the rows."""

    def __init__(self, args: argparse.Namespace, platform: str, out: report.Report):
        import jax.numpy as jnp
        from dense import candidates

        self.peers = candidates
        self.args = args
        self.out = out
        self.dtype, self.out_dtype = jnp.dtype(args.dtype), jnp.dtype(args.out_dtype)
        self.timer = timing.make_timer(args.timer, platform)
        self.pallas = None
        if "pallas" in args.peers and platform == "gpu":
            grid = candidates.pallas_grid(args.pallas_grid)
            self.pallas = candidates.PallasCompiler(grid, args.compile_threads)
            for shape in args.selected:
                self.pallas.submit(shape, self.dtype)

    def close(self) -> None:
        if self.pallas:
            self.pallas.close()

    def _row(self, shape: shape_lists.Shape, impl: str, status: str, **fields: Any) -> dict:
        return self.out.add(
            "gemm",
            shape=shape.name,
            m=shape.m,
            n=shape.n,
            k=shape.k,
            batch=shape.batch,
            majors=shape.majors,
            tags=sorted(shape.tags),
            dtype=str(self.dtype),
            out_dtype=str(self.out_dtype),
            impl=impl,
            status=status,
            method=self.timer.method,
            turn_ms=self.args.turn_ms,
            **fields,
        )

    def _best_pallas(self, shape: shape_lists.Shape, operands: list) -> timing.Candidate:
        """The fastest configuration of the grid in a first short measurement."""
        if self.pallas is None:
            raise self.peers.Unsupported("the Pallas Hopper kernel needs an NVIDIA GPU")
        found = self.pallas.candidates(shape, operands, self.out_dtype)
        for candidate in found:
            timing.warm_up(candidate)
        times = timing.interleave(self.timer, found, rounds=2, burst=2)
        medians = [sorted(t.times_us)[len(t.times_us) // 2] for t in times]
        best = found[medians.index(min(medians))]
        best.info["configs_tried"] = len(found)
        return best

    def _builders(self, shape: shape_lists.Shape, operands: list) -> dict[str, Callable]:
        """How to make each column that was asked for, ours first."""
        ours = options.implementation_of(self.args)
        peers, out = self.peers, self.out_dtype
        made = {
            "bwgemm": lambda: peers.bwgemm(shape, operands, out, ours),
            "xla": lambda: peers.xla(shape, operands, out),
            "xla-cublas": lambda: peers.xla(shape, operands, out, cublas=True),
            "torch": lambda: peers.torch(shape, operands, out),
            "pallas": lambda: self._best_pallas(shape, operands),
        }
        return {name: made[name] for name in ("bwgemm", *self.args.peers)}

    def _ready(self, name: str, build: Callable[[], timing.Candidate]) -> timing.Candidate:
        """Builds a column and runs it until it is warm, measured once so that this works too."""
        candidate = build()
        candidate.name = name
        timing.warm_up(candidate, 0.0 if self.args.small else 0.005)
        self.timer.burst(candidate, 0, 2)
        return candidate

    def _check(self, found: list[timing.Candidate]) -> dict[str, float]:
        """Relative squared distance of every JAX column to the reference column."""
        import jax.numpy as jnp

        by_name = {c.name: c for c in found if c.name != "torch"}
        reference = by_name.get("xla") or by_name.get("xla-cublas")
        if reference is None:
            return {}
        want = reference.call(0).astype(jnp.float32)
        distances = {}
        for candidate in found:
            if candidate.name == "torch" or candidate is reference:
                continue
            got = candidate.call(0).astype(jnp.float32)
            distances[candidate.name] = float(jnp.sum((got - want) ** 2) / jnp.sum(want**2))
        return distances

    def run(self, shape: shape_lists.Shape) -> list[dict]:
        """Measures one shape; returns its rows."""
        begin = time.perf_counter()
        args = self.args
        nbytes = shape.bytes(self.dtype.itemsize, self.out_dtype.itemsize)
        copies = timing.copies_for(nbytes, int(args.rotate_mb * 2**20))
        operands = self.peers.make_operands(shape, self.dtype, copies, args.seed)
        found, rows = [], []
        builders = self._builders(shape, operands)
        if args.all_kernels:
            builders |= self.peers.all_kernels(shape, operands, self.out_dtype, args.swizzles)
        for name, build in builders.items():
            try:
                found.append(self._ready(name, build))
            except self.peers.Unsupported as reason:
                rows.append(self._row(shape, name, f"unsupported: {reason}"))
            except Exception as error:  # one column must not cost the others their turn
                rows.append(self._row(shape, name, f"error: {report.one_line(error)}"))
        distances = self._check(found)
        times = timing.interleave(
            self.timer, found, rounds=args.rounds, burst=args.burst, turn_ms=args.turn_ms
        )
        clocks = report.clocks()  # right after the work: what the GPU ran at
        for candidate, measured in zip(found, times, strict=True):
            distance = distances.get(candidate.name)
            wrong = distance is not None and not distance <= WRONG
            stats = report.summarise(measured.times_us)
            rows.append(
                self._row(
                    shape,
                    candidate.name,
                    f"wrong: {distance:.2e} from xla" if wrong else "ok",
                    **stats,
                    tflops=shape.flops / stats["median_us"] / 1e6,
                    gb_per_s=nbytes / stats["median_us"] / 1e3,
                    distance=distance,
                    copies=copies,
                    kernels=measured.kernels,
                    clocks=clocks if candidate is found[0] else None,
                    times_us=[round(t, 3) for t in measured.times_us],
                    **{k: v for k, v in candidate.info.items() if k != "out"},
                )
            )
        if self.pallas:
            self.pallas.forget(shape)
        self.out.progress(f"  {shape.name:24s} {_line(rows)}  [{time.perf_counter() - begin:.1f}s]")
        return rows


def _line(rows: list[dict]) -> str:
    """A shape's progress text: the median of every column, at most six."""
    done = [f"{r['impl']} {r['median_us']:.1f}us" for r in rows if "median_us" in r]
    bad = [f"{r['impl']} {r['status']}" for r in rows if r["status"].startswith(BAD)]
    return "  ".join(done[:6] + bad)


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_args(argv)
    if args.dry_run:
        print(f"columns: bwgemm ({args.implementation}), {', '.join(args.peers)}; ", end="")
        print(f"{options.turns(args)} of {args.dtype}->{args.out_dtype}")
        for shape in args.selected:
            print(f"  {shape.name:24s} {shape.flops / 1e9:10.1f} GFLOP  {sorted(shape.tags)}")
        return 0
    platform = options.prepare(args, share_gpu="torch" in args.peers and options.has_torch())
    out = report.Report(args.out, "bench_gemm")
    bench = Bench(args, platform, out)
    try:
        copied = timing.copy_bandwidth(bench.timer, 2**20 if args.small else 2**30)
        out.add("copy", method=bench.timer.method, **copied)
        out.progress(f"device copy {copied['gb_per_s']:.0f} GB/s; {len(args.selected)} shapes")
        for shape in args.selected:
            bench.run(shape)
    finally:
        bench.close()
        out.close()
    rows = out.rows("gemm")
    text, ratios = gemm_tables.summary(rows, PEERS, copied["gb_per_s"])
    print(text)
    if args.all_kernels:
        print(f"\n{gemm_tables.fastest_kernels(rows, PEERS)}")
    for impl, values in ratios.items():
        print(
            f"{impl} time / bwgemm time over {len(values)} shapes: geometric mean "
            f"{report.geomean(values):.3f}, least {min(values):.3f}, most {max(values):.3f}"
        )
    failed = [
        r
        for r in rows
        if r["status"].startswith(BAD) or (r["impl"] == "bwgemm" and r["status"] != "ok")
    ]
    for row in failed:
        print(f"failed: {row['shape']} {row['impl']}: {row['status']}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
