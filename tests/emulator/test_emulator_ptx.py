"""The general PTX entry: arguments, memory, tensor maps, and faults of kernels."""

from __future__ import annotations

import copy
import pickle
import signal
import threading

import numpy as np
import pytest
from emulator_cases import requires_emulator
from ptx_samples import AXPB, COUNTER, ROWS_COPY, SPIN, TMA_COPY, axpb_arguments
from signals import signalled_within_a_launch

from jax_bwgemm import emulator

pytestmark = requires_emulator


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
    with emulator.configure(rules={"global-race": "warning"}):
        stats = emulator.Module(AXPB).launch("axpb", x[:8], x[4:12], *rest[:2], 8, block=8)
    # Here lanes of a warp load before they store; nothing says that they do.
    np.testing.assert_array_equal(x[4:12], expected)
    assert [warning.rule for warning in stats.warnings] == ["global-race"]
    assert "of the same warp" in stats.warnings[0].text


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


HOPPER_COPY = TMA_COPY.replace("sm_100a", "sm_90a")


@pytest.mark.parametrize("ptx", [TMA_COPY, HOPPER_COPY], ids=["sm_100a", "sm_90a"])
def test_tensor_copies_ahead_of_the_array_bring_zeros(ptx: str) -> None:
    source = np.random.default_rng(0).standard_normal((16, 32)).astype(np.float32)
    target = np.full_like(source, np.nan)
    maps = [emulator.TensorMap(x, (16, 32)) for x in (source, target)]
    ptx = ptx.replace("[%rd4, {%r5, %r4}]", "[%rd4, {0, %r4}]")
    stats = emulator.Module(ptx).launch("tma_copy", *maps, 0, -4, block=32)
    assert stats.warnings == ()
    np.testing.assert_array_equal(target[:, :4], 0)
    np.testing.assert_array_equal(target[:, 4:], source[:, :28])


MISPLACED = [("float32", -3), ("float32", 2), ("bfloat16", 4), ("uint8", 8)]


@pytest.mark.parametrize(("dtype", "column"), MISPLACED)
def test_tensor_copies_of_sm_90_begin_at_multiples_of_16_bytes(dtype: str, column: int) -> None:
    bits = 8 * np.dtype(dtype).itemsize
    source, target = np.ones((16, 1024 // bits), dtype), np.zeros((16, 1024 // bits), dtype)
    maps = [emulator.TensorMap(x, x.shape) for x in (source, target)]
    with pytest.raises(emulator.LaunchFault) as caught:
        emulator.Module(HOPPER_COPY).launch("tma_copy", *maps, 0, column, block=32)
    assert caught.value.rule == ""
    for part in (f"coordinate {column}, of elements of {bits} bits", "multiple of 16 bytes"):
        assert part in str(caught.value)
    assert "raises an illegal instruction: cp.async.bulk.tensor" in str(caught.value)
    assert not target.any()


@pytest.mark.parametrize(("dtype", "column"), MISPLACED)
def test_such_copies_of_other_targets_are_warned_of(dtype: str, column: int) -> None:
    bits = 8 * np.dtype(dtype).itemsize
    source, target = np.ones((16, 1024 // bits), dtype), np.zeros((16, 1024 // bits), dtype)
    maps = [emulator.TensorMap(x, x.shape) for x in (source, target)]
    stats = emulator.Module(TMA_COPY).launch("tma_copy", *maps, 0, column, block=32)
    assert [(w.rule, w.count) for w in stats.warnings] == [("tma-coordinate", 1)] * 2
    assert f"coordinate {column}, of elements of {bits} bits" in stats.warnings[0].text
    with (
        emulator.configure(rules={"tma-coordinate": "error"}),
        pytest.raises(emulator.LaunchFault) as caught,
    ):
        emulator.Module(TMA_COPY).launch("tma_copy", *maps, 0, column, block=32)
    assert caught.value.rule == "tma-coordinate"


LARGE_BOX = """
.version 8.3
.target sm_90a
.address_size 64
.visible .entry copy(.param .align 64 .b8 map[128]) {{
  .reg .b32 %z;
  .shared .align 128 .b8 buffer[2048];
  .shared .align 8 .b64 bar;
  mov.b32 %z, 0;
  {copy}
  ret;
}}
"""
LOAD_BOX = """mbarrier.init.shared.b64 [bar], 1;
  cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes
    [buffer], [map, {%z, %z, %z, %z}], [bar];"""
STORE_BOX = """cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group
    [map, {%z, %z, %z, %z}], [buffer];"""
PREFETCH_BOX = "cp.async.bulk.prefetch.tensor.4d.L2.global.tile [map, {%z, %z, %z, %z}];"


@pytest.mark.parametrize("copy", [LOAD_BOX, STORE_BOX, PREFETCH_BOX])
@pytest.mark.parametrize("rows", [16, 32])  # 2^31 and 2^32 bytes
def test_boxes_that_no_shared_memory_holds(copy: str, rows: int) -> None:
    array = np.zeros((2, 4, 16, 256), np.float64)
    box = emulator.TensorMap(array, (rows, 256, 256, 256))
    message = f"the box of a tensor map takes {rows * 2**27} bytes, shared memory has 232448"
    with pytest.raises(emulator.LaunchFault, match=message):
        emulator.Module(LARGE_BOX.format(copy=copy)).launch("copy", box)


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


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_numbers_outside_of_an_array_are_nan_if_the_map_says_so(dtype: str) -> None:
    columns = 128 // np.dtype(dtype).itemsize
    source, target = np.ones((8, columns), dtype), np.zeros((16, columns), dtype)
    maps = [emulator.TensorMap(x, (16, columns), fill="nan") for x in (source, target)]
    emulator.Module(TMA_COPY).launch("tma_copy", *maps, 0, 0, block=32)
    want = np.full((16, columns), np.nan, np.float32)
    want[:8] = 1
    np.testing.assert_array_equal(target.astype(np.float32), want)


def test_a_copy_of_a_tensor_map_has_its_shape_and_strides() -> None:
    """Every second row of the array, by a map of half as many rows."""
    source, target = np.zeros((32, 32), np.float32), np.zeros((16, 32), np.float32)
    source[::2] = np.arange(16 * 32).reshape(16, 32)
    rows = emulator.TensorMap(source, (16, 32), shape=(16, 32), strides=(256, 4))
    for made in (rows, pickle.loads(pickle.dumps(rows))):
        target[...] = 0
        whole = emulator.TensorMap(target, (16, 32))
        emulator.Module(TMA_COPY).launch("tma_copy", made, whole, 0, 0, block=32)
        np.testing.assert_array_equal(target, source[::2])


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
    # A process that a shell started in the background ignores it.
    with (
        pytest.raises(KeyboardInterrupt),
        signalled_within_a_launch(signal.SIGINT, signal.default_int_handler),
    ):
        module.launch("spin", block=32)
    test_launch_computes_and_counts()
