"""Launches of PTX that are refused: arguments, memory, dimensions."""

from __future__ import annotations

import numpy as np
import pytest
from emulator_cases import requires_emulator
from ptx_samples import AXPB, HEADER, TMA_COPY, axpb_arguments

from jax_bwgemm import emulator

pytestmark = requires_emulator


def test_a_parameter_of_no_bytes_takes_no_number() -> None:
    module = emulator.Module(HEADER + ".visible .entry k(.param .b8 p[0]) { ret; }")
    with pytest.raises(ValueError, match=r"'p'\) of kernel 'k' has 0 bytes, too few for 1"):
        module.launch("k", 1)


def test_ptx_must_be_text() -> None:
    with pytest.raises(TypeError, match="PTX must be a str, got bytes"):
        emulator.Module(b"")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("position", "value", "error", "message"),
    [
        (2, 2.0 + 1j, TypeError, r"argument 2 \('factor'\) of kernel 'axpb' cannot be a complex"),
        (0, b"123", ValueError, r"argument 0 \('x'\) of kernel 'axpb' has 8 bytes, got 3"),
        (4, 1 << 40, ValueError, r"argument 4 \('n'\) of kernel 'axpb' has 4 bytes, too few for 1"),
        (4, -(1 << 31) - 1, ValueError, r"'n'\) of kernel 'axpb' has 4 bytes, too few for -214"),
        (4, np.int64(3), ValueError, r"argument 4 \('n'\) of kernel 'axpb' has 4 bytes, got 8"),
        (4, np.zeros(2), ValueError, r"argument 4 \('n'\) of kernel 'axpb' has 4 bytes, got 8"),
    ],
)
def test_wrong_argument(position: int, value: object, error: type, message: str) -> None:
    args: list[object] = list(axpb_arguments())
    args[position] = value
    with pytest.raises(error, match=message):
        emulator.Module(AXPB).launch("axpb", *args, block=32)


def test_float_for_a_parameter_of_another_size() -> None:
    with pytest.raises(emulator.LaunchError, match="has 128 bytes, a float has 4 or 8"):
        emulator.Module(TMA_COPY).launch("tma_copy", 1.0, 1.0, 0, 0, block=32)


def test_wrong_number_of_arguments() -> None:
    with pytest.raises(emulator.LaunchError, match="kernel 'axpb' takes 5 arguments, got 1"):
        emulator.Module(AXPB).launch("axpb", 1, block=32)


def test_unknown_kernel() -> None:
    with pytest.raises(emulator.LaunchError, match="nothing"):
        emulator.Module(AXPB).launch("nothing", block=32)


@pytest.mark.parametrize(
    "dims",
    [
        {"grid": 0},
        {"block": 0},
        {"block": 1025},
        {"block": (2**31, 2, 1)},
        {"cluster": 0},
        {"cluster": 3, "grid": 4},
        {"cluster": 64, "grid": 64},
        {"shared_bytes": 1 << 20},
        {"grid": (2**31, 2**15, 2**15)},
        {"grid": 2**32},
        {"grid": -1},
        {"grid": (1, 1, 1, 1)},
    ],
    ids=str,
)
def test_impossible_launch_dimensions(dims: dict[str, object]) -> None:
    with pytest.raises(emulator.LaunchError):
        emulator.Module(AXPB).launch("axpb", *axpb_arguments(), **({"block": 32} | dims))


@pytest.mark.parametrize("name", ["grid", "block", "cluster"])
@pytest.mark.parametrize(
    ("dims", "value"),
    [(1.5, "1.5"), ((1.5,), "1.5"), (None, "None"), ("12", "'12'"), (True, "True"),
     (float("nan"), "nan"), ([[1, 1]], r"\[1, 1\]")],
    ids=str,
)  # fmt: skip
def test_launch_dimensions_must_be_integers(name: str, dims: object, value: str) -> None:
    with pytest.raises(TypeError, match=rf"^{name} must be an int, got {value}$"):
        emulator.Module(AXPB).launch("axpb", *axpb_arguments(), **{name: dims})


