"""A picture of a launch's pipeline timeline. Needs matplotlib."""

from __future__ import annotations

import os
import pathlib
from typing import TYPE_CHECKING

import numpy as np

from jax_bwgemm.emulator.trace import ASYNC, INSTANT, WAIT, Trace, unit

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLORS = {
    "TMA load": "#4477aa",
    "TMA store": "#66ccee",
    "MMA": "#ee6677",
    "TMEM load": "#228833",
    "TMEM store": "#77aa55",
    "scheduler": "#aa3377",
    "other": "#888888",
    "wait": "#dddddd",
    "runs": "#ccbb44",
}
_UNIT_ORDER = ("scheduler", "TMA load", "MMA", "TMEM load", "TMEM store", "TMA store", "other")


def check_path(path: str | os.PathLike[str]) -> None:
    """Whether `save_picture` can write files of this name, before there is a trace.

    Raises:
        RuntimeError: matplotlib is not installed.
        ValueError: It knows no such suffix.
    """
    try:
        import matplotlib.figure
    except ModuleNotFoundError as error:
        raise RuntimeError(
            "a timeline picture needs matplotlib: pip install 'jax_bwgemm[demo]'"
        ) from error
    known = matplotlib.figure.Figure().canvas.get_supported_filetypes()
    suffix = pathlib.Path(path).suffix[1:].lower()
    if suffix and suffix not in known:  # without a suffix, matplotlib adds one
        listed = ", ".join(sorted(known))
        raise ValueError(f"{os.fspath(path)}: no picture has the suffix {suffix!r}; use {listed}")


def save_picture(
    trace: Trace,
    path: str | os.PathLike[str],
    *,
    title: str = "",
    ctas: int = 2,
) -> None:
    """Draws the first CTAs of a launch: per CTA one row for each unit that worked and for each
    warp's waits.

    Args:
        trace: A timeline, `last_trace()` of a launch with `Settings.trace`.
        path: PNG file (or another format that matplotlib knows by its suffix).
        title: Headline.
        ctas: How many CTAs to draw, at least one.

    Raises:
        RuntimeError: matplotlib is not installed.
        ValueError: The trace is empty, no CTA is to be drawn, or matplotlib knows no such suffix.
    """
    check_path(path)
    if ctas < 1:
        raise ValueError(f"ctas must be at least 1, got {ctas}")
    import matplotlib.figure
    import matplotlib.patches

    chosen = np.unique(trace.events["cta"])[:ctas]
    if not chosen.size:
        raise ValueError("the trace holds no events")
    roles = _roles(trace)
    rows = [_rows(trace, int(cta), roles) for cta in chosen]
    height = sum(len(r) for r in rows) * 0.28 + 1.6
    figure = matplotlib.figure.Figure(figsize=(13, height), layout="constrained")
    axes = figure.subplots(
        len(rows), 1, sharex=True, squeeze=False, height_ratios=[len(r) for r in rows]
    )[:, 0]
    for ax, cta, content in zip(axes, chosen, rows, strict=True):
        _draw(ax, content)
        ax.set_title(f"CTA {cta}", loc="left", fontsize=9)
    axes[-1].set_xlabel("ticks (warp instructions executed)")
    handles = [matplotlib.patches.Patch(color=c, label=name) for name, c in _COLORS.items()]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), fontsize=8)
    if title:
        figure.suptitle(title, fontsize=11)
    figure.savefig(path, dpi=130)


def _roles(trace: Trace) -> dict[int, str]:
    """What the warps with each index issued, in any CTA: in a warp-specialised kernel, their
    role.
    """
    issued: dict[int, set[str]] = {}
    events = trace.events[trace.events["kind"] == ASYNC]
    for warp, name in np.unique(events[["warp", "name"]]):
        issued.setdefault(int(warp), set()).add(unit(trace.names[name]))
    return {
        warp: " (" + ", ".join(u for u in _UNIT_ORDER if u in units) + ")"
        for warp, units in issued.items()
    }


def _rows(
    trace: Trace, cta: int, roles: dict[int, str]
) -> list[tuple[str, dict[str, list[tuple[int, int]]]]]:
    """Rows of one CTA from top to bottom: label and, per color, the spans (begin, length)."""
    events = trace.events[trace.events["cta"] == cta]
    units: dict[str, list[tuple[int, int]]] = {}
    warps: dict[int, dict[str, list[tuple[int, int]]]] = {}
    for row in events:
        name = trace.names[row["name"]]
        span = (int(row["begin"]), max(int(row["end"]) - int(row["begin"]), 1))
        if row["kind"] == ASYNC:
            units.setdefault(unit(name), []).append(span)
        elif row["kind"] != INSTANT and row["warp"] >= 0:
            color = "wait" if row["kind"] == WAIT else "runs"
            warps.setdefault(int(row["warp"]), {}).setdefault(color, []).append(span)
    rows = [(u, {u: units[u]}) for u in _UNIT_ORDER if u in units]
    rows += [
        (f"warp {w}{roles.get(w, '')}", {"runs": [_extent(events, w)]} | warps[w])
        for w in sorted(warps)
    ]
    return rows


def _extent(events: np.ndarray, warp: int) -> tuple[int, int]:
    """From a warp's first event to its last: what is not a wait in between counts as running."""
    mine = events[events["warp"] == warp]
    begin = int(mine["begin"].min())
    return begin, max(int(mine["end"].max()) - begin, 1)


def _draw(ax: Axes, rows: list[tuple[str, dict[str, list[tuple[int, int]]]]]) -> None:
    for y, (_, spans) in enumerate(rows):
        for color, ranges in spans.items():
            ax.broken_barh(ranges, (y - 0.4, 0.8), color=_COLORS[color], linewidth=0)
    ax.set_yticks(range(len(rows)), [label for label, _ in rows], fontsize=8)
    ax.set_ylim(len(rows) - 0.5, -0.5)
    ax.spines[["top", "right"]].set_visible(False)
