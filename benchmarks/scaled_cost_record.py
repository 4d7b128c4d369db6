"""Records how long kernels of 8-bit operands take, for cost_fit.py --scaled: JSON lines.

    python scaled_cost_record.py --tags models-fitting --out records.jsonl
    python scaled_cost_record.py --shapes 64,2112,7168 --kinds tensor blockwise --out records.jsonl

Each problem is timed under every kernel that fits and is not predicted to be slow, with its best
numbers of parts of K, each in the tile order that selection gives it. Kinds are those of
bench_scaled.py. Operands are random and rotate past L2.
"""

from __future__ import annotations

import argparse
import collections
import concurrent.futures
import functools
import statistics
import sys
from collections.abc import Sequence
from typing import Any

import cost_record
from common import options, timing
from dense import shapes as shape_lists

DTYPE = "float8_e4m3fn"
# A kernel that is predicted to take this many times as long as the fastest one is left out.
MAX_RATIO = 2.5
# Numbers of parts of K for each kernel.
SPLITS = 2


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    from scaled.candidates import KINDS

    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--tags", nargs="*", default=[], help=f"of {', '.join(shape_lists.TAGS)}")
    parser.add_argument("--shapes", nargs="*", default=[], metavar="M,N,K", help="further products")
    parser.add_argument(
        "--kinds", nargs="+", choices=tuple(KINDS), default=["tensor", "blockwise", "dW"]
    )
    parser.add_argument("--rounds", type=options.positive, default=4)
    parser.add_argument("--calls", type=options.positive, default=3)
    parser.add_argument(
        "--budget-s", type=float, default=float("inf"), help="seconds after which to stop"
    )
    parser.add_argument("--wall", action="store_true", help="wall clock, to rehearse on a CPU")
    parser.add_argument(
        "--implementation", choices=("cutlass", "emulator"), default="cutlass", help="to rehearse"
    )
    parser.add_argument("--out", required=True, metavar="FILE", help="JSON lines")
    args = parser.parse_args(argv)
    picked = shape_lists.select(args.tags, args.shapes)
    # Of scaled operands both have K contiguous, so products of one size are one.
    args.sizes = list(dict.fromkeys((s.m, s.n, s.k) for s in picked if s.batch == 1))
    return args


def label(choice: Any) -> str:
    """The run-time attributes of a launch, without what the problem says."""
    name = choice.kernel.name.rpartition("_bf16_")[2]
    splits = f"|{choice.splits}" if choice.splits > 1 else ""
    return f"{name}|{choice.raster_order}|{choice.swizzle}{splits}"


def choices(sizes: Sequence[int], kind: str, table: Sequence[Any], target: Any) -> list[Any]:
    """The default choice, then every kernel of a table with its best numbers of parts of K."""
    from scaled.candidates import KINDS

    from jax_bwgemm.scaled import selection
    from jax_bwgemm.scaled.spec import ScaledDims, ScaledSpec
    from jax_bwgemm.tuning.records import Choice

    a, b, accumulation = KINDS[kind]
    spec = ScaledSpec(a_scaling=a, b_scaling=b, accumulation=accumulation, out_dtype="bfloat16")
    m, n, k = sizes
    dims = ScaledDims(1, m, n, k, DTYPE, DTYPE)
    fitting = selection.kernels_for(table, spec, dims, target)
    if isinstance(fitting, str):
        raise ValueError(fitting)
    ranked = selection.ranked(fitting, dims, target)
    of_kernel: collections.Counter[str] = collections.Counter()
    found = []
    for kernel, predicted in ranked:
        of_kernel[kernel.name] += 1
        slow = predicted.cycles > MAX_RATIO * ranked[0][1].cycles
        if of_kernel[kernel.name] <= SPLITS and not slow:
            order = selection.order_of(kernel, predicted, dims)
            found.append(Choice(kernel, *order, predicted.splits))
    return found


