"""`python -m jax_bwgemm emulate`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from emulator_cases import requires_emulator

from jax_bwgemm import emulator, runtime
from jax_bwgemm.cli import main
from jax_bwgemm.emulator import dense, program

pytestmark = requires_emulator

SMALL = ["emulate", "--m", "64", "--n", "64", "--k", "64"]


def test_checks_one_tile_and_prints_statistics(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(SMALL) == 0
    out = capsys.readouterr().out
    assert "kernel           sm100_bf16_bf16_kn_" in out
    assert "check            bitwise equal to the exact product" in out
    assert "MMA " in out


@pytest.mark.parametrize(
    "options",
    [
        ["--dtype", "f16", "--out-dtype", "f32", "--majors", "mk", "--batch", "2"],
        ["--arch", "sm90", "--seed", "3", "--sm-count", "2"],
        ["--kernel", "sm100_bf16_bf16_kn_256x256x64_2x1_2sm"],
    ],
    ids=["types", "sm90", "name"],
)
def test_options(options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SMALL, *options]) == 0
    assert "bitwise equal" in capsys.readouterr().out


def test_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    trace, picture = tmp_path / "t.json", tmp_path / "t.png"
    assert main([*SMALL, "--trace", str(trace), "--picture", str(picture)]) == 0
    assert json.loads(trace.read_text())["traceEvents"]
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_wrong_result_exits_with_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    right = dense.run_gemm
    monkeypatch.setattr(
        dense,
        "run_gemm",
        lambda *args, **options: right(*args, **options) + np.eye(64, dtype="bfloat16"),
    )
    assert main(SMALL) == 1
    assert "64 of 4096 elements DIFFER" in capsys.readouterr().out


def test_emulator_report_exits_with_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise jax.errors.JaxRuntimeError("INTERNAL: line 7")

    monkeypatch.setattr(dense, "run_gemm", fail)
    assert main(SMALL) == 1
    assert "reported         INTERNAL: line 7" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--kernel", "x"], "no kernel 'x'; see `python -m jax_bwgemm info --kernels`"),
        (["--n", "65"], "multiples of 16 bytes"),
        (["--out-dtype", "f16"], "this build has no sm100 kernel bf16 -> f16 with majors kn"),
        (["--sm-count", "2000"], "sm_count must be in [1, 1024], got 2000"),
        (["--seed", "-1"], "seed must be in"),
        (["--trace", "/dev/full"], "error: [Errno 28] No space left on device"),
        (["--sm-count", "1"], "error: a cluster of 2 CTAs does not fit on a GPU of 1"),
    ],
)
def test_what_cannot_run_exits_with_two(
    options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*SMALL, *options]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "name", "message"),
    [
        ("trace", "/nowhere/t.json", "/nowhere/t.json: no such folder"),
        ("trace", "/", "/ is a folder"),
        ("picture", "/nowhere/t.png", "/nowhere/t.png: no such folder"),
        ("picture", "/", "/ is a folder"),
        ("picture", "t.unknown", "t.unknown: no picture has the suffix 'unknown'; use "),
    ],
)
def test_files_that_cannot_be_written_are_refused_before_the_launch(
    option: str, name: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    before = emulator.launch_count()
    assert main([*SMALL, f"--{option}", name]) == 2
    assert f"error: {message}" in capsys.readouterr().err
    assert emulator.launch_count() == before


def test_a_picture_without_matplotlib_is_refused_before_the_launch(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("matplotlib", "matplotlib.figure"):
        monkeypatch.setitem(sys.modules, name, None)
    before = emulator.launch_count()
    assert main([*SMALL, "--picture", "t.png"]) == 2
    assert "error: a timeline picture needs matplotlib" in capsys.readouterr().err
    assert emulator.launch_count() == before


NAMED = "sm90_bf16_bf16_kn_64x64x64_2x1_pingpong"


@pytest.mark.parametrize(
    ("option", "given", "own"),
    [
        ("--arch", "sm100", "sm90"),
        ("--dtype", "f16", "bfloat16"),
        ("--out-dtype", "f32", "bfloat16"),
        ("--majors", "mk", "kn"),
    ],
)
def test_options_that_contradict_the_named_kernel(
    option: str, given: str, own: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*SMALL, "--kernel", NAMED, option, given]) == 2
    error = f"error: {option} {given} contradicts --kernel {NAMED}, of {own}"
    assert error in capsys.readouterr().err


def test_options_that_agree_with_the_named_kernel(capsys: pytest.CaptureFixture[str]) -> None:
    same = ["--arch", "sm90", "--dtype", "bf16", "--out-dtype", "bf16", "--majors", "kn"]
    assert main([*SMALL, "--kernel", NAMED, *same]) == 0
    assert f"kernel           {NAMED}" in capsys.readouterr().out


def test_operands_that_do_not_fit_into_memory(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: object, **__: object) -> None:
        raise MemoryError("no room for 1.86 TiB")

    monkeypatch.setattr(dense, "operand_shapes", full)
    assert main(SMALL) == 2
    assert "error: not enough memory: no room for 1.86 TiB" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["0", "-1", "1e3", "x"])
def test_sizes_must_be_positive(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["emulate", f"--m={text}"])
    assert caught.value.code == 2
    assert f"must be an integer of at least 1, got '{text}'" in capsys.readouterr().err


def test_rules(capsys: pytest.CaptureFixture[str]) -> None:
    off = ["--rule=bulk-exit=off", "--rule=mbarrier-init=off"]
    assert main([*SMALL, "--relaxed", "--rule", "load-wait=error", *off]) == 0
    assert "warning" not in capsys.readouterr().out
    assert main([*SMALL, "--rule", "race=off"]) == 2
    assert "error: no rule 'race'" in capsys.readouterr().err


def test_a_rule_needs_a_severity(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([*SMALL, "--rule", "load-wait"])
    assert "must be NAME=SEVERITY, got 'load-wait'" in capsys.readouterr().err


def test_not_built(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(runtime, "load_emulator", lambda: None)
    assert main(SMALL) == 2
    assert "installed without its emulator" in capsys.readouterr().err
    with pytest.raises(RuntimeError, match="installed without its emulator"):
        emulator.settings()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--program", "p", "--", "--size=64"], ["p", "--size=64"]),
        (["--program=p", "--", "--size", "64"], ["p", "--size", "64"]),
        (["--program=p=q"], ["p=q"]),
        (["--program", "p", "--", "--program=x"], ["p", "--program=x"]),
        (["--prog", "p"], ["p"]),
    ],
)
def test_every_way_of_naming_a_program(
    options: list[str], words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[list[str]] = []

    def run(executable: str, arguments: list[str], settings: emulator.Settings) -> SimpleNamespace:
        del settings
        ran.append([executable, *arguments])
        return SimpleNamespace(code=0, faults=())

    monkeypatch.setattr(program, "run_program", run)
    assert main(["emulate", "--seed", "3", *options]) == 0
    assert ran == [words]


@pytest.mark.parametrize("options", [["--program"], ["--program="], ["--program=", "--", "x"]])
def test_a_program_needs_a_file(options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["emulate", *options]) == 2
    assert capsys.readouterr().err == "error: --program needs a file\n"


@pytest.mark.parametrize(
    ("code", "faults", "exit_code"), [(0, (), 0), (0, ("a fault",), 1), (3, (), 3), (3, ("x",), 3)]
)
def test_a_program_with_faults_exits_with_one_at_least(
    code: int, faults: tuple[str, ...], exit_code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcome = SimpleNamespace(code=code, faults=faults)
    monkeypatch.setattr(program, "run_program", lambda *_: outcome)
    assert main(["emulate", "--program", "p"]) == exit_code
