"""Picture of bench_grouped.py's results: TFLOP/s of every column, problem by problem and by mode.

    python plot_grouped.py grouped.jsonl --out grouped.svg
    python plot_grouped.py short.jsonl busy.jsonl --out grouped.svg   # with and without --turn-ms

Where several files have the same result, the last file's is drawn. Long turns have panels of their
own. The number beside this package's bar is the best rival's time (lax left out) over this
package's: above 1 this package is faster. The ending of --out decides the format: svg, png or pdf.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

import plot
from common import report
from grouped import tables as grouped_tables

COLUMNS = {"bwgemm": plot.OURS, "torch": "#e07a1f", "pallas": "#3d5a98", "tokamax": "#b23a48"}
COLUMNS |= {"xla": "#8a8d91"}
LAYER = "layer step, wall clock"
NAMES = {"xla": "lax.ragged_dot"}


def picture(rows: Sequence[dict]) -> Any:
    """One panel of horizontal bars for each mode, and one for the layer's step if it was measured.

    Raises:
      ValueError: Nothing was measured.
    """
    timed = [r for r in rows if r["record"] in ("grouped", "layer") and r["status"] == "ok"]
    if not timed:
        raise ValueError("no measured grouped products in the file")
    timed = [{**r, "mode": _mode(r)} for r in timed]
    modes = list(dict.fromkeys(r["mode"] for r in timed))
    columns = [c for c in COLUMNS if any(r["impl"] == c for r in timed)]
    problems = {m: list(dict.fromkeys(r["shape"] for r in timed if r["mode"] == m)) for m in modes}
    most = max(len(p) for p in problems.values())
    drawing, axes = plot.figure(1 + 3.6 * len(modes), 1.3 + most * (0.25 + 0.14 * len(columns)))
    axes.remove()
    panels = drawing.subplots(1, len(modes), squeeze=False)[0]
    found = grouped_tables.by_problem(timed)
    for mode, panel in zip(modes, panels, strict=True):
        _panel(panel, mode, problems[mode], columns, found)
        panel.set_ylim(len(problems[mode]) - most - 0.5, len(problems[mode]) - 0.5)
    keys = {}
    for panel in panels:
        handles, labels = panel.get_legend_handles_labels()
        keys |= dict(zip(labels, handles, strict=True))
    drawing.legend(
        keys.values(),
        keys.keys(),
        loc="outside upper left",
        ncols=len(columns),
        fontsize=9,
        title=f"grouped {timed[0]['dtype']} M,N,K,G on {plot.device_of(rows)}, "
        f"{plot.method_note([r for r in timed if r['record'] == 'grouped'] or timed)}; "
        "behind our bars: best rival's time over ours",
        title_fontsize=11,
        alignment="left",
    )
    return drawing


def _mode(row: dict) -> str:
    """A row's panel."""
    if row["record"] == "layer":
        return LAYER
    return row["mode"] + report.turns_of(row)


def _panel(
    panel: Any, mode: str, shapes: Sequence[str], columns: Sequence[str], found: dict
) -> None:
    """The bars of one mode, the first problem on top."""
    columns = [c for c in columns if any(c in found[mode, s] for s in shapes)]
    height = 0.8 / len(columns)
    longest = max(found[mode, s][c]["tflops"] for s in shapes for c in found[mode, s])
    for index, column in enumerate(columns):
        places, lengths = [], []
        for line, shape in enumerate(shapes):
            row = found[mode, shape].get(column)
            if row is None:
                continue
            places.append(len(shapes) - 1 - line + 0.4 - (index + 0.5) * height)
            lengths.append(row["tflops"])
            ratio = _ratio(mode, found[mode, shape]) if column == "bwgemm" else None
            if ratio is not None:
                panel.text(
                    row["tflops"] + 0.01 * longest, places[-1], f"{ratio:.2f}", va="center", size=7
                )
        label = NAMES.get(column, column)
        panel.barh(places, lengths, height, color=COLUMNS[column], label=label)
    panel.set_yticks(range(len(shapes) - 1, -1, -1), shapes, fontsize=8)
    panel.set_xlim(0, 1.12 * longest)
    panel.grid(axis="x", color="#e6e6e6", linewidth=0.6)
    panel.set_xlabel("TFLOP/s")
    panel.set_title(mode)


def _ratio(mode: str, impls: dict[str, dict]) -> float | None:
    """Time of the best rival over this package's; of a layer, lax is the only one there is."""
    rivals = ("xla",) if mode == LAYER else grouped_tables.RIVALS
    times = [impls[i]["median_us"] for i in rivals if i in impls]
    return min(times) / impls["bwgemm"]["median_us"] if times else None


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("files", nargs="+", metavar="FILE", help="JSON lines of bench_grouped.py")
    parser.add_argument("--out", required=True, help="picture to write: .svg, .png or .pdf")
    args = parser.parse_args(argv)
    try:
        plot.save(picture([r for file in args.files for r in report.load(file)]), args.out)
    except (OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(args.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