def operands(sizes: Sequence[int], kind: str, copies: int) -> list[tuple[Any, Any]]:
    """Pairs of scaled arrays with random values, made by torch: nothing to compile for each."""
    import jax
    import torch
    from scaled.candidates import KINDS

    import jax_bwgemm as bw

    device = "cuda" if jax.default_backend() == "gpu" else "cpu"

    def one(rows: int, k: int, scaling: str) -> Any:
        like = jax.eval_shape(
            lambda x: bw.quantize(x, scaling), jax.ShapeDtypeStruct((rows, k), "bfloat16")
        )
        wide = torch.empty((rows, k), dtype=torch.bfloat16, device=device).normal_()
        values = jax.dlpack.from_dlpack(wide.to(torch.float8_e4m3fn).view(torch.uint8))
        scales = torch.rand(like.scales.shape, device=device) + 0.5
        return bw.ScaledArray(
            jax.lax.bitcast_convert_type(values, DTYPE), jax.dlpack.from_dlpack(scales), scaling
        )

    m, n, k = sizes
    a, b, _ = KINDS[kind]
    return [(one(m, k, a), one(n, k, b)) for _ in range(copies)]


def compile_choice(made: Sequence[Any], kind: str, choice: Any, implementation: str) -> Any:
    """A launch of one kernel as something to time."""
    import jax
    from scaled.candidates import KINDS

    import jax_bwgemm as bw

    config = bw.TuningConfig(
        kernel=choice.kernel.name,
        raster_order=None if choice.raster_order == "heuristic" else choice.raster_order,
        swizzle=choice.swizzle,
        splits=choice.splits,
    )
    product = functools.partial(
        bw.scaled_matmul,
        preferred_element_type="bfloat16",
        accumulation=KINDS[kind][2],
        implementation=implementation,
        config=config,
    )
    compiled = jax.jit(product).lower(*made[0]).compile()
    call = lambda i: compiled(*made[i])  # noqa: E731
    return timing.Candidate(label(choice), call, jax.block_until_ready, len(made))


def record(
    sizes: Sequence[int],
    kind: str,
    args: argparse.Namespace,
    timer: timing.Timer,
    pool: concurrent.futures.Executor,
) -> dict[str, Any]:
    """Times one problem."""
    from jax_bwgemm import runtime
    from jax_bwgemm.config import make_target

    on_gpu = args.implementation == "cutlass"
    target = runtime.local_target().target if on_gpu else make_target("sm90")
    m, n, k = sizes
    nbytes = (m + n) * k + 2 * m * n
    copies = max(2, min(16, -(-cost_record.ROTATE_BYTES // nbytes)))
    picked = choices(sizes, kind, runtime.scaled_kernels(), target)
    made = operands(sizes, kind, copies)
    jobs = [pool.submit(compile_choice, made, kind, c, args.implementation) for c in picked]
    ready = [job.result() for job in jobs]
    for candidate in ready:
        timing.warm_up(candidate)
        timer.burst(candidate, 0, 2)
    want = ready[0].call(0)
    errors = {c.name: cost_record.distance(c.call(0), want) for c in ready[1:]}
    errors = {name: off for name, off in errors.items() if not off <= cost_record.WRONG}
    times = timing.interleave(timer, ready, rounds=args.rounds, burst=args.calls)
    us = {
        c.name: round(statistics.median(t.times_us), 2) for c, t in zip(ready, times, strict=True)
    }
    return {
        "shape": [*sizes],
        "kind": kind,
        "default": label(picked[0]),
        "us": us,
        **({"wrong": errors} if errors else {}),
    }


def main(argv: Sequence[str] | None = None) -> int:
    timing.configure_environment(share_gpu=True)
    args = parse_args(argv)
    problems = {
        f"{','.join(map(str, sizes))} {kind}": functools.partial(record, sizes, kind, args)
        for sizes in args.sizes
        for kind in args.kinds
    }
    return cost_record.record_all(problems, args)


if __name__ == "__main__":
    sys.exit(main())
