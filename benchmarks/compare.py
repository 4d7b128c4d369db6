"""Compares benchmark results: two runs of the same column, or two columns of one run.

    python compare.py before.jsonl after.jsonl                  # did bwgemm get faster or slower?
    python compare.py gemm.jsonl --against xla                  # bwgemm against a peer
    python compare.py gemm.jsonl --against xla --min-m 512 --require-geomean 0.95 --require-min 0.85

A ratio above 1 means that the second file, or this package, is faster. Exits 1 when a requirement
is not met or a shape regressed by more than --threshold.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from common import report

Key = tuple[str, str, str]


def problem(row: dict) -> Key:
    """What identifies a row's problem: the shape (after its mode, if it has one) and the types.

    Short turns and long ones are different problems: the GPU's clock is another.
    """
    if row["record"] == "grouped":
        return f"{row['mode']} {row['shape']}{report.turns_of(row)}", row["dtype"], row["dtype"]
    return row["shape"] + report.turns_of(row), row["dtype"], row["out_dtype"]


def medians(rows: Sequence[dict], impl: str, min_m: int = 1, tag: str | None = None) -> dict:
    """Median time of every measured problem of one column, by `problem`."""
    return {
        problem(r): r["median_us"]
        for r in rows
        if r["record"] in ("gemm", "grouped")
        and r["impl"] == impl
        and r["status"] == "ok"
        and r["m"] >= min_m
        and (tag is None or tag in r.get("tags", ()))
    }


def ratios(base: dict[Key, float], new: dict[Key, float]) -> dict[Key, float]:
    """base time / new time of every problem in both.

    Raises:
      ValueError: they have no problem in common.
    """
    common = {key: base[key] / new[key] for key in base if key in new}
    if not common:
        raise ValueError("the two sides have no measured shape in common")
    return common


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n", 1)[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("base", help="JSON lines of bench_gemm.py or bench_grouped.py")
    parser.add_argument("new", nargs="?", help="a second file to hold against the first")
    parser.add_argument("--impl", default="bwgemm", help="the column looked at")
    parser.add_argument("--against", metavar="IMPL", help="with one file: the peer column")
    parser.add_argument("--min-m", type=int, default=1, help="only shapes with at least this m")
    parser.add_argument("--tag", help="only shapes with this tag")
    parser.add_argument("--threshold", type=float, default=0.05, help="tolerated loss per shape")
    parser.add_argument("--require-geomean", type=float, help="fail below this")
    parser.add_argument("--require-min", type=float, help="fail if any ratio is below this")
    args = parser.parse_args(argv)
    if (args.new is None) == (args.against is None):
        parser.error("give either a second file or --against IMPL")
    return args


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_args(argv)
    try:
        rows = report.load(args.base)
        if args.new:
            base_name, new_name = args.base, args.new
            base = medians(rows, args.impl, args.min_m, args.tag)
            new = medians(report.load(args.new), args.impl, args.min_m, args.tag)
        else:
            base_name, new_name = args.against, args.impl
            base = medians(rows, args.against, args.min_m, args.tag)
            new = medians(rows, args.impl, args.min_m, args.tag)
        found = ratios(base, new)
    except (OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    lines = [
        {"shape": key[0], "dtype": key[1], f"{base_name} us": base[key], f"{new_name} us": new[key]}
        | {"ratio": ratio}
        for key, ratio in sorted(found.items(), key=lambda item: item[1])
    ]
    print(report.table(lines, list(lines[0])))
    mean, worst = report.geomean(found.values()), min(found.values())
    print(f"{len(found)} shapes: geometric mean {mean:.3f}, least {worst:.3f}")
    failures = []
    for key in sorted(base.keys() ^ new.keys()):
        print(f"only in {base_name if key in base else new_name}: {key[0]} {key[1]}")
    if args.new and worst < 1 - args.threshold:
        slower = [k[0] for k, r in found.items() if r < 1 - args.threshold]
        failures.append(f"slower by more than {args.threshold:.0%}: {', '.join(slower)}")
    if args.require_geomean is not None and mean < args.require_geomean:
        failures.append(f"geometric mean {mean:.3f} is below {args.require_geomean}")
    if args.require_min is not None and worst < args.require_min:
        failures.append(f"least ratio {worst:.3f} is below {args.require_min}")
    for failure in failures:
        print(f"error: {failure}", file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
