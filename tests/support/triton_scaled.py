"""Block-scaled products in Triton and in Gluon, compiled for sm_100 without a GPU.

Needs ``triton``.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.blackwell import (
    TensorMemoryLayout,
    TensorMemoryScalesLayout,
    allocate_tensor_memory,
    fence_async_shared,
    mbarrier,
    tcgen05_mma_scaled,
)


@triton.jit
def dot_scaled(
    a_ptr,
    b_ptr,
    a_scales_ptr,
    b_scales_ptr,
    c_ptr,
    N,
    K,
    A_FORMAT: tl.constexpr,
    B_FORMAT: tl.constexpr,
    BLOCK: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
):
    """C = A B^T: A [M, K], B [N, K] and scales [M, K / BLOCK], [N, K / BLOCK], all bytes; e2m1 is
    packed by two.
    """
    A_PACK: tl.constexpr = 2 if A_FORMAT == "e2m1" else 1
    B_PACK: tl.constexpr = 2 if B_FORMAT == "e2m1" else 1
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    s = tl.arange(0, BK // BLOCK)
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        ka = k // A_PACK + tl.arange(0, BK // A_PACK)
        kb = k // B_PACK + tl.arange(0, BK // B_PACK)
        a = tl.load(a_ptr + m[:, None] * (K // A_PACK) + ka[None, :])
        b = tl.load(b_ptr + n[None, :] * (K // B_PACK) + kb[:, None])
        a_scales = tl.load(a_scales_ptr + m[:, None] * (K // BLOCK) + k // BLOCK + s[None, :])
        b_scales = tl.load(b_scales_ptr + n[:, None] * (K // BLOCK) + k // BLOCK + s[None, :])
        acc = tl.dot_scaled(a, a_scales, A_FORMAT, b, b_scales, B_FORMAT, acc)
    tl.store(c_ptr + m[:, None] * N + n[None, :], acc)


@triton.jit
def described_dot_scaled(
    a,
    b,
    a_scales_ptr,
    b_scales_ptr,
    c_ptr,
    N,
    K,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
):
    """C = A B^T of e4m3 [M, K] and packed e2m1 [N, K] by TMA, which pads the latter to bytes."""
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    s = tl.arange(0, BK // 32)
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        a_scales = tl.load(a_scales_ptr + m[:, None] * (K // 32) + k // 32 + s[None, :])
        b_scales = tl.load(b_scales_ptr + n[:, None] * (K // 32) + k // 32 + s[None, :])
        a_block = a.load([tl.program_id(0) * BM, k])
        b_block = b.load([tl.program_id(1) * BN, k // 2])
        acc = tl.dot_scaled(a_block, a_scales, "e4m3", b_block.T, b_scales, "e2m1", acc)
    tl.store(c_ptr + m[:, None] * N + n[None, :], acc)


@gluon.jit
def mma_scaled(
    a_ptr,
    b_ptr,
    a_scales_ptr,
    b_scales_ptr,
    c_ptr,
    FORMAT: gl.constexpr,
    BLOCK: gl.constexpr,
    M: gl.constexpr,
    N: gl.constexpr,
    K: gl.constexpr,
):
    """The same for one tile and one MMA; scales are stored to tensor memory."""
    PACK: gl.constexpr = 2 if FORMAT == "e2m1" else 1
    rows: gl.constexpr = gl.BlockedLayout([1, 16], [8, 4], [gl.num_warps(), 1], [1, 0])
    m = gl.arange(0, M, gl.SliceLayout(1, rows))
    n = gl.arange(0, N, gl.SliceLayout(1, rows))
    k = gl.arange(0, K // PACK, gl.SliceLayout(0, rows))
    shared: gl.constexpr = gl.NVMMASharedLayout(128, 8, 2)
    a_bytes = gl.load(a_ptr + m[:, None] * (K // PACK) + k[None, :])
    b_bytes = gl.load(b_ptr + n[:, None] * (K // PACK) + k[None, :])
    a = gl.allocate_shared_memory(a_ptr.dtype.element_ty, [M, K // PACK], shared, a_bytes)
    b = gl.allocate_shared_memory(b_ptr.dtype.element_ty, [N, K // PACK], shared, b_bytes)

    S: gl.constexpr = K // BLOCK
    scales: gl.constexpr = TensorMemoryScalesLayout()
    a_scales = allocate_tensor_memory(a_scales_ptr.dtype.element_ty, [M, S], scales)
    b_scales = allocate_tensor_memory(b_scales_ptr.dtype.element_ty, [N, S], scales)
    flat: gl.constexpr = gl.BlockedLayout([1, S], [32, 1], [gl.num_warps(), 1], [1, 0])
    s = gl.arange(0, S, gl.SliceLayout(0, flat))
    am = gl.arange(0, M, gl.SliceLayout(1, flat))
    bn = gl.arange(0, N, gl.SliceLayout(1, flat))
    a_loaded = gl.load(a_scales_ptr + am[:, None] * S + s[None, :])
    b_loaded = gl.load(b_scales_ptr + bn[:, None] * S + s[None, :])
    a_scales.store(gl.convert_layout(a_loaded, a_scales.get_reg_layout()))
    b_scales.store(gl.convert_layout(b_loaded, b_scales.get_reg_layout()))

    acc = allocate_tensor_memory(gl.float32, [M, N], TensorMemoryLayout((M, N), col_stride=1))
    done = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(done, count=1)
    fence_async_shared()
    tcgen05_mma_scaled(
        a,
        b.permute((1, 0)),
        acc,
        a_scales,
        b_scales,
        FORMAT,
        FORMAT,
        use_acc=False,
        mbarriers=[done],
    )
    mbarrier.wait(done, phase=0)
    mbarrier.invalidate(done)
    c = gl.convert_layout(acc.load(), rows)
    cn = gl.arange(0, N, gl.SliceLayout(0, rows))
    gl.store(c_ptr + m[:, None] * N + cn[None, :], c)
