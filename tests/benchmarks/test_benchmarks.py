"""The benchmark programs in their small CPU mode."""

from __future__ import annotations

import json
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax_bwgemm import runtime

pytestmark = pytest.mark.usefixtures("benchmark_programs")


def _records(path, kind):
    from common import report

    return [r for r in report.load(path) if r["record"] == kind]


def test_bench_gemm(tmp_path, capsys):
    import bench_gemm

    path = tmp_path / "gemm.jsonl"
    assert bench_gemm.main(["--small", "--out", str(path), "--majors", "kn", "mk"]) == 0
    rows = _records(path, "gemm")
    ours = [r for r in rows if r["impl"] == "bwgemm"]
    assert [r["shape"] for r in ours] == ["64,96,128", "64,96,128:mk", "128,64,32", "128,64,32:mk"]
    for row in ours:
        assert row["status"] == "ok"
        assert row["median_us"] > 0
        assert row["distance"] <= 1e-5
        flops = 2 * row["m"] * row["n"] * row["k"]
        assert row["tflops"] == pytest.approx(flops / row["median_us"] / 1e6)
    assert {r["status"] for r in rows if r["impl"] == "pallas"} == {
        "unsupported: the Pallas Hopper kernel needs an NVIDIA GPU"
    }
    assert _records(path, "copy")[0]["gb_per_s"] > 0
    printed = capsys.readouterr()
    assert "| 64,96,128" in printed.out
    assert "xla time / bwgemm time over 4 shapes: geometric mean" in printed.out
    assert "rehearsal on cpu" in printed.err


def test_bench_gemm_reports_a_wrong_product(monkeypatch, capsys):
    import bench_gemm

    import jax_bwgemm

    right = jax_bwgemm.dot_general
    monkeypatch.setattr(jax_bwgemm, "dot_general", lambda *a, **k: right(*a, **k) * 2)
    assert bench_gemm.main(["--small", "--peers", "xla"]) == 1
    assert "failed: 64,96,128 bwgemm: wrong: 1.00e+00 from xla" in capsys.readouterr().err


def test_bench_gemm_never_falls_back(capsys):
    import bench_gemm

    # A column that asks for kernels where there are none must not be timed on something else.
    args = ["--small", "--implementation", "emulator", "--dtype", "float32", "--peers", "xla"]
    assert bench_gemm.main(args) == 1
    printed = capsys.readouterr()
    assert "bwgemm: unsupported: implementation='emulator' cannot run" in printed.err
    assert "geometric mean" not in printed.out


@pytest.mark.gpu
def test_bench_gemm_times_kernels(tmp_path):
    import bench_gemm

    path = tmp_path / "gemm.jsonl"
    argv = ["--small", "--shapes", "512,512,512", "--peers", "xla", "pallas", "--all-kernels"]
    assert bench_gemm.main([*argv, "--swizzles", "1", "8", "--out", str(path)]) == 0
    rows = _records(path, "gemm")
    ours = next(r for r in rows if r["impl"] == "bwgemm")
    assert (ours["method"], ours["implementation"]) == ("cupti", "cutlass")
    # One kernel a call, and ours.
    assert len(ours["kernels"]) == 1
    assert ours["median_us"] > 0
    every = [r for r in rows if r["impl"].startswith("sm")]
    ordered = [r for r in every if "_clusterk" not in r["impl"]]
    assert ordered
    assert len(ordered) % 4 == 0  # raster m and n, two swizzles
    assert {r["kernel"] for r in every if r["status"] == "ok"} >= {ours["kernel"]}


@pytest.mark.multigpu
def test_bench_sharded_on_gpus(tmp_path):
    import bench_sharded

    path = tmp_path / "sharded.jsonl"
    argv = ["--shape", "512,512,512", "--rounds", "2", "--burst", "2", "--out", str(path)]
    assert bench_sharded.main(argv) == 0
    assert {r["status"] for r in _records(path, "sharded")} == {"ok"}


def test_bench_gemm_dry_run(capsys):
    import bench_gemm

    assert bench_gemm.main(["--dry-run"]) == 0
    text = capsys.readouterr().out
    assert "8192,8192,8192" in text
    assert text.count("design") == 11


def test_bench_gemm_goes_on_when_a_column_breaks(monkeypatch, tmp_path, capsys):
    import bench_gemm
    from dense import candidates

    def breaks(*args, **kwargs):
        raise RuntimeError("out of luck\nand of memory")

    monkeypatch.setattr(candidates, "torch", breaks)
    path = tmp_path / "gemm.jsonl"
    assert bench_gemm.main(["--small", "--peers", "xla", "torch", "--out", str(path)]) == 1
    rows = _records(path, "gemm")
    assert [r["status"] for r in rows if r["impl"] == "bwgemm"] == ["ok", "ok"]
    assert {r["status"] for r in rows if r["impl"] == "torch"} == {
        "error: RuntimeError: out of luck"
    }
    assert "failed: 64,96,128 torch: error: RuntimeError: out of luck" in capsys.readouterr().err


