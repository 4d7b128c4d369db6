"""Autotuning on a machine without a GPU: what is tried, kept, and then selected.

Only the clock is invented: a fake GPU and a fake measurement; everything around them is real.
"""

# Fixtures are imported and are then names of arguments.
# ruff: noqa: F811

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from tuning_fakes import (  # noqa: F401
    BF16,
    H200,
    SM90,
    array,
    clock,
    fake_gpu,
    gpu,
    invent_times,
    key,
    own_cache,
    pretend,
    rule,
    table_for,
    without_gpu,
)

import jax_bwgemm as bw
from jax_bwgemm import compat, runtime
from jax_bwgemm.config import make_target
from jax_bwgemm.dense import heuristics, search_space
from jax_bwgemm.dense.tuned import dims_of, spec_of
from jax_bwgemm.tuning import autotuning, kernel_timer
from jax_bwgemm.tuning.bench import Bench
from jax_bwgemm.tuning.progress import ProgressBar
from jax_bwgemm.tuning.records import Choice, TuningFileError
from jax_bwgemm.tuning.table import TuningTable
from jax_bwgemm.tuning.work import work_of

# --- the result ---


def test_the_fastest_is_kept_and_heavy_problems_come_first(gpu: None, clock: list[Choice]) -> None:
    def f(a: jax.Array, b: jax.Array, c: jax.Array) -> jax.Array:
        return bw.matmul(bw.matmul(a, b), c)

    got = bw.autotune(f, array(4096, 1024), array(1024, 2048), array(2048, 8192))
    assert [m.problem for m in got.measurements] == [key(4096, 8192, 2048), key(4096, 2048, 1024)]
    assert got.device == H200
    for measurement in got.measurements:
        entry, best = got.get(measurement.problem), measurement.times_us[0][0]
        assert (entry.kernel, entry.raster_order) == (best.kernel.name, "m")
        assert (entry.us, entry.method) == (round(rule(best), 3), "cupti")
        first = search_space.kernels_to_try(measurement.problem, table_for(SM90), SM90, 12)[0]
        same = (first.kernel, first.raster_order, first.swizzle) == (
            best.kernel, best.raster_order, best.swizzle)  # fmt: skip
        assert entry.heuristic_us == entry.us if same else entry.heuristic_us > entry.us
        assert all(us >= entry.us for _, us in measurement.times_us)
    entries = [got.get(measurement.problem) for measurement in got.measurements]
    assert any(entry.heuristic_us > entry.us for entry in entries)
    assert "4096x8192x2048 kn bfloat16->bfloat16: " in str(got)
    assert TuningTable.loads(got.dumps()) == got


def test_the_heuristics_choice_stays_when_nothing_is_clearly_faster() -> None:
    first, other = (Choice(k, "n", 1) for k in table_for(SM90)[:2])
    kept = autotuning._entry(first, {first: 100.9, other: 100.0}, "cupti")
    assert (kept.kernel, kept.us) == (first.kernel.name, 100.9)
    changed = autotuning._entry(first, {first: 101.1, other: 100.0}, "cupti")
    assert (changed.kernel, changed.us, changed.heuristic_us) == (other.kernel.name, 100.0, 101.1)


@pytest.mark.parametrize(("true_us", "wins"), [(10.1, False), (9.0, True)])
def test_luck_is_measured_again(
    gpu: None, monkeypatch: pytest.MonkeyPatch, true_us: float, wins: bool
) -> None:
    """What looked fastest among many is compared with the heuristic's choice by itself."""
    passes: list[list[Choice]] = []

    def measure(choices: Any) -> dict[Choice, float]:
        passes.append(list(choices))
        others = 7.0 + len(passes) if len(passes) < 3 else true_us
        return {c: 10.0 if c == passes[0][0] else others for c in choices}

    invent_times(monkeypatch, measure)
    got = bw.autotune(bw.matmul, array(4096, 4096), array(4096, 4096))
    first = passes[0][0]
    assert [len(p) for p in passes[2:]] == [1 + autotuning.CHALLENGERS]
    assert passes[2][0] == first
    assert first not in passes[2][1:]
    (entry,) = (got.get(m.problem) for m in got.measurements)
    chosen = entry.kernel, entry.raster_order, entry.swizzle
    assert (chosen != (first.kernel.name, first.raster_order, first.swizzle)) == wins
    assert (entry.us, entry.heuristic_us) == ((true_us if wins else 10.0), 10.0)
    assert dict(got.measurements[0].times_us)[passes[2][1]] == true_us


