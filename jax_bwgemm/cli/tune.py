"""`python -m jax_bwgemm tune`: measure kernels for given shapes and keep the fastest."""

from __future__ import annotations

import argparse
import re
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jax_bwgemm.config import Target
    from jax_bwgemm.tuning.keys import Key
    from jax_bwgemm.tuning.problems import Problems

_DTYPES = {"bf16": "bfloat16", "f16": "float16", "f32": "float32"}
MAJORS = ("kn", "kk", "mn", "mk")
GROUPED_MAJORS = ("kn", "kk", "mn")
_SHAPE = re.compile(rf"(\d+)[,x](\d+)[,x](\d+)(?:[,x](\d+))?(?::({'|'.join(MAJORS)}))?")
_GROUPED = re.compile(rf"(\d+),(\d+),(\d+),(\d+)(?:/(\d+))?(?::({'|'.join(GROUPED_MAJORS)}))?")
_SCALED = re.compile(r"(\d+)[,x](\d+)[,x](\d+)(?:[,x](\d+))?:(\w+)/(\w+)")
_MAX_SIZE = 2**31 - 1
_EPILOG = """\
grouped products (--ragged M,N,K,GROUPS[/MATRICES][:MAJORS]):
  kn  lhs[M,K] in GROUPS groups of rows, rhs[GROUPS,K,N] -> [M,N]    ragged_dot
  kk  lhs[M,K] in GROUPS groups of rows, rhs[GROUPS,N,K] -> [M,N]    the gradient of its lhs
  mn  lhs[M,K], rhs[M,N] in GROUPS groups of rows -> [GROUPS,K,N]    the gradient of its rhs
  /MATRICES  how many of the GROUPS matrices are on this device (expert parallel); default: all
  A layer x[16384,4096] @ w[64,4096,1536] and its gradients:
    --ragged 16384,1536,4096,64:kn 16384,4096,1536,64:kk 16384,1536,4096,64:mn
products of scaled operands (--scaled M,N,K[xB]:A/B), a[M,K] and b[N,K] in float8_e4m3fn:
  A and B are layouts of scales: tensor, row, 1x128, 128x128.
    --scaled 4096,7168,16384:1x128/128x128
  Other types, and grouped ones: jax_bwgemm.autotune of a function.
Group sizes are drawn at random, or are --group-sizes in random order. Only calls with about
the same representative_group_sizes find the entry.
"""


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not seconds >= 0:
        raise argparse.ArgumentTypeError(f"must be a number of at least 0, got {text!r}")
    return seconds


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    """Adds `tune` to the command line."""
    parser = subparsers.add_parser(
        "tune",
        help="measure kernels for given shapes on this GPU and remember the fastest",
        description="Measures kernels for the given products on this machine's GPU and writes the\n"
        "fastest of each to the tuning cache, which every later process consults before the\n"
        "heuristic. Exit code: 0 all tuned, 1 some not, 2 could not run.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--shapes", nargs="+", default=[], metavar="M,N,K[xB][:MAJORS]", help="dense products"
    )
    parser.add_argument(
        "--ragged",
        nargs="+",
        default=[],
        metavar="M,N,K,GROUPS[/MATRICES][:MAJORS]",
        help="grouped products: see below",
    )
    parser.add_argument(
        "--scaled",
        nargs="+",
        default=[],
        metavar="M,N,K[xB]:A/B",
        help="products of scaled operands: see below",
    )
    parser.add_argument(
        "--accumulation",
        choices=("promoted", "fast"),
        default="promoted",
        help="of every --scaled (default: promoted)",
    )
    parser.add_argument(
        "--group-sizes",
        nargs="+",
        type=int,
        metavar="ROWS",
        help="typical sizes of the groups of every --ragged (default: random cuts)",
    )
    parser.add_argument(
        "--dtype", choices=("bf16", "f16"), default="bf16", help="operands (default: bf16)"
    )
    parser.add_argument(
        "--out-dtype", choices=tuple(_DTYPES), help="result (default: as the operands)"
    )
    parser.add_argument(
        "--majors",
        nargs="+",
        choices=MAJORS,
        default=["kn"],
        help="contiguous dimension of lhs and of rhs, for products without :MAJORS (default: kn); "
        "kn kk mn are a layer and its gradients",
    )
    parser.add_argument("--out", metavar="FILE", help="default: this GPU's tuning cache")
    parser.add_argument(
        "--merge",
        action="store_true",
        help="keep the other problems that --out already has (the cache always keeps them)",
    )
    parser.add_argument(
        "--budget", type=_seconds, default=120.0, metavar="SECONDS", help="in all (default: 120)"
    )


