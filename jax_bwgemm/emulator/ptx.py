"""The general entry: run any PTX over NumPy arrays."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from jax_bwgemm.emulator.errors import EmulatorError, check_text, make_error
from jax_bwgemm.emulator.settings import native
from jax_bwgemm.emulator.stats import LaunchStats

# Values of the CUDA driver's CUtensorMapDataType, by NumPy type name.
_TENSOR_MAP_TYPES = {
    "uint8": 0,
    "int8": 0,
    "float8_e4m3fn": 0,
    "float8_e5m2": 0,
    "uint16": 1,
    "int16": 1,
    "uint32": 2,
    "int32": 3,
    "uint64": 4,
    "int64": 5,
    "float16": 6,
    "float32": 7,
    "float64": 8,
    "bfloat16": 9,
}
# Values of CUtensorMapSwizzle.
_SWIZZLES = {
    "none": 0,
    "32B": 1,
    "64B": 2,
    "128B": 3,
    "128B_ATOM_32B": 4,
    "128B_ATOM_64B": 6,
}
_FILLS = {"zero": 0, "nan": 1}


class TensorMap:
    """Describes a NumPy array to the TMA unit, as ``cuTensorMapEncodeTiled`` does on a GPU.

    Holds a reference to the array. Passing it to `Module.launch` makes the array visible to the
    kernel.
    """

    def __init__(
        self,
        array: np.ndarray,
        box: Sequence[int],
        *,
        swizzle: str = "none",
        fill: str = "zero",
        element_strides: Sequence[int] | None = None,
        tf32: bool = False,
        shape: Sequence[int] | None = None,
        strides: Sequence[int] | None = None,
    ) -> None:
        """Encodes the map.

        Args:
            array: 1 to 5 dimensions, the last one contiguous.
            box: Extent of one copy, outermost dimension first like ``array.shape``.
            swizzle: ``"none"``, ``"32B"``, ``"64B"``, ``"128B"``, ``"128B_ATOM_32B"`` or
                ``"128B_ATOM_64B"``.
            fill: What out-of-bounds elements read as: ``"zero"`` or ``"nan"``.
            element_strides: Traversal strides in elements, outermost first; default all 1.
            tf32: Round float32 elements to tf32 while copying.
            shape: 1 to 5 extents to describe instead of the array's, from its first element on.
                Memory outside of the array that a kernel accesses by them is a fault.
            strides: Their strides in bytes, the last one that of an element. Both or neither.

        Raises:
            TypeError: The array's type has no tensor-map type, or an argument has the wrong type.
            ValueError: The map would be refused on a GPU; the message says which field.
        """
        if not isinstance(array, np.ndarray):
            raise TypeError(f"a tensor map needs a NumPy array, got {type(array).__name__}")
        kind = _TENSOR_MAP_TYPES.get(array.dtype.name)
        if kind is None:
            raise TypeError(f"no tensor map type for arrays of {array.dtype.name}")
        _check_byte_order("the array", array)
        if tf32:
            if array.dtype != np.float32:
                raise TypeError(f"tf32 rounding needs a float32 array, got {array.dtype.name}")
            kind = 11
        if not isinstance(swizzle, str) or swizzle not in _SWIZZLES:
            raise ValueError(f"swizzle must be one of {', '.join(_SWIZZLES)}, got {swizzle!r}")
        if not isinstance(fill, str) or fill not in _FILLS:
            raise ValueError(f"fill must be one of {', '.join(_FILLS)}, got {fill!r}")
        if not array.size:
            raise ValueError(f"a tensor map needs elements, the array has shape {array.shape}")
        if (shape is None) != (strides is None):
            raise ValueError("shape and strides go together: give both or neither")
        if shape is None or strides is None:
            dims, pitches = list(array.shape), list(array.strides)
            layout = None
        else:
            dims = _map_extents("shape", shape)
            pitches = _map_extents("strides", strides, len(dims), bits=40)
            layout = tuple(dims), tuple(pitches)
        if not 1 <= len(dims) <= 5:
            raise ValueError(f"a tensor map has 1 to 5 dimensions, got {len(dims)}")
        if pitches[-1] != array.itemsize:
            raise ValueError("the last dimension of the array must be contiguous")
        if any(stride < 0 for stride in pitches):
            raise ValueError("a tensor map cannot have negative strides")
        extents = _map_extents("box", box, len(dims))
        traversal = _map_extents(
            "element_strides",
            (1,) * len(dims) if element_strides is None else element_strides,
            len(dims),
        )
        self.array = array
        self._encode = functools.partial(
            TensorMap,
            box=tuple(extents),
            swizzle=swizzle,
            fill=fill,
            element_strides=tuple(traversal),
            tf32=tf32,
            shape=layout and layout[0],
            strides=layout and layout[1],
        )
        self._bytes = native().encode_tensor_map(
            type=kind,
            address=_address(array),
            dims=dims[::-1],
            strides=pitches[-2::-1],
            box=extents[::-1],
            element_strides=traversal[::-1],
            swizzle=_SWIZZLES[swizzle],
            fill=_FILLS[fill],
        )

    def __bytes__(self) -> bytes:
        return self._bytes

    def __reduce__(self) -> tuple[Any, ...]:
        # The bytes hold the address of this array: a copy is encoded anew.
        return self._encode, (self.array,)


@dataclasses.dataclass(frozen=True)
class Param:
    """A kernel parameter: its name in the PTX and its size in bytes."""

    name: str
    size: int


class Module:
    """A loaded PTX text."""

    def __init__(self, ptx: str) -> None:
        """Parses the text. Instructions are checked when their kernel is first used.

        Args:
            ptx: A PTX module.

        Raises:
            PtxError: The text is not PTX.
        """
        check_text("PTX", ptx)
        self._text = ptx
        self._native = self._call(native().Module.load, ptx)

    def __reduce__(self) -> tuple[Any, ...]:
        return Module, (self._text,)

    @property
    def kernels(self) -> tuple[str, ...]:
        """Names of the entry functions."""
        return tuple(self._native.kernels())

    def params(self, kernel: str) -> tuple[Param, ...]:
        """Parameters of a kernel.

        Raises:
            LaunchError: There is no kernel of that name.
            PtxError: The kernel holds something that the emulator does not have.
        """
        check_text("the kernel's name", kernel)
        return tuple(Param(*p) for p in self._call(self._native.params, kernel))

    def launch(
        self,
        kernel: str,
        *args: Any,
        grid: int | Sequence[int] = 1,
        block: int | Sequence[int] = 1,
        cluster: int | Sequence[int] = 1,
        shared_bytes: int = 0,
        memory: Sequence[np.ndarray] = (),
        programmatic: bool = False,
    ) -> LaunchStats:
        """Runs a kernel to its end. Other Python threads run meanwhile; one launch runs at a time.

        Args:
            kernel: Name of an entry function.
            *args: One value per parameter: a NumPy array (its address is passed, and the kernel may
                access it; read-only arrays may not be written), a `TensorMap`, an int, a float for
                4- and 8-byte parameters, a NumPy scalar, or bytes.
            grid: CTAs along x, y, z; missing ones are 1.
            block: Threads of a CTA along x, y, z.
            cluster: CTAs of a cluster along x, y, z.
            shared_bytes: Dynamic shared memory of a CTA.
            memory: More arrays that the kernel may access, for pointers that travel inside other
                arguments. Of a strided view, the kernel may access all that lies between its first
                and its last element.
            programmatic: The launch has the attribute of programmatic stream serialization: it may
                start while the kernel that `launch` ran before, of any module, still runs. What
                it does ahead of ``griddepcontrol.wait`` races with that.

        Returns:
            Statistics of the launch.

        Raises:
            TypeError: An argument has a type that cannot be passed; arrays of Python objects are
                among them, and big-endian ones.
            LaunchError: Wrong number or size of arguments, or launch dimensions that the machine
                refuses.
            PtxError: The kernel holds something that the emulator does not have.
            LaunchFault: The kernel did something illegal, came to a deadlock or reached the step
                limit.
        """
        buffers = _buffers(args, memory)
        params = self.params(kernel)
        if len(args) != len(params):
            raise _launch_error(f"kernel {kernel!r} takes {len(params)} arguments, got {len(args)}")
        packed = [
            _pack(f"argument {i} ({p.name!r}) of kernel {kernel!r}", arg, p.size)
            for i, (arg, p) in enumerate(zip(args, params, strict=True))
        ]
        record = self._call(
            self._native.launch,
            kernel,
            packed,
            grid=_dims("grid", grid),
            block=_dims("block", block),
            cluster=_dims("cluster", cluster),
            shared_bytes=_extent("shared_bytes", shared_bytes),
            programmatic=bool(programmatic),
            buffers=[(*_span(array), bool(array.flags.writeable), n) for n, array in buffers],
        )
        if not record["ok"]:
            raise make_error(
                record["kind"], record["line"], record["error"], self._text, record["rule"]
            )
        return LaunchStats.from_record(record)

    def _call(self, function: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except native().Error as error:
            raise make_error(*error.args, self._text) from None


def _launch_error(message: str) -> EmulatorError:
    return make_error("launch error", 0, message, "")


def _address(array: np.ndarray) -> int:
    return array.ctypes.data


def _extent(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise TypeError(f"{name} must be an int, got {value!r}")
    if not 0 <= value < 1 << 32:
        raise _launch_error(f"{name} must be in [0, 2^32), got {value}")
    return int(value)


def _dims(name: str, dims: int | Sequence[int]) -> tuple[int, int, int]:
    if isinstance(dims, str) or not isinstance(dims, Iterable):
        dims = (dims,)
    values = tuple(itertools.islice(dims, 4))  # it may have no end
    if not 1 <= len(values) <= 3:
        raise _launch_error(f"{name} has 1 to 3 extents, got {values}")
    values += (1,) * (3 - len(values))
    x, y, z = (_extent(name, v) for v in values)
    return x, y, z


def _map_extents(name: str, values: Any, ndim: int | None = None, bits: int = 32) -> list[int]:
    """Extents or strides of a tensor map, checked as far as Python's types go."""
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        raise TypeError(f"{name} must be a sequence of ints, got {values!r}")
    values = tuple(itertools.islice(values, 6))  # it may have no end; maps have 5 dimensions
    if any(isinstance(v, bool) or not isinstance(v, int | np.integer) for v in values):
        raise TypeError(f"{name} must be a sequence of ints, got {values}")
    if ndim is not None and len(values) != ndim:
        raise ValueError(f"{name} has {len(values)} extents, the map has {ndim} dimensions")
    if any(not 0 <= v < 1 << bits for v in values):
        raise ValueError(f"{name} {values} has an extent outside [0, 2^{bits})")
    return [int(v) for v in values]


