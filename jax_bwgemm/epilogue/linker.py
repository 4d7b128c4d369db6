"""NVRTC and nvJitLink, which ``jax[cuda13]`` brings: compile a function, link it into a kernel.

Both work without a GPU.
"""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import importlib.util
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

_NVRTC, _NVJITLINK = "libnvrtc.so.13", "libnvJitLink.so.13"
# Input types of nvJitLink.h.
_LTOIR, _FATBIN = 3, 4
# The tools' names of architectures, virtual ones and those of machine code.
ARCHS = {"sm90": "{}_90a", "sm100": "{}_100f"}


class LinkError(RuntimeError):
    """A kernel could not be linked: the tools' own message."""


class NoLinkerError(LinkError):
    """The libraries are not installed."""


def _library(name: str) -> ctypes.CDLL:
    """A library of the CUDA 13 wheels, or one that the system's loader finds.

    Raises:
        NoLinkerError: There is none.
    """
    found = importlib.util.find_spec("nvidia")
    folders = list(found.submodule_search_locations or ()) if found is not None else []
    paths = [Path(folder, "cu13", "lib", name) for folder in folders]
    reasons = []
    for path in (p for p in paths if p.exists()):
        try:
            # NVRTC looks for its other half by name, and finds one that is loaded already.
            for other in sorted(path.parent.glob("libnvrtc-builtins.so.13.*")):
                ctypes.CDLL(str(other))
            return ctypes.CDLL(str(path))
        except OSError as error:
            reasons.append(str(error))
    try:
        return ctypes.CDLL(name)
    except OSError as error:
        reasons.append(str(error))
    if len(reasons) > 1:  # it is there, and damaged
        raise NoLinkerError(f"{name} cannot be loaded: {'; '.join(reasons)}")
    raise NoLinkerError(
        f"{name} is not installed: `pip install nvidia-cuda-nvrtc nvidia-nvjitlink` brings it, and "
        "so does jax[cuda13]"
    )


@dataclasses.dataclass(frozen=True)
class Linker:
    """Both libraries.

    Attributes:
        nvrtc: The compiler.
        nvjitlink: The linker.
        version: Of both.
    """

    nvrtc: ctypes.CDLL
    nvjitlink: ctypes.CDLL
    version: str

    def compile(self, source: str, arch: str) -> bytes:
        """LTO-IR of a CUDA C++ text without includes.

        Args:
            source: The text.
            arch: ``"sm90"`` or ``"sm100"``.

        Raises:
            LinkError: It does not compile.
        """
        program = ctypes.c_void_p()
        self._nvrtc("nvrtcCreateProgram", ctypes.byref(program), source.encode(), b"epilogue.cu",
                    0, None, None)  # fmt: skip
        try:
            options = [b"-dlto", b"-rdc=true", b"-std=c++17"]
            options.append(f"--gpu-architecture={ARCHS[arch].format('compute')}".encode())
            pointers = (ctypes.c_char_p * len(options))(*options)
            try:
                self._nvrtc("nvrtcCompileProgram", program, len(options), pointers)
            except LinkError as error:
                log = self._bytes(self._nvrtc, "nvrtcGetProgramLog", program)
                raise LinkError(f"{error}: {log.decode(errors='replace').rstrip()}") from None
            return self._bytes(self._nvrtc, "nvrtcGetLTOIR", program)
        finally:
            self.nvrtc.nvrtcDestroyProgram(ctypes.byref(program))

    def link(self, kernels: bytes, symbol: str, function: bytes, arch: str, *, ptx: bool) -> bytes:
        """One kernel with a function in it: a cubin, or PTX.

        Args:
            kernels: A fat binary of LTO-IR.
            symbol: The kernel.
            function: LTO-IR of the function.
            arch: Of both, as in `compile`.
            ptx: Whether to return PTX, for the emulator.

        Raises:
            LinkError: They do not fit together.
        """
        architecture = ARCHS[arch].format("compute" if ptx else "sm")
        options = [f"-arch={architecture}", "-lto", "-O3", f"-kernels-used={symbol}"]
        options += ["-ptx"] if ptx else []
        encoded = (ctypes.c_char_p * len(options))(*(x.encode() for x in options))
        handle = ctypes.c_void_p()
        self._nvjitlink("nvJitLinkCreate", ctypes.byref(handle), len(options), encoded)
        try:
            for kind, data, name in ((_FATBIN, kernels, b"kernels"), (_LTOIR, function, b"f")):
                size = ctypes.c_size_t(len(data))
                self._linking(handle, "nvJitLinkAddData", handle, kind, data, size, name)
            self._linking(handle, "nvJitLinkComplete", handle)
            what = "nvJitLinkGetLinkedPtx" if ptx else "nvJitLinkGetLinkedCubin"
            return self._bytes(self._nvjitlink, what, handle)
        finally:
            self.nvjitlink.nvJitLinkDestroy(ctypes.byref(handle))

    def _nvrtc(self, name: str, *args: Any) -> None:
        code = getattr(self.nvrtc, name)(*args)
        if code != 0:
            self.nvrtc.nvrtcGetErrorString.restype = ctypes.c_char_p
            raise LinkError(f"{name}: {self.nvrtc.nvrtcGetErrorString(code).decode()}")

    def _nvjitlink(self, name: str, *args: Any) -> None:
        code = getattr(self.nvjitlink, name)(*args)
        if code != 0:
            raise LinkError(f"{name} returned {code}")

    def _linking(self, handle: ctypes.c_void_p, name: str, *args: Any) -> None:
        """A step of a link; its error has the linker's log."""
        try:
            self._nvjitlink(name, *args)
        except LinkError as error:
            log = self._bytes(self._nvjitlink, "nvJitLinkGetErrorLog", handle)
            raise LinkError(f"{error}: {log.decode(errors='replace').rstrip()}") from None

    @staticmethod
    def _bytes(call: Callable[..., None], name: str, handle: ctypes.c_void_p) -> bytes:
        """What a pair of functions, of the size and of the contents, returns; without a final 0."""
        size = ctypes.c_size_t()
        call(f"{name}Size", handle, ctypes.byref(size))
        data = ctypes.create_string_buffer(size.value)
        call(name, handle, data)
        return data.raw[: size.value - 1] if name.endswith(("Log", "Ptx")) else data.raw


@functools.cache
def linker() -> Linker:
    """The linker of this process.

    Raises:
        NoLinkerError: It is not installed, or ``BWGEMM_LINKER=0`` says not to use it.
    """
    if os.environ.get("BWGEMM_LINKER") == "0":
        raise NoLinkerError("BWGEMM_LINKER=0 forbids linking")
    nvrtc, nvjitlink = _library(_NVRTC), _library(_NVJITLINK)
    nvjitlink.nvJitLinkDestroy.restype = ctypes.c_int
    numbers = [ctypes.c_int(), ctypes.c_int()]
    nvrtc.nvrtcVersion(*(ctypes.byref(x) for x in numbers))
    of_linker = [ctypes.c_uint(), ctypes.c_uint()]
    nvjitlink.nvJitLinkVersion(*(ctypes.byref(x) for x in of_linker))
    version = ".".join(str(x.value) for x in (*numbers, *of_linker))
    return Linker(nvrtc, nvjitlink, version)
