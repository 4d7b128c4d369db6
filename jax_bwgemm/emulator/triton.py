"""A driver that runs Triton's kernels on the emulator: ``kernel[grid](...)`` without a GPU.

Needs ``triton`` 3.9 or newer. Import this module by name: `jax_bwgemm.emulator` does not.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import dataclasses
import pathlib
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import triton
from triton.backends.compiler import GPUTarget
from triton.backends.driver import DriverBase, decompose_descriptor
from triton.runtime.cache import get_cache_manager
from triton.runtime.jit import JITFunction

from jax_bwgemm.emulator.ptx import Module
from jax_bwgemm.emulator.settings import native
from jax_bwgemm.emulator.stats import last_launch

_ARCHES = {"sm80": 80, "sm90": 90, "sm100": 100}
_SHARED_BYTES = 227 * 1024
_TENSOR_MAP_TF32 = 11
# Triton numbers the element types of tensor maps as the device does, tensor maps as the host does.
_HOST_TYPES = {8: 10, 9: 8, 10: 9}


@dataclasses.dataclass(frozen=True)
class _ElementType:
    """A NumPy type with as much of torch's types as Triton reads."""

    name: str
    itemsize: int

    @property
    def is_floating_point(self) -> bool:
        return "float" in self.name

    def __str__(self) -> str:
        return self.name


