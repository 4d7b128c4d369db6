"""Bounded tensor maps (cc/grouped/sm100/tensor_maps.h) on a real TMA unit, and in the emulator.

    python tools/check_bounded_tensor_map.py          # the emulator
    python tools/check_bounded_tensor_map.py --gpu    # a GPU of compute capability 9.0 or later

What the grouped kernels expect of a bounded map: a load brings `valid` rows and zeros after them, a
store writes `valid` rows and no other, and memory outside of the tensor is never touched. So the
tensors lie where an address range begins, then where one ends. With --gpu only the CUDA driver is
needed.
"""

from __future__ import annotations

import argparse
import ctypes
import sys
from collections.abc import Callable

import numpy as np

WINDOW = 32  # rows of the box
COLUMNS = 64  # of the box: 128 bytes of 16-bit elements, one swizzle line
BOUND = 1 << 30  # where the rows of a bounded map end
PTX = """
.version 8.0
.target sm_90
.address_size 64
.visible .entry move(.param .align 64 .b8 source[128], .param .align 64 .b8 target[128],
    .param .u64 dump, .param .u32 column, .param .u32 skipped, .param .u32 row, .param .u32 matrix)
{
  .reg .b32 %r<16>;
  .reg .b64 %d<8>;
  .reg .pred %p<4>;
  .shared .align 1024 .b8 box[4096];
  .shared .align 8 .b64 barrier;
  mov.u32 %r1, %tid.x;
  mov.u32 %r2, box;
  mov.u32 %r3, barrier;
  // Every word of the box holds something that is neither data nor zero.
  shl.b32 %r4, %r1, 2;
  add.u32 %r5, %r2, %r4;
  mov.b32 %r13, 0x40000000;
  mov.b32 %r6, 0xFFFFFFFF;
  mov.b32 %r7, 0;
fill:
  st.shared.b32 [%r5], %r6;
  add.u32 %r5, %r5, 128;
  add.u32 %r7, %r7, 1;
  setp.lt.u32 %p1, %r7, 32;
  @%p1 bra fill;
  fence.proxy.async;
  bar.warp.sync 0xFFFFFFFF;
  ld.param.u32 %r8, [column];
  ld.param.u32 %r9, [skipped];
  ld.param.u32 %r10, [row];
  ld.param.u32 %r11, [matrix];
  mov.b64 %d1, source;
  cvta.param.u64 %d1, %d1;
  mov.b64 %d2, target;
  cvta.param.u64 %d2, %d2;
  setp.ne.u32 %p2, %r1, 0;
  @%p2 bra loaded;
  mbarrier.init.shared.b64 [%r3], 1;
  fence.mbarrier_init.release.cluster;
  mbarrier.arrive.expect_tx.shared.b64 _, [%r3], 4096;
  cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes
    [%r2], [%d1, {%r8, %r9, %r10, %r13, %r11}], [%r3];
wait:
  mbarrier.try_wait.parity.shared.b64 %p3, [%r3], 0;
  @!%p3 bra wait;
  cp.async.bulk.tensor.5d.global.shared::cta.bulk_group
    [%d2, {%r8, %r9, %r10, %r13, %r11}], [%r2];
  cp.async.bulk.commit_group;
  cp.async.bulk.wait_group 0;
loaded:
  bar.warp.sync 0xFFFFFFFF;
  ld.param.u64 %d3, [dump];
  cvta.to.global.u64 %d3, %d3;
  cvt.u64.u32 %d4, %r4;
  add.u64 %d3, %d3, %d4;
  add.u32 %r5, %r2, %r4;
  mov.b32 %r7, 0;
copy:
  ld.shared.b32 %r12, [%r5];
  st.global.b32 [%d3], %r12;
  add.u32 %r5, %r5, 128;
  add.u64 %d3, %d3, 128;
  add.u32 %r7, %r7, 1;
  setp.lt.u32 %p1, %r7, 32;
  @%p1 bra copy;
  ret;
}
"""
# Moves one box: (source, target, column, valid, row, matrix) -> (target, box).
Move = Callable[[np.ndarray, np.ndarray, int, int, int, int], tuple[np.ndarray, np.ndarray]]


def coordinates(column: int, valid: int, row: int, matrix: int) -> tuple[int, int, int, int]:
    """Where a bounded map is read or written to move ``valid`` rows from ``row`` on; the kernel
    adds the coordinate of the fourth dimension, BOUND."""
    return column, BOUND - valid, row + valid, matrix


