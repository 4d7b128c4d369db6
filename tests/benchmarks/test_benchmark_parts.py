"""What the benchmark programs are made of: shapes, statistics, files, timers, lists of peers."""

from __future__ import annotations

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from kernel_table import described_kernels

from jax_bwgemm import runtime
from jax_bwgemm.config import make_target

pytestmark = pytest.mark.usefixtures("benchmark_programs")


# --- shapes ---


def test_shape_names_are_unique_and_parse_back():
    from dense import shapes

    names = [s.name for s in shapes.ALL]
    assert len(set(names)) == len(names)
    assert [shapes.parse(name) for name in names] == list(shapes.ALL)


def test_suites_have_the_expected_size():
    from dense import shapes

    assert len(shapes.select(["design"])) == 11
    assert len(shapes.select(["suite"])) == 7 * 4 + 3 + 3 + 3
    backward = shapes.select(["backward"])
    assert len(backward) == 16
    assert {s.majors for s in backward} == {"kk", "mn"}


def test_a_shape_in_two_suites_is_run_once():
    from dense import shapes

    both = shapes.select(["design", "suite"])
    assert len({s.name for s in both}) == len(both)
    assert {"design", "suite"} <= shapes.parse("8192,8192,8192").tags


def test_backward_shapes_are_the_gradients_of_the_layers():
    from dense import shapes

    shape = shapes.parse("2048,4096,6144:kk")  # dx = dy [2048, 6144] @ w[4096, 6144].T
    assert "backward" in shape.tags
    assert (shape.lhs_shape, shape.rhs_shape) == ((2048, 6144), (4096, 6144))
    shape = shapes.parse("4096,6144,2048:mn")  # dw = x[2048, 4096].T @ dy [2048, 6144]
    assert "backward" in shape.tags
    assert (shape.lhs_shape, shape.rhs_shape) == ((2048, 4096), (2048, 6144))


@pytest.mark.parametrize("majors", ["kn", "kk", "mn", "mk"])
@pytest.mark.parametrize("batch", [1, 3])
def test_dimension_numbers_describe_the_stored_operands(majors, batch):
    from dense import shapes

    shape = shapes.Shape(4, 6, 5, batch, majors)
    a = np.arange(np.prod(shape.lhs_shape), dtype=np.float32).reshape(shape.lhs_shape)
    b = np.arange(np.prod(shape.rhs_shape), dtype=np.float32).reshape(shape.rhs_shape)
    got = jax.lax.dot_general(a, b, shape.dimension_numbers)
    left = a if majors[0] == "k" else a.swapaxes(-1, -2)
    right = b if majors[1] == "n" else b.swapaxes(-1, -2)
    np.testing.assert_array_equal(got, left @ right)


def test_flops_and_bytes():
    from dense import shapes

    shape = shapes.Shape(2, 3, 5, batch=7)
    assert shape.flops == 2 * 7 * 2 * 3 * 5
    assert shape.bytes(2, 4) == 7 * ((2 * 5 + 5 * 3) * 2 + 2 * 3 * 4)


@pytest.mark.parametrize("text", ["4096", "1,2", "a,b,c", "1,2,3xq", "1,2,3,4"])
def test_malformed_shape(text):
    from dense import shapes

    with pytest.raises(ValueError, match=r"a shape is m,n,k .* got") as error:
        shapes.parse(text)
    assert repr(text) in str(error.value)


def test_shape_errors_name_the_value():
    from dense import shapes

    with pytest.raises(ValueError, match="majors must be one of kn, kk, mn, mk, got 'nt'"):
        shapes.parse("1,2,3:nt")
    with pytest.raises(ValueError, match="extents must be positive, got m=0 n=2 k=3 batch=1"):
        shapes.parse("0,2,3")
    with pytest.raises(
        ValueError, match=r"unknown tag 'huge'; the tags are attention, .*, suite, "
    ):
        shapes.select(["huge"])


# --- statistics, tables, files ---


def test_geomean():
    from common import report

    assert report.geomean([2.0, 8.0]) == pytest.approx(4.0)
    assert report.geomean([0.5, 2.0, 1.0]) == pytest.approx(1.0)
    with pytest.raises(ValueError, match="no values"):
        report.geomean([])
    with pytest.raises(ValueError, match=r"positive values, got -1\.0"):
        report.geomean([1.0, -1.0])


