"""benchmarks/compare.py on two runs."""

from __future__ import annotations

import json

import pytest

pytestmark = pytest.mark.usefixtures("benchmark_programs")


def _write_runs(path, medians, impl="bwgemm"):
    run = {"record": "run", "schema": 1, "benchmark": "x", "argv": [], "date": ""}
    lines = [run | {"versions": {}, "devices": []}]
    for (m, us), name in zip(medians, impl if isinstance(impl, list) else [impl] * 9, strict=False):
        row = {"record": "gemm", "shape": f"{m},8,8", "m": m, "n": 8, "k": 8, "batch": 1}
        row |= {"majors": "kn", "dtype": "bfloat16", "out_dtype": "bfloat16", "impl": name}
        lines.append(row | {"status": "ok", "median_us": us})
    path.write_text("\n".join(map(json.dumps, lines)))
    return str(path)


def test_compare_two_runs(tmp_path, capsys):
    import compare

    old = _write_runs(tmp_path / "old", [(512, 10.0), (1024, 20.0), (16, 5.0)])
    new = _write_runs(tmp_path / "new", [(512, 8.0), (1024, 25.0)])
    assert compare.main([old, new]) == 1
    printed = capsys.readouterr()
    assert "2 shapes: geometric mean 1.000, least 0.800" in printed.out
    assert f"only in {old}: 16,8,8" in printed.out
    assert "slower by more than 5%: 1024,8,8" in printed.err
    assert compare.main([old, new, "--threshold", "0.25"]) == 0


def test_compare_against_a_peer(tmp_path, capsys):
    import compare

    rows = [(512, 10.0), (512, 9.0), (16, 10.0), (16, 2.0)]
    path = _write_runs(tmp_path / "one", rows, ["bwgemm", "xla", "bwgemm", "xla"])
    gate = [path, "--against", "xla", "--require-geomean", "0.85", "--require-min", "0.85"]
    assert compare.main([*gate, "--min-m", "512"]) == 0
    assert compare.main(gate) == 1
    text = capsys.readouterr().err
    assert "geometric mean 0.424 is below 0.85" in text
    assert "least ratio 0.200 is below 0.85" in text


def test_compare_errors(tmp_path, capsys):
    import compare

    old = _write_runs(tmp_path / "old", [(512, 10.0)])
    new = _write_runs(tmp_path / "new", [(1024, 8.0)])
    assert compare.main([old, new]) == 2
    assert "no measured shape in common" in capsys.readouterr().err
    assert compare.main([old, str(tmp_path / "missing")]) == 2
    assert "No such file" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        compare.main([old])
    assert "give either a second file or --against" in capsys.readouterr().err
