"""The general PTX entry: arguments, memory, tensor maps, and every error it reports."""

from __future__ import annotations

import copy
import os
import pickle
import signal
import threading

import numpy as np
import pytest
from emulator_cases import requires_emulator
from ptx_samples import AXPB, COUNTER, HEADER, ROWS_COPY, SPIN, TMA_COPY

from jax_bwgemm import emulator

pytestmark = requires_emulator


def axpb_arguments(n: int = 100) -> tuple[np.ndarray, np.ndarray, float, float, int]:
    x = np.arange(n, dtype=np.float32)
    return x, np.full_like(x, np.nan), 2.0, 1.0, n


def test_launch_computes_and_counts() -> None:
    module = emulator.Module(AXPB)
    assert module.kernels == ("axpb",)
    assert [(p.name, p.size) for p in module.params("axpb")] == [
        ("x", 8),
        ("out", 8),
        ("factor", 4),
        ("bias", 4),
        ("n", 4),
    ]
    args = axpb_arguments()
    stats = module.launch("axpb", *args, grid=4, block=32)
    np.testing.assert_array_equal(args[1], args[0] * 2 + 1)
    assert stats.ok
    assert (stats.grid, stats.block, stats.cluster) == ((4, 1, 1), (32, 1, 1), (1, 1, 1))
    assert stats.ctas == 4
    assert stats.global_load_bytes == stats.global_store_bytes == 400
    assert emulator.last_launch() == stats
    assert "4x1x1" in stats.table()


@pytest.mark.parametrize("factor", [np.float32(2), np.int32(0x40000000), 0x40000000, b"\0\0\0\x40"])
def test_every_way_to_pass_four_bytes(factor: object) -> None:
    x, out, _, bias, n = axpb_arguments(8)
    emulator.Module(AXPB).launch("axpb", x, out, factor, bias, n, block=8)
    np.testing.assert_array_equal(out, x * 2 + 1)


def test_pointer_into_other_memory() -> None:
    x, out, *rest = axpb_arguments(8)
    emulator.Module(AXPB).launch("axpb", x.ctypes.data, out, *rest, block=8, memory=[x])
    np.testing.assert_array_equal(out, x * 2 + 1)


def test_same_array_twice_and_views() -> None:
    x, _, *rest = axpb_arguments(16)
    expected = x[:8] * 2 + 1
    emulator.Module(AXPB).launch("axpb", x[:8], x[4:12], *rest[:2], 8, block=8)
    # Lanes of a warp load before they store.
    np.testing.assert_array_equal(x[4:12], expected)


@pytest.mark.parametrize("swizzle", ["none", "128B"])
def test_tensor_maps_with_ragged_edges(swizzle: str) -> None:
    source = np.random.default_rng(0).standard_normal((20, 40)).astype(np.float32)
    target = np.full_like(source, np.nan)
    module = emulator.Module(TMA_COPY)
    maps = [emulator.TensorMap(x, (16, 32), swizzle=swizzle) for x in (source, target)]
    for row in (0, 16):
        for column in (0, 32):
            stats = module.launch("tma_copy", *maps, row, column, block=32)
    np.testing.assert_array_equal(target, source)
    assert stats.tma_loads == 1
    assert stats.tma_store_bytes == 4 * 8 * 4


def test_rows_are_gathered_and_scattered() -> None:
    source = np.random.default_rng(0).standard_normal((20, 40)).astype(np.float32)
    target = np.full_like(source, -1)
    maps = [emulator.TensorMap(x, (1, 32)) for x in (source, target)]
    emulator.Module(ROWS_COPY).launch("rows_copy", *maps)
    expected = np.full_like(source, -1)
    expected[[1, 4, 2], :32] = source[[3, 4, 3], :32]
    expected[0, :32] = 0  # row 30 is outside
    np.testing.assert_array_equal(target, expected)
    two_rows = emulator.TensorMap(source, (2, 32))
    with pytest.raises(emulator.LaunchFault, match="whose box has one row, this one has 2"):
        emulator.Module(ROWS_COPY).launch("rows_copy", two_rows, maps[1])


