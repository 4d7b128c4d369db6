"""Whole CUDA programs: compiled by nvcc, linked against the emulated runtime, run on the CPU."""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence

from jax_bwgemm import runtime
from jax_bwgemm.emulator.settings import Settings

_LIBRARY = "libbwgemm_cudart.so"
_OLDEST_NVCC = (13, 0)
_ARCHITECTURE = re.compile(r"(?:sm|compute|lto)_(\d+)([af]?)")
# Options with a value that the link against the emulated runtime says itself.
_OWN_OPTIONS = ("-cudart", "--cudart")
_ARCHITECTURE_OPTIONS = (
    "-arch",
    "--gpu-architecture",
    "-gencode",
    "--generate-code",
    "-code",
    "--gpu-code",
)
_LIBRARY_OPTIONS = ("-l", "--library")
_REPLACED_LIBRARIES = ("cuda", "cudart", "cudart_static", "cudadevrt")
_SEPARATE = ("-dc", "--device-c", "-dlink", "--device-link")
_SEPARATE_IF_TRUE = ("-rdc", "--relocatable-device-code")
_WITH_VALUE = (*_OWN_OPTIONS, *_ARCHITECTURE_OPTIONS, *_LIBRARY_OPTIONS, *_SEPARATE_IF_TRUE)