def parse_shape(text: str) -> tuple[tuple[int, int, int, int], str | None]:
    """Reads ``M,N,K``, with ``,BATCH`` or ``xBATCH`` and ``:MAJORS`` where needed.

    Returns:
        m, n, k and batch; the majors, if given.

    Raises:
        ValueError: The text is not of that form, or a size is 0 or too large.
    """
    match = _SHAPE.fullmatch(text)
    if match is None or not _sizes_fit(sizes := [int(size or 1) for size in match.groups()[:4]]):
        raise ValueError(
            f"a shape is M,N,K[xBATCH][:MAJORS] with sizes from 1 to {_MAX_SIZE} and majors out of "
            f"{' '.join(MAJORS)}, got {text!r}"
        )
    m, n, k, batch = sizes
    return (m, n, k, batch), match[5]


def parse_grouped(text: str) -> tuple[tuple[int, int, int, int, int], str | None]:
    """Reads ``M,N,K,GROUPS``, with ``/MATRICES`` and ``:MAJORS`` where needed.

    Returns:
        m, n, k, groups and matrices; the majors, if given.

    Raises:
        ValueError: The text is not of that form, or a size is 0 or too large.
    """
    match = _GROUPED.fullmatch(text)
    sizes = [int(size) for size in match.groups()[:5] if size] if match else [0]
    if match is None or not _sizes_fit(sizes) or sizes[-1] > sizes[3]:
        raise ValueError(
            f"a grouped product is M,N,K,GROUPS[/MATRICES][:MAJORS] with sizes from 1 to "
            f"{_MAX_SIZE}, at most as many matrices as groups, and majors out of "
            f"{' '.join(GROUPED_MAJORS)}, got {text!r}"
        )
    m, n, k, groups = sizes[:4]
    return (m, n, k, groups, sizes[4] if match[5] else groups), match[6]


def parse_scaled(text: str) -> tuple[tuple[int, int, int, int], tuple[str, str]]:
    """Reads ``M,N,K:A/B``, with ``,BATCH`` or ``xBATCH`` where needed.

    Returns:
        m, n, k and batch; the layouts of both operands' scales.

    Raises:
        ValueError: The text is not of that form, a size is 0 or too large, or there is no layout of
            that name.
    """
    from jax_bwgemm.scaled.layouts import layout_of

    match = _SCALED.fullmatch(text)
    if match is None or not _sizes_fit(sizes := [int(size or 1) for size in match.groups()[:4]]):
        raise ValueError(
            f"a product of scaled operands is M,N,K[xBATCH]:A/B with sizes from 1 to {_MAX_SIZE} "
            f"and layouts of scales A and B, got {text!r}"
        )
    m, n, k, batch = sizes
    a, b = (layout_of(name, f"--scaled {text}: a layout").name for name in match.groups()[4:])
    return (m, n, k, batch), (a, b)


def _sizes_fit(sizes: list[int]) -> bool:
    return all(1 <= size <= _MAX_SIZE for size in sizes)


def problem(
    shape: tuple[int, int, int, int], in_dtype: str, out_dtype: str, majors: str, target: Target
) -> Key | str:
    """The problem as selection sees it, or why there is nothing to tune."""
    import jax

    from jax_bwgemm.dense.contraction import DENSE
    from jax_bwgemm.dense.spec import GemmSpec
    from jax_bwgemm.product.spec import Policy
    from jax_bwgemm.tuning import problems

    m, n, k, batch = shape
    lhs = (batch, m, k) if majors[0] == "k" else (batch, k, m)
    rhs = (batch, k, n) if majors[1] == "n" else (batch, n, k)
    spec = GemmSpec(*majors, out_dtype=out_dtype, policy=Policy(implementations=("cutlass",)))
    operands = [jax.ShapeDtypeStruct(x, in_dtype) for x in (lhs, rhs)]
    return problems.key_of(DENSE, spec, operands, target)


def grouped_problem(
    shape: tuple[int, int, int, int, int],
    in_dtype: str,
    out_dtype: str,
    majors: str,
    group_sizes: list[int] | None,
    target: Target,
) -> Key | str:
    """The grouped problem as selection sees it, or why there is nothing to tune.

    Raises:
        ValueError: Group sizes that do not fit the problem.
    """
    import jax
    import jax.numpy as jnp

    from jax_bwgemm.grouped.contraction import GROUPED
    from jax_bwgemm.grouped.spec import K_GROUPED, M_GROUPED, GroupedSpec
    from jax_bwgemm.grouped.validation import as_representative
    from jax_bwgemm.product.spec import Policy
    from jax_bwgemm.tuning import problems

    m, n, k, groups, matrices = shape
    rhs = {"kn": (1, matrices, k, n), "kk": (1, matrices, n, k), "mn": (1, m, n)}[majors]
    spec = GroupedSpec(
        kind=K_GROUPED if majors == "mn" else M_GROUPED,
        b_major=majors[1],
        out_dtype=out_dtype,
        experts=matrices if majors == "mn" else 0,
        representative=as_representative("--group-sizes", group_sizes, groups, m),
        policy=Policy(implementations=("cutlass",)),
    )
    operands = [jax.ShapeDtypeStruct(x, in_dtype) for x in ((1, m, k), rhs)]
    operands += [jax.ShapeDtypeStruct(x, jnp.int32) for x in ((1, groups), (1,))]
    return problems.key_of(GROUPED, spec, operands, target)