def test_summarise():
    from common import report

    stats = report.summarise([4.0, 1.0, 2.0, 3.0, 100.0, 2.0, 3.0, 3.0])
    assert stats["median_us"] == 3.0
    assert (stats["min_us"], stats["max_us"], stats["samples"]) == (1.0, 100.0, 8)
    assert stats["spread"] == pytest.approx((3.0 - 2.0) / 3.0)  # quartiles: the outlier is no part


def test_table():
    from common import report

    text = report.table([{"a": 1.23456, "b": None}, {"a": 12345.6, "b": "x"}], ["a", "b"])
    assert text.split("\n") == [
        "| a     | b |",
        "| ----- | - |",
        "| 1.235 | - |",
        "| 12346 | x |",
    ]


def test_report_writes_every_record_at_once(tmp_path):
    from common import report

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
    from common import report

    path = tmp_path / "bad.jsonl"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        report.load(path)


# --- timing ---


def test_copies_cover_the_rotation():
    from common import timing

    assert timing.copies_for(100, 1000) == 10
    assert timing.copies_for(2000, 1000) == 2  # never the same operands twice in a row
    assert timing.copies_for(1, 10**9) == timing.MAX_COPIES


def test_kernel_records_are_divided_among_calls():
    from common import timing

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


def test_wall_timer_uses_every_copy_and_waits():
    from common import timing

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
    from common import timing
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
    from common import timing

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
    from common import hlo

    found = hlo.collectives(HLO)
    assert found == {
        "all-reduce": {"count": 2, "bytes": 8 * 16 * 4 + (2 + 3) * 4},
        "all-gather": {"count": 1, "bytes": 16 * 8 * 2},
        "reduce-scatter": {"count": 1, "bytes": 10},
    }
    text = hlo.describe(found)
    assert text.startswith("all-gather x1 (0.000256 MB), all-reduce x2 (")
    assert hlo.describe({}) == "none"


# --- every kernel of the build ---


def test_all_kernels_have_the_tile_orders_that_they_take(monkeypatch):
    from dense import candidates, shapes

    table = tuple(k for k in described_kernels() if k.arch == "sm90")
    monkeypatch.setattr(runtime, "kernels", lambda: table)
    local = runtime.DeviceTarget(make_target("sm90"), "an H200")
    monkeypatch.setattr(runtime, "local_target", lambda: local)
    operands = [(jnp.zeros((64, 64), jnp.bfloat16),) * 2]
    made = candidates.all_kernels(shapes.Shape(64, 64, 64), operands, jnp.bfloat16, (1, 8))
    by_kernel = {
        k.name: [] for k in table if k.in_dtype == k.out_dtype == "bfloat16" and k.majors == "kn"
    }
    for label, builder in made.items():
        (*_, config) = builder.args
        by_kernel[config.kernel].append(label.removeprefix(config.kernel))
        assert config.mismatch(next(k for k in table if k.name == config.kernel)) is None
    plain, shared = [" m1", " m8", " n1", " n8"], ["heuristic", "stream_k"]
    for kernel in table:
        if kernel.name in by_kernel:
            orders = [""] if kernel.cluster_k else plain
            if kernel.stream_k:
                orders = [f"{order} {way}" for order in plain for way in shared]
            assert sorted(by_kernel[kernel.name]) == orders


# --- the Pallas grid ---


def test_pallas_grid_sizes_and_divisibility():
    from dense import candidates, shapes

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
    from dense import candidates

    pytest.importorskip("jax.experimental.pallas.ops.gpu.hopper_matmul_mgpu")
    assert callable(candidates.pallas_function(candidates.pallas_grid("full")[index]))


def test_pallas_reasons_are_reported():
    from dense import candidates, shapes

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


def test_products_of_models_come_in_two_halves() -> None:
    from dense import model_products, shapes

    fitting, checking = (shapes.select([f"models-{half}"]) for half in ("fitting", "checking"))
    assert not {s.name for s in fitting} & {s.name for s in checking}
    assert len(fitting) + len(checking) == 100
    assert all(model_products.is_for_fitting(s.name) for s in fitting)


@pytest.mark.parametrize(("tag", "count"), [("models-checking", 46), ("few-rows-checking", 36)])
def test_no_cost_was_fitted_to_what_is_for_checking(tag: str, count: int) -> None:
    import cost_fit
    from dense import shapes

    held = {s.name for s in shapes.select([tag])}
    assert len(held) == count
    recorded = {p.name.removesuffix(":kn") for p in cost_fit.load()}
    assert not held & recorded
