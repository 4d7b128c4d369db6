"""The tables that bench_gemm.py prints."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from common import report


def choice(row: dict) -> str:
    """This package's choice in short: kernel without its types, tile order, splits if any."""
    kernel = row.get("kernel")
    if kernel is None:
        return row.get("implementation") or row.get("status", "-")
    arch, _, _, rest = kernel.split("_", 3)
    splits = f" /{row['splits']}" if (row.get("splits") or 1) > 1 else ""
    way = f" {row['decomposition']}" if row.get("decomposition") else ""
    return f"{arch} {rest} {row['raster_order']}{row['swizzle']}{splits}{way}"


def summary(
    rows: Sequence[dict], peers: Sequence[str], gb_per_s: float | None
) -> tuple[str, dict[str, list[float]]]:
    """The result table, one line per shape, and each peer's ratios to this package's time.

    Args:
      rows: the `gemm` records.
      peers: their columns, in the order wanted.
      gb_per_s: measured copy bandwidth for the `floor us` column.
    """
    by_shape: dict[str, dict[str, dict]] = {}
    for row in rows:
        by_shape.setdefault(row["shape"], {})[row["impl"]] = row
    ratios: dict[str, list[float]] = {}
    lines = []
    for name, impls in by_shape.items():
        ours = impls.get("bwgemm", {})
        mine = ours.get("median_us")
        line: dict[str, Any] = {"shape": name, "bwgemm us": mine, "TFLOP/s": ours.get("tflops")}
        if gb_per_s and mine:
            moved = ours["gb_per_s"] * mine
            line["floor us"] = moved / gb_per_s
        line["what ran"] = choice(ours)
        for impl in peers:
            row = impls.get(impl)
            if row is None:
                continue
            line[f"{impl} us"] = row.get("median_us")
            ratio = row["median_us"] / mine if mine and row.get("median_us") else None
            line[f"{impl} ratio"] = ratio
            if ratio:
                ratios.setdefault(impl, []).append(ratio)
        lines.append(line)
    columns = list(dict.fromkeys(c for line in lines for c in line))
    return report.table(lines, columns), ratios


def fastest_kernels(rows: Sequence[dict], peers: Sequence[str], top: int = 12) -> str:
    """Per shape, the fastest kernels of an --all-kernels run and what each loses to the best."""
    parts = []
    for name in dict.fromkeys(r["shape"] for r in rows):
        timed = [r for r in rows if r["shape"] == name and "median_us" in r]
        timed = sorted((r for r in timed if r["impl"] not in peers), key=lambda r: r["median_us"])
        best = timed[0]["median_us"] if timed else 0.0
        lines = [
            {
                "kernel": r["impl"] if r["impl"] != "bwgemm" else f"default: {choice(r)}",
                "us": r["median_us"],
                "TFLOP/s": r["tflops"],
                "of best": best / r["median_us"],
                "spread": r["spread"],
            }
            for r in timed
        ]
        shown = lines[:top] + [x for x in lines[top:] if x["kernel"].startswith("default")]
        columns = ("kernel", "us", "TFLOP/s", "of best", "spread")
        parts.append(f"{name}\n{report.table(shown, columns)}")
    return "\n\n".join(parts)