def bounded_layout(matrices: int, rows: int, columns: int) -> tuple[list[int], list[int]]:
    """Extents and strides (bytes) of a bounded map of 16-bit elements, innermost first."""
    pitch = columns * 2
    extents = [columns, BOUND, rows + 1, BOUND + 1, matrices]
    return extents, [2, pitch, pitch, (1 << 34) - pitch, rows * pitch]


def emulated() -> Move:
    """On the emulator, whose kernels may access the arrays they are given and nothing else."""
    from jax_bwgemm import emulator

    module = emulator.Module(PTX)

    def bounded(tensor: np.ndarray) -> emulator.TensorMap:
        extents, strides = bounded_layout(*tensor.shape)
        box = (1, 1, 1, WINDOW, COLUMNS)
        return emulator.TensorMap(
            tensor, box, swizzle="128B", shape=extents[::-1], strides=strides[::-1]
        )

    def move(
        source: np.ndarray, target: np.ndarray, column: int, valid: int, row: int, matrix: int
    ) -> tuple[np.ndarray, np.ndarray]:
        target, box = target.copy(), np.zeros((WINDOW, COLUMNS), np.uint16)
        where = coordinates(column, valid, row, matrix)
        module.launch("move", bounded(source), bounded(target), box, *where, block=32)
        return target, box

    return move


class Location(ctypes.Structure):  # CUmemLocation
    _fields_ = (("type", ctypes.c_int), ("id", ctypes.c_int))


class AllocationProperties(ctypes.Structure):  # CUmemAllocationProp
    _fields_ = (
        ("type", ctypes.c_int),
        ("handle_types", ctypes.c_int),
        ("location", Location),
        ("windows", ctypes.c_void_p),
        ("flags", ctypes.c_ubyte * 8),
    )


class Access(ctypes.Structure):  # CUmemAccessDesc
    _fields_ = (("location", Location), ("flags", ctypes.c_int))


