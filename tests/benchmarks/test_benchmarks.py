"""The benchmark programs in their small CPU mode."""

from __future__ import annotations

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from benchmark_records import records

from jax_bwgemm import runtime

pytestmark = pytest.mark.usefixtures("benchmark_programs")


def test_bench_gemm(tmp_path, capsys):
    import bench_gemm

    path = tmp_path / "gemm.jsonl"
    assert bench_gemm.main(["--small", "--out", str(path), "--majors", "kn", "mk"]) == 0
    rows = records(path, "gemm")
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
    assert records(path, "copy")[0]["gb_per_s"] > 0
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
    rows = records(path, "gemm")
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
    assert {r["status"] for r in records(path, "sharded")} == {"ok"}


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
    rows = records(path, "gemm")
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
    rows = records(path, "overhead")
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
    rows = records(path, "gemm")
    assert {r["impl"] for r in rows} == {"pad+kernel", "default", "xla"}
    assert {r["status"] for r in rows} == {"ok"}


def test_bench_block(tmp_path, capsys):
    import bench_block

    path = tmp_path / "block.jsonl"
    assert bench_block.main(["--small", "--out", str(path)]) == 0
    rows = records(path, "block")
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
    rows = records(path, "sharded")
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
    assert {r["shape"] for r in records(path, "sharded")} == {"32,48,64"}


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


def test_bench_import(tmp_path, capsys):
    import bench_import

    path = tmp_path / "import.jsonl"
    assert bench_import.main(["--small", "--out", str(path)]) == 0
    rows = records(path, "import")
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
    (row,) = records(path, "emulator")
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
