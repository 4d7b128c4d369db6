"""The benchmark programs in their small CPU mode, and the arithmetic of their reports."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

BENCHMARKS = pathlib.Path(__file__).resolve().parent.parent / "benchmarks"
pytestmark = pytest.mark.skipif(
    not BENCHMARKS.is_dir(), reason="the benchmarks are not part of an installed package"
)


@pytest.fixture(autouse=True)
def _benchmarks_on_path(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))


def _records(path, kind):
    import report

    return [r for r in report.load(path) if r["record"] == kind]


# --- shapes ---


def test_shape_names_are_unique_and_parse_back():
    import shapes

    names = [s.name for s in shapes.ALL]
    assert len(set(names)) == len(names)
    assert [shapes.parse(name) for name in names] == list(shapes.ALL)


def test_suites_have_the_expected_size():
    import shapes

    assert len(shapes.select(["design"])) == 11
    assert len(shapes.select(["suite"])) == 7 * 4 + 3 + 3 + 3
    backward = shapes.select(["backward"])
    assert len(backward) == 16
    assert {s.majors for s in backward} == {"kk", "mn"}


def test_a_shape_in_two_suites_is_run_once():
    import shapes

    both = shapes.select(["design", "suite"])
    assert len({s.name for s in both}) == len(both)
    assert {"design", "suite"} <= shapes.parse("8192,8192,8192").tags


def test_backward_shapes_are_the_gradients_of_the_layers():
    import shapes

    shape = shapes.parse("2048,4096,6144:kk")  # dx = dy [2048, 6144] @ w[4096, 6144].T
    assert "backward" in shape.tags
    assert (shape.lhs_shape, shape.rhs_shape) == ((2048, 6144), (4096, 6144))
    shape = shapes.parse("4096,6144,2048:mn")  # dw = x[2048, 4096].T @ dy [2048, 6144]
    assert "backward" in shape.tags
    assert (shape.lhs_shape, shape.rhs_shape) == ((2048, 4096), (2048, 6144))


@pytest.mark.parametrize("majors", ["kn", "kk", "mn", "mk"])
@pytest.mark.parametrize("batch", [1, 3])
def test_dimension_numbers_describe_the_stored_operands(majors, batch):
    import shapes

    shape = shapes.Shape(4, 6, 5, batch, majors)
    a = np.arange(np.prod(shape.lhs_shape), dtype=np.float32).reshape(shape.lhs_shape)
    b = np.arange(np.prod(shape.rhs_shape), dtype=np.float32).reshape(shape.rhs_shape)
    got = jax.lax.dot_general(a, b, shape.dimension_numbers)
    left = a if majors[0] == "k" else a.swapaxes(-1, -2)
    right = b if majors[1] == "n" else b.swapaxes(-1, -2)
    np.testing.assert_array_equal(got, left @ right)


def test_flops_and_bytes():
    import shapes

    shape = shapes.Shape(2, 3, 5, batch=7)
    assert shape.flops == 2 * 7 * 2 * 3 * 5
    assert shape.bytes(2, 4) == 7 * ((2 * 5 + 5 * 3) * 2 + 2 * 3 * 4)


@pytest.mark.parametrize("text", ["4096", "1,2", "a,b,c", "1,2,3xq", "1,2,3,4"])
def test_malformed_shape(text):
    import shapes

    with pytest.raises(ValueError, match=r"a shape is m,n,k .* got") as error:
        shapes.parse(text)
    assert repr(text) in str(error.value)


def test_shape_errors_name_the_value():
    import shapes

    with pytest.raises(ValueError, match="majors must be one of kn, kk, mn, mk, got 'nt'"):
        shapes.parse("1,2,3:nt")
    with pytest.raises(ValueError, match="extents must be positive, got m=0 n=2 k=3 batch=1"):
        shapes.parse("0,2,3")
    with pytest.raises(ValueError, match="unknown tag 'huge'; the tags are backward, design"):
        shapes.select(["huge"])


# --- statistics, tables, files ---


def test_geomean():
    import report

    assert report.geomean([2.0, 8.0]) == pytest.approx(4.0)
    assert report.geomean([0.5, 2.0, 1.0]) == pytest.approx(1.0)
    with pytest.raises(ValueError, match="no values"):
        report.geomean([])
    with pytest.raises(ValueError, match=r"positive values, got -1\.0"):
        report.geomean([1.0, -1.0])


def test_summarise():
    import report

    stats = report.summarise([4.0, 1.0, 2.0, 3.0, 100.0, 2.0, 3.0, 3.0])
    assert stats["median_us"] == 3.0
    assert (stats["min_us"], stats["max_us"], stats["samples"]) == (1.0, 100.0, 8)
    assert stats["spread"] == pytest.approx((3.0 - 2.0) / 3.0)  # quartiles: the outlier is no part


def test_table():
    import report

    text = report.table([{"a": 1.23456, "b": None}, {"a": 12345.6, "b": "x"}], ["a", "b"])
    assert text.split("\n") == [
        "| a     | b |",
        "| ----- | - |",
        "| 1.235 | - |",
        "| 12346 | x |",
    ]


def test_report_writes_every_record_at_once(tmp_path):
    import report

    path = tmp_path / "sub" / "out.jsonl"
    out = report.Report(path, "test")
    out.add("copy", bytes=8, median_us=2.0, gb_per_s=4.0)
    before_close = report.load(path)
    out.close()
    assert [r["record"] for r in before_close] == ["run", "copy"]
    assert before_close[0]["versions"]["jax"] == jax.__version__
    assert before_close[0]["devices"]
    with pytest.raises(ValueError, match=r"a 'copy' record needs \['bytes', 'gb_per_s'\]"):
        out.add("copy", median_us=2.0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nonsense\n", "1: not JSON"),
        ('{"record": "gem"}\n', "1: unknown record kind 'gem'"),
        ("[1]\n", "1: unknown record kind None"),
        ('{"record": "copy", "bytes": 1}\n', r"'copy' record without \['gb_per_s', 'median_us'\]"),
        (
            '{"record": "copy", "bytes": 1, "median_us": 1, "gb_per_s": 1}\n',
            "first line is not the description of a run",
        ),
        ("", "first line is not the description of a run"),
        (
            '{"record": "run", "schema": 99, "benchmark": "", "argv": [], "date": "", '
            '"versions": {}, "devices": []}\n',
            "schema 99, this program reads 1",
        ),
    ],
)
def test_unreadable_reports(tmp_path, text, message):
    import report

    path = tmp_path / "bad.jsonl"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        report.load(path)


# --- timing ---


def test_copies_cover_the_rotation():
    import timing

    assert timing.copies_for(100, 1000) == 10
    assert timing.copies_for(2000, 1000) == 2  # never the same operands twice in a row
    assert timing.copies_for(1, 10**9) == timing.MAX_COPIES


def test_kernel_records_are_divided_among_calls():
    import timing

    records = [("gemm", 10.0), ("reduce", 2.0), ("gemm", 12.0), ("reduce", 3.0)]
    split = timing.split_records("x", records, 2)
    assert split.times_us == [12.0, 15.0]
    assert split.kernels == [("gemm", 10.0), ("reduce", 2.0)]
    with pytest.raises(RuntimeError, match="x: no kernel was seen"):
        timing.split_records("x", [], 2)
    with pytest.raises(RuntimeError, match="x: 3 kernels for 2 calls is not a whole number"):
        timing.split_records("x", records[:3], 2)
    with pytest.raises(RuntimeError, match="x: calls launched different kernels"):
        timing.split_records("x", [("gemm", 1.0), ("other", 1.0)], 2)


def test_interleaving_rotates_order_and_operands():
    import timing

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


def test_wall_timer_uses_every_copy_and_waits():
    import timing

    called, waited = [], []
    candidate = timing.Candidate(
        "x", lambda i: called.append(i) or len(called), waited.append, copies=3
    )
    measured = timing.WallTimer().burst(candidate, start=2, calls=4)
    assert called == [2, 0, 1, 2]
    assert waited == [1, 2, 3, 4]
    assert len(measured.times_us) == 1
    assert measured.times_us[0] > 0


def test_cupti_timer_sums_the_kernels_of_a_call(monkeypatch):
    import timing
    from jax.experimental.mosaic.gpu import profiler

    log = []

    class Collector:
        """Stands for jaxlib's: every call below launches a product and a reduction."""

        def _cupti_init(self):
            log.append("init")

        def _cupti_get_timings(self, finalize):
            log.append(f"get {finalize}")
            return [("gemm", 0.010), ("reduce", 0.002)] * log.count("call")

    library = types.SimpleNamespace(_mosaic_gpu_ext=Collector())
    monkeypatch.setattr(profiler, "mosaic_gpu_lib", library)
    candidate = timing.Candidate("x", lambda i: log.append("call"), lambda r: log.append("wait"))
    measured = timing.CuptiTimer().burst(candidate, start=0, calls=2)
    assert log == ["init", "call", "call", "wait", "wait", "get False"]
    assert measured.times_us == pytest.approx([12.0, 12.0])
    assert [name for name, _ in measured.kernels] == ["gemm", "reduce"]

    def fails(i):
        raise RuntimeError("launch failed")

    with pytest.raises(RuntimeError, match="launch failed"):
        timing.CuptiTimer().burst(timing.Candidate("x", fails, lambda r: None), 0, 1)
    assert log[-1] == "get False"  # the collector is stopped, or no later burst could start it

    monkeypatch.setattr(profiler, "mosaic_gpu_lib", None)
    with pytest.raises(RuntimeError, match="this jaxlib has no CUPTI collector"):
        timing.CuptiTimer()


