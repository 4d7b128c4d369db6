"""Records how long kernels take, for cost_fit.py: compact JSON lines, one problem each.

    python cost_record.py --tags models-fitting --out records.jsonl
    python cost_record.py --shapes 1024,1024,64x96 --kernels 30 --out records.jsonl

Each problem is timed under the kernels with the best predicted times, each in the tile order that
selection gives it, in turns with the default choice and with `jnp.dot` and torch. Operands are
random and rotate past L2. A kernel of the build whose tile has no cost yet is always timed.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import dataclasses
import functools
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from common import options, timing
from dense import shapes as shape_lists

ROTATE_BYTES = 160 * 2**20
# No tile without a cost that is predicted to take this many times as long is timed.
MAX_UNKNOWN_RATIO = 1.5
# Relative distance of a result from torch's above which they are not the same product.
WRONG = 0.01


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--tags", nargs="*", default=[], help=f"of {', '.join(shape_lists.TAGS)}")
    parser.add_argument(
        "--shapes", nargs="*", default=[], metavar="M,N,K[xB][:MAJORS]", help="further products"
    )
    parser.add_argument("--dtype", default="bfloat16", choices=options.DTYPES)
    parser.add_argument("--out-dtype", choices=options.DTYPES, help="default: --dtype")
    parser.add_argument(
        "--kernels",
        type=int,
        default=18,
        help="kernels to time (default: 18); 0: the default choice alone",
    )
    parser.add_argument(
        "--beside",
        metavar="FILE",
        help="JSON: problem -> label of a launch to time too, such as another version's choice",
    )
    parser.add_argument("--peers", nargs="*", default=["xla", "torch"], choices=("xla", "torch"))
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--calls", type=int, default=3)
    parser.add_argument(
        "--budget-s", type=float, default=float("inf"), help="seconds after which to stop"
    )
    parser.add_argument("--wall", action="store_true", help="wall clock, to rehearse on a CPU")
    parser.add_argument("--out", required=True, metavar="FILE", help="JSON lines")
    args = parser.parse_args(argv)
    args.out_dtype = args.out_dtype or args.dtype
    args.selected = shape_lists.select(args.tags, args.shapes)
    args.others = {}
    if args.beside:
        with open(args.beside, encoding="utf-8") as file:
            args.others = json.load(file)
    return args


def operands(shape: shape_lists.Shape, dtype: str, copies: int) -> list[tuple[Any, Any]]:
    """Random normal operands, made by torch: nothing to compile for each problem."""
    import jax
    import torch

    device = "cuda" if jax.default_backend() == "gpu" else "cpu"
    made = []
    for _ in range(copies):
        lhs, rhs = (
            torch.empty(s, dtype=getattr(torch, dtype), device=device).normal_()
            for s in (shape.lhs_shape, shape.rhs_shape)
        )
        made.append((jax.dlpack.from_dlpack(lhs), jax.dlpack.from_dlpack(rhs)))
    return made


def choices(shape: shape_lists.Shape, args: argparse.Namespace) -> list[Any]:
    """The default choice, the best predicted ones, and every tile without a cost."""
    from jax_bwgemm import runtime
    from jax_bwgemm.dense import costs, heuristics, search_space, tuned
    from jax_bwgemm.tuning.keys import DenseKey
    from jax_bwgemm.tuning.records import Choice

    key = DenseKey(args.dtype, args.out_dtype, shape.majors, shape.m, shape.n, shape.k, shape.batch)
    target, table = runtime.local_target().target, runtime.kernels()
    found = search_space.kernels_to_try(key, table, target, max(1, args.kernels))
    if other := args.others.get(shape.name):
        found[1:1] = _read(other, found[0], table)
    if not args.kernels:
        return found
    spec = tuned.spec_of(key)
    usable, _ = heuristics.rank(table, spec, args.dtype, tuned.dims_of(key), target)
    names = {c.kernel.name for c in found}
    for candidate in usable:
        if candidate.cycles > MAX_UNKNOWN_RATIO * usable[0].cycles:
            break
        if costs.is_known(candidate.kernel) or candidate.kernel.name in names:
            continue
        raster, swizzle = heuristics.tile_order(candidate, tuned.dims_of(key), 2)
        found.append(Choice(candidate.kernel, raster, swizzle, candidate.splits))
    return found


def _read(text: str, like: Any, table: Sequence[Any]) -> list[Any]:
    """The launch of a label, for the types and majors of another one; none if it is the same."""
    if text == label(like):
        return []
    name, raster, swizzle, *rest = text.split("|")
    name = like.kernel.name.rsplit(like.kernel.name.split("_", 4)[4], 1)[0] + name
    kernel = next(k for k in table if k.name == name)
    splits, way = (int(rest[0]) if rest else 1), (rest + ["heuristic"] * 2)[1]
    return [
        dataclasses.replace(
            like,
            kernel=kernel,
            raster_order=raster,
            swizzle=int(swizzle),
            splits=splits,
            decomposition=way,
        )
    ]


def label(choice: Any) -> str:
    """The run-time attributes of a launch, without what the problem says."""
    name = choice.kernel.name.split("_", 4)[4]
    way = "" if choice.decomposition == "heuristic" else f"|{choice.decomposition}"
    splits = f"|{choice.splits}" if choice.splits > 1 or way else ""
    return f"{name}|{choice.raster_order}|{choice.swizzle}{splits}{way}"


def compile_choice(
    shape: shape_lists.Shape, made: list, out_dtype: str, choice: Any
) -> timing.Candidate:
    """A launch of one kernel as something to time."""
    import jax

    import jax_bwgemm

    config = jax_bwgemm.TuningConfig(
        kernel=choice.kernel.name,
        grid_minor_dim=None if choice.raster_order == "heuristic" else choice.raster_order,
        grid_tile_width=choice.swizzle,
        splits=choice.splits,
        decomposition=None if choice.decomposition == "heuristic" else choice.decomposition,
    )
    product = functools.partial(
        jax_bwgemm.dot_general,
        dimension_numbers=shape.dimension_numbers,
        preferred_element_type=out_dtype,
        implementation="cutlass",
        config=config,
    )
    compiled = jax.jit(product).lower(*made[0]).compile()
    return timing.Candidate(
        label(choice), lambda i: compiled(*made[i]), jax.block_until_ready, len(made)
    )


def distance(got: Any, want: Any) -> float:
    """Of two results, relative to the second."""
    import torch

    got, want = (torch.from_dlpack(x).float() for x in (got, want))
    return float((got - want).norm() / want.norm())


def record(
    shape: shape_lists.Shape,
    args: argparse.Namespace,
    timer: timing.Timer,
    pool: concurrent.futures.Executor,
) -> dict[str, Any]:
    """Times one problem."""
    from dense import candidates as peers

    nbytes = shape.bytes(2, 2)
    copies = max(2, min(16, -(-ROTATE_BYTES // nbytes)))
    made = operands(shape, args.dtype, copies)
    picked = choices(shape, args)
    jobs = [pool.submit(compile_choice, shape, made, args.out_dtype, c) for c in picked]
    found = []
    if "xla" in args.peers:
        found.append(peers.xla(shape, made, args.out_dtype))
    if "torch" in args.peers and args.dtype == args.out_dtype:
        found.append(peers.torch(shape, made, args.out_dtype))
    found += [job.result() for job in jobs]
    ready, errors = [], {}
    for candidate in found:
        timing.warm_up(candidate)
        timer.burst(candidate, 0, 2)
        ready.append(candidate)
    want = found[0].call(0)
    for candidate in found[1:]:
        off = distance(candidate.call(0), want)
        if not off <= WRONG:
            errors[candidate.name] = off
    times = timing.interleave(timer, ready, rounds=args.rounds, burst=args.calls)
    us = {
        c.name: round(statistics.median(t.times_us), 2) for c, t in zip(ready, times, strict=True)
    }
    return {
        "shape": [shape.m, shape.n, shape.k, shape.batch, shape.majors],
        "dtypes": [args.dtype, args.out_dtype],
        "default": label(picked[0]),
        **({"beside": args.others[shape.name]} if shape.name in args.others else {}),
        "peers": {name: us.pop(name) for name in ("xla", "torch") if name in us},
        "us": us,
        **({"wrong": errors} if errors else {}),
    }


def record_all(
    problems: Mapping[str, Callable[[timing.Timer, concurrent.futures.Executor], dict[str, Any]]],
    args: argparse.Namespace,
) -> int:
    """Times problems, writes a line for each and prints what its best kernel is.

    Args:
        problems: By name, what times one and returns its row.
        args: ``wall``, ``budget_s`` and ``out`` of `parse_args`.

    Returns:
        The program's exit status: 1 if a problem failed or a result is wrong.
    """
    import jax

    timer = timing.make_timer("wall" if args.wall else "auto", jax.default_backend())
    begin, failed = time.perf_counter(), 0
    with (
        concurrent.futures.ThreadPoolExecutor(os.cpu_count() or 1) as pool,
        open(args.out, "a", encoding="utf-8") as out,
    ):
        for name, record_one in problems.items():
            start = time.perf_counter()
            if start - begin > args.budget_s:
                print(f"stopped before {name}", flush=True)
                break
            try:
                row = record_one(timer, pool)
            except Exception as error:  # one problem must not cost the others their turn
                failed += 1
                print(f"{name}: {type(error).__name__}: {error}"[:300], flush=True)
                continue
            failed += "wrong" in row
            out.write(json.dumps(row) + "\n")
            out.flush()
            mine, best = row["us"][row["default"]], min(row["us"].items(), key=lambda x: x[1])
            print(
                f"{name:28s} default {mine:.1f} {row['default']}  best {best[1]:.1f} "
                f"{best[0]}  {row.get('peers', '')} {row.get('wrong', '')} "
                f"[{time.perf_counter() - start:.1f}s]",
                flush=True,
            )
    return 1 if failed else 0


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_args(argv)
    timing.configure_environment(share_gpu=True)
    problems = {s.name: functools.partial(record, s, args) for s in args.selected}
    return record_all(problems, args)


if __name__ == "__main__":
    sys.exit(main())
