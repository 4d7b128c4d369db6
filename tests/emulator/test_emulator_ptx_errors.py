"""The general PTX entry: arguments and launches that are refused."""

from __future__ import annotations

import functools
import itertools
import signal

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from emulator_cases import requires_emulator
from ptx_samples import AXPB, HEADER, SPIN, TMA_COPY, axpb_arguments
from signals import signalled_within_a_launch

import jax_bwgemm as bw
from jax_bwgemm import emulator

pytestmark = requires_emulator


# --- Errors: each with its type, line and text


@pytest.mark.parametrize(
    ("ptx", "line", "text"),
    [
        (AXPB.replace("mad.lo.s32 %r4", "frobnicate.s32 %r4"), 15, "frobnicate.s32 %r4, %r1"),
        (AXPB.replace("%r4, %r5;", "%r4, %r55;"), 17, "setp.ge.u32 %p1, %r4, %r55;"),
        (AXPB.replace("bra DONE", "bra NOWHERE"), 18, "@%p1 bra NOWHERE;"),
        (AXPB.replace("fma.rn.f32", "fma.rn.f33"), 27, "fma.rn.f33"),
    ],
    ids=["instruction", "register", "label", "type"],
)
def test_bad_instruction_names_line_and_text(ptx: str, line: int, text: str) -> None:
    module = emulator.Module(ptx)
    with pytest.raises(emulator.PtxError) as caught:
        module.launch("axpb", *axpb_arguments(), block=32)
    assert caught.value.line == line
    assert caught.value.text.startswith(text)
    assert f"line {line}" in str(caught.value)


@pytest.mark.parametrize("ptx", ["", "int main() {}", AXPB[:-3], HEADER + ".visible .entry ("])
def test_malformed_text(ptx: str) -> None:
    with pytest.raises(emulator.PtxError) as caught:
        emulator.Module(ptx)
    assert caught.value.kind == "parse error"


def test_the_last_line_is_named_like_the_others() -> None:
    with pytest.raises(emulator.PtxError) as caught:
        emulator.Module(HEADER + "  bogus")
    assert (caught.value.line, caught.value.text) == (4, "bogus")


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


# --- Tensor maps and settings that are refused


@pytest.mark.parametrize(
    ("array", "box", "options", "error", "message"),
    [
        ([1.0], (1,), {}, TypeError, "needs a NumPy array, got list"),
        (np.zeros(4, np.complex64), (4,), {}, TypeError, "no tensor map type for .* complex64"),
        (np.zeros(4, ">f4"), (4,), {}, TypeError, r"the array is big-endian \(dtype >f4\)"),
        (np.zeros((4, 4), np.float32), (4,), {}, ValueError, "box has 1 extents, .* 2 dimensions"),
        (np.zeros((4, 4), np.float32), (4, -1), {}, ValueError, "box .* outside"),
        (np.zeros((4, 4), np.float32)[:, ::2], (1, 1), {}, ValueError, "must be contiguous"),
        (np.zeros((4, 4), np.float32)[::-1], (1, 4), {}, ValueError, "negative strides"),
        (np.zeros((4, 4), np.float32), (1, 4), {"swizzle": "96B"}, ValueError, "swizzle must be"),
        (np.zeros((4, 4), np.float32), (1, 4), {"fill": "one"}, ValueError, "fill must be"),
        (np.zeros((4, 4), np.float16), (1, 4), {"tf32": True}, TypeError, "needs a float32 array"),
        (np.zeros((), np.float32), (), {}, ValueError, "1 to 5 dimensions, got 0"),
        (np.zeros((4, 5), np.float32), (1, 4), {}, ValueError, "globalStrides"),
        (np.zeros((4, 512), np.float32), (1, 512), {}, ValueError, "boxDim"),
        (np.zeros((4, 64), np.float32), (4, 64), {"swizzle": "128B"}, ValueError, "128"),
        (np.zeros((0, 4), np.float32), (1, 4), {}, ValueError, r"elements, .* shape \(0, 4\)"),
        (np.zeros((4, 4), object), (1, 4), {}, TypeError, "no tensor map type for .* object"),
        (np.zeros((4, 4), np.float32), 4, {}, TypeError, "box must be a sequence of ints, got 4"),
        (np.zeros((4, 4), np.float32), "44", {}, TypeError, "box must be a sequence of ints"),
        (np.zeros((4, 4), np.float32), (1, 1.5), {}, TypeError, r"box must be .* got \(1, 1.5\)"),
        (np.zeros((4, 4), np.float32), (1, True), {}, TypeError, "box must be a sequence of ints"),
        (
            np.zeros((4, 4), np.float32),
            (1, 4),
            {"element_strides": 1},
            TypeError,
            "element_strides must be a sequence of ints, got 1",
        ),
        (np.zeros((4, 4), np.float32), (1, 4), {"swizzle": []}, ValueError, "swizzle must be"),
        (np.zeros((4, 4), np.float32), (1, 4), {"fill": {}}, ValueError, "fill must be"),
        (np.zeros(16, np.float32), (1, 4), {"shape": (4, 4)}, ValueError, "go together"),
        (np.zeros(16, np.float32), (1, 4), {"strides": (16, 4)}, ValueError, "go together"),
        (
            np.zeros(16, np.float32),
            (1, 4),
            {"shape": (4, 4), "strides": (1 << 40, 4)},
            ValueError,
            "strides .* outside",
        ),
        (
            np.zeros(16, np.float32),
            (1, 4),
            {"shape": (4, 4), "strides": (16, 8)},
            ValueError,
            "must be contiguous",
        ),
        (
            np.zeros(16, np.float32),
            (1, 4),
            {"shape": (4, 4), "strides": (4,)},
            ValueError,
            "strides has 1 extents, .* 2 dimensions",
        ),
    ],
)
def test_refused_tensor_maps(
    array: object, box: tuple[int, ...], options: dict[str, object], error: type, message: str
) -> None:
    with pytest.raises(error, match=message):
        emulator.TensorMap(array, box, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"sm_count": 0}, ValueError, r"sm_count must be in \[1, 1024\], got 0"),
        ({"seed": -1}, ValueError, "seed must be in"),
        ({"seed": True}, TypeError, "seed must be an int, got True"),
        ({"step_limit": 1.0}, TypeError, "step_limit must be an int, got 1.0"),
        ({"speed": 1}, TypeError, "speed"),
        ({"trace": "no"}, TypeError, "trace must be True or False, got 'no'"),
        ({"poison_outputs": 1}, TypeError, "poison_outputs must be True or False, got 1"),
        ({"relaxed": 1}, TypeError, "relaxed must be True or False, got 1"),
        ({"rules": "off"}, TypeError, "rules must be a mapping of names to severities, got 'off'"),
        ({"rules": {"race": "off"}}, ValueError, "no rule 'race': there are shared-race,"),
        (
            {"rules": {"load-wait": "loud"}},
            ValueError,
            "the severity of rule 'load-wait' must be one of off, warning, error, got 'loud'",
        ),
        ({"proxy_fences": 0}, TypeError, "proxy_fences must be True or False, got 0"),
    ],
)
def test_refused_settings(changes: dict[str, object], error: type, message: str) -> None:
    before = emulator.settings()
    with pytest.raises(error, match=message), emulator.configure(**changes):
        pass
    assert emulator.settings() == before


