"""Whole CUDA programs: compiled by nvcc, linked against the emulated runtime, run as processes."""

from __future__ import annotations

import functools
import pathlib
import subprocess
import sys
from collections.abc import Sequence

import pytest
from emulator_cases import requires_emulator

from jax_bwgemm import cli, emulator
from jax_bwgemm.emulator import program

PROGRAMS = pathlib.Path(__file__).parent / "programs"


@functools.cache
def unmet_need() -> str | None:
    try:
        program.library()
        program.find_nvcc()
    except program.ProgramError as error:
        return str(error)
    return None


pytestmark = [
    *requires_emulator,
    pytest.mark.skipif(unmet_need() is not None, reason=unmet_need() or ""),
]


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory):
    """Compiles a program of this folder once; gives the executable."""
    folder = tmp_path_factory.mktemp("programs")

    @functools.cache
    def compile_once(name: str, architecture: str = "100a") -> pathlib.Path:
        output = folder / f"{name}_{architecture}"
        program.compile_program(
            PROGRAMS / f"{name}.cu", output, ["-std=c++17"], architecture=architecture
        )
        return output

    return compile_once


def command(*words: object, expected: int = 0) -> tuple[str, str]:
    """Standard output and error of `python -m jax_bwgemm emulate`."""
    done = subprocess.run(
        [sys.executable, "-m", "jax_bwgemm", "emulate", *map(str, words)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == expected, done.stdout + done.stderr
    return done.stdout, done.stderr


def test_program_from_the_command_line() -> None:
    out, err = command(
        "--arch", "sm90", "--sm-count", 3, "--program", PROGRAMS / "vectors.cu", "-O2", "--", 700
    )
    assert out.splitlines() == [
        "block size 1024",
        "c[699] = 3495.0, from the device",
        "3 blocks on compute capability 9.0, 3 SMs, time passed",
    ]
    assert err == ""


def test_executable_is_run_again(compiled) -> None:
    out, _ = command("--program", compiled("vectors"), "--", 300)
    assert "2 blocks on compute capability 10.0, 4 SMs" in out
    _, err = command("--program", compiled("vectors"), "-O2", expected=2)
    assert "is compiled already" in err


@pytest.mark.parametrize("seed", [0, 1])
def test_clusters(compiled, seed: int) -> None:
    out, err = command("--seed", seed, "--program", compiled("clusters", "90"))
    assert out.splitlines() == [
        "asked 6 6",
        "built in 1 1",
        "cudaErrorInvalidConfiguration, then cudaSuccess",
    ]
    assert "asked(int*): grid (6,1,1) is not a multiple of the cluster (4,1,1)" in err


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_threads_that_return_early(compiled, seed: int) -> None:
    out, err = command("--seed", seed, "--program", compiled("early_exit", "90"))
    assert out.splitlines() == ["block cudaSuccess: 39 0 -1", "cluster cudaSuccess: 139 39 -1"]
    assert err == ""


def test_wide_integers_and_packed_pointers(compiled) -> None:
    out, err = command("--program", compiled("wide_integers"))
    assert out == "0 wrong, 7 3\n"
    assert err == ""


def test_tensor_map_of_the_driver(compiled) -> None:
    out, err = command("--program", compiled("tensor_copy"))
    assert out == "tile copied\n"
    assert err == ""


@pytest.mark.parametrize(
    ("fault", "report"),
    [
        ("beyond", "past the end of 'allocation 1 of 128 bytes'"),
        ("asserts", "device assertion failed in lane 0: 'values == nullptr && \"not null\"' at "),
        ("traps", "trap executed"),
        ("races", "[rule global-race]"),
        ("spins", "deadlock: every warp is blocked, or repeats a loop"),
    ],
)
def test_faults_are_reported_with_their_source_line(compiled, fault: str, report: str) -> None:
    out, err = command("--program", compiled("faults"), "--", fault, expected=1)
    assert out == "cudaErrorLaunchFailure\n"
    assert f"emulator: {fault}(int*): " in err
    assert report in err
    assert "faults.cu:" in err or fault == "spins"


def test_a_kernel_that_cannot_be_run_is_reported(compiled) -> None:
    out, err = command("--program", compiled("faults"), "--", "unknown", expected=1)
    assert out == "cudaSuccess\n"  # of the kernel behind it
    assert err.count("emulator: ") == 1
    assert "unsupported instruction 'multimem.red." in err


def test_step_limit(compiled) -> None:
    words = ("--step-limit", 5000, "--program", compiled("faults"), "--", "spins")
    _, err = command(*words, expected=1)
    assert "step limit: the kernel has not finished after 5000 warp instructions" in err


def test_calls_through_pointers(compiled) -> None:
    out, err = command("--program", compiled("calls"))
    assert out.splitlines() == ["tabled 10 7 62", "chosen 10 12 62", "shaped 125 24 29791"]
    assert err == ""


def test_recursion(compiled) -> None:
    out, err = command("--program", compiled("recursion"), expected=1)
    assert out.splitlines() == [
        "fibonacci 5 8 13",
        "arrays 5 1 1",
        "odd 1 0 1",
        "endless cudaErrorLaunchFailure",
    ]
    assert err.count("emulator: ") == 1
    assert "recursive call of '_Z4down" in err
    assert "': the stack of lane 0 is full" in err


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("architecture", ["90", "100a"])
def test_grid_barriers(compiled, architecture: str, threads: int) -> None:
    words = ("--threads", threads, "--program", compiled("grid_sync", architecture))
    out, err = command(*words, expected=1)
    assert out.splitlines() == ["cudaSuccess, 0 wrong"] * 2 + ["cudaErrorLaunchFailure"]
    assert err.count("emulator: ") == 1
    assert "trap executed" in err


def test_warnings_and_rules(compiled) -> None:
    program_ = compiled("faults")
    out, err = command("--program", program_, "--", "same")
    assert out == "cudaSuccess\n"
    assert err.startswith("emulator: warning: same(int*): line ")
    assert err.count("[rule same-value]") == 1
    out, err = command("--rule", "same-value=off", "--program", program_, "--", "same")
    assert (out, err) == ("cudaSuccess\n", "")
    out, err = command(
        "--rule", "same-value=error", "--program", program_, "--", "same", expected=1
    )
    assert out == "cudaErrorLaunchFailure\n"


def test_without_histories(compiled) -> None:
    out, err = command("--no-races", "--program", compiled("faults"), "--", "races")
    assert (out, err) == ("cudaSuccess\n", "")


def test_outcome(compiled) -> None:
    outcome = program.run_program(compiled("faults"), ["traps"], emulator.Settings(seed=3))
    assert outcome.code == 0
    assert len(outcome.faults) == 1
    assert "trap executed" in outcome.faults[0]
    assert program.run_program(compiled("faults")).faults == ()


def test_a_program_that_a_signal_ends(tmp_path: pathlib.Path) -> None:
    script = tmp_path / "program"
    script.write_text("#!/bin/sh\nkill -9 $$\n")
    script.chmod(0o755)
    assert program.run_program(script) == program.Outcome(128 + 9, ())


def test_settings_as_a_program_reads_them() -> None:
    rules = {"load-wait": "off"}
    settings = emulator.Settings(
        seed=3, sm_count=5, step_limit=7, races=False, threads=2, relaxed=True, rules=rules
    )
    words = program.settings_text(settings).split(",")
    assert words[:6] == [
        "seed=3",
        "sm_count=5",
        "step_limit=7",
        "races=0",
        "threads=2",
        "relaxed=1",
    ]
    assert "rule:load-wait=off" in words[6:]
    assert len(words) == 6 + len(emulator.rules())


def test_missing_functions_are_named(tmp_path: pathlib.Path) -> None:
    source = tmp_path / "graphs.cu"
    source.write_text("int main() { cudaGraph_t g; return cudaGraphCreate(&g, 0) != cudaSuccess; }")
    _, err = command("--program", source, expected=2)
    assert "error: the emulated CUDA runtime has no cudaGraphCreate" in err


def test_compiler_errors(tmp_path: pathlib.Path) -> None:
    source = tmp_path / "wrong.cu"
    source.write_text("int main() { return nothing; }")
    _, err = command("--program", source, expected=2)
    assert '"nothing" is undefined' in err
    assert "error: nvcc ended with exit code" in err


def refused(words: Sequence[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert cli.main(["emulate", *words]) == 2
    return capsys.readouterr().err


def test_refusals(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert "--program needs a file" in refused(["--program"], capsys)
    assert "device code that is linked separately is not supported" in refused(
        ["--program", "x.cu", "-rdc=true"], capsys
    )
    assert "no rule 'speed'" in refused(["--rule", "speed=off", "--program", "x.cu"], capsys)
    assert "cannot be run" in refused(["--program", "no_such_program"], capsys)
    monkeypatch.setenv("NVCC", "/no/such/nvcc")
    assert "nvcc cannot be run" in refused(["--program", "x.cu"], capsys)
    monkeypatch.setenv("NVCC", "/bin/echo")
    assert "is no nvcc" in refused(["--program", "x.cu"], capsys)


def test_old_nvcc(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    nvcc = tmp_path / "nvcc"
    nvcc.write_text("#!/bin/sh\necho 'Cuda compilation tools, release 12.8, V12.8.61'\n")
    nvcc.chmod(0o755)
    monkeypatch.setenv("NVCC", str(nvcc))
    assert "nvcc 12.8 at" in refused(["--program", "x.cu"], capsys)


def test_a_compilers_report_need_not_be_utf_8(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It quotes lines of the source."""
    nvcc = tmp_path / "nvcc"
    report = r"printf 'caf\351 is undefined\n'"
    nvcc.write_text(f"#!/bin/sh\n{report}\n{report} >&2\necho release 13.0\nexit 2\n")
    nvcc.chmod(0o755)
    monkeypatch.setenv("NVCC", str(nvcc))
    err = refused(["--program", "x.cu"], capsys)
    assert "caf\ufffd is undefined" in err
    assert "error: nvcc ended with exit code 2" in err


def test_settings_are_checked_by_the_program(compiled) -> None:
    done = subprocess.run(
        [compiled("faults")],
        env={"BWGEMM_EMULATOR_SETTINGS": "seed=many"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert "BWGEMM_EMULATOR_SETTINGS: seed must be an integer" in done.stderr


def test_options() -> None:
    split = program._split_options
    assert split(["-arch=sm_90a", "-I", "x", "-lcuda", "-lm"]) == ("90a", ["-I", "x", "-lm"])
    assert split(["-gencode", "arch=compute_90a,code=sm_90a", "-arch", "sm_100a"]) == ("100a", [])
    assert split(["-arch=sm_100a", "-gencode=arch=compute_90a,code=sm_90a"]) == ("100a", [])
    assert split(["--cudart=shared", "-cudart", "static", "-O3"]) == (None, ["-O3"])
    assert split(["-l", "cuda", "-l", "m"]) == (None, ["-l", "m"])
    assert split(["--library=cudart", "--library", "cudadevrt"]) == (None, [])
    assert split(["-rdc", "false", "-lineinfo"]) == (None, ["-rdc", "false", "-lineinfo"])


@pytest.mark.parametrize("option", ["-dc", "-rdc=true", "-rdc true", "--device-link"])
def test_code_that_is_linked_separately_is_refused(option: str) -> None:
    with pytest.raises(program.ProgramError, match=f"^{option}: device code that is linked"):
        program._split_options([*option.split(), "-O2"])
