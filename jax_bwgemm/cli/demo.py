"""`python -m jax_bwgemm demo`: the package at work, checked as it goes."""

from __future__ import annotations

import argparse
import dataclasses
import functools
import importlib
import sys
import time

IMPLEMENTATIONS = ("auto", "cutlass", "xla", "emulator")
DTYPES = ("bfloat16", "float16", "float32")
# Section name -> module with a `SECTION`, in the order they run.
SECTIONS = {
    "transforms": "jax_bwgemm.cli.demo_transforms",
    "training": "jax_bwgemm.cli.demo_training",
    "blackwell": "jax_bwgemm.cli.demo_blackwell",
}


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    """Adds `demo` to the command line."""
    parser = subparsers.add_parser(
        "demo",
        help="run the package, checked against float64 and jnp.matmul",
        description="Checks jit, vmap, grad and jvp of jax_bwgemm.matmul against float64, then "
        "trains a classifier of handwritten digits whose forward and backward products all go "
        "through the package, beside a twin on jnp.matmul, and executes a tile of the Blackwell "
        "kernel in the emulator. Exits with 1 if anything disagrees.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument(
        "--sections",
        nargs="+",
        choices=tuple(SECTIONS),
        default=list(SECTIONS),
        help="what to run",
    )
    parser.add_argument("--steps", type=int, default=150, help="training steps")
    parser.add_argument(
        "--implementation",
        choices=IMPLEMENTATIONS,
        default="auto",
        help="what runs the products; auto takes kernels where they can run, else xla",
    )
    parser.add_argument("--dtype", choices=DTYPES, default="bfloat16", help="type of all operands")
    parser.add_argument("--seed", type=int, default=0, help="seed of all random numbers")


def run(args: argparse.Namespace) -> int:
    """Runs the chosen sections.

    Returns:
      0 if every check passed, 1 if one did not, 2 if a section cannot run here.
    """
    from jax_bwgemm.cli.info import device_lines
    from jax_bwgemm.cli.sections import Options, checks_table

    if args.steps < 1:
        print(f"error: --steps must be at least 1, got {args.steps}", file=sys.stderr)
        return 2
    if args.steps < 2 and "training" in args.sections:
        print(
            "error: --steps must be at least 2 for the section training, which compares the last "
            f"step's loss with the first one's, got {args.steps}",
            file=sys.stderr,
        )
        return 2
    if not 0 <= args.seed < 2**63:
        print(f"error: --seed must be in [0, 2^63), got {args.seed}", file=sys.stderr)
        return 2
    sections = [
        importlib.import_module(module).SECTION
        for name, module in SECTIONS.items()
        if name in args.sections
    ]
    for section in sections:
        if reason := section.unavailable():
            print(f"error: {reason}", file=sys.stderr)
            return 2
    implementation = None if args.implementation == "auto" else args.implementation
    options = Options(args.dtype, implementation, args.steps, args.seed)
    say = functools.partial(print, flush=True)
    say("\n".join(device_lines()))
    try:
        checks = []
        for section in sections:
            say(f"\n{section.title}")
            begin = time.perf_counter()
            found = section.run(options, say)
            checks += [dataclasses.replace(c, name=f"{section.name}: {c.name}") for c in found]
            say(f"  {time.perf_counter() - begin:.1f} s")
    except NotImplementedError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    say(f"\n{checks_table(checks)}")
    failed = [check.name for check in checks if not check.passed]
    if failed:
        print(f"error: {len(failed)} of {len(checks)} checks failed", file=sys.stderr)
        return 1
    say(f"all {len(checks)} checks passed")
    return 0