def test_settings_are_restored() -> None:
    before = emulator.settings()
    with emulator.configure(seed=5, sm_count=9) as inside:
        assert emulator.settings() == inside
        assert (inside.seed, inside.sm_count) == (5, 9)
    assert emulator.settings() == before


def kernel(body: str, params: str = "", declarations: str = "") -> emulator.Module:
    return emulator.Module(
        HEADER + declarations + f".visible .entry k({params}) {{\n.reg .b64 %d<4>;\n"
        f".reg .b32 %r<4>;\n.local .align 4 .b8 loc[16];\n{body}\nret;\n}}\n"
    )


@pytest.mark.parametrize(
    "load",
    [
        "ld.param.b32 %r1, [loc];",
        "ld .local.b32 %r1, [loc];",
        "mov.u64 %d1, loc; cvta.local.u64 %d1, %d1; ldu.b32 %r1, [%d1];",
    ],
)
def test_every_load_of_an_unwritten_local_variable(load: str) -> None:
    kernel(load).launch("k", block=32)
    out = np.zeros(1, np.uint32)
    store = "ld.param.b64 %d3, [x];\nadd.u32 %r2, %r1, 1;\nst.global.b32 [%d3], %r2;"
    with emulator.configure(rules={"uninitialized-register": "warning"}):
        stats = kernel(f"{load}\n{store}", ".param .b64 x").launch("k", out, block=32)
    assert [w.rule for w in stats.warnings] == ["uninitialized-register"]


def test_a_wide_special_register_is_stored() -> None:
    out = np.zeros(32, np.uint32)
    body = (
        "ld.param.b64 %d1, [x];\nmov.u32 %r1, %tid.x;\nmul.wide.u32 %d2, %r1, 4;\n"
        "add.u64 %d1, %d1, %d2;\nst.global.b32 [%d1], %gridid;"
    )
    kernel(body, ".param .b64 x").launch("k", out, block=32)
    np.testing.assert_array_equal(out, out[0])


@pytest.mark.parametrize(
    ("variable", "count"), [(".b8 g{}[268435456]", 17), (".align 65536 .b8 g{}[1]", 65536)]
)
def test_variables_have_a_limit_together(variable: str, count: int) -> None:
    many = "".join(f".global {variable.format(i)};\n" for i in range(count))
    with pytest.raises(emulator.EmulatorError, match="variables of a module take more than"):
        kernel("", declarations=many)


def test_extents_without_an_end() -> None:
    with pytest.raises(emulator.EmulatorError, match="grid has 1 to 3 extents"):
        kernel("").launch("k", grid=itertools.count(1))  # type: ignore[arg-type]


@pytest.mark.parametrize("what", ["params", "launch"])
def test_a_signal_handler_cannot_launch(what: str) -> None:
    """It runs while a launch asks for signals, which would wait for itself."""
    module, spin, raised = kernel(""), emulator.Module(SPIN), []

    def handler(*_: object) -> None:
        try:
            module.params("k") if what == "params" else module.launch("k")
        except emulator.EmulatorError as error:
            raised.append(str(error))
        raise InterruptedError

    with (
        pytest.raises(InterruptedError),
        signalled_within_a_launch(signal.SIGUSR1, handler),
    ):
        spin.launch("spin", block=32)
    (message,) = raised
    assert "a signal handler cannot use it" in message


def test_a_cluster_larger_than_the_gpu() -> None:
    x = jnp.ones((64, 64), jnp.bfloat16)
    product = functools.partial(bw.matmul, implementation="emulator")
    with bw.config.target("sm90"), emulator.configure(sm_count=1):
        config = bw.TuningConfig(cluster_m=2)
        with pytest.raises(jax.errors.JaxRuntimeError, match="cluster of 2 CTAs does not fit on a"):
            product(x, x, config=config).block_until_ready()


def test_lines_are_quoted_short_and_in_ascii() -> None:
    """A character is not cut in two, which no text could hold."""
    with pytest.raises(emulator.PtxError) as caught:
        emulator.Module(HEADER + "  bogus " + "é" * 1000)
    assert str(caught.value).isascii()
    assert "bogus ??" in str(caught.value)
    assert len(str(caught.value)) < 400