def test_gemm_tables():
    from dense import tables as gemm_tables

    def row(shape, impl, us):
        return {"shape": shape, "impl": impl, "median_us": us, "tflops": 1.0, "gb_per_s": 50.0}

    kernel = {"kernel": "sm90_bf16_bf16_kn_128x256x64_2x1_cooperative", "swizzle": 8}
    rows = [row("s", "bwgemm", 10.0) | kernel | {"raster_order": "m"}, row("s", "xla", 15.0)]
    rows += [row("t", "bwgemm", 4.0) | {"implementation": "xla"}]
    rows.append({"shape": "t", "impl": "xla", "status": "unsupported: because"})
    text, ratios = gemm_tables.summary(rows, ["xla"], gb_per_s=100.0)
    assert ratios == {"xla": [1.5]}
    assert "| s     | 10        | 1       | 5        |" in text  # floor: half of 10 us
    assert "sm90 kn_128x256x64_2x1_cooperative m8" in text

    rows.append(row("s", "sm90_x n1", 8.0))
    ranked = gemm_tables.fastest_kernels([r | {"spread": 0.0} for r in rows], ["xla"])
    assert ranked.index("sm90_x n1") < ranked.index("default: sm90 kn_128x256x64")
    assert "| 0.8     |" in ranked  # the default reaches 0.8 of the best


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--tags", "huge"], "unknown tag 'huge'"),
        (["--shapes", "1,2"], "a shape is m,n,k"),
        (["--rounds", "0"], "must be at least 1, got 0"),
        (["--peers", "mkl"], "invalid choice: 'mkl'"),
    ],
)
def test_bench_gemm_bad_options(argv, message, capsys):
    import bench_gemm

    with pytest.raises(SystemExit) as error:
        bench_gemm.main(argv)
    assert error.value.code == 2
    assert message in capsys.readouterr().err


def test_kernels_without_a_gpu_are_refused():
    import bench_gemm

    with pytest.raises(SystemExit, match="the CUTLASS kernels need an NVIDIA GPU and JAX runs on"):
        bench_gemm.main(["--tags", "design"])


def test_bench_overhead(tmp_path, capsys):
    import bench_overhead

    path = tmp_path / "overhead.jsonl"
    assert bench_overhead.main(["--small", "--out", str(path)]) == 0
    rows = _records(path, "overhead")
    assert [(r["impl"], r["calls"], r["size"]) for r in rows] == [("bwgemm", 4, 64), ("xla", 4, 64)]
    assert "wall time per call, bwgemm over xla" in capsys.readouterr().out


def test_overhead_chain_multiplies_that_often():
    import bench_overhead

    got = bench_overhead.chain(jnp.matmul, 3)(jnp.ones((2, 2)), 2 * jnp.eye(2))
    np.testing.assert_array_equal(got, np.full((2, 2), 8.0))


def test_bench_unaligned(tmp_path):
    import bench_unaligned

    path = tmp_path / "unaligned.jsonl"
    assert bench_unaligned.main(["--small", "--out", str(path)]) == 0
    rows = _records(path, "gemm")
    assert {r["impl"] for r in rows} == {"pad+kernel", "default", "xla"}
    assert {r["status"] for r in rows} == {"ok"}


def test_bench_block(tmp_path, capsys):
    import bench_block

    path = tmp_path / "block.jsonl"
    assert bench_block.main(["--small", "--out", str(path)]) == 0
    rows = _records(path, "block")
    assert [(r["impl"], r["what"]) for r in rows] == [
        ("bwgemm", "forward"),
        ("bwgemm", "forward+backward"),
        ("xla", "forward"),
        ("xla", "forward+backward"),
    ]
    assert "xla step time over bwgemm step time" in capsys.readouterr().out


def test_block_attentions_agree():
    import bench_block

    block = bench_block.Block(batch=2, sequence=16, width=32, heads=4, hidden=48)
    weights = bench_block.init(block, "float32", seed=0)
    x = jax.random.normal(jax.random.key(1), (2, 16, 32))
    with jax.default_matmul_precision("highest"):
        ours, shared = (
            bench_block.forward(block, jnp.matmul, flag, weights, x) for flag in (False, True)
        )
    np.testing.assert_allclose(ours, shared, rtol=1e-4, atol=1e-5)