class ProgramError(RuntimeError):
    """A program cannot be compiled or run here; the message says why."""


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How a program ended.

    Attributes:
        code: Its exit code; 128 plus the signal that ended it.
        faults: What the emulator reported of its kernels, one text for each launch that failed.
    """

    code: int
    faults: tuple[str, ...]


def library() -> pathlib.Path:
    """The emulated CUDA runtime that programs are linked against.

    Raises:
        ProgramError: The package was installed without it.
    """
    module = runtime.load_emulator()  # in a source folder: the installation's
    path = module and pathlib.Path(module.__file__).resolve().parent / "emulator" / _LIBRARY
    if not path or not path.exists():
        raise ProgramError(f"jax_bwgemm was installed without its emulator ({_LIBRARY})")
    return path


def find_nvcc() -> pathlib.Path:
    """nvcc 13 or newer: of the environment variable ``NVCC``, of the PyPI wheels, or on the path.

    Raises:
        ProgramError: There is none, or it is too old.
    """
    named = os.environ.get("NVCC")
    found = named or _nvcc_of_wheels() or shutil.which("nvcc")
    if not found:
        raise ProgramError(
            "no nvcc: install one with `pip install nvidia-cuda-nvcc nvidia-cuda-crt nvidia-nvvm "
            "nvidia-cuda-cccl nvidia-cuda-runtime`, or put a toolkit's on the path"
        )
    try:
        done = subprocess.run([found, "--version"], capture_output=True)
    except OSError as error:
        raise ProgramError(f"nvcc cannot be run: {error}") from None
    release = re.search(r"release (\d+)\.(\d+)", done.stdout.decode(errors="replace"))
    if release is None:
        raise ProgramError(f"{found} is no nvcc: it does not say which release it is")
    version = (int(release[1]), int(release[2]))
    if version < _OLDEST_NVCC:
        raise ProgramError(f"nvcc {version[0]}.{version[1]} at {found} is too old: 13.0 is needed")
    return pathlib.Path(found)


def _nvcc_of_wheels() -> str | None:
    spec = importlib.util.find_spec("nvidia")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        nvcc = pathlib.Path(folder) / "cu13" / "bin" / "nvcc"
        if nvcc.exists():
            return str(nvcc)
    return None


def compile_program(
    source: str | os.PathLike[str],
    output: str | os.PathLike[str],
    options: Sequence[str] = (),
    *,
    architecture: str = "100a",
) -> None:
    """Compiles a program to PTX and links it against the emulated CUDA runtime.

    Args:
        source: A ``.cu`` file; more sources may be among the options.
        output: The executable.
        options: For nvcc. Of several architectures the highest is compiled for. Libraries of the
            real runtime and driver are left out.
        architecture: For which PTX is made where the options name none: ``"90a"``, ``"100a"``.

    Raises:
        ProgramError: There is no nvcc, an option cannot be had here, or nvcc fails.
    """
    named, others = _split_options(options)
    target = named or architecture
    folder = library().parent
    command = [
        str(find_nvcc()),
        str(source),
        *others,
        "-lineinfo",
        "--no-compress",
        f"-gencode=arch=compute_{target},code=compute_{target}",
        "--cudart=none",
        f"-L{folder}",
        "-lbwgemm_cudart",
        f"-Xlinker=-rpath={folder}",
        "-o",
        str(output),
    ]
    done = subprocess.run(command, stderr=subprocess.PIPE)
    report = done.stderr.decode(errors="replace")  # it quotes the source, of whatever encoding
    sys.stderr.write(report)
    if done.returncode == 0:
        return
    missing = sorted(set(re.findall(r"undefined reference to `(_*cu[A-Z_a-z0-9]+)'", report)))
    if missing:
        raise ProgramError(f"the emulated CUDA runtime has no {', '.join(missing)}")
    raise ProgramError(f"nvcc ended with exit code {done.returncode}")


def _split_options(options: Sequence[str]) -> tuple[str | None, list[str]]:
    """The highest architecture that the options name, and the options to pass on."""
    architectures: list[tuple[int, str]] = []
    others: list[str] = []
    rest = iter(options)
    for option in rest:
        name, equals, value = option.partition("=")
        words = [option]
        if name in _WITH_VALUE and not equals:
            value = next(rest, "")
            words.append(value)
        if option in _SEPARATE or (name in _SEPARATE_IF_TRUE and value == "true"):
            text = " ".join(words)
            raise ProgramError(f"{text}: device code that is linked separately is not supported")
        if name in _ARCHITECTURE_OPTIONS:
            found = _ARCHITECTURE.findall(value)
            architectures += [(int(number), suffix) for number, suffix in found]
        elif name not in _OWN_OPTIONS and _library_of(option, value) not in _REPLACED_LIBRARIES:
            others += words
    if not architectures:
        return None, others
    number, suffix = max(architectures)
    return f"{number}{suffix}", others


def _library_of(option: str, value: str) -> str | None:
    """The library that an option links; None of other options."""
    if option.partition("=")[0] in _LIBRARY_OPTIONS:
        return value
    return option[2:] if option.startswith("-l") else None


def run_program(
    executable: str | os.PathLike[str],
    arguments: Sequence[str] = (),
    settings: Settings | None = None,
) -> Outcome:
    """Runs a program that `compile_program` made.

    Its kernels' reports go to standard error.

    Args:
        executable: The program.
        arguments: Its own arguments.
        settings: Of the emulated machine; default those of `jax_bwgemm.emulator.Settings`.

    Raises:
        ProgramError: It cannot be started.
    """
    with tempfile.TemporaryDirectory() as folder:
        faults = pathlib.Path(folder) / "faults"
        environment = dict(os.environ, BWGEMM_EMULATOR_FAULTS=str(faults))
        if settings is not None:
            environment["BWGEMM_EMULATOR_SETTINGS"] = settings_text(settings)
        command = [str(pathlib.Path(executable).resolve()), *arguments]
        try:
            code = subprocess.run(command, env=environment).returncode
        except OSError as error:
            raise ProgramError(f"{executable} cannot be run: {error}") from None
        reported = faults.read_text("utf-8", "replace").splitlines() if faults.exists() else []
    return Outcome(code if code >= 0 else 128 - code, tuple(reported))


def settings_text(settings: Settings) -> str:
    """Settings as a program reads them from the environment."""
    values: Mapping[str, int] = {
        name: int(getattr(settings, name))
        for name in ("seed", "sm_count", "step_limit", "races", "threads", "relaxed")
    }
    items = [f"{name}={value}" for name, value in values.items()]
    items += [f"rule:{name}={severity}" for name, severity in settings.rules.items()]
    return ",".join(items)