def scaled_problem(
    shape: tuple[int, int, int, int],
    scalings: tuple[str, str],
    out_dtype: str,
    accumulation: str,
    target: Target,
) -> Key | str:
    """The problem of scaled operands as selection sees it, or why there is nothing to tune."""
    import jax

    from jax_bwgemm.product.spec import Policy
    from jax_bwgemm.scaled.layouts import layout_of
    from jax_bwgemm.scaled.primitive import DENSE
    from jax_bwgemm.scaled.spec import ScaledSpec
    from jax_bwgemm.tuning import problems

    m, n, k, batch = shape
    a_scaling, b_scaling = scalings
    spec = ScaledSpec(
        a_scaling=a_scaling,
        b_scaling=b_scaling,
        accumulation=accumulation,
        out_dtype=out_dtype,
        policy=Policy(implementations=("cutlass",)),
    )
    shapes = (batch, m, k), (batch, n, k)
    operands = [jax.ShapeDtypeStruct(x, "float8_e4m3fn") for x in shapes]
    for x, scaling in zip(shapes, scalings, strict=True):
        layout = layout_of(scaling)
        operands.append(jax.ShapeDtypeStruct(layout.scales_shapes(x)[-1], layout.scale_dtype))
    operands.append(jax.ShapeDtypeStruct((1,), "float32"))
    return problems.scaled_key_of(DENSE, spec, operands, target)


def products(args: argparse.Namespace) -> tuple[list[Any], list[Any]]:
    """Sizes and majors of the dense and of the grouped products that the options describe.

    Raises:
        ValueError: A malformed shape, majors that grouped products cannot have, or nothing to tune.
    """
    if not (args.shapes or args.ragged or args.scaled):
        raise ValueError("nothing to tune: give --shapes, --ragged or --scaled")
    for text in args.scaled:
        parse_scaled(text)
    dense, grouped = (
        [
            (sizes, majors)
            for sizes, own in map(parse, given)
            for majors in ([own] if own else args.majors)
        ]
        for parse, given in ((parse_shape, args.shapes), (parse_grouped, args.ragged))
    )
    for _, majors in grouped:
        if majors not in GROUPED_MAJORS:
            raise ValueError(f"--majors {majors} is for --shapes only")
    return dense, grouped


def collect(args: argparse.Namespace, target: Target) -> Problems:
    """All problems that the options describe.

    Raises:
        ValueError: What `products` raises, or group sizes that do not fit.
    """
    from jax_bwgemm.tuning.problems import Problems

    types = _DTYPES[args.dtype], _DTYPES[args.out_dtype or args.dtype]
    dense, grouped = products(args)
    rows: list[tuple[str, Key | str]] = [
        (f"{sizes} {majors}", problem(sizes, *types, majors, target)) for sizes, majors in dense
    ]
    for sizes, majors in grouped:
        found = grouped_problem(sizes, *types, majors, args.group_sizes, target)
        rows.append((f"{sizes} {majors}", found))
    for sizes, scalings in map(parse_scaled, args.scaled):
        out_dtype = _DTYPES[args.out_dtype or "bf16"]
        scaled = scaled_problem(sizes, scalings, out_dtype, args.accumulation, target)
        rows.append((f"{sizes} {'/'.join(scalings)}", scaled))
    counts = Counter(found for _, found in rows if not isinstance(found, str))
    skipped = [(what, found) for what, found in rows if isinstance(found, str)]
    return Problems(counts, tuple(skipped))


def run(args: argparse.Namespace) -> int:
    """Runs the subcommand; returns its exit code."""
    from jax_bwgemm.tuning import autotuning, files, storage
    from jax_bwgemm.tuning.devices import local_device

    try:
        products(args)  # a wrong option is said first
        device, target, kind = local_device()
        found = collect(args, target)
        path = Path(args.out) if args.out else files.cache_path(kind.kind)
        if path is None:
            raise ValueError(f"{files.why_no_cache()}, and no --out was given")
        storage.check_writable(path)
    except (RuntimeError, ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    result = autotuning.tune(found, device, target, kind, timeout=args.budget, progress=None)
    print(result)
    written = result.dump(path, merge=args.merge or not args.out)
    print(f"{path}: {len(written)} problems")
    return 1 if result.skipped else 0
