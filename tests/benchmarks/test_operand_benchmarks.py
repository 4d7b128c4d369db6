"""Benchmark programs of layers, losses and operands of other types, in their small CPU mode."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from benchmark_records import records

pytestmark = pytest.mark.usefixtures("benchmark_programs")


def test_bench_loss(tmp_path, capsys):
    import bench_loss

    path = tmp_path / "loss.jsonl"
    assert bench_loss.main(["--small", "--problems", "16,8,40", "--out", str(path)]) == 0
    rows = records(path, "loss")
    names = {"stored", "recomputed", "xla f32", "xla 16-bit", "xla chunks"}
    assert {(r["impl"], r["what"]) for r in rows} >= {
        (name, what) for name in names for what in ("forward", "forward+backward")
    }
    for row in (r for r in rows if r["what"] == "forward+backward"):
        # bf16 logits of 16 rows; their gradients are bf16 numbers.
        assert row["value_error"] <= 2e-3
        assert row["gradient_error"] <= 2e-2
        assert row["tflops"] == pytest.approx(3 * 2 * 16 * 8 * 40 / row["median_us"] / 1e6)
    assert "forward+backward: xla f32 time / stored time" in capsys.readouterr().out


def test_bench_loss_names_a_bad_problem(capsys):
    import bench_loss

    with pytest.raises(SystemExit):
        bench_loss.main(["--problems", "16,8"])
    assert "'16,8' is not ROWS,WIDTH,VOCABULARY" in capsys.readouterr().err
    assert bench_loss.main(["--dry-run"]) == 0
    assert "8192,4096,128256: 25.82 TFLOP in three products" in capsys.readouterr().out
    with pytest.raises(SystemExit, match=r"no columns \['xla'\]; there are stored, recomputed"):
        bench_loss.main(["--small", "--problems", "16,8,40", "--columns", "xla"])


def test_bench_linear(tmp_path, capsys):
    import bench_linear

    path = tmp_path / "linear.jsonl"
    arguments = ["--small", "--activations", "gelu", "none", "--out", str(path)]
    assert bench_linear.main(arguments) == 0
    rows = records(path, "linear")
    assert len(rows) == 2 * 2 * 4
    for row in rows:
        assert not row["linked"]
        if row["impl"] != "product":
            assert row["error"] <= 0.1  # of bf16 layers, the largest over the root mean square
    assert "gelu + residual: 0 of 1 linked; fused / product" in capsys.readouterr().out


def test_bench_epilogues(tmp_path, capsys):
    import bench_epilogues

    path = tmp_path / "epilogues.jsonl"
    arguments = ["--small", "--functions", "gelu", "two results", "--out", str(path)]
    assert bench_epilogues.main(arguments) == 0
    rows = records(path, "epilogue")
    assert [row["impl"] for row in rows] == ["apart", "product", "xla"] * 2
    assert "two results" in capsys.readouterr().out
    assert bench_epilogues.main(["--dry-run", "--functions", "gelu"]) == 0
    assert "16384,128,128: gelu" in capsys.readouterr().out


def test_bench_linear_names_a_bad_problem(capsys):
    import bench_linear

    with pytest.raises(SystemExit):
        bench_linear.main(["--problems", "16,8"])
    assert "'16,8' is not M,N,K" in capsys.readouterr().err
    assert bench_linear.main(["--dry-run"]) == 0
    assert "16,14336,4096: 0.00 TFLOP" in capsys.readouterr().out


def test_bench_f32(tmp_path, capsys):
    import bench_f32

    path = tmp_path / "f32.jsonl"
    shape = "24,16,40:mk"
    assert bench_f32.main(["--small", "--shapes", shape, "--out", str(path)]) == 0
    rows = records(path, "f32")
    names = ["two terms", "one term", "bf16", "xla"]
    assert [(r["f32"], r["impl"]) for r in rows] == [(s, n) for s in ("lhs", "rhs") for n in names]
    for row in rows:  # of f32 results, each against its own operands; one term rounds one of them
        assert row["error"] <= (2e-2 if row["impl"] == "one term" else 1e-5)
        assert row["tflops"] == pytest.approx(2 * 24 * 16 * 40 / row["median_us"] / 1e6)
    shown = capsys.readouterr().out
    assert "time two terms / bf16: mean" in shown
    assert "error xla / two terms: mean" in shown


def test_bench_grouped_f32(tmp_path, capsys):
    import bench_grouped_f32

    path = tmp_path / "f32.jsonl"
    argv = ["--small", "--shapes", "40,16,24,3:zipf", "--implementation", "xla", "--out", str(path)]
    assert bench_grouped_f32.main(argv) == 0
    rows = records(path, "grouped_f32")
    names = ["two terms", "one term", "bf16", "xla"]
    modes = ("forward", "dx", "dw")
    assert [(r["mode"], r["impl"]) for r in rows] == [(m, n) for m in modes for n in names]
    for row in rows:
        assert row["error"] <= (3e-2 if row["impl"] in ("one term", "bf16") else 1e-5)
        assert row["tflops"] == pytest.approx(2 * 40 * 16 * 24 / row["median_us"] / 1e6)
    assert "time two terms / bf16: mean" in capsys.readouterr().out
    assert bench_grouped_f32.main(["--dry-run"]) == 0
    assert "32768,4096,7168,8: 1.92 TFLOP" in capsys.readouterr().out


def test_bench_grouped_f32_names_a_bad_option(capsys):
    import bench_grouped_f32

    for argv, message in (
        (["--dtype", "float16"], "--dtype float16: the other operand is bfloat16"),
        (["--shapes", "8,8"], "a grouped shape is m,n,k,groups[:distribution], got '8,8'"),
    ):
        with pytest.raises(SystemExit):
            bench_grouped_f32.main(argv)
        assert message in capsys.readouterr().err


def test_bench_f32_of_two_f32_operands(tmp_path, capsys):
    import bench_f32

    path = tmp_path / "f32.jsonl"
    argv = ["--small", "--shapes", "24,16,40:mk", "--f32", "both", "--out", str(path)]
    assert bench_f32.main(argv) == 0
    rows = records(path, "f32")
    names = ["x3", "x6", "highest", "bf16", "xla x3", "xla x6", "xla tf32", "xla f32"]
    assert [r["impl"] for r in rows] == names
    assert all(r["error"] <= 1e-5 and r["f32"] == "both" for r in rows)
    shown = capsys.readouterr().out
    assert "time xla x6 / x6: mean" in shown
    assert "two terms" not in shown


def test_bench_accuracy(tmp_path, capsys):
    import bench_accuracy

    path = tmp_path / "accuracy.jsonl"
    assert bench_accuracy.main(["--small", "--out", str(path)]) == 0
    rows = records(path, "accuracy")
    assert [r["values"] for r in rows] == list(bench_accuracy.KINDS)
    most = {"infinite": 0, "NaN": 0, "2^-118": 1, "denormal": 1}  # XLA's CPU has no denormals
    for row in rows:  # on a CPU all columns are f32
        assert row["xla f32"] == row["x6"] <= most.get(row["values"], 1e-6)
    assert "wide exponents" in capsys.readouterr().out
    assert bench_accuracy.main(["--dry-run"]) == 0
    assert capsys.readouterr().out.splitlines() == list(bench_accuracy.KINDS)


def test_bench_accuracy_counts_classes():
    import bench_accuracy

    a, b = np.array([[np.inf, 1.0]]), np.array([[1.0, np.nan], [1.0, 1.0]])
    assert bench_accuracy.difference(np.array([[np.inf, np.nan]]), a, b) == 0
    assert bench_accuracy.difference(np.array([[1.0, np.inf]]), a, b) == 2


def test_bench_f32_names_a_bad_option(capsys):
    import bench_f32

    for wrong, complaint in (
        (["--dtype", "float16"], "--dtype float16: the other operand is bfloat16"),
        (["--shapes", "3,4"], "3,4"),
    ):
        with pytest.raises(SystemExit):
            bench_f32.main(wrong)
        assert complaint in capsys.readouterr().err
    assert bench_f32.main(["--dry-run", "--f32", "rhs"]) == 0
    shown = capsys.readouterr().out
    assert "4096,128256,8192:mn, f32 rhs: 8.61 TFLOP" in shown
    assert "f32 lhs" not in shown


def test_bench_scaled(tmp_path, capsys):
    import bench_scaled

    path = tmp_path / "scaled.jsonl"
    args = ["--small", "--problems", "16,32,144", "--kinds", "tensor", "dW", "--out", str(path)]
    assert bench_scaled.main(args) == 0
    rows = {r["impl"]: r for r in records(path, "scaled")}
    assert set(rows) >= {"bwgemm bf16", "xla bf16", "bwgemm tensor", "bwgemm dW", "xla raw fp8"}
    for name, row in rows.items():
        assert row["tflops"] == pytest.approx(2 * 16 * 32 * 144 / row["median_us"] / 1e6)
        if name != "xla raw fp8":  # which has no scales
            assert abs(row["difference"]) < 1e-4
    assert "xla raw fp8 time / bwgemm tensor time" in capsys.readouterr().out


def test_bench_quantize(tmp_path, capsys):
    import bench_quantize

    path = tmp_path / "quantize.jsonl"
    args = ["--small", "--sizes", "40,136", "--cases", "1x128+T", "tensor", "--out", str(path)]
    assert bench_quantize.main(args) == 0
    rows = {r["impl"]: r for r in records(path, "quantize")}
    assert list(rows) == ["copy", "bwgemm 1x128+T", "xla 1x128+T", "bwgemm tensor", "xla tensor"]
    assert rows["copy"]["bytes"] == 2 * 2 * 40 * 136
    # x, both copies, and a scale for each 128 of rows and of columns
    assert rows["bwgemm 1x128+T"]["bytes"] == 4 * 40 * 136 + 4 * (2 * 40 + 136)
    for row in rows.values():
        assert row["gb_per_s"] == pytest.approx(row["bytes"] / row["median_us"] / 1e3)
    assert rows["bwgemm tensor"]["equal"] == 1
    assert "1x128+T: at least" in capsys.readouterr().out


def test_bench_scaled_grouped(tmp_path, capsys):
    import bench_scaled_grouped

    path = tmp_path / "scaled_grouped.jsonl"
    assert bench_scaled_grouped.main(["--small", "--out", str(path)]) == 0
    rows = {(r["impl"], r["mode"]): r for r in records(path, "scaled_grouped")}
    kinds = ("bf16", "tensor", "row", "blockwise", "blockwise_2d")
    modes = ("forward", "dx", "dw")
    assert set(rows) == {(f"bwgemm {kind} {mode}", mode) for kind in kinds for mode in modes}
    for (name, _), row in rows.items():
        assert row["tflops"] == pytest.approx(2 * 144 * 128 * 160 / row["median_us"] / 1e6)
        assert "bf16" in name or row["difference"] < 2e-3
    assert "blockwise: bf16 time / ours forward" in capsys.readouterr().out
    assert bench_scaled_grouped.main(["--dry-run"]) == 0
    assert "512,2048,7168,64: 0.02 TFLOP, tensor" in capsys.readouterr().out
    more = ["--modes", "forward", "--kinds", "row", "--epilogues", "gelu", "gradient", "weights"]
    assert bench_scaled_grouped.main(["--small", *more]) == 0
    printed = capsys.readouterr().out
    for name in ("gelu", "gradient", "weights"):
        assert f"row {name}: linked / product" in printed


def test_bench_recipes(tmp_path, capsys, monkeypatch):
    import bench_recipes
    from scaled import recipe_choice

    path = tmp_path / "recipes.jsonl"
    monkeypatch.setattr(recipe_choice, "DATA", tmp_path)
    more = ["--recipes", "blockwise", "--write", "made", "--out", str(path)]
    assert bench_recipes.main(["--small", *more]) == 0
    rows = records(path, "recipe")
    assert [(r["layer"], r["impl"]) for r in rows] == [
        (layer, way)
        for layer in ("128,128,256", "128,128,256,2")
        for way in ("16 bits", "blockwise")
    ]
    dense, grouped = recipe_choice.load()
    assert (dense["layer"], grouped["layer"]) == ([128, 128, 256, 0], [128, 128, 256, 2])
    assert dense["us"] == {r["impl"]: round(r["median_us"], 1) for r in rows[:2]}
    # Small layers are predicted to be slower in 8 bits, so 16 are chosen.
    assert recipe_choice.predicted(recipe_choice.Layer(*dense["layer"]), "blockwise") < 1
    us = {"16 bits": 3.0, "blockwise": 2.0}
    assert recipe_choice.regret(recipe_choice.Layer(*dense["layer"]), "blockwise", us) == 1.5
    assert "the choice takes" in capsys.readouterr().out
    assert bench_recipes.main(["--dry-run", "--layers", "256,128,512,2"]) == 0
    assert "256,128,512,2: per_tensor, blockwise, blockwise_2d" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        bench_recipes.main(["--layers", "256,128"])
    assert "--layers: '256,128' is not ROWS,DEPTH,COLUMNS" in capsys.readouterr().err


def test_bench_low_precision(tmp_path, capsys):
    import bench_low_precision

    path = tmp_path / "low_precision.jsonl"
    recipes = ("per_tensor_delayed", "blockwise")
    some = ["--small", "--out", str(path), "--recipes", *recipes]
    assert bench_low_precision.main(some) == 0
    rows = {r["impl"]: r for r in records(path, "low_precision")}
    ways = [way for recipe in recipes for way in (recipe, f"{recipe}, accelerate")]
    assert list(rows) == ["xla bf16", "bwgemm bf16", *ways]
    assert all(r["decibels"] > 15 for r in rows.values())
    for row in rows.values():
        assert row["tflops"] == pytest.approx(18 * 128 * 128 * 256 / row["median_us"] / 1e6)
        assert row["speedup"] == pytest.approx(rows["xla bf16"]["median_us"] / row["median_us"])
    assert bench_low_precision.main(["--dry-run"]) == 0
    assert "8192,4096,14336: 8.66 TFLOP, per_tensor" in capsys.readouterr().out
    assert bench_low_precision.main([*some, "--experts", "2"]) == 0
    experts = [r for r in records(path, "low_precision") if r["problem"] == "128,128,256,2"]
    assert [r["impl"] for r in experts] == list(rows)
    assert all(r["decibels"] > 15 for r in experts)
    gelu = ["--layer", "gelu", "--recipes", "blockwise", "--small", "--out", str(path)]
    assert bench_low_precision.main(gelu) == 0
    found = records(path, "low_precision")[-4:]
    assert [r["impl"] for r in found] == [*list(rows)[:2], "blockwise", "blockwise, accelerate"]
    assert all(r["decibels"] > 15 for r in found)
    for row in found:
        assert row["tflops"] == pytest.approx(12 * 128 * 128 * 256 / row["median_us"] / 1e6)


def test_bench_quantize_names_a_bad_case(capsys):
    import bench_quantize

    with pytest.raises(SystemExit):
        bench_quantize.main(["--cases", "1x64"])
    assert "'1x64' is not LAYOUT[+T][+SR]" in capsys.readouterr().err
    assert bench_quantize.main(["--dry-run"]) == 0
    assert "8192,28672: 1x128, 1x128+T" in capsys.readouterr().out


def test_bench_scaled_names_a_bad_problem(capsys):
    import bench_scaled

    with pytest.raises(SystemExit):
        bench_scaled.main(["--problems", "16,8"])
    assert "'16,8' is not M,N,K" in capsys.readouterr().err
    assert bench_scaled.main(["--dry-run"]) == 0
    assert "4096,7168,16384: 0.96 TFLOP, tensor, row" in capsys.readouterr().out


def test_bench_gated(tmp_path, capsys):
    import bench_gated

    path = tmp_path / "gated.jsonl"
    assert bench_gated.main(["--small", "--out", str(path)]) == 0
    rows = records(path, "gated")
    names = ["stacked", "pair", "unfused", "product", "xla"]
    layers = ["silu", "silu, products kept"]
    assert [(r["layer"], r["impl"]) for r in rows] == [(y, n) for y in layers for n in names]
    for row in rows:
        assert row["kernel"] == ""  # by XLA, in this rehearsal
        if row["impl"] != "product":
            assert row["error"] <= 0.1  # of bf16 layers, the largest over the root mean square
    assert "silu, pair: 0 of 1 in one kernel; of the product" in capsys.readouterr().out


def test_bench_gated_names_a_bad_problem(capsys):
    import bench_gated

    with pytest.raises(SystemExit):
        bench_gated.main(["--problems", "16,8"])
    assert "'16,8' is not M,N,K" in capsys.readouterr().err
    assert bench_gated.main(["--dry-run"]) == 0
    assert "16,14336,4096: 0.00 TFLOP" in capsys.readouterr().out


def test_bench_moe(tmp_path, capsys):
    import bench_moe

    path = tmp_path / "moe.jsonl"
    assert bench_moe.main(["--small", "--out", str(path)]) == 0
    rows = records(path, "moe")
    assert [(r["impl"], r["problem"]) for r in rows] == [
        (impl, "32,16,8,4") for impl in ("fused", "unfused", "xla")
    ]
    for row in rows:
        assert row["over_fused"] == pytest.approx(row["median_us"] / rows[0]["median_us"])
    assert rows[0]["distance"] == 0 < rows[1]["distance"] <= 1e-3
    capsys.readouterr()
    assert bench_moe.main(["--dry-run"]) == 0
    assert "8192,2048,1024,64: 2.47 TFLOP" in capsys.readouterr().out


@pytest.mark.parametrize(("column", "fails"), [("xla", False), ("unfused", True)])
def test_bench_moe_without_memory(monkeypatch, capsys, column, fails):
    import bench_moe

    steps = bench_moe.steps

    class NoMemory:
        def lower(self, *inputs):
            return self

        compile = lower

        def __call__(self, *inputs):
            raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory")

    monkeypatch.setattr(bench_moe, "steps", lambda *args: {**steps(*args), column: NoMemory()})
    if fails:
        with pytest.raises(jax.errors.JaxRuntimeError, match="RESOURCE_EXHAUSTED"):
            bench_moe.main(["--small"])
    else:
        assert bench_moe.main(["--small"]) == 0
        said = capsys.readouterr()
        assert "no column of XLA's, whose step does not fit in memory" in said.out + said.err


def test_bench_moe_refuses_a_wrong_layer(monkeypatch):
    import bench_moe

    right = jax.lax.ragged_dot
    monkeypatch.setattr(jax.lax, "ragged_dot", lambda *args: 1.1 * right(*args))
    with pytest.raises(AssertionError, match=r"32,16,8,4 xla: .*distance"):
        bench_moe.main(["--small"])