def test_threads_can_launch_at_once() -> None:
    totals = [np.zeros(1, np.uint32) for _ in range(4)]
    module = emulator.Module(COUNTER)
    threads = [
        threading.Thread(target=lambda t=t: module.launch("counter", t, grid=3, block=64))
        for t in totals
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [int(t[0]) for t in totals] == [3 * 64 * 63 // 2] * 4


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


def test_ptx_must_be_text() -> None:
    with pytest.raises(TypeError, match="PTX must be a str, got bytes"):
        emulator.Module(b"")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("position", "value", "error", "message"),
    [
        (2, 2.0 + 1j, TypeError, r"argument 2 \('factor'\) of kernel 'axpb' cannot be a complex"),
        (0, b"123", ValueError, r"argument 0 \('x'\) of kernel 'axpb' has 8 bytes, got 3"),
        (4, 1 << 40, ValueError, r"argument 4 \('n'\) of kernel 'axpb' has 4 bytes, too few for 1"),
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


def test_empty_arrays_are_no_memory() -> None:
    """Nothing of them may be accessed; an address that is never used harms nobody."""
    empty = np.zeros((0, 4), np.float32)[:, ::2]
    module = emulator.Module(AXPB)
    assert module.launch("axpb", empty, empty, 1.0, 1.0, 0, block=8).global_load_bytes == 0
    with pytest.raises(emulator.LaunchFault, match=r"ld\.global\.f32"):
        module.launch("axpb", empty, empty, 1.0, 1.0, 1, block=8)


def test_a_view_that_skips_elements_is_written_where_the_kernel_writes() -> None:
    """A pointer knows no strides: the kernel sees memory from the view's first element on."""
    x, memory = np.arange(8, dtype=np.float32), np.zeros(16, np.float32)
    emulator.Module(AXPB).launch("axpb", x, memory[::2], 2.0, 1.0, 8, block=8)
    np.testing.assert_array_equal(memory[:8], x * 2 + 1)
    assert not memory[8:].any()
    with pytest.raises(emulator.LaunchFault, match=r"st\.global\.f32"):  # beyond its last element
        emulator.Module(AXPB).launch("axpb", x, memory[:8:2], 2.0, 1.0, 8, block=8)


def test_a_read_only_view_does_not_protect_what_is_writable_besides() -> None:
    x, memory = np.ones(4, np.float32), np.zeros(4, np.float32)
    view = memory[:]
    view.flags.writeable = False
    module = emulator.Module(AXPB)
    with pytest.raises(emulator.LaunchFault, match=r"st\.global\.f32"):
        module.launch("axpb", x, view, 1.0, 1.0, 4, block=4)
    assert not memory.any()
    module.launch("axpb", x, view, 1.0, 1.0, 4, block=4, memory=[memory])
    assert (memory == 2).all()


@pytest.mark.parametrize(
    "make",
    [
        lambda: emulator.Module("?"),
        lambda: emulator.Module(AXPB).launch("nothing"),
        lambda: emulator.Module(AXPB).launch("axpb", 0, 0, 1.0, 1.0, 1, block=1),
        lambda: emulator.Module(AXPB).launch("axpb"),
    ],
    ids=["PtxError", "LaunchError", "LaunchFault", "LaunchError of Python"],
)
@pytest.mark.parametrize("duplicate", [lambda e: pickle.loads(pickle.dumps(e)), copy.copy])
def test_errors_travel_between_processes(make, duplicate) -> None:
    """An error that cannot be unpickled hangs a process pool."""
    with pytest.raises(emulator.EmulatorError) as caught:
        make()
    caught.value.add_note("from a worker")
    again = duplicate(caught.value)
    assert type(again) is type(caught.value)
    assert str(again) == str(caught.value)
    assert vars(again) == vars(caught.value)
    assert {"kind", "line", "__notes__"} <= vars(again).keys()


def test_modules_travel_between_processes() -> None:
    module = pickle.loads(pickle.dumps(emulator.Module(AXPB)))
    args = axpb_arguments(8)
    module.launch("axpb", *args, block=8)
    np.testing.assert_array_equal(args[1], args[0] * 2 + 1)


def test_copies_of_a_tensor_map_describe_their_own_array() -> None:
    source, target = np.ones((16, 32), np.float32), np.zeros((16, 32), np.float32)
    maps = [emulator.TensorMap(x, (16, 32), fill="nan") for x in (source, target)]
    copied = [copy.deepcopy(maps[0]), pickle.loads(pickle.dumps(maps[1]))]
    assert bytes(copied[0]) != bytes(maps[0])
    emulator.Module(TMA_COPY).launch("tma_copy", *copied, 0, 0, block=32)
    np.testing.assert_array_equal(copied[1].array, source)
    assert not target.any()


# --- Faults


def test_out_of_bounds_access_names_the_line() -> None:
    x, out, factor, bias, _ = axpb_arguments(100)
    with pytest.raises(emulator.LaunchFault) as caught:
        emulator.Module(AXPB).launch("axpb", x, out, factor, bias, 101, grid=4, block=32)
    assert caught.value.kind == "fault"
    assert caught.value.line == 26
    assert "ld.global.f32 %f3, [%rd4];" in str(caught.value)
    last = emulator.last_launch()
    assert last is not None
    assert not last.ok
    assert last.error == str(caught.value)


def test_write_to_read_only_array() -> None:
    x, out, *rest = axpb_arguments()
    out.flags.writeable = False
    with pytest.raises(emulator.LaunchFault, match=r"st.global.f32"):
        emulator.Module(AXPB).launch("axpb", x, out, *rest, block=32)


def test_tensor_map_of_a_read_only_array() -> None:
    source, target = np.ones((16, 32), np.float32), np.zeros((16, 32), np.float32)
    target.flags.writeable = False
    maps = [emulator.TensorMap(x, (16, 32)) for x in (source, target)]
    with pytest.raises(emulator.LaunchFault, match=r"read-only\): cp\.async\.bulk\.tensor"):
        emulator.Module(TMA_COPY).launch("tma_copy", *maps, 0, 0, block=32)
    assert not target.any()


def test_atomics_on_a_read_only_array() -> None:
    total = np.zeros(1, np.uint32)
    total.flags.writeable = False
    with pytest.raises(emulator.LaunchFault, match=r"read-only\): red\."):
        emulator.Module(COUNTER).launch("counter", total, block=32)
    assert total[0] == 0


def test_misaligned_access() -> None:
    x, out, *rest = axpb_arguments()
    with pytest.raises(emulator.LaunchFault, match=r"is not a multiple of 4: ld\.global\.f32"):
        emulator.Module(AXPB).launch("axpb", x.ctypes.data + 2, out, *rest, block=32, memory=[x])


def test_tensor_map_argument_that_is_none() -> None:
    with pytest.raises(emulator.LaunchFault, match="tensor map"):
        emulator.Module(TMA_COPY).launch("tma_copy", bytes(128), bytes(128), 0, 0, block=32)


def test_deadlock_report_names_barrier_and_phase() -> None:
    """More bytes expected than copied: the wait can never end."""
    x = np.zeros((16, 32), np.float32)
    maps = [emulator.TensorMap(x, (16, 32))] * 2
    ptx = TMA_COPY.replace("[%r2], 2048;", "[%r2], 2064;")
    with pytest.raises(emulator.LaunchFault) as caught:
        emulator.Module(ptx).launch("tma_copy", *maps, 0, 0, block=32)
    report = str(caught.value)
    assert caught.value.kind == "deadlock"
    for part in ("warp 0", "mbarrier.try_wait", "phase", "16"):
        assert part in report, f"{part!r} is not in the report: {report}"


def test_step_limit() -> None:
    with (
        emulator.configure(step_limit=10_000),
        pytest.raises(emulator.LaunchFault) as caught,
    ):
        emulator.Module(SPIN).launch("spin", block=32)
    assert caught.value.kind == "step limit"


def test_interrupt_stops_a_launch() -> None:
    """Ctrl-C ends a kernel that never ends by itself, and the next launch works."""
    module = emulator.Module(SPIN)
    ended = threading.Event()

    def interrupt_the_launch() -> None:
        while emulator.progress() == (0, 0):  # not begun
            if ended.is_set():
                return
        os.kill(os.getpid(), signal.SIGINT)

    # A process that a shell started in the background ignores it.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    thread = threading.Thread(target=interrupt_the_launch)
    thread.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            module.launch("spin", block=32)
    finally:
        ended.set()
        thread.join()
        signal.signal(signal.SIGINT, before)
    test_launch_computes_and_counts()


# --- Tensor maps and settings that are refused


@pytest.mark.parametrize(
    ("array", "box", "options", "error", "message"),
    [
        ([1.0], (1,), {}, TypeError, "needs a NumPy array, got list"),
        (np.zeros(4, np.complex64), (4,), {}, TypeError, "no tensor map type for .* complex64"),
        (np.zeros((4, 4), np.float32), (4,), {}, ValueError, "box has 1 extents, .* 2 dimensions"),
        (np.zeros((4, 4), np.float32), (4, -1), {}, ValueError, "box .* outside"),
        (np.zeros((4, 4), np.float32)[:, ::2], (1, 1), {}, ValueError, "must be contiguous"),
        (np.zeros((4, 4), np.float32)[::-1], (1, 4), {}, ValueError, "negative strides"),
        (np.zeros((4, 4), np.float32), (1, 4), {"swizzle": "96B"}, ValueError, "swizzle must be"),
        (np.zeros((4, 4), np.float32), (1, 4), {"fill": "one"}, ValueError, "fill must be"),
        (np.zeros((4, 4), np.float16), (1, 4), {"tf32": True}, TypeError, "needs a float32 array"),
        (np.zeros((), np.float32), (), {}, ValueError, "1 to 5 dimensions, the array has 0"),
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