def test_timer_choice():
    import timing

    assert timing.make_timer("auto", "cpu").method == "wall"
    with pytest.raises(ValueError, match=r"--timer cupti needs a CUDA device.* 'cpu'"):
        timing.make_timer("cupti", "cpu")
    with pytest.raises(ValueError, match="unknown timer 'sundial'"):
        timing.make_timer("sundial", "cpu")


# --- collectives ---

HLO = """
  %ar = f32[8,16]{1,0} all-reduce(%dot), channel_id=1, to_apply=%add
  %ags = (bf16[4,8]{1,0}, bf16[16,8]{1,0}) all-gather-start(%p), dimensions={0}
  %agd = bf16[16,8]{1,0} all-gather-done(%ags)
  %two = (f32[2]{0}, /*index=1*/f32[3]{0}) all-reduce(%x, %y), to_apply=%add
  %rs = s8[10]{0} reduce-scatter(%z), dimensions={0}
  %not_one = f32[8] fusion(%ar), calls=%all-reduce.clone
"""


def test_collectives_of_hlo_text():
    import hlo

    found = hlo.collectives(HLO)
    assert found == {
        "all-reduce": {"count": 2, "bytes": 8 * 16 * 4 + (2 + 3) * 4},
        "all-gather": {"count": 1, "bytes": 16 * 8 * 2},
        "reduce-scatter": {"count": 1, "bytes": 10},
    }
    text = hlo.describe(found)
    assert text.startswith("all-gather x1 (0.000256 MB), all-reduce x2 (")
    assert hlo.describe({}) == "none"