class Array:
    """A NumPy array as Triton sees tensors: with an address, a type, a shape and strides.

    Kernels take NumPy arrays as they are; this is for ``TensorDescriptor``.
    """

    def __init__(self, array: np.ndarray) -> None:
        """Wraps the array; nothing is copied.

        Raises:
            TypeError: It is no NumPy array.
        """
        if not isinstance(array, np.ndarray):
            raise TypeError(f"needs a NumPy array, got {type(array).__name__}")
        self.array = array
        self.dtype = _ElementType(array.dtype.name, array.itemsize)
        self.shape = array.shape

    def data_ptr(self) -> int:
        """Address of the first element."""
        return self.array.ctypes.data

    def stride(self, dim: int | None = None) -> Any:
        """Strides in elements: all, or that of one dimension."""
        strides = tuple(stride // self.array.itemsize for stride in self.array.strides)
        return strides if dim is None else strides[dim]


def aligned(array: np.ndarray) -> np.ndarray:
    """A copy of the array at an address that every tensor map takes: a multiple of 128 bytes.

    Args:
        array: Of any shape and dtype.

    Returns:
        A new array, C-contiguous.

    Raises:
        TypeError: No NumPy array.
    """
    if not isinstance(array, np.ndarray):
        raise TypeError(f"aligned takes a NumPy array, got {type(array).__name__}")
    copy = _aligned(array.nbytes, 128).view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


@contextlib.contextmanager
def driver(arch: str = "sm100", *, memory: Sequence[Any] = ()) -> Iterator[None]:
    """Runs Triton's kernels on the emulator inside a ``with`` block.

    Kernels may be passed NumPy arrays and CPU tensors of torch, which they read and write in
    place. Settings are those of `jax_bwgemm.emulator.configure`. ``triton.autotune`` compares the
    number of executed instructions, not times.

    Args:
        arch: For which Triton compiles: ``"sm80"``, ``"sm90"`` or ``"sm100"``.
        memory: Arrays and tensors that kernels may access beside their arguments, for those that
            take addresses in an array. Read at each launch: a list may grow in the block.

    Raises:
        ValueError: There is no such architecture.
    """
    if arch not in _ARCHES:
        raise ValueError(f"arch must be one of {', '.join(_ARCHES)}, got {arch!r}")
    config = triton.runtime.driver
    try:
        before = config.active
    except RuntimeError:  # no GPU
        before = None
    run = JITFunction.run

    def run_with_arrays(self: Any, *args: Any, **kwargs: Any) -> Any:
        named = {name: _wrapped(value) for name, value in kwargs.items()}
        return run(self, *map(_wrapped, args), **named)

    config.set_active(_Driver(_ARCHES[arch], memory))
    JITFunction.run = run_with_arrays
    try:
        yield
    finally:
        JITFunction.run = run
        config.set_active(before)


def _wrapped(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return Array(value)
    if isinstance(value, np.generic):
        return value.item()
    return tuple(map(_wrapped, value)) if type(value) is tuple else value


class _Driver(DriverBase):
    """What Triton asks of a driver. Device numbers tell architectures apart in its caches."""

    def __init__(self, capability: int, memory: Sequence[Any]) -> None:
        self.capability = capability
        self.memory = memory
        self.utils = _Utilities()
        self.launcher_cls = _Launcher

    @staticmethod
    def is_active() -> bool:
        return False  # only where it is installed by `driver`

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self.capability, 32)

    def get_device_capability(self, device: object = None) -> tuple[int, int]:
        return divmod(self.capability, 10)

    def get_current_device(self) -> int:
        return 1000 + self.capability

    def set_current_device(self, device: int) -> None:
        if device != self.get_current_device():
            raise ValueError(f"there is one emulated device, {self.get_current_device()}")

    def get_current_stream(self, device: object = None) -> int:
        return 0

    def map_python_to_cpp_type(self, ty: str) -> str:
        return ty

    def get_active_torch_device(self) -> Any:
        import torch

        return torch.device("cpu")

    def get_benchmarker(self) -> Callable[..., Any]:
        return _count_instructions


def _count_instructions(
    call: Callable[[], Any], *, quantiles: Sequence[float], **_: Any
) -> list[float]:
    call()
    stats = last_launch()
    return [float(stats.instructions if stats else 0)] * len(quantiles)


class _Utilities:
    """Loading of binaries, of which there are none: `_Launcher` reads the PTX."""

    def load_binary(self, name: str, *_: object) -> tuple[str, str, int, int, int]:
        return name, name, 0, 0, 1024  # module, function, registers, spills, most threads

    def unload_module(self, module: object) -> None:
        pass

    def get_device_properties(self, device: object) -> dict[str, int]:
        return {
            "max_shared_mem": _SHARED_BYTES,
            "max_num_regs": 65536,
            "multiprocessor_count": native().settings()["sm_count"],
            "warpSize": 32,
        }


class _Launcher:
    """Launches one compiled kernel."""

    def __init__(self, source: Any, metadata: Any) -> None:
        group = get_cache_manager(metadata.hash).get_group(f"{source.name[:150]}.json") or {}
        paths = [path for name, path in group.items() if name.endswith(".ptx")]
        if not paths:
            raise RuntimeError(f"Triton's cache holds no PTX of kernel {metadata.name!r}")
        self._module = Module(pathlib.Path(paths[0]).read_text())
        _launchers.add(self)
        self._metadata = metadata
        self._names = tuple(source.signature)
        self._signature = tuple(source.signature.values())
        self._tensor_maps = list(getattr(metadata, "tensordesc_meta", None) or ())

    def __call__(
        self,
        grid_x: int,
        grid_y: int,
        grid_z: int,
        stream: object,
        function: object,
        kernel_metadata: tuple[int, ...],
        launch_metadata: object,
        enter_hook: Callable[[object], object] | None,
        exit_hook: Callable[[object], object] | None,
        *args: Any,
    ) -> None:
        if not grid_x * grid_y * grid_z:
            return
        values: list[Any] = []
        memory: list[np.ndarray] = []
        for shown in getattr(triton.runtime.driver.active, "memory", ()):
            _see(_wrapped(shown), memory)
        maps = iter(self._tensor_maps)
        for name, kind, arg in zip(self._names, self._signature, args, strict=True):
            self._flatten(name, kind, arg, maps, values, memory)
        metadata = self._metadata
        ctas = getattr(metadata, "num_ctas", 1)
        programs = grid_x * grid_y * grid_z * ctas
        for size, alignment in (
            (metadata.global_scratch_size, metadata.global_scratch_align),
            (metadata.profile_scratch_size, metadata.profile_scratch_align),
        ):
            scratch = _aligned(size * programs, alignment)
            values.append(scratch if scratch.size else 0)
        if enter_hook is not None:
            enter_hook(launch_metadata)
        self._module.launch(
            metadata.name,
            *values,
            grid=(grid_x * ctas, grid_y, grid_z),
            block=32 * metadata.num_warps,
            cluster=ctas,
            shared_bytes=metadata.shared,
            memory=memory,
            programmatic=getattr(metadata, "launch_pdl", False),
        )
        if exit_hook is not None:
            exit_hook(launch_metadata)

    def _flatten(
        self,
        name: str,
        kind: Any,
        arg: Any,
        maps: Iterator[Any],
        values: list[Any],
        memory: list[np.ndarray],
    ) -> None:
        """Adds what the kernel takes for one argument, and the memory behind it."""
        if isinstance(kind, tuple):
            for inner_kind, inner in zip(kind, arg, strict=True):
                self._flatten(name, inner_kind, inner, maps, values, memory)
        elif kind == "constexpr":
            return
        elif kind.startswith("tensordesc"):
            _see(arg.base, memory)
            meta = next(maps, None)
            parts = decompose_descriptor(arg) if meta is None else _tensor_map(name, arg, meta)
            values.extend(p.data_ptr() if hasattr(p, "data_ptr") else _plain(p) for p in parts)
        elif kind.startswith("*"):
            if arg is not None and hasattr(arg, "data_ptr"):
                _see(arg, memory)
                values.append(arg.data_ptr())
            else:
                values.append(0 if arg is None else int(arg))
        elif kind in ("fp16", "bf16", "fp32", "f32"):
            values.append(np.float32(arg))  # a kernel takes them as f32
        elif kind == "fp64":
            values.append(np.float64(arg))
        else:
            values.append(_plain(arg))


_launchers: weakref.WeakSet[_Launcher] = weakref.WeakSet()


@atexit.register
def _release_modules() -> None:
    """Triton's caches outlive this package's compiled module, which misses what they hold."""
    for launcher in list(_launchers):
        del launcher._module


def _plain(value: Any) -> Any:
    return int(value) if isinstance(value, bool | np.bool_ | np.integer) else value


def _see(base: Any, memory: list[np.ndarray]) -> None:
    """Makes a tensor's memory visible to the kernel."""
    if isinstance(base, Array):
        array = base.array
    else:
        array = _bytes_of_tensor(getattr(base, "base", base))  # base: of a reinterpreted one
    if not any(array is known for known in memory) and array.size:
        memory.append(array)


def _bytes_of_tensor(tensor: Any) -> np.ndarray:
    """The storage of a torch tensor."""
    if isinstance(tensor, Array):
        return tensor.array
    if getattr(getattr(tensor, "device", None), "type", None) != "cpu":
        raise TypeError(
            "kernels in the emulator take NumPy arrays and CPU tensors, got "
            f"{type(tensor).__name__}"
        )
    storage = tensor.untyped_storage()
    buffer = (ctypes.c_uint8 * storage.nbytes()).from_address(storage.data_ptr())
    return np.frombuffer(buffer, np.uint8)


def _aligned(size: int, alignment: int) -> np.ndarray:
    """Zeroed bytes at an aligned address."""
    whole = np.zeros(size + alignment if size else 0, np.uint8)
    start = -whole.ctypes.data % alignment if size else 0
    return whole[start : start + size]


def _tensor_map(name: str, descriptor: Any, meta: dict[str, Any]) -> list[Any]:
    """A host-side descriptor as a kernel takes it: the map, shape, strides."""
    if meta.get("is_im2col"):
        raise NotImplementedError("im2col tensor maps are not implemented in the emulator")
    shape, strides = list(descriptor.shape), list(descriptor.strides)
    extents = list(shape)
    if meta["fp4_padded"]:
        extents[-1] *= 2
    kind = _HOST_TYPES.get(meta["elem_type"], meta["elem_type"])
    box = list(meta["block_size"])
    try:
        encoded = native().encode_tensor_map(
            type=_TENSOR_MAP_TF32 if descriptor.round_f32_to_tf32 else kind,
            address=descriptor.base.data_ptr(),
            dims=extents[::-1],
            strides=[stride * meta["elem_size"] for stride in strides[-2::-1]],
            box=box[::-1],
            element_strides=[1] * len(box),
            swizzle=meta["swizzle"],
            fill=int(descriptor.padding == "nan"),
        )
    except ValueError as error:
        advice = (
            ". NumPy promises 16; jax_bwgemm.emulator.triton.aligned(array) is a copy at 128"
            if "globalAddress" in str(error)
            else ""
        )
        raise ValueError(f"tensor descriptor {name!r}: {error}{advice}") from error
    return [encoded, *shape, *strides]