def test_a_problem_without_a_kernel_on_this_gpu_is_reported(
    clock: list[Choice], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a program for another GPU: an SM100 grid has no room for so many matrices."""
    pretend(monkeypatch, fake_gpu("NVIDIA B200", "10.0", 148))
    with bw.config.target("sm90"):
        traced = jax.jit(bw.matmul).trace(array(2**16, 64, 64), array(2**16, 64, 64))
        lowered = traced.lower(lowering_platforms=("cuda",))
    got = bw.autotune(lowered)
    ((problem, reason),) = got.skipped
    assert problem == "64x64x64 x65536 kn bfloat16->bfloat16"
    assert "a batch of more than 65535" in reason
    assert (len(got), clock) == (0, [])


def test_no_time_left_is_reported(gpu: None, clock: list[Choice]) -> None:
    got = bw.autotune(bw.matmul, array(512, 512), array(512, 512), timeout=0)
    assert (len(got), clock) == (0, [])
    assert got.skipped[0][1] == "the time budget of 0 s ran out"
    assert "not 512x512x512 kn" in str(got)


@pytest.mark.parametrize(
    ("option", "value", "error", "message"),
    [
        ("timeout", float("nan"), ValueError, "autotune: timeout must be at least 0, got nan"),
        ("timeout", -1, ValueError, "autotune: timeout must be at least 0, got -1"),
        ("timeout", "60", TypeError, "autotune: timeout must be a number of seconds, got '60'"),
        ("timeout", True, TypeError, "autotune: timeout must be a number of seconds, got True"),
        ("save", 5, TypeError, "autotune: save must be a bool or a path, got 5"),
        ("save", "", ValueError, "autotune: save is an empty path"),
        ("progress", "x", TypeError, "autotune: progress must be True, False or None, got 'x'"),
    ],
)
def test_wrong_options(option: str, value: Any, error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        bw.autotune(bw.matmul, array(8, 8), array(8, 8), **{option: value})


def test_a_table_is_read_from_a_path() -> None:
    with pytest.raises(TypeError, match=r"expected str, bytes or os\.PathLike object, not int"):
        TuningTable.load(99)  # type: ignore[arg-type]


def test_saving(gpu: None, clock: list[Choice], tmp_path: Path) -> None:
    args = array(512, 512), array(512, 512)
    assert not (tmp_path / "cache").exists()
    got = bw.autotune(bw.matmul, *args, save=True)
    assert TuningTable.load(tmp_path / "cache" / "nvidia_h200.json") == got
    bw.autotune(bw.matmul, *args, save=tmp_path / "mine.json")
    assert TuningTable.load(tmp_path / "mine.json") == got
    more = bw.autotune(bw.matmul, array(512, 1024), array(1024, 512), save=tmp_path / "mine.json")
    assert TuningTable.load(tmp_path / "mine.json") == got | more  # what was there stays


def test_a_place_to_save_that_is_no_file_is_an_error_before_measuring(
    gpu: None, clock: list[Choice], tmp_path: Path
) -> None:
    with pytest.raises(TuningFileError, match=f"{tmp_path}: a folder and not a regular file"):
        bw.autotune(bw.matmul, array(512, 512), array(512, 512), save=tmp_path)
    assert not clock


@without_gpu
def test_no_gpu_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="autotune measures on a GPU: this process has no CUDA"):
        bw.autotune(bw.matmul, array(8, 8), array(8, 8))


def test_the_progress_bar_draws_where_it_is_wanted() -> None:
    for terminal, wanted, drawn in (
        (False, True, True),
        (False, False, False),
        (False, None, False),
        (True, True, True),
        (True, False, False),
        (True, None, True),
    ):
        stream = io.StringIO()
        stream.isatty = lambda terminal=terminal: terminal
        bar = ProgressBar(4, 60, stream, wanted)
        bar.show(1, "a problem")
        bar.close()
        assert ("[#####...............] 1/4" in stream.getvalue()) == drawn
    bar = ProgressBar(0, 60, stream, True)  # of a program without products
    bar.show(0, "0 problems tuned")
    assert "[....................] 0/0" in stream.getvalue()


# --- measuring ---


class CountingTimer:
    method = "wall"

    def __init__(self) -> None:
        self.calls = 0

    def burst(self, call: Callable[[int], Any], start: int, count: int) -> list[float]:
        self.calls += count
        jax.block_until_ready([call(start + i) for i in range(count)])
        return [float(self.calls)] * count


def test_per_call_times() -> None:
    assert kernel_timer.per_call([1.0, 2.0, 3.0, 4.0], 2) == [3.0, 7.0]
    for times in ([], [1.0, 2.0, 3.0]):
        message = f"CUPTI saw {len(times)} kernels for 2 identical"
        with pytest.raises(kernel_timer.MeasurementError, match=message):
            kernel_timer.per_call(times, 2)


def test_the_wall_clock_is_used_with_a_warning_where_there_is_no_cupti() -> None:
    with pytest.warns(RuntimeWarning, match="the wall clock is used"):
        timer = kernel_timer.make_timer("cpu")
    assert timer.method == "wall"
    (us,) = timer.burst(lambda i: jnp.ones(i + 1), 0, 3)
    assert us > 0


def test_cupti_times_are_summed_per_call(monkeypatch: pytest.MonkeyPatch) -> None:
    class Collector:
        def _cupti_init(self) -> None: ...

        def _cupti_get_timings(self, finalize: bool) -> list[tuple[str, float]]:
            assert not finalize
            return [("gemm", 0.010), ("reduce", 0.002)] * 3

    monkeypatch.setattr(compat, "cupti_collector", Collector)
    timer = kernel_timer.make_timer("gpu")
    assert timer.method == "cupti"
    assert timer.burst(lambda i: jnp.ones(1), 0, 3) == pytest.approx([12.0] * 3)


@pytest.mark.emulator
def test_the_measured_calls_are_the_kernels(cpu_devices: list[jax.Device]) -> None:
    if runtime.load_emulator() is None:
        pytest.skip("the emulator was not built")
    target = make_target("sm90", 2)
    problem, timer = key(64, 64, 64), CountingTimer()
    bench = Bench(work_of(problem, target, "emulator"), cpu_devices[0], timer)
    found = heuristics.rank(runtime.emulated_kernels(), spec_of(problem), "bfloat16",
                            dims_of(problem), target)[0][:2]  # fmt: skip
    choices = [Choice(c.kernel, "m", 1) for c in found]
    times = bench.measure(choices, 0.0)  # no time: one kernel, one round
    assert list(times) == choices[:1]
    assert timer.calls == 2 + 3
    assert not bench.failures


class DisturbedTimer:
    """Other work makes every measurement of the calls in `disturbed` fail, and each first turn."""

    method = "cupti"

    def __init__(self, disturbed: Sequence[Any]) -> None:
        self.disturbed = disturbed

    def burst(self, call: Any, start: int, count: int) -> list[float]:
        if (start == 0 and count > 2) or (call in self.disturbed and count > 2):
            raise kernel_timer.MeasurementError("CUPTI saw 7 kernels for 3 identical calls")
        return [1.0] * count


def test_other_work_costs_a_measurement_and_no_more(
    cpu_devices: list[jax.Device], monkeypatch: pytest.MonkeyPatch
) -> None:
    target, problem = make_target("sm90", 132), key(64, 64, 64)
    found = heuristics.rank(
        table_for(target), spec_of(problem), "bfloat16", dims_of(problem), target
    )
    good, bad = (Choice(c.kernel, "m", 1) for c in found[0][:2])
    monkeypatch.setattr(Bench, "_compile", lambda self, choice: choice)
    bench = Bench(work_of(problem, target, "cutlass"), cpu_devices[0], DisturbedTimer([bad]))
    assert bench.measure([good, bad], float("inf")) == {good: 1.0}
    assert bench.failures == [(bad, "CUPTI saw 7 kernels for 3 identical calls")]


# --- the command ---


def run_command(*args: str) -> int:
    from jax_bwgemm.cli import main

    return main(["tune", *args])


def test_the_command_writes_the_cache_and_files(
    gpu: None, clock: list[Choice], tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    assert run_command("--shapes", "512,512,512", "64,1024,128x3:kk", "--majors", "kn", "mn") == 0
    cached = TuningTable.load(tmp_path / "cache" / "nvidia_h200.json")
    assert set(cached) == {
        key(512, 512, 512), key(512, 512, 512, "mn"),
        key(64, 1024, 128, "kk", batch=3),
    }  # fmt: skip
    out = str(tmp_path / "t.json")
    assert run_command("--shapes", "512,512,512", "--out", out, "--dtype", "f16") == 0
    assert run_command("--shapes", "512,512,1024", "--out", out, "--merge") == 0
    assert len(TuningTable.load(out)) == 2
    assert run_command("--shapes", "512,512,1024", "--out", out) == 0
    assert len(TuningTable.load(out)) == 1
    assert "512x512x1024 kn bfloat16->bfloat16: " in capsys.readouterr().out
    assert run_command("--shapes", "512,512,512", "--budget", "0", "--out", out, "--merge") == 1


@without_gpu
def test_the_command_says_what_is_wrong(
    capsys: pytest.CaptureFixture,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    assert run_command("--shapes", "8,8,8") == 2
    no_gpu = "error: autotune measures on a GPU: this process has no CUDA GPU\n"
    assert capsys.readouterr().err == no_gpu
    for budget in ("nan", "-1", "soon"):
        with pytest.raises(SystemExit):
            run_command("--shapes", "8,8,8", "--budget", budget)
        assert f"must be a number of at least 0, got '{budget}'" in capsys.readouterr().err
    assert run_command("--shapes", "8,8") == 2
    assert "majors out of kn kk mn mk, got '8,8'" in capsys.readouterr().err
    request.getfixturevalue("gpu")
    for text in ("8,8", "8,8,x", "0,8,8", "8,8,8:nn"):
        assert run_command("--shapes", text) == 2
        assert f"majors out of kn kk mn mk, got '{text}'" in (capsys.readouterr().err)
    assert run_command("--shapes", "8,8,8", "--out", str(tmp_path)) == 2
    assert f"error: {tmp_path}: a folder and not a regular file" in capsys.readouterr().err
    monkeypatch.setenv("BWGEMM_TUNING_CACHE", "off")
    assert run_command("--shapes", "8,8,8") == 2
    assert "BWGEMM_TUNING_CACHE=off, and no --out was given" in capsys.readouterr().err
