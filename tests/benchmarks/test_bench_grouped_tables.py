"""What the benchmark of grouped GEMMs is made of: its tables and its picture."""

from __future__ import annotations

import json

import pytest

pytestmark = pytest.mark.usefixtures("benchmark_programs")


def _row(shape, mode, impl, us, **more):
    row = {"record": "grouped", "shape": shape, "mode": mode, "m": 8, "n": 8, "k": 8, "groups": 2}
    row |= {"dtype": "bfloat16", "impl": impl, "status": "ok", "method": "cupti"}
    row |= {"median_us": us, "tflops": 1000 / us, "floor_us": 5.0, "spread": 0.0}
    return row | more


@pytest.fixture
def rows():
    kernel = {
        "kernel": "sm90_grouped_rows_bf16_bf16_kn_128x32x64_1x1_swap",
        "order": "vertical",
        "swizzle": 8,
        "temp_bytes": 30,
        "argument_bytes": 1000,
        "output_bytes": 500,
    }
    failed = {"record": "grouped", "shape": "b", "mode": "forward", "impl": "pallas"}
    return [
        _row("a", "forward", "bwgemm", 10.0, **kernel),
        _row("a", "forward", "xla", 100.0),
        _row("a", "forward", "pallas", 15.0),
        _row("a", "forward", "torch", 12.0),
        _row("a", "dw", "bwgemm", 20.0),
        _row("b", "forward", "bwgemm", 10.0),
        _row("b", "forward", "torch", 8.0),
        failed | {"m": 8, "n": 8, "k": 8, "groups": 2, "dtype": "x", "status": "error: no"},
    ]


def test_ratios_know_the_best_rival(rows):
    from grouped import tables as grouped_tables

    found = grouped_tables.ratios(rows)
    assert found["forward", "best"] == pytest.approx([1.2, 0.8])
    assert found["forward", "xla"] == [10]  # no rival
    assert ("dw", "best") not in found


def test_summary(rows):
    from grouped import tables as grouped_tables

    text = grouped_tables.summary(rows, ["xla", "pallas", "torch"])
    assert "kn_128x32x64_1x1_swap v8" in text
    assert "| a     | 10        | 100     | 2          | 2      |" in text
    best = "forward: best of pallas, torch, tokamax time / bwgemm time over 2 problems"
    assert f"{best}: geometric mean 0.980, least 0.800, most 1.200" in text
    assert "dw rate over forward rate: a 0.50" in text
    assert grouped_tables.failures(rows, ["pallas"]) == ["peer: pallas: error: no (forward b)"]
    assert grouped_tables.failures(rows, []) == ["failed: pallas: error: no (forward b)"]


def test_fastest_kernels(rows):
    from grouped import tables as grouped_tables

    rows.append(_row("a", "forward", "sm90_x horizontal1", 8.0))
    text = grouped_tables.fastest_kernels(rows, ["xla", "pallas", "torch"])
    part = text.split("\n\n")[0]
    assert part.index("sm90_x horizontal1") < part.index("default: kn_128x32x64_1x1_swap v8")
    assert "| 0.8     |" in part
    assert "torch" not in part


RUN = {
    "record": "run", "schema": 1, "benchmark": "bench_grouped", "argv": [], "date": "",
    "versions": {}, "devices": ["gpu:NVIDIA H200"],
}  # fmt: skip


def test_compare_keeps_the_modes_apart(tmp_path, capsys):
    import compare

    rows = [_row("a", "forward", "bwgemm", 10.0), _row("a", "dw", "bwgemm", 10.0)]
    for name, us in (("old", 10.0), ("new", 20.0)):
        rows[1]["median_us"] = us
        (tmp_path / name).write_text("\n".join(map(json.dumps, [RUN, *rows])))
    assert compare.main([str(tmp_path / "old"), str(tmp_path / "new")]) == 1
    printed = capsys.readouterr()
    assert "2 shapes: geometric mean 0.707, least 0.500" in printed.out
    assert "slower by more than 5%: dw a\n" in printed.err


@pytest.mark.parametrize("record", ["grouped", "gemm"])
def test_compare_keeps_short_and_long_turns_apart(record, tmp_path, capsys):
    import compare

    row = _row("a", "forward", "bwgemm", 10.0)
    if record == "gemm":
        row |= {"record": "gemm", "out_dtype": row["dtype"], "batch": 1, "majors": "kn"}
    for name, turn_ms in (("short", 0.0), ("long", 50.0)):
        (tmp_path / name).write_text("\n".join(map(json.dumps, [RUN, row | {"turn_ms": turn_ms}])))
    short, long = str(tmp_path / "short"), str(tmp_path / "long")
    assert compare.main([long, long]) == 0
    assert "a, turns of 50 ms |" in capsys.readouterr().out
    assert compare.main([short, long]) == 2
    assert "no measured shape in common" in capsys.readouterr().err


def test_picture(rows, tmp_path):
    matplotlib = pytest.importorskip("matplotlib")
    import plot_grouped

    layer = {"record": "layer", "top_k": 2, "dtype": "bfloat16", "status": "ok", "shape": "c"}
    for impl, us in (("bwgemm", 10.0), ("xla", 45.0)):
        rows.append(layer | {"impl": impl, "median_us": us, "tflops": 1000 / us})
    source, out = tmp_path / "grouped.jsonl", tmp_path / "grouped.svg"
    source.write_text("\n".join(map(json.dumps, [RUN, *rows])))
    with matplotlib.rc_context({"svg.fonttype": "none"}):
        assert plot_grouped.main([str(source), "--out", str(out)]) == 0
    text = out.read_text()
    for expected in ("forward", "dw", "layer step, wall clock", "NVIDIA H200, kernel time"):
        assert expected in text
    for ratio in ("1.20", "0.80", "4.50"):  # of the best rival; of the layer, lax
        assert f">{ratio}<" in text
    assert "10.00" not in text
    assert "tokamax" not in text


def test_picture_of_several_files(tmp_path):
    """The last of a column's figures counts, and long turns have a panel of their own."""
    matplotlib = pytest.importorskip("matplotlib")
    import plot_grouped

    def file(name, *rows):
        path = tmp_path / name
        path.write_text("\n".join(map(json.dumps, [RUN, *rows])))
        return str(path)

    first = file("a", _row("a", "forward", "bwgemm", 10.0), _row("a", "forward", "torch", 11.0))
    again = file("b", _row("a", "forward", "torch", 13.0))
    busy = [_row("a", "forward", "bwgemm", 10.0), _row("a", "forward", "torch", 17.0)]
    long = file("c", *(row | {"turn_ms": 50.0} for row in busy))
    out = tmp_path / "grouped.svg"
    with matplotlib.rc_context({"svg.fonttype": "none"}):
        assert plot_grouped.main([first, again, long, "--out", str(out)]) == 0
    text = out.read_text()
    assert ">forward<" in text
    assert ">forward, turns of 50 ms<" in text
    assert [r for r in ("1.10", "1.30", "1.70") if f">{r}<" in text] == ["1.30", "1.70"]


def test_picture_of_nothing(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    import plot_grouped

    source = tmp_path / "grouped.jsonl"
    source.write_text(json.dumps(RUN))
    assert plot_grouped.main([str(source), "--out", str(tmp_path / "x.svg")]) == 2
    assert "no measured grouped products" in capsys.readouterr().err