@pytest.mark.parametrize("value", [1.0, None, "64", (1,)])
def test_shared_bytes_must_be_an_integer(value: object) -> None:
    with pytest.raises(TypeError, match=r"^shared_bytes must be an int, got "):
        emulator.Module(AXPB).launch("axpb", *axpb_arguments(), shared_bytes=value)


@pytest.mark.parametrize(
    ("memory", "message"),
    [
        ([[1]], "memory0 must be a NumPy array, got list"),
        ([np.zeros(1), 5], "memory1 must be a NumPy array, got int"),
        (5, "memory must be a sequence of NumPy arrays, got int"),
        (None, "memory must be a sequence of NumPy arrays, got NoneType"),
        (b"12345678", "memory must be a sequence of NumPy arrays, got bytes"),
        (np.zeros((2, 2)), "memory must be a sequence of NumPy arrays, got ndarray"),
    ],
)
def test_memory_must_be_arrays(memory: object, message: str) -> None:
    with pytest.raises(TypeError, match=f"^{message}$"):
        emulator.Module(AXPB).launch("axpb", *axpb_arguments(), memory=memory)


OBJECTS = np.array([None] * 8, object)
WITH_OBJECTS = np.zeros(8, [("number", np.float32), ("object", object)])


@pytest.mark.parametrize(
    "array",
    [
        OBJECTS,
        OBJECTS[2:4],
        WITH_OBJECTS,
        WITH_OBJECTS["number"],  # the objects are between its elements
        WITH_OBJECTS["number"][1:3],
        np.array(["text"] * 8, np.dtypes.StringDType()),
    ],
    ids=["objects", "view", "structured", "field", "view of a field", "strings"],
)
@pytest.mark.parametrize("where", ["argument", "memory"])
def test_memory_of_python_objects_is_refused(array: np.ndarray, where: str) -> None:
    """A kernel could overwrite a pointer in it, and the process would die."""
    x, out, *rest = axpb_arguments(8)
    first, memory = (array, []) if where == "argument" else (x, [array])
    name = "arg0" if where == "argument" else "memory0"
    with pytest.raises(TypeError, match=rf"^{name} is memory of Python objects \(dtype "):
        emulator.Module(AXPB).launch("axpb", first, out, *rest, block=8, memory=memory)


@pytest.mark.parametrize("dtype", [">f4", [("field", ">i4")]])
def test_memory_in_another_byte_order_is_refused(dtype: object) -> None:
    _, out, *rest = axpb_arguments(8)
    with pytest.raises(TypeError, match=r"^arg0 is big-endian \(dtype .*\), and a GPU is little"):
        emulator.Module(AXPB).launch("axpb", np.zeros(8, dtype), out, *rest, block=8)


def test_a_value_with_python_objects_is_refused() -> None:
    _, out, *rest = axpb_arguments(8)
    value = np.zeros((), [("object", object)])[()]
    with pytest.raises(TypeError, match=r"argument 0 \('x'\) .* cannot be a void"):
        emulator.Module(AXPB).launch("axpb", value, out, *rest, block=8)


@pytest.mark.parametrize("name", [None, 5, b"axpb"])
def test_a_kernels_name_must_be_text(name: object) -> None:
    with pytest.raises(
        TypeError, match=f"the kernel's name must be a str, got {type(name).__name__}"
    ):
        emulator.Module(AXPB).launch(name, block=32)  # type: ignore[arg-type]


def test_text_must_be_unicode() -> None:
    with pytest.raises(ValueError, match=r"PTX is no valid Unicode: .* surrogates not allowed"):
        emulator.Module(AXPB + "// \udc80")
    with pytest.raises(ValueError, match="the kernel's name is no valid Unicode"):
        emulator.Module(AXPB).params("\udc80")


def test_local_memory_of_a_launch_has_a_limit() -> None:
    """1 MiB for each of a multiprocessor's 2,048 threads is 2 GiB."""
    kernel = emulator.Module(
        HEADER + ".visible .entry k() {\n.reg .b64 %d1;\n"
        ".local .b8 loc[1048576];\nmov.u64 %d1, loc;\nret;\n}"
    )
    with emulator.configure(sm_count=3):
        kernel.launch("k", block=32)
        with pytest.raises(emulator.LaunchError, match=r"need 6442450944 bytes of local memory"):
            kernel.launch("k", grid=64, block=1024)
