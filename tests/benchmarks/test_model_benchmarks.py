"""The benchmarks of whole training steps, in their small CPU mode."""

from __future__ import annotations

import jax
import pytest

from jax_bwgemm import runtime

pytestmark = pytest.mark.usefixtures("benchmark_programs")


def test_bench_models(tmp_path, capsys):
    import bench_models
    from common import report

    path = tmp_path / "models.jsonl"
    args = ["--small", "--models", "llama-1b-like", "--out", str(path)]
    assert bench_models.main(args) == 0
    rows = report.load(path)
    rows = [r for r in rows if r["record"] == "model"]
    assert [r["impl"] for r in rows] == ["xla", "accelerate", "loss", "all"]
    assert [r["rewritten"] for r in rows if r["impl"] == "accelerate"] == [0]  # on XLA here
    assert all(r["loss"] > 0 and r["median_us"] > 0 and r["products"] > 20 for r in rows)
    assert "products rewritten; xla's time over accelerate's" in capsys.readouterr().out


def test_bench_models_reports_a_wrong_loss(monkeypatch, capsys):
    import bench_models

    import jax_bwgemm

    right = jax_bwgemm.accelerate
    monkeypatch.setattr(
        jax_bwgemm, "accelerate", lambda f, **k: right(lambda *a: (2 * f(*a)[0], f(*a)[1]), **k)
    )
    assert bench_models.main(["--small", "--models", "gpt2-124m"]) == 1
    assert "error: gpt2-124m: loss" in capsys.readouterr().err


def test_bench_programs(tmp_path, capsys):
    import bench_programs
    from common import report

    path = tmp_path / "programs.jsonl"
    args = ["--small", "--models", "lstm", "towers", "--control", "--out", str(path)]
    assert bench_programs.main(args) == 0
    rows = [r for r in report.load(path) if r["record"] == "model"]
    assert [(r["model"], r["impl"]) for r in rows] == [
        (model, impl) for model in ("lstm", "towers") for impl in ("xla", "accelerate")
    ]
    assert all(r["apart"] == 0 and r["products"] > 10 for r in rows)
    assert "losses at most 0.0e+00 apart (XLA's own: 0.0e+00)" in capsys.readouterr().out


def test_bench_programs_sums_kinds_of_kernels():
    import bench_programs

    kernels = [("fusion_12", 3.0), ("gemm", 4.0), ("fusion_7", 2.5)]
    assert bench_programs.by_kind(kernels) == [("fusion", 2, 5.5), ("gemm", 1, 4.0)]


def test_bench_programs_reports_losses_that_differ(monkeypatch, capsys):
    import bench_programs

    import jax_bwgemm

    right = jax_bwgemm.accelerate
    monkeypatch.setattr(
        jax_bwgemm, "accelerate", lambda f, **k: right(lambda *a: (2 * f(*a)[0], f(*a)[1]), **k)
    )
    assert bench_programs.main(["--small", "--models", "towers"]) == 1
    assert "error: towers: losses" in capsys.readouterr().err


def test_bench_programs_says_what_would_run(capsys):
    import bench_programs

    assert bench_programs.main(["--dry-run"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(bench_programs.PROGRAMS)
    assert lines[0].startswith("gemma-like: {'batch': 4,")


def test_bench_links(tmp_path, capsys, monkeypatch):
    import bench_links
    from common import report
    from linked_cases import unlinkable

    if unlinkable() is not None or not runtime.emulated_kernels():
        pytest.skip("nothing can be linked for the emulator")
    monkeypatch.setattr(jax, "local_device_count", lambda: 1)
    path = tmp_path / "links.jsonl"
    budgets = ["--budget-link", "1000", "--budget-model", "1000"]
    assert bench_links.main(["--small", "--out", str(path), *budgets]) == 0
    (model,) = (r for r in report.load(path) if r["record"] == "linked_model")
    assert model["linked"] == 2
    assert all(row["seconds"] > 0 for row in report.load(path) if row["record"] == "link")
    assert "a model with 2 linked products" in capsys.readouterr().out
    assert bench_links.main(["--small", "--budget-link", "0"]) == 1
    assert bench_links.main(["--dry-run"]) == 0
    assert "a model of 20 products" in capsys.readouterr().out
    monkeypatch.setenv("BWGEMM_LINKER", "0")
    from jax_bwgemm.epilogue.linker import linker

    linker.cache_clear()
    assert bench_links.main(["--small"]) == 2
    assert "BWGEMM_LINKER=0 forbids linking" in capsys.readouterr().err
    linker.cache_clear()


def test_bench_mlp(tmp_path, capsys):
    import bench_mlp
    from common import report

    path = tmp_path / "mlp.jsonl"
    assert bench_mlp.main(["--small", "--rounds", "2", "--out", str(path)]) == 0
    rows = [r for r in report.load(path) if r["record"] == "mlp"]
    columns = ["mlp", "mlp recomputed", "mlp in blocks", "xla", "xla checkpoint"]
    assert [r["impl"] for r in rows] == columns * 2
    for i in (0, 5):
        for ours in rows[i : i + 3]:
            assert ours["loss"] == pytest.approx(rows[i + 3]["loss"], rel=2e-2)
    assert "64,64,96:gelu: xla time / mlp time" in capsys.readouterr().out


def test_bench_mlp_names_a_bad_problem(capsys):
    import bench_mlp

    for wrong, message in (
        ("8,8,8:relu", "'8,8,8:relu' is not ROWS,WIDTH,HIDDEN:{swiglu,gelu}"),
        ("8,8:gelu", "'8,8' is not ROWS,WIDTH,HIDDEN"),
        ("8,8,6:gelu", "4 does not divide the 6 of '8,8,6:gelu'"),
    ):
        with pytest.raises(SystemExit):
            bench_mlp.main(["--problems", wrong])
        assert message in capsys.readouterr().err
    assert bench_mlp.main(["--dry-run"]) == 0
    assert capsys.readouterr().out.splitlines() == list(bench_mlp.PROBLEMS)