# --- the Pallas grid ---


def test_pallas_grid_sizes_and_divisibility():
    import candidates
    import shapes

    assert len(candidates.pallas_grid("small")) == 6
    assert len(candidates.pallas_grid("full")) == 12
    with pytest.raises(ValueError, match="unknown Pallas grid 'huge'"):
        candidates.pallas_grid("huge")
    wide = {"tile_m": 128, "tile_n": 128, "tile_k": 64, "wg_dimension": "N"}
    assert candidates.pallas_fits(shapes.Shape(128, 256, 64), wide)
    assert not candidates.pallas_fits(shapes.Shape(128, 128, 64), wide)
    assert not candidates.pallas_fits(shapes.Shape(128, 256, 64), wide | {"cluster_dimension": "M"})
    assert not candidates.pallas_fits(shapes.Shape(128, 256, 64, majors="kk"), wide)
    assert not candidates.pallas_fits(shapes.Shape(128, 256, 64, batch=2), wide)


@pytest.mark.parametrize("index", range(12))
def test_pallas_configurations_are_accepted_by_the_kernel_of_this_jax(index):
    import candidates

    pytest.importorskip("jax.experimental.pallas.ops.gpu.hopper_matmul_mgpu")
    assert callable(candidates.pallas_function(candidates.pallas_grid("full")[index]))


def test_pallas_reasons_are_reported():
    import candidates
    import shapes

    compiler = candidates.PallasCompiler(candidates.pallas_grid("small"), threads=2)
    try:
        fits, ragged = shapes.Shape(256, 256, 64), shapes.Shape(250, 256, 64)
        for shape in (fits, ragged):
            compiler.submit(shape, jnp.bfloat16)
        operands = candidates.make_operands(fits, jnp.bfloat16, 2)
        with pytest.raises(candidates.Unsupported, match="no configuration of the Pallas grid"):
            compiler.candidates(ragged, operands, jnp.bfloat16)
        with pytest.raises(candidates.Unsupported, match="returns its input type"):
            compiler.candidates(fits, operands, jnp.float32)
        if jax.default_backend() != "gpu":  # it compiles for GPUs only
            with pytest.raises(candidates.Unsupported, match=r"^\w+: \w+"):
                compiler.candidates(fits, operands, jnp.bfloat16)
        compiler.forget(fits)
        with pytest.raises(candidates.Unsupported, match="no configuration of the Pallas grid"):
            compiler.candidates(fits, operands, jnp.bfloat16)
    finally:
        compiler.close()


# --- the programs ---


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
    # One kernel a call, ours, and nothing the host did is in its time.
    assert len(ours["kernels"]) == 1
    assert 1 < ours["median_us"] < 200
    every = [r for r in rows if r["impl"].startswith("sm")]
    assert len(every) % 4 == 0  # raster m and n, two swizzles
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
    import candidates

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
    import gemm_tables

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
    import hlo

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


@pytest.mark.parametrize(
    "name", ["bench_gemm", "bench_sharded", "bench_block", "bench_overhead", "bench_unaligned"]
)
def test_every_program_has_help_and_a_dry_run(name, capsys):
    module = __import__(name)
    with pytest.raises(SystemExit) as stop:
        module.main(["--help"])
    assert stop.value.code == 0
    assert "--small" in capsys.readouterr().out
    assert module.main(["--dry-run"]) == 0
    assert capsys.readouterr().out.strip()


def test_runs_as_a_script_from_elsewhere(tmp_path):
    script = BENCHMARKS / "compare.py"
    done = subprocess.run(
        [sys.executable, str(script), "--help"], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0
    assert "--require-geomean" in done.stdout
