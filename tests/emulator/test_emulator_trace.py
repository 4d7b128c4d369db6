"""Timelines: the Chrome trace file, the picture, and what a trace must contain."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from emulator_cases import Problem, operands, requires_emulator, two_cta_kernel

from jax_bwgemm import emulator
from jax_bwgemm.emulator.dense import run_gemm
from jax_bwgemm.emulator.trace import ASYNC, WAIT, unit

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


def test_trace_limit_drops_and_counts() -> None:
    kernel = two_cta_kernel()
    with emulator.configure(trace=True, trace_limit=10):
        run_gemm(kernel, *operands(kernel, Problem(64, 64, 64)))
    trace = emulator.last_trace()
    assert trace is not None
    assert len(trace.events) == 10
    assert trace.dropped > 0


def test_no_trace_when_it_is_off() -> None:
    kernel = two_cta_kernel()
    run_gemm(kernel, *operands(kernel, Problem(64, 64, 64)))
    assert emulator.last_trace() is None
