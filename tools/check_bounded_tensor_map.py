"""Bounded tensor maps (cc/grouped/sm100/tensor_maps.h) on a real TMA unit, and in the emulator.

    python tools/check_bounded_tensor_map.py          # the emulator
    python tools/check_bounded_tensor_map.py --gpu    # a GPU of compute capability 9.0 or later

A bounded map describes rows twice and starts ahead of its tensor. What the grouped kernels expect
of it: a load brings `valid` rows and zeros after them, a store writes `valid` rows and no other,
and memory ahead of the tensor is never touched. With --gpu only the CUDA driver is needed.
"""

from __future__ import annotations

import argparse
import ctypes
import sys
from collections.abc import Callable

import numpy as np

WINDOW = 32  # rows of the box
COLUMNS = 64  # of the box: 128 bytes of 16-bit elements, one swizzle line
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
  cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes
    [%r2], [%d1, {%r8, %r9, %r10, %r11}], [%r3];
wait:
  mbarrier.try_wait.parity.shared.b64 %p3, [%r3], 0;
  @!%p3 bra wait;
  cp.async.bulk.tensor.4d.global.shared::cta.bulk_group
    [%d2, {%r8, %r9, %r10, %r11}], [%r2];
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
    """Where a bounded map is read or written to move ``valid`` rows from ``row`` on."""
    return column, WINDOW - valid, row + valid, matrix


def emulated() -> Move:
    """On the emulator. Its arrays carry rows ahead of the tensor, which nothing may access."""
    from jax_bwgemm import emulator

    module = emulator.Module(PTX)

    def bounded(tensor: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        matrices, rows, columns = tensor.shape
        padded = np.full(tensor.size + WINDOW * columns, 0x7FFF, np.uint16)
        padded[WINDOW * columns :] = tensor.ravel()
        pitch = columns * 2
        view = np.lib.stride_tricks.as_strided(
            padded, (matrices, rows + 1, WINDOW, columns), (rows * pitch, pitch, pitch, 2)
        )
        return padded, view

    def move(
        source: np.ndarray, target: np.ndarray, column: int, valid: int, row: int, matrix: int
    ) -> tuple[np.ndarray, np.ndarray]:
        box = np.zeros((WINDOW, COLUMNS), np.uint16)
        (_, source_view), (padded, target_view) = bounded(source), bounded(target)
        maps = [
            emulator.TensorMap(view, box=(1, 1, WINDOW, COLUMNS), swizzle="128B")
            for view in (source_view, target_view)
        ]
        module.launch("move", *maps, box, *coordinates(column, valid, row, matrix), block=32)
        ahead = padded[: WINDOW * target.shape[2]]
        assert (ahead == 0x7FFF).all(), "memory ahead of the tensor was written"
        return padded[WINDOW * target.shape[2] :].reshape(target.shape), box

    return move


def on_gpu() -> Move:
    """On the GPU. Allocations begin where the driver wants: what is ahead may not even exist."""
    cuda = ctypes.CDLL("libcuda.so.1")

    def check(status: int) -> None:
        if status != 0:
            raise RuntimeError(f"CUDA driver error {status}")

    check(cuda.cuInit(0))
    device, context = ctypes.c_int(), ctypes.c_void_p()
    check(cuda.cuDeviceGet(ctypes.byref(device), 0))
    check(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device))
    check(cuda.cuCtxSetCurrent(context))
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    check(cuda.cuModuleLoadData(ctypes.byref(module), PTX.encode()))
    check(cuda.cuModuleGetFunction(ctypes.byref(function), module, b"move"))

    def upload(array: np.ndarray) -> ctypes.c_uint64:
        pointer, size = ctypes.c_uint64(), ctypes.c_size_t(array.nbytes)
        check(cuda.cuMemAlloc_v2(ctypes.byref(pointer), size))
        check(cuda.cuMemcpyHtoD_v2(pointer, ctypes.c_void_p(array.ctypes.data), size))
        return pointer

    def download(pointer: ctypes.c_uint64, like: np.ndarray) -> np.ndarray:
        out = np.empty_like(like)
        size = ctypes.c_size_t(out.nbytes)
        check(cuda.cuMemcpyDtoH_v2(ctypes.c_void_p(out.ctypes.data), pointer, size))
        check(cuda.cuMemFree_v2(pointer))
        return out

    def bounded(pointer: ctypes.c_uint64, shape: tuple[int, ...]) -> ctypes.Array[ctypes.c_char]:
        matrices, rows, columns = shape
        pitch = columns * 2
        raw = ctypes.create_string_buffer(128 + 64)
        at = -(-ctypes.addressof(raw) // 64) * 64
        check(
            cuda.cuTensorMapEncodeTiled(
                ctypes.c_void_p(at),
                ctypes.c_int(1),  # 16-bit elements
                ctypes.c_uint32(4),
                ctypes.c_void_p(pointer.value - WINDOW * pitch),
                (ctypes.c_uint64 * 4)(columns, WINDOW, rows + 1, matrices),
                (ctypes.c_uint64 * 3)(pitch, pitch, rows * pitch),
                (ctypes.c_uint32 * 4)(COLUMNS, WINDOW, 1, 1),
                (ctypes.c_uint32 * 4)(1, 1, 1, 1),
                *(ctypes.c_int(v) for v in (0, 3, 3, 0)),  # 128-byte swizzle, L2 256 bytes, zeros
            )
        )
        return (ctypes.c_char * 128).from_buffer_copy(ctypes.string_at(at, 128))

    def move(
        source: np.ndarray, target: np.ndarray, column: int, valid: int, row: int, matrix: int
    ) -> tuple[np.ndarray, np.ndarray]:
        box = np.zeros((WINDOW, COLUMNS), np.uint16)
        pointers = [upload(source), upload(target), upload(box)]
        values = [
            bounded(pointers[0], source.shape),
            bounded(pointers[1], target.shape),
            pointers[2],
            *(ctypes.c_uint32(v) for v in coordinates(column, valid, row, matrix)),
        ]
        arguments = (ctypes.c_void_p * len(values))(*(ctypes.addressof(v) for v in values))
        check(cuda.cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, None, arguments, None))
        check(cuda.cuCtxSynchronize())
        check(cuda.cuMemFree_v2(pointers[0]))
        return download(pointers[1], target), download(pointers[2], box)

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
    move = on_gpu() if parser.parse_args().gpu else emulated()
    results = []
    for shape in ((1, 100, 72), (3, 40, 64), (2, 7, 8), (2, 300, 4096)):
        matrices, rows, columns = shape
        for valid in (0, 1, 5, 31, 32):
            for row in (0, 1, 33, rows - valid):
                if row >= 0 and row + valid <= rows:
                    for column in {0, (columns - 1) // 64 * 64}:
                        where = (column, valid, row, matrices - 1)
                        results.append(check_box(move, shape, where))
    print(f"{len(results)} boxes, {results.count(False)} wrong")
    return int(not all(results))


if __name__ == "__main__":
    sys.exit(main())
