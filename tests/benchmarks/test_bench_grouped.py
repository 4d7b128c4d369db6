"""The benchmark of grouped GEMMs and of whole layers, in its small CPU mode."""

from __future__ import annotations

import jax
import pytest
from benchmark_records import records

import jax_bwgemm

pytestmark = pytest.mark.usefixtures("benchmark_programs")


# --- the program ---

ONE = ["--small", "--shapes", "40,32,48,5"]


def test_bench_grouped(tmp_path, capsys):
    import bench_grouped

    path = tmp_path / "grouped.jsonl"
    assert bench_grouped.main([*ONE, "--out", str(path), "--distribution", "zipf"]) == 0
    rows = records(path, "grouped")
    ours = [r for r in rows if r["impl"] == "bwgemm"]
    assert [r["mode"] for r in ours] == ["forward", "dx", "dw"]
    for row in ours:
        assert (row["status"], row["shape"], row["distribution"]) == (
            "ok",
            "40,32,48,5:zipf",
            "zipf",
        )
        assert row["distance"] <= 3.1e-5
        assert row["tflops"] == pytest.approx(2 * 40 * 32 * 48 / row["median_us"] / 1e6)
        assert row["floor_us"] > 0
        assert (row["largest_group"], row["empty_groups"]) == (20, 0)
    reasons = {r["impl"]: r["status"] for r in rows if r["status"] != "ok"}
    assert reasons["pallas"] == "unsupported: the Pallas kernels need an NVIDIA GPU"
    assert reasons["tokamax"] == "unsupported: tokamax is not installed"
    printed = capsys.readouterr()
    assert "dw: xla time / bwgemm time over 1 problems: geometric mean" in printed.out
    assert "dx rate over forward rate: 40,32,48,5:zipf" in printed.out
    # Once for all problems, with the problems.
    assert printed.err.count("peer: pallas: unsupported") == 1
    assert "(forward 40,32,48,5:zipf; dx 40,32,48,5:zipf; dw 40,32,48,5:zipf)" in printed.err


def test_a_wrong_row_is_reported_and_not_timed(monkeypatch, tmp_path, capsys):
    import bench_grouped

    right = jax_bwgemm.ragged_dot

    def wrong(*args, **kwargs):
        return right(*args, **kwargs).at[17].multiply(1.02)

    monkeypatch.setattr(jax_bwgemm, "ragged_dot", wrong)
    path = tmp_path / "grouped.jsonl"
    argv = [*ONE, "--modes", "forward", "--peers", "xla", "--out", str(path)]
    assert bench_grouped.main(argv) == 1
    printed = capsys.readouterr()
    assert "failed: bwgemm: wrong: a row is " in printed.err
    assert "geometric mean" not in printed.out
    (row,) = (r for r in records(path, "grouped") if r["impl"] == "bwgemm")
    assert "median_us" not in row


def test_a_peer_that_breaks_is_reported_and_costs_nobody_else(monkeypatch, capsys):
    import bench_grouped
    from grouped import candidates as grouped_candidates

    def breaks(*args):
        raise RuntimeError("out of luck\nand of memory")

    monkeypatch.setattr(grouped_candidates, "xla", breaks)
    assert bench_grouped.main([*ONE, "--modes", "forward", "--peers", "xla"]) == 0
    printed = capsys.readouterr()
    assert "peer: xla: error: RuntimeError: out of luck (forward 40,32,48,5)" in printed.err
    assert "bwgemm us" in printed.out


def test_it_never_falls_back(monkeypatch, capsys):
    import bench_grouped

    from jax_bwgemm import runtime

    monkeypatch.setattr(runtime, "emulated_grouped_kernels", tuple)
    argv = [*ONE, "--modes", "dx", "--peers", "xla", "--implementation", "emulator"]
    assert bench_grouped.main(argv) == 1
    assert "failed: bwgemm: unsupported: implementation='emulator' cannot run" in (
        capsys.readouterr().err
    )


