"""The tools that link functions into kernels: NVRTC and nvJitLink."""

from __future__ import annotations

import base64
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from emulator_cases import requires_emulator
from linked_cases import kernels, linked_for_sm90, requires_linker  # noqa: F401

from jax_bwgemm.epilogue import linker as module
from jax_bwgemm.epilogue import linking
from jax_bwgemm.epilogue.hook import Hook, pairs_along_m, staging_of
from jax_bwgemm.epilogue.linker import Linker, LinkError, NoLinkerError, linker
from jax_bwgemm.epilogue.tracing import trace_epilogue

pytestmark = [*requires_emulator, requires_linker]

KERNELS = kernels("emulator")


def test_errors_of_the_tools() -> None:
    tools = linker()
    nothing = tools.compile("", "sm90")
    with pytest.raises(LinkError, match=r"(?s)nvrtcCompileProgram.*nonsense"):
        tools.compile("nonsense;", "sm90")
    with pytest.raises(LinkError, match="nvJitLinkAddData"):
        tools.link(b"no fat binary", "kernel", nothing, "sm90", ptx=False)
    kernel = KERNELS[0].name
    fat = linking.linkable_kernels()[kernel].read_bytes()
    with pytest.raises(LinkError, match=r"(?s)nvJitLinkComplete.*bwgemm_epilogue"):
        tools.link(fat, kernel, nothing, "sm90", ptx=False)


def wheels(monkeypatch: pytest.MonkeyPatch, *folders: Path) -> None:
    """Makes the CUDA wheels those of these folders."""
    found = SimpleNamespace(submodule_search_locations=[str(x) for x in folders])
    monkeypatch.setattr(module.importlib.util, "find_spec", lambda name: found)


class Recorded:
    """A library, and the names of the functions that were called."""

    def __init__(self, library: Any) -> None:
        self._library, self.called = library, []

    def __getattr__(self, name: str) -> Any:
        self.called.append(name)
        return getattr(self._library, name)


def test_what_is_created_is_destroyed() -> None:
    """Where a step fails, too."""
    libraries = [Recorded(library) for library in (linker().nvrtc, linker().nvjitlink)]
    tools = Linker(*libraries, "any")
    with pytest.raises(LinkError):
        tools.compile("nonsense;", "sm90")
    with pytest.raises(LinkError):
        tools.link(b"no fat binary", "kernel", tools.compile("", "sm90"), "sm90", ptx=True)
    for library, name in zip(libraries, ("nvrtcDestroyProgram", "nvJitLinkDestroy"), strict=True):
        created = [x for x in library.called if x in ("nvrtcCreateProgram", "nvJitLinkCreate")]
        assert library.called.count(name) == len(created) > 0


@pytest.mark.parametrize(("arch", "target"), [("sm90", "sm_90a"), ("sm100", "sm_100f")])
def test_ptx_is_of_one_kernel_and_all_gpus_of_its_architecture(arch: str, target: str) -> None:
    found = kernels("emulator", (arch,))
    if not found:
        pytest.skip(f"no kernels for {arch} were built")
    program = trace_epilogue(jnp.abs, (16, 16), ()).program
    hook = Hook(program, ("bfloat16",), arch, pairs_along_m(found[0]), staging_of(found[0], 128))
    code = base64.b64decode(linking.linked_kernel(found[0].name, hook, ptx=True).code)
    assert not code.endswith(b"\0")
    lines = code.decode().splitlines()
    assert [x.split()[1].rstrip(",") for x in lines if x.startswith(".target")] == [target]
    assert sum(".entry" in x for x in lines) == 1


def test_cubins_are_linked_without_a_gpu(monkeypatch) -> None:
    monkeypatch.setenv("BWGEMM_LINK_CACHE", "off")
    program = trace_epilogue(jax.nn.gelu, (16, 16), ()).program
    hook = Hook(program, ("bfloat16",), "sm90", swapped=KERNELS[0].swap_ab)
    linked = linking.linked_kernel(KERNELS[0].name, hook, ptx=False)
    assert base64.b64decode(linked.code).startswith(b"\x7fELF")


def test_not_installed(monkeypatch) -> None:
    with pytest.raises(NoLinkerError, match=r"libnothing.so.1 is not installed: `pip install"):
        module._library("libnothing.so.1")


def test_only_the_wheels_folder_is_searched(tmp_path, monkeypatch) -> None:
    """Not that of the process, where anyone may have put a library."""
    (tmp_path / "libnvrtc-builtins.so.13.9").write_bytes(b"no library")
    monkeypatch.chdir(tmp_path)
    loaded = []
    monkeypatch.setattr(module.ctypes, "CDLL", lambda path: loaded.append(path) or path)
    monkeypatch.setattr(module.importlib.util, "find_spec", lambda name: None)
    assert module._library("libnvrtc.so.13") == "libnvrtc.so.13"
    assert loaded == ["libnvrtc.so.13"]


def test_damaged(tmp_path, monkeypatch) -> None:
    folder = tmp_path / "cu13" / "lib"
    folder.mkdir(parents=True)
    for name in ("libnothing.so.1", "libnvrtc-builtins.so.13.0"):
        (folder / name).write_bytes(b"no library")
    wheels(monkeypatch, tmp_path)
    with pytest.raises(NoLinkerError, match=r"libnothing.so.1 cannot be loaded: .*builtins"):
        module._library("libnothing.so.1")


def test_the_wheels_libraries_come_first(tmp_path, monkeypatch) -> None:
    """NVRTC's other half before it; then those of the system's loader."""
    names = ("libnvrtc-builtins.so.13.1", "libnvrtc.so.13")
    paths = [tmp_path / folder / "cu13" / "lib" / name for folder in "ab" for name in names]
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")
    wheels(monkeypatch, tmp_path / "none", tmp_path / "a", tmp_path / "b")
    tried: list[str] = []
    damaged: set[str] = set()

    def load(path: str) -> str:
        tried.append(path)
        if path in damaged:
            raise OSError(f"{path} is damaged")
        return path

    monkeypatch.setattr(module.ctypes, "CDLL", load)
    every = [str(path) for path in paths]
    assert module._library(names[1]) == every[1]
    assert tried == every[:2]
    damaged |= {every[1]}
    assert module._library(names[1]) == every[3]
    damaged |= {every[2]}
    assert module._library(names[1]) == names[1]
    damaged |= {names[1]}
    with pytest.raises(NoLinkerError, match=r"cannot be loaded: .*a/cu13.*b/cu13.* is damaged"):
        module._library(names[1])


@pytest.mark.parametrize("text", ["", "1"])
def test_a_process_has_one_linker(monkeypatch, text: str) -> None:
    monkeypatch.setenv("BWGEMM_LINKER", text)
    linker.cache_clear()
    assert linker() is linker()


def test_forbidden(monkeypatch) -> None:
    monkeypatch.setenv("BWGEMM_LINKER", "0")
    linker.cache_clear()
    with pytest.raises(NoLinkerError, match="BWGEMM_LINKER=0 forbids linking"):
        linker()
    monkeypatch.delenv("BWGEMM_LINKER")
    linker.cache_clear()
