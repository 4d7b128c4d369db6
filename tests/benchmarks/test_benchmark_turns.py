"""How the columns of a benchmark take turns on the GPU."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.usefixtures("benchmark_programs")


def test_interleaving_rotates_order_and_operands():
    from common import timing

    seen = []

    class Recorder:
        method = "test"

        def burst(self, candidate, start, calls):
            seen.append((candidate.name, start))
            return timing.Timing([float(len(seen))] * calls, [("kernel", 1.0)])

    pair = [timing.Candidate(n, lambda i: i, lambda r: None, copies=4) for n in "ab"]
    first, second = timing.interleave(Recorder(), pair, rounds=3, burst=2)
    assert seen == [("a", 0), ("b", 0), ("b", 2), ("a", 2), ("a", 4), ("b", 4)]
    assert first.times_us == [1.0, 1.0, 4.0, 4.0, 5.0, 5.0]
    assert second.times_us == [2.0, 2.0, 3.0, 3.0, 6.0, 6.0]


class _Fixed:
    """A timer whose calls take as many microseconds as their candidate's name says."""

    method = "test"

    def __init__(self):
        self.seen = []

    def burst(self, candidate, start, calls):
        from common import timing

        self.seen.append((candidate.name, start, calls))
        return timing.Timing([float(candidate.name)] * calls, [("kernel", 1.0)])


def test_turns_last_as_long_as_asked():
    from common import timing

    timer = _Fixed()
    found = [timing.Candidate(us, lambda i: i, lambda r: None) for us in ("4000", "300", "5")]
    slow, fast, tiny = timing.interleave(timer, found, rounds=2, burst=3, turn_ms=10)
    # First what a call takes, then turns: 3 calls are enough, 34 are needed, 2000 are too many.
    assert timer.seen[:3] == [("4000", 0, 3), ("300", 0, 3), ("5", 0, 3)]
    assert timer.seen[3:6] == [("4000", 0, 3), ("300", 0, 34), ("5", 0, timing.MAX_CALLS)]
    assert timer.seen[6:] == [("300", 34, 34), ("5", 1000, 1000), ("4000", 3, 3)]
    assert [len(t.times_us) for t in (slow, fast, tiny)] == [6, 68, 2000]


@pytest.mark.parametrize("name", ["bench_gemm", "bench_grouped"])
def test_dry_runs_say_what_a_turn_is(name, capsys):
    module = __import__(name)
    assert module.main(["--dry-run"]) == 0
    assert "7 rounds of 3 calls " in capsys.readouterr().out
    assert module.main(["--dry-run", "--burst", "2", "--turn-ms", "50"]) == 0
    assert "7 rounds of 2 calls, or of 50 ms " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("bench_gemm", ["--shapes", "32,64,16", "--peers", "xla"]),
        ("bench_grouped", ["--shapes", "40,32,48,5", "--modes", "forward", "--peers", "xla"]),
        ("bench_sawtooth", []),
    ],
)
def test_programs_take_such_turns(name, options, monkeypatch, tmp_path):
    from common import report, timing

    inner, asked = timing.interleave, []

    def interleave(*args, turn_ms=0.0, **kwargs):
        asked.append(turn_ms)
        return inner(*args, turn_ms=turn_ms, **kwargs)

    monkeypatch.setattr(timing, "interleave", interleave)
    path = tmp_path / "rows.jsonl"
    argv = ["--small", *options, "--turn-ms", "2", "--out", str(path)]
    assert __import__(name).main(argv) == 0
    assert 2.0 in asked
    rows = [r for r in report.load(path) if r["record"] in ("gemm", "grouped")]
    assert {r["turn_ms"] for r in rows} == {2.0}


@pytest.mark.parametrize("text", ["-1", "nan", "inf"])
def test_a_turn_cannot_be_that_long(text, capsys):
    import bench_gemm

    with pytest.raises(SystemExit) as stop:
        bench_gemm.main(["--turn-ms", text])
    assert stop.value.code == 2
    assert f"--turn-ms: must be at least 0 and finite, got {float(text)}" in capsys.readouterr().err