def test_dry_runs(capsys):
    import bench_grouped

    assert bench_grouped.main(["--dry-run"]) == 0
    text = capsys.readouterr().out
    assert "8192,14336,4096,8 " in text
    assert text.count("GFLOP") == 6
    assert bench_grouped.main(["--dry-run", "--held-out", "--distribution", "uniform"]) == 0
    assert "1024,1024,2048,256:zipf" in capsys.readouterr().out
    with pytest.raises(SystemExit) as stop:
        bench_grouped.main(["--help"])
    assert stop.value.code == 0


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--shapes", "1,2"], "a grouped shape is m,n,k,groups"),
        (["--dtype", "float32"], "the kernels multiply bfloat16 or float16"),
        (["--distribution", "even"], "invalid choice: 'even'"),
        (["--layer", "--shapes", "9,8,8,8"], "9,8,8,8 is not a layer: its rows must be"),
    ],
)
def test_bad_options(argv, message, capsys):
    import bench_grouped

    with pytest.raises(SystemExit) as error:
        bench_grouped.main(argv)
    assert error.value.code == 2
    assert message in capsys.readouterr().err


def test_kernels_without_a_gpu_are_refused():
    import bench_grouped

    with pytest.raises(SystemExit, match="the CUTLASS kernels need an NVIDIA GPU and JAX runs on"):
        bench_grouped.main([])


@pytest.mark.gpu
def test_bench_grouped_times_kernels(tmp_path):
    import bench_grouped

    path = tmp_path / "grouped.jsonl"
    argv = ["--small", "--shapes", "1024,512,256,8", "--peers", "xla", "pallas", "--all-kernels"]
    assert bench_grouped.main([*argv, "--swizzles", "1", "8", "--out", str(path)]) == 0
    rows = records(path, "grouped")
    for row in (r for r in rows if r["impl"] == "bwgemm"):
        assert row["method"] == "cupti"
        assert row["kernel"] in {r["kernel"] for r in rows if r["impl"].startswith("sm")}
        assert 1 < row["median_us"] < 200


# --- the layer ---


def test_layer(tmp_path, capsys):
    import bench_grouped

    path = tmp_path / "layer.jsonl"
    assert bench_grouped.main(["--small", "--layer", "--modes", "--out", str(path)]) == 0
    rows = records(path, "layer")
    assert [(r["impl"], r["status"], r["top_k"]) for r in rows] == [
        ("bwgemm", "ok", 2),
        ("xla", "ok", 2),
    ]
    for row in rows:
        assert row["distance"] <= 1e-3
        assert row["tflops"] == pytest.approx(9 * 64 * 32 * 16 / row["median_us"] / 1e6)
    text = capsys.readouterr().out
    assert "layer 64,32,16,8: xla step time over bwgemm step time:" in text


def test_a_wrong_layer_is_reported(monkeypatch, capsys):
    import bench_grouped

    right = jax.lax.ragged_dot
    wrong = lambda *args: 1.1 * right(*args)  # noqa: E731
    monkeypatch.setattr("grouped.layer.lax.ragged_dot", wrong)
    assert bench_grouped.main(["--small", "--layer", "--modes", "--peers", "xla"]) == 0
    printed = capsys.readouterr()
    assert "peer: xla: wrong: gradients are" in printed.err
    assert "step time over" not in printed.out


def test_a_layer_arm_that_breaks_is_reported(monkeypatch, capsys):
    import bench_grouped
    from grouped import layer as grouped_layer

    right = jax_bwgemm.ragged_dot

    def breaks(*args, implementation, **kwargs):
        if implementation is None:
            raise RuntimeError("no luck")
        return right(*args, implementation=implementation, **kwargs)

    monkeypatch.setattr(jax_bwgemm, "ragged_dot", breaks)
    argv = ["--small", "--layer", "--modes", "--peers", "--implementation", "auto"]
    assert bench_grouped.main(argv) == 1
    assert "failed: bwgemm: error: RuntimeError: no luck (layer 64,32,16,8)" in (
        capsys.readouterr().err
    )
    assert grouped_layer.summary([]).startswith("layer")
