"""Timelines: the Chrome trace file, the picture, and what a trace must contain."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from emulator_cases import Problem, operands, requires_emulator, two_cta_kernel

from jax_bwgemm import emulator
from jax_bwgemm.emulator import picture
from jax_bwgemm.emulator.dense import run_gemm
from jax_bwgemm.emulator.trace import ASYNC, INSTANT, SPAN, WAIT, unit

pytestmark = requires_emulator


@pytest.fixture(scope="module")
def traced() -> tuple[emulator.Trace, emulator.LaunchStats]:
    kernel = two_cta_kernel()
    with emulator.configure(trace=True):
        run_gemm(kernel, *operands(kernel, Problem(256, 256, 192)))
    trace, stats = emulator.last_trace(), emulator.last_launch()
    assert trace is not None
    assert stats is not None
    return trace, stats


def test_trace_has_every_unit_and_the_waits(
    traced: tuple[emulator.Trace, emulator.LaunchStats],
) -> None:
    trace, stats = traced
    events = trace.events
    assert trace.dropped == 0
    assert set(np.unique(events["cta"])) == {0, 1}
    assert (events["begin"] <= events["end"]).all()
    assert events["end"].max() <= stats.ticks
    asynchronous = events[events["kind"] == ASYNC]
    units = {unit(trace.names[i]) for i in np.unique(asynchronous["name"])}
    assert {"TMA load", "TMA store", "MMA"} <= units
    waits = events[events["kind"] == WAIT]
    assert "mbarrier.try_wait" in " ".join(trace.names[i] for i in np.unique(waits["name"]))
    # 3 K blocks of 64: four MMAs each, issued by the leader CTA for the pair.
    mmas = [e for e in asynchronous if trace.names[e["name"]].startswith("tcgen05.mma")]
    assert len(mmas) == 12
    assert {int(e["cta"]) for e in mmas} == {0}


def test_chrome_trace_file(
    traced: tuple[emulator.Trace, emulator.LaunchStats], tmp_path: Path
) -> None:
    trace, _ = traced
    path = tmp_path / "trace.json"
    trace.save(path)
    document = json.loads(path.read_text())
    events = document["traceEvents"]
    names = {e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert names == {"CTA 0", "CTA 1"}
    threads = {e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert any(t.endswith("MMA") for t in threads)
    phases = [e["ph"] for e in events]
    assert phases.count("b") == phases.count("e") > 0
    for e in events:
        assert {"name", "ph", "pid", "tid"} <= e.keys()
        if e["ph"] == "X":
            assert e["dur"] >= 1
    # Spans of one thread must nest or be apart: viewers drop what is neither.
    lanes: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for e in events:
        if e["ph"] == "X":
            lanes.setdefault((e["pid"], e["tid"]), []).append((e["ts"], e["ts"] + e["dur"]))
    for spans in lanes.values():
        spans.sort(key=lambda s: (s[0], -s[1]))
        open_ends: list[int] = []
        for begin, end in spans:
            while open_ends and open_ends[-1] <= begin:
                open_ends.pop()
            assert not open_ends or end <= open_ends[-1]
            open_ends.append(end)


def test_picture(traced: tuple[emulator.Trace, emulator.LaunchStats], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "timeline.png"
    emulator.save_picture(traced[0], path, title="two CTAs")
    assert path.read_bytes().startswith(b"\x89PNG")
    assert path.stat().st_size > 10_000


def test_picture_without_matplotlib(
    traced: tuple[emulator.Trace, emulator.LaunchStats],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("matplotlib", "matplotlib.figure", "matplotlib.patches"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(RuntimeError, match=r"needs matplotlib: pip install 'jax_bwgemm\[demo\]'"):
        emulator.save_picture(traced[0], tmp_path / "x.png")


def test_picture_of_nothing(
    traced: tuple[emulator.Trace, emulator.LaunchStats], tmp_path: Path
) -> None:
    pytest.importorskip("matplotlib")
    empty = emulator.Trace(traced[0].events[:0], traced[0].names, 0)
    with pytest.raises(ValueError, match="no events"):
        emulator.save_picture(empty, tmp_path / "x.png")
    with pytest.raises(ValueError, match="ctas must be at least 1, got 0"):
        emulator.save_picture(traced[0], tmp_path / "x.png", ctas=0)


@pytest.mark.parametrize("limit", [0, 10])
def test_trace_limit_drops_and_counts(limit: int) -> None:
    kernel = two_cta_kernel()
    with emulator.configure(trace=True, trace_limit=limit):
        run_gemm(kernel, *operands(kernel, Problem(64, 64, 64)))
    trace = emulator.last_trace()
    assert trace is not None
    assert len(trace.events) == limit
    assert trace.dropped > 0


def trace_row() -> np.dtype:
    numbers = ("begin", "end", "arg0", "arg1", "cta", "sm", "warp", "line", "name", "kind")
    return np.dtype([(name, np.int64) for name in numbers])


def small_trace() -> emulator.Trace:
    """A wait and a load of warp 0, a span and an instant of warp 1, an instant of the CTA."""
    rows = [(5, 9, 0, WAIT), (6, 6, 0, ASYNC), (2, 2, 1, SPAN), (3, 3, 1, INSTANT)]
    rows.append((4, 4, -1, INSTANT))
    events = np.zeros(len(rows), trace_row())
    for event, (begin, end, warp, kind) in zip(events, rows, strict=True):
        event["begin"], event["end"], event["warp"], event["kind"] = begin, end, warp, kind
    events["name"] = range(len(rows))
    names = ("mbarrier.try_wait", "cp.async.bulk.shared::cluster.global", "tile", "mark", "start")
    return emulator.Trace(events, names, 0)


def test_lanes_of_warps_and_units() -> None:
    events = list(small_trace().chrome_events())
    lanes = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert list(lanes.values()) == ["warp 0", "warp 0 TMA load", "warp 1", "CTA"]
    places = {e["name"]: lanes[e["tid"]] for e in events if e["ph"] in "Xbi"}
    assert places == {
        "wait: mbarrier.try_wait": "warp 0",
        "cp.async.bulk.shared::cluster.global": "warp 0 TMA load",
        "tile": "warp 1",
        "mark": "warp 1",
        "start": "CTA",
    }
    assert [(e["ts"], e["dur"]) for e in events if e["ph"] == "X"] == [(5, 4), (2, 1)]


def test_rows_of_a_picture() -> None:
    """Instants have no length, and no row."""
    trace = small_trace()
    assert picture._rows(trace, 0, picture._roles(trace)) == [
        ("TMA load", {"TMA load": [(6, 1)]}),
        ("warp 0 (TMA load)", {"runs": [(5, 4)], "wait": [(5, 4)]}),
        ("warp 1", {"runs": [(2, 1)]}),
    ]


@pytest.mark.parametrize("name", ["x.png", "x.PNG", "x"])
def test_names_of_pictures(name: str) -> None:
    pytest.importorskip("matplotlib")
    picture.check_path(name)
    with pytest.raises(ValueError, match=r"no picture has the suffix 'cubin'; use .*png"):
        picture.check_path("x.cubin")


def test_no_trace_when_it_is_off() -> None:
    kernel = two_cta_kernel()
    run_gemm(kernel, *operands(kernel, Problem(64, 64, 64)))
    assert emulator.last_trace() is None