class LonelyMemory:
    """Memory of one array, with addresses on both sides that no memory is mapped to."""

    GRANULE = 2 << 20  # bytes, of mappings

    def __init__(self, cuda: ctypes.CDLL, array: np.ndarray, at_end: bool) -> None:
        self._cuda = cuda
        self._mapped = ctypes.c_size_t(-(-array.nbytes // self.GRANULE) * self.GRANULE)
        self._reserved = ctypes.c_size_t(self._mapped.value + 2 * self.GRANULE)
        self._range, handle = ctypes.c_uint64(), ctypes.c_uint64()
        zero = ctypes.c_uint64(0)
        check(
            cuda.cuMemAddressReserve(
                ctypes.byref(self._range),
                self._reserved,
                ctypes.c_size_t(self.GRANULE),
                zero,
                zero,
            )
        )
        on_device = Location(1, 0)
        pinned = AllocationProperties(1, 0, on_device)
        check(cuda.cuMemCreate(ctypes.byref(handle), self._mapped, ctypes.byref(pinned), zero))
        self._begin = ctypes.c_uint64(self._range.value + self.GRANULE)
        check(cuda.cuMemMap(self._begin, self._mapped, ctypes.c_size_t(0), handle, zero))
        check(cuda.cuMemRelease(handle))  # the mapping keeps it
        access, one = Access(on_device, 3), ctypes.c_size_t(1)
        check(cuda.cuMemSetAccess(self._begin, self._mapped, ctypes.byref(access), one))
        slack = (self._mapped.value - array.nbytes) // 16 * 16  # tensor maps ask for 16 bytes
        self.address = ctypes.c_uint64(self._begin.value + (slack if at_end else 0))
        data = ctypes.c_void_p(array.ctypes.data)
        check(cuda.cuMemcpyHtoD_v2(self.address, data, ctypes.c_size_t(array.nbytes)))

    def release(self, out: np.ndarray | None = None) -> None:
        """Gives the memory back; ``out`` receives what was in it."""
        if out is not None:
            data = ctypes.c_void_p(out.ctypes.data)
            check(self._cuda.cuMemcpyDtoH_v2(data, self.address, ctypes.c_size_t(out.nbytes)))
        check(self._cuda.cuMemUnmap(self._begin, self._mapped))
        check(self._cuda.cuMemAddressFree(self._range, self._reserved))


def check(status: int) -> None:
    """Raises RuntimeError for a CUresult that is no success."""
    if status != 0:
        raise RuntimeError(f"CUDA driver error {status}")


def on_gpu(at_end: bool) -> Move:
    """On the GPU; tensors lie at the beginning or at the end of mapped memory."""
    cuda = ctypes.CDLL("libcuda.so.1")
    check(cuda.cuInit(0))
    device, context = ctypes.c_int(), ctypes.c_void_p()
    check(cuda.cuDeviceGet(ctypes.byref(device), 0))
    check(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device))
    check(cuda.cuCtxSetCurrent(context))
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    check(cuda.cuModuleLoadData(ctypes.byref(module), PTX.encode()))
    check(cuda.cuModuleGetFunction(ctypes.byref(function), module, b"move"))

    def bounded(memory: LonelyMemory, shape: tuple[int, ...]) -> ctypes.Array[ctypes.c_char]:
        extents, strides = bounded_layout(*shape)
        raw = ctypes.create_string_buffer(128 + 64)
        at = -(-ctypes.addressof(raw) // 64) * 64
        check(
            cuda.cuTensorMapEncodeTiled(
                ctypes.c_void_p(at),
                ctypes.c_int(1),  # 16-bit elements
                ctypes.c_uint32(5),
                ctypes.c_void_p(memory.address.value),
                (ctypes.c_uint64 * 5)(*extents),
                (ctypes.c_uint64 * 4)(*strides[1:]),
                (ctypes.c_uint32 * 5)(COLUMNS, WINDOW, 1, 1, 1),
                (ctypes.c_uint32 * 5)(1, 1, 1, 1, 1),
                *(ctypes.c_int(v) for v in (0, 3, 3, 0)),  # 128-byte swizzle, L2 256 bytes, zeros
            )
        )
        return (ctypes.c_char * 128).from_buffer_copy(ctypes.string_at(at, 128))

    def move(
        source: np.ndarray, target: np.ndarray, column: int, valid: int, row: int, matrix: int
    ) -> tuple[np.ndarray, np.ndarray]:
        box = np.zeros((WINDOW, COLUMNS), np.uint16)
        memory = [LonelyMemory(cuda, array, at_end) for array in (source, target, box)]
        values = [
            bounded(memory[0], source.shape),
            bounded(memory[1], target.shape),
            memory[2].address,
            *(ctypes.c_uint32(v) for v in coordinates(column, valid, row, matrix)),
        ]
        arguments = (ctypes.c_void_p * len(values))(*(ctypes.addressof(v) for v in values))
        check(cuda.cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, None, arguments, None))
        check(cuda.cuCtxSynchronize())
        target = target.copy()
        for one, out in zip(memory, (None, target, box), strict=True):
            one.release(out)
        return target, box

    return move


def check_box(move: Move, shape: tuple[int, int, int], where: tuple[int, int, int, int]) -> bool:
    """Moves one box of a tensor [matrices, rows, columns]; where = (column, valid, row, matrix)."""
    column, valid, row, matrix = where
    source = np.arange(1, np.prod(shape) + 1, dtype=np.uint64).astype(np.uint16).reshape(shape)
    before = np.full(shape, 0xABCD, np.uint16)
    target, box = move(source, before, column, valid, row, matrix)
    want, width = before.copy(), min(COLUMNS, shape[2] - column)
    want[matrix, row : row + valid, column : column + width] = source[
        matrix, row : row + valid, column : column + width
    ]
    chunks = box.reshape(WINDOW, 8, 8)
    lines = np.arange(WINDOW)[:, None]
    loaded = chunks[lines, np.arange(8)[None] ^ (lines % 8)].reshape(WINDOW, COLUMNS)
    want_loaded = np.zeros_like(loaded)
    want_loaded[:valid, :width] = source[matrix, row : row + valid, column : column + width]
    ok = np.array_equal(target, want) and np.array_equal(loaded, want_loaded)
    if not ok:
        wrong = int((target != want).sum()), int((loaded != want_loaded).sum())
        print(f"{shape} {where}: {wrong[0]} elements stored, {wrong[1]} loaded wrongly")
    return ok


def main() -> int:
    """Checks boxes at all kinds of places; 1 when one of them was moved wrongly."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gpu", action="store_true", help="run on the GPU, not the emulator")
    on_device = parser.parse_args().gpu
    moves = [on_gpu(at_end) for at_end in (False, True)] if on_device else [emulated()]
    results = []
    for shape in ((1, 100, 72), (3, 40, 64), (2, 7, 8), (2, 300, 4096)):
        matrices, rows, columns = shape
        for valid in (0, 1, 5, 31, 32):
            for row in (0, 1, 33, rows - valid):
                if row >= 0 and row + valid <= rows:
                    for column in {0, (columns - 1) // 64 * 64}:
                        where = (column, valid, row, matrices - 1)
                        results += [check_box(move, shape, where) for move in moves]
    print(f"{len(results)} boxes, {results.count(False)} wrong")
    return int(not all(results))


if __name__ == "__main__":
    sys.exit(main())