def test_block_reports_wrong_gradients(monkeypatch, capsys):
    import bench_block

    import jax_bwgemm

    wrong = lambda a, b, **_: jnp.matmul(a, b) * 1.1  # noqa: E731
    monkeypatch.setattr(jax_bwgemm, "matmul", wrong)
    assert bench_block.main(["--small"]) == 1
    assert "error: the gradients of both arms differ" in capsys.readouterr().err


def test_bench_sharded(tmp_path):
    import bench_sharded

    count = len(jax.devices("cpu"))
    path = tmp_path / "sharded.jsonl"
    assert bench_sharded.main(["--small", "--out", str(path)]) == 0
    rows = _records(path, "sharded")
    assert [r["mode"] for r in rows if r["devices"] == 1] == list(bench_sharded.MODES)
    assert {r["status"] for r in rows} == {"ok"}
    assert all(r["efficiency"] == 1 for r in rows if r["devices"] == 1)
    assert count > 1
    reduced = {r["mode"] for r in rows if r["devices"] == count and r["collectives"]}
    assert reduced == {"jit-k", "shard_map-k", "grad"}


def test_bench_sharded_strong_scaling_keeps_the_problem(tmp_path):
    import bench_sharded

    path = tmp_path / "strong.jsonl"
    argv = ["--small", "--scaling", "strong", "--modes", "jit-m", "--out", str(path)]
    assert bench_sharded.main(argv) == 0
    assert {r["shape"] for r in _records(path, "sharded")} == {"32,48,64"}


def test_bench_sharded_reports_unexpected_collectives(monkeypatch, capsys):
    import bench_sharded
    from common import hlo

    gather = {"all-gather": {"count": 1, "bytes": 8}}
    monkeypatch.setattr(hlo, "collectives", lambda text: gather)
    assert bench_sharded.main(["--small", "--modes", "jit-m"]) == 1
    assert "unexpected collectives: all-gather x1" in capsys.readouterr().err


def test_bench_sharded_needs_its_devices(capsys):
    import bench_sharded

    assert bench_sharded.main(["--small", "--devices", "4096"]) == 2
    assert f"--devices 4096 asked for, this machine has {len(jax.devices('cpu'))}" in (
        capsys.readouterr().err
    )


# --- compare ---


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


def test_bench_import(tmp_path, capsys):
    import bench_import

    path = tmp_path / "import.jsonl"
    assert bench_import.main(["--small", "--out", str(path)]) == 0
    rows = _records(path, "import")
    assert [(r["what"], r["samples"]) for r in rows] == [("jax", 1), ("jax_bwgemm after jax", 1)]
    assert all(r["median_us"] > 0 for r in rows)
    assert " s over import jax" in capsys.readouterr().out


@pytest.mark.emulator
def test_bench_emulator(tmp_path, capsys):
    import bench_emulator

    if runtime.load_emulator() is None:
        pytest.skip("the emulator was not built")
    path, kernel = tmp_path / "emulator.jsonl", runtime.emulated_kernels()[0].name
    assert bench_emulator.main(["--small", "--kernel", kernel, "--out", str(path)]) == 0
    (row,) = _records(path, "emulator")
    assert (row["kernel"], row["size"], row["samples"]) == (kernel, 64, 1)
    assert row["median_us"] > 0
    assert row["thread_instructions"] > 0
    assert kernel in capsys.readouterr().out
    assert bench_emulator.main(["--kernel", "none"]) == 2
    assert "error: the emulator has no kernel 'none'" in capsys.readouterr().err


def test_bench_emulator_without_one(monkeypatch, capsys):
    import bench_emulator

    monkeypatch.setattr(runtime, "load_emulator", lambda: None)
    assert bench_emulator.main([]) == 2
    assert "error: jax_bwgemm was installed without its emulator" in capsys.readouterr().err


@pytest.mark.parametrize(("budget", "code"), [("0.2", 0), ("0.1", 1)])
def test_bench_import_compares_with_its_budget(budget, code, monkeypatch, capsys):
    import bench_import

    # The first of each kind, which does not count, takes long.
    times = iter([9e6, 9e6, 1e6, 0.15e6, 1e6, 0.11e6, 1e6, 0.3e6])
    monkeypatch.setattr(bench_import, "import_us", lambda modules: next(times))
    assert bench_import.main(["--rounds", "3", "--budget", budget]) == code
    printed = capsys.readouterr()
    assert "import jax_bwgemm takes 0.150 s over import jax" in printed.out
    assert ("above the budget of 0.1 s" in printed.err) == bool(code)


@pytest.mark.parametrize(
    "name",
    [
        "bench_gemm",
        "bench_sharded",
        "bench_block",
        "bench_overhead",
        "bench_unaligned",
        "bench_import",
        "bench_emulator",
    ],
)
def test_every_program_has_help_and_a_dry_run(name, capsys):
    module = __import__(name)
    with pytest.raises(SystemExit) as stop:
        module.main(["--help"])
    assert stop.value.code == 0
    assert "--small" in capsys.readouterr().out
    assert module.main(["--dry-run"]) == 0
    assert capsys.readouterr().out.strip()


