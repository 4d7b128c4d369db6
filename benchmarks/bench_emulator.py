"""Speed of the emulator: time of one kernel on one product, and instructions a second.

python bench_emulator.py                # the 2-CTA kernel of SM100 on 256 x 256 x 256
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from common import options, report

FLAGSHIP = "sm100_bf16_bf16_kn_256x256x64_2x1_2sm"


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n", 1)[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--out", metavar="FILE", help="write JSON lines to FILE")
    parser.add_argument("--kernel", default=FLAGSHIP, help="full name of a dense kernel")
    parser.add_argument("--size", type=options.positive, default=256, help="m, n and k")
    parser.add_argument("--rounds", type=options.positive, default=5)
    parser.add_argument("--small", action="store_true", help="rehearse: one round, size 64")
    parser.add_argument("--dry-run", action="store_true", help="print what would run, run nothing")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_args(argv)
    if args.small:
        args.size, args.rounds = 64, 1
    if args.dry_run:
        print(f"{args.kernel} on {args.size}^3, {args.rounds} rounds")
        return 0
    import numpy as np

    from jax_bwgemm import emulator, runtime
    from jax_bwgemm.emulator.dense import find_kernel, operand_shapes, run_gemm

    if runtime.load_emulator() is None:
        print("error: jax_bwgemm was installed without its emulator", file=sys.stderr)
        return 2
    try:
        kernel = find_kernel(args.kernel)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    n = args.size
    shapes = operand_shapes(kernel, n, n, n, 1)
    a, b = (np.ones(shape, kernel.in_dtype) for shape in shapes)
    out = report.Report(args.out, "bench_emulator")
    times, instructions = [], 0
    for turn in range(args.rounds + 1):  # the first parses and decodes the kernel
        run_gemm(kernel, a, b)
        stats = emulator.last_launch()
        assert stats is not None  # a launch has just succeeded
        if turn:
            times.append(stats.seconds * 1e6)
            instructions = stats.thread_instructions
    summary = report.summarise(times)
    row = out.add(
        "emulator",
        kernel=kernel.name,
        size=n,
        thread_instructions=instructions,
        instructions_per_us=instructions / summary["median_us"],
        **summary,
    )
    out.close()
    columns = ("kernel", "size", "median_us", "spread", "instructions_per_us", "samples")
    print(report.table([row], columns))
    return 0


if __name__ == "__main__":
    sys.exit(main())
