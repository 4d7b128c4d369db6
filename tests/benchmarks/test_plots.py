"""Pictures of results and of schedules, and the sawtooth benchmark that one of them shows."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import pytest

pytestmark = pytest.mark.usefixtures("benchmark_programs")
pytest.importorskip("matplotlib")


RUN = {
    "record": "run", "schema": 1, "benchmark": "bench_gemm", "argv": [], "date": "",
    "versions": {}, "devices": ["gpu:NVIDIA H200"],
}  # fmt: skip
COPY = {"record": "copy", "bytes": 1, "median_us": 1.0, "gb_per_s": 4200.0}


def row(n: int, impl: str, us: float, **fields: Any) -> dict[str, Any]:
    return {
        "record": "gemm", "shape": f"1024,{n},4096", "m": 1024, "n": n, "k": 4096, "batch": 1,
        "majors": "kn", "dtype": "bfloat16", "out_dtype": "bfloat16", "impl": impl,
        "status": "ok", "median_us": us, "tflops": 2 * 1024 * n * 4096 / us / 1e6,
        "gb_per_s": 1000.0, "method": "cupti",
    } | fields  # fmt: skip


ROWS = [
    RUN, COPY,
    row(512, "bwgemm", 10.0), row(512, "xla", 12.0), row(512, "torch", 5.0),
    row(1024, "bwgemm", 10.0), row(1024, "xla", 13.0), row(1024, "pallas", 1.0, status="error: x"),
]  # fmt: skip


def write(path: pathlib.Path, rows: list[dict]) -> str:
    path.write_text("\n".join(map(json.dumps, rows)))
    return str(path)


@pytest.fixture
def svg_text() -> Any:
    import matplotlib

    with matplotlib.rc_context({"svg.fonttype": "none"}):
        yield


def draw(tmp_path: pathlib.Path, picture: str, rows: list[dict], ending: str = "svg") -> str:
    import plot

    out = tmp_path / f"picture.{ending}"
    assert plot.main([picture, write(tmp_path / "t.jsonl", rows), "--out", str(out)]) == 0
    return out.read_text() if ending == "svg" else str(out.read_bytes()[:8])


def test_ratios_show_every_peer_with_its_mean_and_least(
    tmp_path: pathlib.Path, svg_text: None
) -> None:
    text = draw(tmp_path, "ratios", ROWS)
    assert "xla: geometric mean 1.25, least 1.20" in text
    assert "torch: geometric mean 0.50, least 0.50" in text
    assert "pallas" not in text  # it has no time
    assert "1024,512,4096" in text
    assert "1024,1024,4096" in text
    assert "NVIDIA H200, kernel time" in text


def test_the_roofline_has_the_measured_slope_and_the_devices_peak(
    tmp_path: pathlib.Path, svg_text: None
) -> None:
    text = draw(tmp_path, "roofline", ROWS)
    assert "4.20 TB/s copied, 989 TFLOP/s peak" in text
    other = [RUN | {"devices": ["gpu:NVIDIA A100"]}, *ROWS[1:]]
    assert "4.20 TB/s copied<" in draw(tmp_path, "roofline", other)  # no peak that we know


def test_the_sawtooth_has_a_line_per_scheduler(tmp_path: pathlib.Path, svg_text: None) -> None:
    names = ("default", "data-parallel, 128x256", "split-K 2, 128x256", "xla")
    rows = [RUN, *(row(n, name, 10.0, method="wall") for n in (256, 512) for name in names)]
    text = draw(tmp_path, "sawtooth", rows)
    assert all(name in text for name in names[1:])
    assert "bwgemm, default selection" in text
    assert "WALL CLOCK" in text  # which must not pass for kernel time


def test_the_same_numbers_give_the_same_picture_and_png_works(tmp_path: pathlib.Path) -> None:
    assert draw(tmp_path, "roofline", ROWS) == draw(tmp_path, "roofline", ROWS)
    assert "PNG" in draw(tmp_path, "ratios", ROWS, "png")


@pytest.mark.parametrize(
    ("picture", "rows", "message"),
    [
        ("ratios", [RUN], "no measured products"),
        ("ratios", [RUN, row(8, "xla", 1.0)], "no shape was measured with this package and"),
        ("roofline", [RUN, row(8, "xla", 1.0)], "no measured copy bandwidth"),
        ("sawtooth", [RUN, row(8, "xla", 1.0, status="error")], "no measured products"),
    ],
)
def test_files_without_what_a_picture_needs_are_refused(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture, picture: str, rows: list, message: str
) -> None:
    import plot

    path = write(tmp_path / "t.jsonl", rows)
    assert plot.main([picture, path, "--out", str(tmp_path / "x.svg")]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "x.svg").exists()


@pytest.mark.parametrize("arch", ["sm90", "sm100"])
def test_schedules_are_drawn(tmp_path: pathlib.Path, svg_text: None, arch: str) -> None:
    import plot_schedule

    out = tmp_path / "s.svg"
    args = ["--arch", arch, "--m", "700", "--n", "1500", "--tile", "256x128", "--out", str(out)]
    assert plot_schedule.main([*args, "--swizzle", "4", "--splits", "2"]) == 0
    text = out.read_text()
    kind = "static" if arch == "sm90" else "dynamic"
    assert f"256x128, raster m, swizzle 4, {kind}, part 1 of 2" in text
    assert "of the time inside of D" in text


@pytest.mark.parametrize("arch", ["sm90", "sm100"])
def test_shared_tiles_are_drawn(tmp_path: pathlib.Path, svg_text: None, arch: str) -> None:
    import plot_schedule

    out = tmp_path / "s.svg"
    args = ["--arch", arch, "--m", "1024", "--n", "3264", "--sms", "132", "--out", str(out)]
    assert plot_schedule.main([*args, "--stream-k", "stream_k"]) == 0
    text = out.read_text()
    assert "128x256, raster m, swizzle 1, stream-k" in text
    # 104 tiles for 132 multiprocessors; shares differ where cuts moved to a tile's edge.
    assert "90% of the time inside of D" in text
    assert plot_schedule.main([*args, "--stream-k", "data_parallel"]) == 0
    assert "79% of the time inside of D" in out.read_text()


def test_schedules_with_outside_tiles_say_so(tmp_path: pathlib.Path, svg_text: None) -> None:
    import plot_schedule

    out = tmp_path / "s.svg"
    args = ["--m", "1300", "--n", "3000", "--swizzle", "8", "--out", str(out)]
    assert plot_schedule.main(args) == 0
    # 132 tiles inside; 256 in all, in two rounds of 132: exactly half of the time.
    assert "50% of the time inside of D (grey: outside of D)" in out.read_text()


def test_malformed_tiles_are_refused(capsys: pytest.CaptureFixture) -> None:
    import bench_sawtooth
    import plot_schedule

    with pytest.raises(SystemExit):
        plot_schedule.main(["--tile", "128"])
    assert "--tile and --cluster take MxN, got '128'" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        bench_sawtooth.main(["--tile", "axb"])
    assert "--tile takes MxN, for example 128x256, got 'axb'" in capsys.readouterr().err


# --- the sawtooth benchmark ---


def test_the_largest_drop_is_measured_from_the_best_so_far() -> None:
    import bench_sawtooth

    rows = [{"n": n, "tflops": t} for n, t in ((1, 50.0), (2, 100.0), (4, 60.0), (3, 90.0))]
    assert bench_sawtooth.largest_drop(rows) == (pytest.approx(0.4), 4)
    assert bench_sawtooth.largest_drop(rows[:2]) == (0.0, 1)


def test_a_rehearsal_writes_what_plot_reads(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture
) -> None:
    import bench_sawtooth
    from common import report

    path = tmp_path / "sawtooth.jsonl"
    assert bench_sawtooth.main(["--small", "--out", str(path)]) == 0
    rows = [r for r in report.load(path) if r["record"] == "gemm"]
    assert {(r["n"], r["impl"]) for r in rows} == {
        (n, impl) for n in (64, 128, 192) for impl in ("default", "xla")
    }
    assert "largest drop" in capsys.readouterr().out
    assert draw(tmp_path, "sawtooth", report.load(path))


def test_what_would_run_is_printed(capsys: pytest.CaptureFixture) -> None:
    import bench_sawtooth

    assert bench_sawtooth.main(["--dry-run", "--tile", "64x128", "--splits", "1", "3"]) == 0
    text = capsys.readouterr().out
    assert "columns: default, data-parallel, 64x128, split-K 3, 64x128, stream-K, 64x128, " in text
    assert "M=1024 K=4096 N=256..12800 in steps of 256" in text


def test_fixed_columns_name_kernels_of_this_build() -> None:
    import bench_sawtooth

    import jax_bwgemm as bw
    from jax_bwgemm import runtime

    args = bench_sawtooth.parse_args([])
    for fields in bench_sawtooth.columns(args).values():
        config = bw.TuningConfig(**(fields or {}))
        assert any(config.mismatch(k) is None for k in runtime.kernels() if k.arch == "sm90")
