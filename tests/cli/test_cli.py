"""`python -m jax_bwgemm`: help, info, demo and their errors."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import math
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_bwgemm
from jax_bwgemm import cli, runtime
from jax_bwgemm.cli import demo_training, demo_transforms, info, sections
from jax_bwgemm.product.kernels import Kernel

# --- the command line itself ---


def test_runs_as_a_module():
    done = subprocess.run(
        [sys.executable, "-m", "jax_bwgemm", "--help"], capture_output=True, text=True
    )
    assert done.returncode == 0
    for command in cli.COMMANDS:
        assert f"\n    {command} " in done.stdout


@pytest.mark.parametrize("argv", [[], ["dance"], ["info", "--loud"]])
def test_bad_command_line(argv, capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(argv)
    assert stop.value.code == 2
    assert "usage: python -m jax_bwgemm" in capsys.readouterr().err


def test_version(capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(["--version"])
    assert stop.value.code == 0
    assert capsys.readouterr().out == f"jax_bwgemm {jax_bwgemm.__version__}\n"


@pytest.mark.parametrize(
    ("variable", "text"),
    [
        ("BWGEMM_TARGET_ARCH", "unknown target architecture 'x'"),
        ("BWGEMM_PARTIAL_SUMS", "unknown type 'x'"),
        ("BWGEMM_LINKED_EPILOGUES", "expected 0 or 1"),
        ("BWGEMM_TUNING_MISS", "unknown policy 'x'"),
    ],
)
def test_wrong_variables(variable, text, monkeypatch, capsys):
    monkeypatch.setenv(variable, "x")
    assert cli.main(["info"]) == 2
    found = capsys.readouterr().err
    assert found.startswith(f"error: {variable}")
    assert text in found


@pytest.mark.parametrize(
    ("failure", "text"),
    [(AssertionError(), "error: JAX has no device here with JAX_PLATFORMS=cuda\n"),
     (RuntimeError("Unknown backend"), "JAX_PLATFORMS=cuda: Unknown backend\n")],
)  # fmt: skip
def test_without_a_backend(failure, text, monkeypatch, capsys):
    def local_devices():
        raise failure

    monkeypatch.setattr(jax, "local_devices", local_devices)
    monkeypatch.setenv("JAX_PLATFORMS", "cuda")
    assert cli.main(["info"]) == 2
    assert capsys.readouterr().err.endswith(text)


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_help_of_every_command(command, capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main([command, "--help"])
    assert stop.value.code == 0
    assert f"python -m jax_bwgemm {command}" in capsys.readouterr().out


# --- info ---


def test_info(capsys):
    assert cli.main(["info"]) == 0
    text = capsys.readouterr().out
    assert f"jax                {jax.__version__}" in text
    assert f"{len(jax.devices())} x {jax.devices()[0].device_kind}" in text
    assert f"Dense kernels ({len(runtime.kernels())})" in text
    assert "[8192, 8192] @ [8192, 8192] bfloat16\n    here: " in text


@pytest.mark.skipif(jax.default_backend() == "gpu", reason="about machines without a GPU")
def test_a_reader_that_goes_away_is_no_error():
    command = [sys.executable, "-m", "jax_bwgemm", "info"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    process.stdout.close()
    assert process.stderr.read() == ""
    assert process.wait() == 1


def test_info_says_what_gpus_would_run(capsys):
    assert cli.main(["info"]) == 0
    text = capsys.readouterr().out
    for arch in ("sm90", "sm100"):
        operand = jax.ShapeDtypeStruct((8192, 8192), "bfloat16")
        kernel = jax_bwgemm.explain(operand, operand, device=arch).kernel
        assert kernel.startswith(arch)
        assert f"    {arch}: cutlass, kernel {kernel}\n" in text


def test_decision_names_what_was_refused():
    operand = jax.ShapeDtypeStruct((16, 16), "float32")
    found = jax_bwgemm.explain(operand, operand)
    assert info.decision(found).startswith("xla (not cutlass: precision=None of float32")
    found = jax_bwgemm.explain(operand, operand, implementation="xla")
    assert info.decision(found) == "xla (asked for)"


def test_info_json_matches_explain(capsys):
    assert cli.main(["info", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["versions"]["jax"] == jax.__version__
    assert len(report["devices"]) == len(jax.devices())
    assert [k["name"] for k in report["kernels"]] == [k.name for k in runtime.kernels()]
    operand = jax.ShapeDtypeStruct((8192, 8192), jnp.bfloat16)
    expected = jax_bwgemm.explain(operand, operand)
    assert report["examples"][0]["implementation"] == expected.implementation
    assert report["examples"][0]["kernel"] == expected.kernel
    assert report["examples"][0]["reason"] == expected.reason


def _kernel(majors: str, out_dtype: str, tile: tuple[int, int, int]) -> Kernel:
    size = "x".join(map(str, tile))
    return Kernel(
        name=f"sm90_bf16_{out_dtype}_{majors}_{size}_2x1_cooperative",
        arch="sm90",
        out_dtype={"bf16": "bfloat16", "f32": "float32"}[out_dtype],
        a_major=majors[0],
        b_major=majors[1],
        tile_m=tile[0],
        tile_n=tile[1],
        tile_k=tile[2],
        cluster_m=2,
        cluster_n=1,
        schedule="cooperative",
        stages=4,
        alignment_bytes=16,
    )


def test_kernels_are_grouped_by_tile(monkeypatch):
    tiles = ((128, 256, 64), (128, 128, 64))
    table = tuple(_kernel(m, o, t) for t in tiles for m in ("kn", "mk") for o in ("bf16", "f32"))
    monkeypatch.setattr(runtime, "kernels", lambda: table)
    grouped = info.kernel_lines(every=False)
    assert len(grouped) == 2
    assert grouped[0] == (
        "sm90 128x256x64 cluster 2x1 cooperative, 4 stages: 4 kernels, "
        "bfloat16->bfloat16, bfloat16->float32, majors kn mk"
    )
    assert info.kernel_lines(every=True) == [k.name for k in table]


def test_kernels_of_one_tile_that_differ_otherwise_have_their_own_lines(monkeypatch):
    plain = _kernel("kn", "bf16", (128, 256, 64))
    swapped = dataclasses.replace(plain, swap_ab=True)
    shared = dataclasses.replace(plain, stream_k=True)
    monkeypatch.setattr(runtime, "kernels", lambda: (plain, swapped, shared))
    kinds = [line.split(", ")[0] for line in info.kernel_lines(every=False)]
    start = "sm90 128x256x64 cluster 2x1 cooperative"
    assert kinds == [start, f"{start} swapped", f"{start} stream-K"]


@pytest.mark.skipif(jax.default_backend() == "gpu", reason="about machines without a GPU")
def test_device_lines_give_the_reason():
    assert info.device_lines() == [
        f"{len(jax.devices())} x cpu (cpu): no kernels: cpu is not a CUDA GPU"
    ]


# --- checks ---


def test_a_check_allows_twice_the_error_of_xla():
    assert sections.Check.against_xla("x", 2e-3, 1e-3).passed
    assert not sections.Check.against_xla("x", 2.1e-3, 1e-3).passed
    assert sections.Check.against_xla("x", sections.TINY, 0.0).passed
    assert not sections.Check.against_xla("x", math.nan, 1e-3).passed


def test_relative_error():
    want = np.array([1.0, -4.0])
    assert sections.relative_error(jnp.array([1.0, -3.0]), want) == 0.25
    assert sections.relative_error(jnp.zeros(3), want) == math.inf
    assert math.isnan(sections.relative_error(jnp.array([jnp.nan, 0.0]), want))


def test_checks_table():
    checks = [
        sections.Check("good", 1e-3, 1e-3, 2e-3),
        sections.Check("bad", math.nan, None, 0.0),
    ]
    assert sections.checks_table(checks).split("\n") == [
        "check  error     XLA's error  allowed   result",
        "-----  --------  -----------  --------  ------",
        "good   1.00e-03  1.00e-03     2.00e-03  ok",
        "bad    nan       -            0.00e+00  FAILED",
    ]


# --- demo ---

# Of all sections; the last one needs the emulator.
CHECKS = 11 + (runtime.load_emulator() is not None)


def test_demo(capsys):
    pytest.importorskip("sklearn")
    assert cli.main(["demo", "--steps", "30"]) == 0
    printed = capsys.readouterr()
    assert f"all {CHECKS} checks passed" in printed.out
    assert "FAILED" not in printed.out
    assert "transforms: jvp of grad" in printed.out
    assert "training: gradient, median error of 30 steps" in printed.out
    assert "\n    30  " in printed.out
    assert (
        "runs on xla (not cutlass: cutlass runs on cuda, this program is lowered for cpu)"
        in printed.out
    )
    assert not printed.err


@pytest.mark.gpu
def test_demo_runs_through_the_kernels(capsys):
    pytest.importorskip("sklearn")
    assert cli.main(["demo", "--implementation", "cutlass", "--steps", "60"]) == 0
    printed = capsys.readouterr().out
    assert f"all {CHECKS} checks passed" in printed
    assert "runs on cutlass, kernel sm" in printed
    assert "xla (" not in printed


def test_demo_emulates_a_blackwell_tile(capsys):
    assert cli.main(["demo", "--sections", "blackwell"]) == 0
    printed = capsys.readouterr().out
    if runtime.load_emulator() is None:
        assert "left out: the emulator was not built" in printed
    else:
        assert "blackwell: one tile, integers: elements that differ  0.00e+00" in printed
        assert "MMA              32 instructions" in printed


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_demo_in_other_types(dtype, capsys):
    assert cli.main(["demo", "--sections", "transforms", "--dtype", dtype]) == 0
    assert f"in {dtype}" in capsys.readouterr().out


def test_transforms_notice_a_wrong_product(monkeypatch):
    right = jax_bwgemm.matmul
    monkeypatch.setattr(jax_bwgemm, "matmul", lambda *a, **k: right(*a, **k) * 1.03125)
    checks = demo_transforms.run(sections.Options(), lambda line: None)
    assert len(checks) == 7
    assert not any(check.passed for check in checks)


def test_transforms_notice_a_wrong_gradient(monkeypatch):
    right = jax_bwgemm.matmul

    @jax.custom_vjp
    def wrong(a, b):
        return right(a, b)

    def backward(saved, w):
        a, b = saved
        return right(w, b.T), right(a.T, w) * 0  # a gradient that was forgotten

    wrong.defvjp(lambda a, b: (right(a, b), (a, b)), backward)
    x = {
        name: jnp.ones(shape, "bfloat16")
        for name, shape in {"a": (8, 4), "b": (4, 2), "w": (8, 2)}.items()
    }
    exact = np.ones((8, 2)) @ np.ones((2, 4)), np.ones((4, 8)) @ np.ones((8, 2))
    got = demo_transforms._pullback(wrong, x["a"], x["b"], x["w"])
    assert demo_transforms._worst(got, exact) == 1.0
    got = demo_transforms._pullback(right, x["a"], x["b"], x["w"])
    assert demo_transforms._worst(got, exact) == 0.0


def test_training_notices_a_wrong_product(monkeypatch, capsys):
    pytest.importorskip("sklearn")
    right = jax_bwgemm.matmul
    monkeypatch.setattr(jax_bwgemm, "matmul", lambda *a, **k: right(*a, **k) * 1.125)
    assert cli.main(["demo", "--sections", "training", "--steps", "3"]) == 1
    printed = capsys.readouterr()
    assert "FAILED" in printed.out
    assert "checks failed" in printed.err


def test_training_notices_a_product_that_is_not_a_number(monkeypatch, capsys):
    pytest.importorskip("sklearn")
    right = jax_bwgemm.matmul
    monkeypatch.setattr(jax_bwgemm, "matmul", lambda *a, **k: right(*a, **k) * jnp.nan)
    assert cli.main(["demo", "--sections", "training", "--steps", "2"]) == 1
    assert "nan" in capsys.readouterr().out


def test_distance_of_gradients():
    want = {"a": jnp.array([3.0]), "b": jnp.array([[4.0]])}
    assert float(demo_training.distance(want, want)) == 0
    got = {"a": jnp.array([3.0]), "b": jnp.array([[3.0]])}
    assert float(demo_training.distance(got, want)) == pytest.approx(0.2)


def test_demo_without_scikit_learn(monkeypatch, capsys):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *a: None if name == "sklearn" else find(name, *a)
    )
    assert cli.main(["demo"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "scikit-learn, which is not installed: pip install 'jax_bwgemm[demo]'" in error
    assert cli.main(["demo", "--sections", "transforms"]) == 0


def test_demo_does_not_fall_back_from_what_was_asked(capsys):
    assert cli.main(["demo", "--implementation", "cutlass", "--sections", "transforms"]) == 2
    assert "error: implementation='cutlass' cannot run GEMM bfloat16" in capsys.readouterr().err


def test_demo_needs_a_step(capsys):
    assert cli.main(["demo", "--steps", "0"]) == 2
    assert "--steps must be at least 1, got 0" in capsys.readouterr().err


def test_demo_trains_for_two_steps_at_least(capsys):
    """After a single one, the last loss is the first one."""
    assert cli.main(["demo", "--sections", "training", "--steps", "1"]) == 2
    error = capsys.readouterr().err
    assert "error: --steps must be at least 2 for the section training" in error
    assert "got 1" in error
    assert cli.main(["demo", "--sections", "transforms", "--steps", "1"]) == 0


@pytest.mark.parametrize("seed", [-3, 2**63])
def test_demo_refuses_seeds_that_jax_has_not(seed, capsys):
    assert cli.main(["demo", "--sections", "transforms", "--seed", str(seed)]) == 2
    assert capsys.readouterr().err == f"error: --seed must be in [0, 2^63), got {seed}\n"
