"""Timelines of emulated launches, in the Chrome trace-event format that Perfetto opens."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterator
from typing import Any

import numpy as np

from jax_bwgemm.emulator.settings import native

# As struct TraceRow of cc/emulator/runtime/trace_recorder.h.
_ROW = np.dtype(
    [
        ("begin", "<u8"),
        ("end", "<u8"),
        ("arg0", "<u8"),
        ("arg1", "<u8"),
        ("cta", "<u4"),
        ("sm", "<u4"),
        ("warp", "<i4"),
        ("line", "<i4"),
        ("name", "<u4"),
        ("kind", "<u4"),
    ]
)
WAIT, ASYNC, INSTANT, SPAN = range(4)  # TraceEvent::Kind

# Asynchronous operations get lanes of their own below the warp that issued them, by unit: PTX
# mnemonic -> unit.
_UNITS = (
    ("tcgen05.mma", "MMA"),
    ("tcgen05.commit", "MMA"),
    ("tcgen05.cp", "MMA"),
    ("wgmma", "MMA"),
    ("mma", "MMA"),
    ("tcgen05.ld", "TMEM load"),
    ("tcgen05.st", "TMEM store"),
    ("cp.reduce", "TMA store"),
    ("clusterlaunchcontrol", "scheduler"),
)


def unit(name: str) -> str:
    """The unit that executes an asynchronous instruction."""
    if name.startswith("cp.async.bulk"):
        # Bulk copies name their destination first.
        to_global = name.find(".global") != -1 and name.find(".global") < name.find(".shared")
        return "TMA store" if to_global else "TMA load"
    return next((u for prefix, u in _UNITS if name.startswith(prefix)), "other")


@dataclasses.dataclass(frozen=True)
class Trace:
    """Events of one launch. Times are ticks: the number of warp instructions executed before.

    Attributes:
        events: Structured array with the fields begin, end, arg0, arg1, cta, sm, warp (-1: none),
            line (in the PTX), name (index into `names`) and kind (`WAIT`, `ASYNC`, `INSTANT`,
            `SPAN`).
        names: Names of the events.
        dropped: Events that were not kept because of `Settings.trace_limit`.
    """

    events: np.ndarray
    names: tuple[str, ...]
    dropped: int

    def chrome_events(self) -> Iterator[dict[str, Any]]:
        """The events as objects of the Chrome trace-event format: a process per CTA, a thread per
        warp and unit.
        """
        lanes: dict[tuple[int, str], int] = {}
        for index, row in enumerate(self.events):
            name = self.names[row["name"]]
            kind, cta, warp = int(row["kind"]), int(row["cta"]), int(row["warp"])
            lane = f"warp {warp}" if warp >= 0 else "CTA"
            if kind == ASYNC:
                lane += f" {unit(name)}"
            if (cta, lane) not in lanes:
                lanes[cta, lane] = len(lanes)
                yield _metadata("thread_name", cta, lanes[cta, lane], lane)
                # Perfetto sorts by this index; a warp's units follow it.
                yield _metadata("thread_sort_index", cta, lanes[cta, lane], warp + 1)
            begin, end = int(row["begin"]), int(row["end"])
            event: dict[str, Any] = {
                "name": f"wait: {name}" if kind == WAIT else name,
                "cat": ("wait", "async", "instant", "span")[kind],
                "pid": cta,
                "tid": lanes[cta, lane],
                "ts": begin,
                "args": {
                    "PTX line": int(row["line"]),
                    "SM": int(row["sm"]),
                    "arg0": int(row["arg0"]),
                    "arg1": int(row["arg1"]),
                },
            }
            if kind == INSTANT:
                yield event | {"ph": "i", "s": "t"}
            elif kind == ASYNC:
                # Operations of one lane overlap without nesting, which complete events ("X") must
                # not.
                yield event | {"ph": "b", "id": index}
                yield {k: event[k] for k in ("name", "cat", "pid", "tid")} | {
                    "ph": "e",
                    "id": index,
                    "ts": end,
                }
            else:
                yield event | {"ph": "X", "dur": max(end - begin, 1)}
        for cta in sorted({cta for cta, _ in lanes}):
            yield _metadata("process_name", cta, 0, f"CTA {cta}")

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes a JSON file for https://ui.perfetto.dev or chrome://tracing."""
        with open(path, "w", encoding="utf-8") as file:
            file.write('{"displayTimeUnit": "ns", "traceEvents": [\n')
            for i, event in enumerate(self.chrome_events()):
                file.write((",\n" if i else "") + json.dumps(event, separators=(",", ":")))
            file.write(f'\n], "otherData": {{"clock": "ticks", "dropped": {self.dropped}}}}}\n')


def _metadata(kind: str, pid: int, tid: int, value: str | int) -> dict[str, Any]:
    key = "name" if isinstance(value, str) else "sort_index"
    return {"name": kind, "ph": "M", "pid": pid, "tid": tid, "args": {key: value}}


def last_trace() -> Trace | None:
    """The timeline of the last launch; None when it was not traced (`Settings.trace`) or there was
    none.
    """
    packed = native().last_trace()
    if packed is None:
        return None
    data, names, dropped = packed
    return Trace(np.frombuffer(data, _ROW), tuple(names), dropped)