def _pack(what: str, arg: Any, size: int) -> bytes:
    """The bytes of one argument."""
    if isinstance(arg, np.ndarray):
        data = _address(arg).to_bytes(8, "little")
    elif isinstance(arg, TensorMap | bytes):
        data = bytes(arg)
    elif isinstance(arg, np.generic) and not arg.dtype.hasobject:
        data = arg.tobytes()
    elif isinstance(arg, int):
        if not size or not -(1 << (8 * size - 1)) <= arg < 1 << (8 * size):
            raise _launch_error(f"{what} has {size} bytes, too few for {arg}")
        data = (arg % (1 << (8 * size))).to_bytes(size, "little")
    elif isinstance(arg, float):
        if size not in (4, 8):
            raise _launch_error(f"{what} has {size} bytes, a float has 4 or 8")
        data = np.dtype(f"f{size}").type(arg).tobytes()
    else:
        raise TypeError(f"{what} cannot be a {type(arg).__name__}")
    if len(data) != size:
        raise _launch_error(f"{what} has {size} bytes, got {len(data)}")
    return data


def _buffers(args: Sequence[Any], memory: Any) -> list[tuple[str, np.ndarray]]:
    """Every array that the launch may access, with its name in reports."""
    if isinstance(memory, np.ndarray | str | bytes) or not isinstance(memory, Iterable):
        raise TypeError(f"memory must be a sequence of NumPy arrays, got {type(memory).__name__}")
    arrays = [
        (f"arg{i}", arg.array if isinstance(arg, TensorMap) else arg)
        for i, arg in enumerate(args)
        if isinstance(arg, TensorMap | np.ndarray)
    ]
    arrays += [(f"memory{i}", array) for i, array in enumerate(memory)]
    for name, array in arrays:
        if not isinstance(array, np.ndarray):
            raise TypeError(f"{name} must be a NumPy array, got {type(array).__name__}")
        _check_byte_order(name, array)
        owner = array
        while isinstance(owner, np.ndarray):
            # A field of a structured array has the objects of its neighbours within its span.
            if owner.dtype.hasobject:
                raise TypeError(
                    f"{name} is memory of Python objects (dtype {owner.dtype}), which a kernel "
                    "must not access"
                )
            owner = owner.base
    return arrays


def _check_byte_order(name: str, array: np.ndarray) -> None:
    if not array.dtype.isnative:
        raise TypeError(f"{name} is big-endian (dtype {array.dtype}), and a GPU is little-endian")


def _span(array: np.ndarray) -> tuple[int, int]:
    """Address and bytes of the memory between an array's first and last element."""
    low, high = np.lib.array_utils.byte_bounds(array)  # strided views own less than this span
    return low, high - low
