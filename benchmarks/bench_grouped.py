"""Grouped GEMM and its gradients: this package against lax, Pallas, tokamax and torch.

    python bench_grouped.py --out grouped.jsonl           # six problems, all modes
    python bench_grouped.py --held-out --peers pallas torch
    python bench_grouped.py --turn-ms 50                  # on a GPU kept busy, as in training
    python bench_grouped.py --shapes 8192,4096,4096,8 --distribution zipf --modes forward
    python bench_grouped.py --all-kernels --modes dw      # what the heuristic should pick
    python bench_grouped.py --layer --modes               # only the whole layer's training step
    python bench_grouped.py --small                       # a rehearsal on a CPU

All columns of a problem are measured in turns on the same operands, after each was compared with
an exact result. Kernel time is the sum over all kernels of a call, this package's schedule and
other implementations' preparations included. Ratios are peer time over this package's time: above
1 this package is faster.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from common import options, report, timing
from grouped import problems as grouped_problems
from grouped import tables as grouped_tables
from grouped.problems import Problem

PEERS = ("xla", "pallas", "tokamax", "torch")
OURS = "bwgemm"


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = options.parser(__doc__.split("\n", 1)[0])
    parser.add_argument("--shapes", nargs="*", default=[], metavar="M,N,K,G[:DISTRIBUTION]")
    parser.add_argument(
        "--held-out", action="store_true", help="problems that nothing was tuned on"
    )
    parser.add_argument(
        "--distribution", choices=grouped_problems.DISTRIBUTIONS, help="of all group sizes"
    )
    parser.add_argument(
        "--modes",
        nargs="*",
        choices=grouped_problems.MODES,
        default=list(grouped_problems.MODES),
        help="what to run",
    )
    parser.add_argument(
        "--peers", nargs="*", choices=PEERS, default=list(PEERS), help="what to compare with"
    )
    parser.add_argument(
        "--layer", action="store_true", help="the whole layer's training step too, on lax and ours"
    )
    options.add_peers(parser, rounds=7)
    parser.add_argument(
        "--all-kernels",
        action="store_true",
        help="time every kernel of this build that fits, under both orders and --swizzles, beside "
        "the default choice",
    )
    parser.add_argument(
        "--swizzles", nargs="*", type=int, default=[1, 4, 8], help="with --all-kernels"
    )
    args = parser.parse_args(argv)
    if args.dtype == "float32":
        parser.error("--dtype float32: the kernels multiply bfloat16 or float16")
    if args.small:
        args.rotate_mb, args.rounds = min(args.rotate_mb, 1.0), min(args.rounds, 2)
    try:
        args.problems = _problems(args)
        if args.layer and args.shapes:
            grouped_problems.check_layers(args.problems)
    except ValueError as error:
        parser.error(str(error))
    return args


def _problems(args: argparse.Namespace) -> list[Problem]:
    """What to run, without repetitions."""
    distribution = args.distribution or "random"
    found = [grouped_problems.parse(text, distribution) for text in args.shapes]
    if args.held_out:
        found += grouped_problems.HELD_OUT
    if not found:
        listed = grouped_problems.SMALL if args.small else grouped_problems.TABLE
        found = [
            Problem(p.m, p.n, p.k, p.groups, args.distribution or p.distribution) for p in listed
        ]
    return list(dict.fromkeys(found))


class Bench:
    """One run: builds the columns of each problem, checks and times them, writes the rows."""

    def __init__(self, args: argparse.Namespace, platform: str, out: report.Report):
        import jax.numpy as jnp
        from grouped import candidates as grouped_candidates

        self.peers = grouped_candidates
        self.args = args
        self.out = out
        self.dtype = jnp.dtype(args.dtype)
        self.timer = timing.make_timer(args.timer, platform)
        self.gb_per_s = 0.0
        self.pallas = None
        if "pallas" in args.peers and platform == "gpu":
            self.pallas = grouped_candidates.PallasCompiler(args.pallas_grid, args.compile_threads)
            for mode in args.modes:
                for problem in args.problems:
                    self.pallas.submit(problem, mode, self.dtype)

    def close(self) -> None:
        if self.pallas:
            self.pallas.close()

    def copy_bandwidth(self) -> None:
        """Measures what the memory floor is computed from."""
        copied = timing.copy_bandwidth(self.timer, 2**20 if self.args.small else 2**30)
        self.gb_per_s = copied["gb_per_s"]
        self.out.add("copy", method=self.timer.method, **copied)
        self.out.progress(f"device copy {self.gb_per_s:.0f} GB/s")

    def run_layers(self, platform: str) -> None:
        """Measures the whole layer, for --shapes or for its own list."""
        from grouped import layer as grouped_layer

        listed = grouped_problems.SMALL_LAYERS if self.args.small else grouped_problems.LAYERS
        for problem in self.args.problems if self.args.shapes else listed:
            grouped_layer.run(problem, self.args, platform, self.out)

    def _row(self, problem: Problem, mode: str, impl: str, status: str, **fields: Any) -> dict:
        return self.out.add(
            "grouped",
            shape=problem.name,
            mode=mode,
            m=problem.m,
            n=problem.n,
            k=problem.k,
            groups=problem.groups,
            distribution=problem.distribution,
            dtype=str(self.dtype),
            impl=impl,
            status=status,
            method=self.timer.method,
            turn_ms=self.args.turn_ms,
            **fields,
        )

    def _best_pallas(self, problem: Problem, mode: str, operands: list) -> timing.Candidate:
        """The fastest configuration of the grid in a first short measurement."""
        if self.pallas is None:
            raise self.peers.Unsupported("the Pallas kernels need an NVIDIA GPU")
        found = self.pallas.candidates(problem, mode, operands)
        for candidate in found:
            timing.warm_up(candidate)
        times = timing.interleave(self.timer, found, rounds=2, burst=2)
        medians = [report.summarise(t.times_us)["median_us"] for t in times]
        best = found[medians.index(min(medians))]
        best.info["configs_tried"] = len(found)
        return best

    def _builders(self, problem: Problem, mode: str, operands: list) -> dict[str, Callable]:
        """How to make each column that was asked for, ours first."""
        ours = options.implementation_of(self.args)
        peers = self.peers
        made = {
            OURS: lambda: peers.bwgemm(problem, mode, operands, ours),
            "xla": lambda: peers.xla(problem, mode, operands),
            "pallas": lambda: self._best_pallas(problem, mode, operands),
            "tokamax": lambda: peers.tokamax(problem, mode, operands),
            "torch": lambda: peers.torch(problem, mode, operands),
        }
        made = {name: made[name] for name in (OURS, *self.args.peers)}
        if self.args.all_kernels:
            made |= peers.all_kernels(mode, operands, self.args.swizzles)
        return made

    def run(self, problem: Problem, mode: str) -> list[dict]:
        """Checks and measures one mode of one problem; returns its rows."""
        begin = time.perf_counter()
        args = self.args
        sizes = problem.sizes(args.seed)
        nbytes = problem.bytes(mode, self.dtype.itemsize, args.seed)
        copies = timing.copies_for(nbytes, int(args.rotate_mb * 2**20))
        operands = grouped_problems.make_operands(problem, mode, self.dtype, copies, args.seed)
        want = grouped_problems.reference(mode, *operands[0][:2], sizes)
        bound = grouped_problems.bound(self.dtype)
        found, rows, distances = [], [], []
        for name, build in self._builders(problem, mode, operands).items():
            try:
                candidate = build()
                candidate.name = name
                distance = float(grouped_problems.worst_row(self.peers.result(candidate), want))
                if not distance <= bound:  # NaN is wrong too
                    status = f"wrong: a row is {distance:.2e} off, the bound is {bound:.2e}"
                    rows.append(self._row(problem, mode, name, status, distance=str(distance)))
                    continue
                timing.warm_up(candidate, 0.0 if args.small else 0.005)
                self.timer.burst(candidate, 0, 2)
            except self.peers.Unsupported as reason:
                rows.append(self._row(problem, mode, name, f"unsupported: {reason}"))
            except Exception as error:  # one column must not cost the others their turn
                rows.append(self._row(problem, mode, name, f"error: {report.one_line(error)}"))
            else:
                found.append(candidate)
                distances.append(distance)
        del want
        times = timing.interleave(
            self.timer, found, rounds=args.rounds, burst=args.burst, turn_ms=args.turn_ms
        )
        clocks = report.clocks()  # right after the work: what the GPU ran at
        floor_us = nbytes / self.gb_per_s / 1e3
        for candidate, distance, measured in zip(found, distances, times, strict=True):
            stats = report.summarise(measured.times_us)
            rows.append(
                self._row(
                    problem,
                    mode,
                    candidate.name,
                    "ok",
                    **stats,
                    tflops=problem.flops / stats["median_us"] / 1e6,
                    floor_us=floor_us,
                    gb_per_s=nbytes / stats["median_us"] / 1e3,
                    distance=distance,
                    copies=copies,
                    kernels=measured.kernels,
                    clocks=clocks if candidate is found[0] else None,
                    largest_group=int(sizes.max()),
                    empty_groups=int((sizes == 0).sum()),
                    times_us=[round(t, 3) for t in measured.times_us],
                    **candidate.info,
                )
            )
        seconds = time.perf_counter() - begin
        self.out.progress(f"  {mode:8s}{problem.name:28s}{_line(rows)}  [{seconds:.1f}s]")
        return rows


def _line(rows: list[dict]) -> str:
    """A problem's progress text: the median of every column, at most six, and what went wrong."""
    done = [f"{r['impl']} {r['median_us']:.1f}us" for r in rows if "median_us" in r]
    bad = [f"{r['impl']} {r['status']}" for r in rows if r["status"] != "ok"]
    return "  ".join(done[:6] + bad)


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_args(argv)
    if args.dry_run:
        print(f"columns: {OURS} ({args.implementation}), {', '.join(args.peers)}; ", end="")
        print(f"{options.turns(args)} in {args.dtype}: {', '.join(args.modes)}")
        for problem in args.problems:
            sizes = problem.sizes(args.seed)
            print(
                f"  {problem.name:28s} {problem.flops / 1e9:8.1f} GFLOP, groups of {sizes.min()} "
                f"to {sizes.max()} rows, {(sizes == 0).sum()} empty"
            )
        return 0
    platform = options.prepare(args, share_gpu="torch" in args.peers and options.has_torch())
    out = report.Report(args.out, "bench_grouped")
    bench = Bench(args, platform, out)
    try:
        bench.copy_bandwidth()
        for mode in args.modes:  # a fault in one mode's peer then does not cost the other modes
            for problem in args.problems:
                bench.run(problem, mode)
        if args.layer:
            bench.run_layers(platform)
    finally:
        bench.close()
        out.close()
    rows = out.rows("grouped")
    if rows:
        print(grouped_tables.summary(rows, PEERS))
    if args.all_kernels:
        print(f"\n{grouped_tables.fastest_kernels(rows, PEERS)}")
    layers = out.rows("layer")
    if layers:
        from grouped import layer as grouped_layer

        print(grouped_layer.summary(layers))
    every = rows + [{"mode": "layer", **row} for row in layers]
    for line in grouped_tables.failures(every, PEERS):
        print(line, file=sys.stderr)
    return 1 if any(r["status"] != "ok" and r["impl"] not in PEERS for r in every) else 0


if __name__ == "__main__":
    sys.exit(main())
