"""`python -m jax_bwgemm tune`: measure kernels for given shapes and keep the fastest."""

from __future__ import annotations

import argparse
import re
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jax_bwgemm.config import Target
    from jax_bwgemm.tuning.keys import Key
    from jax_bwgemm.tuning.problems import Problems

_DTYPES = {"bf16": "bfloat16", "f16": "float16", "f32": "float32"}
MAJORS = ("kn", "kk", "mn", "mk")
_SHAPE = re.compile(rf"(\d+)[,x](\d+)[,x](\d+)(?:[,x](\d+))?(?::({'|'.join(MAJORS)}))?")


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    """Adds `tune` to the command line."""
    parser = subparsers.add_parser(
        "tune",
        help="measure kernels for given shapes on this GPU and remember the fastest",
        description="Measures kernels for the given products on this machine's GPU and writes the "
        "fastest of each to the tuning cache, which every later process consults before the "
        "heuristic. Exit code: 0 all tuned, 1 some not, 2 could not run.",
    )
    parser.add_argument(
        "--shapes", nargs="+", required=True, metavar="M,N,K[xB][:MAJORS]", help="products to tune"
    )
    parser.add_argument("--dtype", choices=("bf16", "f16"), default="bf16", help="operands")
    parser.add_argument("--out-dtype", choices=tuple(_DTYPES), help="default: operands'")
    parser.add_argument(
        "--majors",
        nargs="+",
        choices=MAJORS,
        default=["kn"],
        help="contiguous dimension of lhs and of rhs; kn kk mn: a layer and its gradients' storage",
    )
    parser.add_argument("--out", metavar="FILE", help="default: the tuning cache of this GPU")
    parser.add_argument(
        "--merge",
        action="store_true",
        help="keep the other problems that --out already has (the cache always keeps them)",
    )
    parser.add_argument("--budget", type=float, default=120.0, metavar="SECONDS", help="in all")


def parse_shape(text: str) -> tuple[tuple[int, int, int, int], str | None]:
    """Reads ``M,N,K``, with ``,BATCH`` or ``xBATCH`` and ``:MAJORS`` where needed.

    Returns:
        m, n, k and batch; the majors, if given.

    Raises:
        ValueError: The text is not of that form, or a size is 0.
    """
    match = _SHAPE.fullmatch(text)
    if match is None or 0 in (sizes := [int(size or 1) for size in match.groups()[:4]]):
        raise ValueError(
            f"a shape is M,N,K[xBATCH][:MAJORS] with positive sizes and majors out of "
            f"{' '.join(MAJORS)}, got {text!r}"
        )
    m, n, k, batch = sizes
    return (m, n, k, batch), match[5]


def problem(
    shape: tuple[int, int, int, int], in_dtype: str, out_dtype: str, majors: str, target: Target
) -> Key | str:
    """The problem as selection sees it, or why there is nothing to tune."""
    import jax

    from jax_bwgemm.dense.spec import GemmSpec
    from jax_bwgemm.product.spec import Policy
    from jax_bwgemm.tuning import problems

    m, n, k, batch = shape
    lhs = (batch, m, k) if majors[0] == "k" else (batch, k, m)
    rhs = (batch, k, n) if majors[1] == "n" else (batch, n, k)
    spec = GemmSpec(*majors, out_dtype=out_dtype, policy=Policy(implementations=("cutlass",)))
    operands = (jax.ShapeDtypeStruct(x, in_dtype) for x in (lhs, rhs))
    return problems.key_of(spec, *operands, target)


def collect(args: argparse.Namespace, target: Target) -> Problems:
    """All problems that the options describe.

    Raises:
        ValueError: A malformed shape.
    """
    from jax_bwgemm.tuning.problems import Problems

    in_dtype, out_dtype = _DTYPES[args.dtype], _DTYPES[args.out_dtype or args.dtype]
    counts: Counter[Key] = Counter()
    skipped = []
    for shape, own_majors in map(parse_shape, args.shapes):
        for majors in [own_majors] if own_majors else args.majors:
            found = problem(shape, in_dtype, out_dtype, majors, target)
            if isinstance(found, str):
                skipped.append((f"{shape} {majors}", found))
            else:
                counts[found] = 1
    return Problems(counts, tuple(skipped))


def run(args: argparse.Namespace) -> int:
    """Runs the subcommand; returns its exit code."""
    from jax_bwgemm.tuning import autotuning, files, storage
    from jax_bwgemm.tuning.devices import local_device

    try:
        device, target, kind = local_device()
        found = collect(args, target)
        path = Path(args.out) if args.out else files.cache_path(kind.kind)
        if path is None:
            raise ValueError("BWGEMM_TUNING_CACHE=off, and no --out was given")
        storage.check_writable(path)
    except (RuntimeError, ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    result = autotuning.tune(found, device, target, kind, timeout=args.budget, progress=None)
    print(result)
    written = result.dump(path, merge=args.merge or not args.out)
    print(f"{path}: {len(written)} problems")
    return 1 if result.skipped else 0