def test_runs_as_a_script_from_elsewhere(tmp_path, benchmark_programs):
    script = benchmark_programs / "compare.py"
    done = subprocess.run(
        [sys.executable, str(script), "--help"], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0
    assert "--require-geomean" in done.stdout


def test_bench_loss(tmp_path, capsys):
    import bench_loss

    path = tmp_path / "loss.jsonl"
    assert bench_loss.main(["--small", "--problems", "16,8,40", "--out", str(path)]) == 0
    rows = _records(path, "loss")
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


def test_bench_linear(tmp_path, capsys):
    import bench_linear

    path = tmp_path / "linear.jsonl"
    arguments = ["--small", "--activations", "gelu", "none", "--out", str(path)]
    assert bench_linear.main(arguments) == 0
    rows = _records(path, "linear")
    assert len(rows) == 2 * 2 * 4
    for row in rows:
        assert not row["linked"]
        if row["impl"] != "product":
            assert row["error"] <= 0.1  # of bf16 layers, the largest over the root mean square
    assert "gelu + residual: 0 of 1 linked; fused / product" in capsys.readouterr().out


def test_bench_linear_names_a_bad_problem(capsys):
    import bench_linear

    with pytest.raises(SystemExit):
        bench_linear.main(["--problems", "16,8"])
    assert "'16,8' is not M,N,K" in capsys.readouterr().err
    assert bench_linear.main(["--dry-run"]) == 0
    assert "16,14336,4096: 0.00 TFLOP" in capsys.readouterr().out


def test_bench_gated(tmp_path, capsys):
    import bench_gated

    path = tmp_path / "gated.jsonl"
    assert bench_gated.main(["--small", "--out", str(path)]) == 0
    rows = _records(path, "gated")
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


def test_bench_f32(tmp_path, capsys):
    import bench_f32

    path = tmp_path / "f32.jsonl"
    shape = "24,16,40:mk"
    assert bench_f32.main(["--small", "--shapes", shape, "--out", str(path)]) == 0
    rows = _records(path, "f32")
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
    rows = _records(path, "grouped_f32")
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
    rows = _records(path, "f32")
    names = ["x3", "x6", "bf16", "xla x3", "xla x6", "xla tf32", "xla f32"]
    assert [r["impl"] for r in rows] == names
    assert all(r["error"] <= 1e-5 and r["f32"] == "both" for r in rows)
    shown = capsys.readouterr().out
    assert "time xla x6 / x6: mean" in shown
    assert "two terms" not in shown


def test_bench_accuracy(tmp_path, capsys):
    import bench_accuracy

    path = tmp_path / "accuracy.jsonl"
    assert bench_accuracy.main(["--small", "--out", str(path)]) == 0
    rows = _records(path, "accuracy")
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
    rows = {r["impl"]: r for r in _records(path, "scaled")}
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
    rows = {r["impl"]: r for r in _records(path, "quantize")}
    assert list(rows) == ["copy", "bwgemm 1x128+T", "xla 1x128+T", "bwgemm tensor", "xla tensor"]
    assert rows["copy"]["bytes"] == 2 * 2 * 40 * 136
    # x, both copies, and a scale for each 128 of rows and of columns
    assert rows["bwgemm 1x128+T"]["bytes"] == 4 * 40 * 136 + 4 * (2 * 40 + 136)
    for row in rows.values():
        assert row["gb_per_s"] == pytest.approx(row["bytes"] / row["median_us"] / 1e3)
    assert rows["bwgemm tensor"]["equal"] == 1
    assert "1x128+T: at least" in capsys.readouterr().out


def test_bench_low_precision(tmp_path, capsys):
    import bench_low_precision

    path = tmp_path / "low_precision.jsonl"
    assert bench_low_precision.main(["--small", "--out", str(path)]) == 0
    rows = {r["impl"]: r for r in _records(path, "low_precision")}
    assert list(rows) == [
        "xla bf16",
        "bwgemm bf16",
        "per_tensor",
        "per_tensor_delayed",
        "blockwise",
        "per_tensor fast",
    ]
    assert all(r["decibels"] > 15 for r in rows.values())
    for row in rows.values():
        assert row["tflops"] == pytest.approx(18 * 128 * 128 * 256 / row["median_us"] / 1e6)
        assert row["speedup"] == pytest.approx(rows["xla bf16"]["median_us"] / row["median_us"])
    assert bench_low_precision.main(["--dry-run"]) == 0
    assert "8192,4096,14336: 8.66 TFLOP, per_tensor" in capsys.readouterr().out


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
