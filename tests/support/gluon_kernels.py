"""Blackwell kernels in Triton's Gluon language, compiled for sm_100 without a GPU.

They follow the structure of Gluon's public tutorial on tensor memory and ``tcgen05``: a round trip
through tensor memory, one small MMA, a blocked matrix multiplication, and one with two accumulators
and double-buffered operands. Programs of that structure run on the real chip, so they are a check
of the emulator from outside. Needs ``triton`` (an optional test dependency).
"""

from __future__ import annotations

import dataclasses

import triton
from triton.backends.compiler import GPUTarget
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon._runtime import GluonASTSource
from triton.experimental.gluon.language.nvidia.blackwell import (
    TensorMemoryLayout,
    allocate_tensor_memory,
    fence_async_shared,
    mbarrier,
    tcgen05_commit,
    tcgen05_mma,
    tma,
)


@gluon.jit
def tensor_memory_round_trip(in_ptr, out_ptr, M: gl.constexpr, N: gl.constexpr):
    """Copies [M, N] f32 from in_ptr to out_ptr through tensor memory."""
    warps: gl.constexpr = gl.num_warps()
    rows: gl.constexpr = gl.BlockedLayout([1, 1], [1, 32], [1, warps], [1, 0])
    m = gl.arange(0, M, gl.SliceLayout(1, rows))
    n = gl.arange(0, N, gl.SliceLayout(0, rows))
    offsets = m[:, None] * N + n[None, :]
    layout: gl.constexpr = TensorMemoryLayout((64, 64), col_stride=1)
    tmem = allocate_tensor_memory(gl.float32, [M, N], layout)
    registers: gl.constexpr = tmem.get_reg_layout()
    tmem.store(gl.convert_layout(gl.load(in_ptr + offsets), registers))
    gl.store(out_ptr + offsets, gl.convert_layout(tmem.load(registers), rows))


@gluon.jit
def small_mma(a_desc, b_desc, c_desc, d_desc, LHS_IN_TMEM: gl.constexpr, COMMIT: gl.constexpr):
    """D = A B + C for one tile; A from shared or tensor memory, completion by commit or by the
    MMA's own barrier.
    """
    a = gl.allocate_shared_memory(a_desc.dtype, a_desc.block_type.shape, a_desc.layout)
    b = gl.allocate_shared_memory(b_desc.dtype, b_desc.block_type.shape, b_desc.layout)
    c = gl.allocate_shared_memory(c_desc.dtype, c_desc.block_type.shape, c_desc.layout)
    loaded = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    done = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(loaded, count=1)
    mbarrier.init(done, count=1)
    nbytes: gl.constexpr = (
        a_desc.block_type.nbytes + b_desc.block_type.nbytes + c_desc.block_type.nbytes
    )
    mbarrier.expect(loaded, nbytes)
    tma.async_load(a_desc, [0, 0], loaded, a)
    tma.async_load(b_desc, [0, 0], loaded, b)
    tma.async_load(c_desc, [0, 0], loaded, c)
    mbarrier.wait(loaded, phase=0)

    M: gl.constexpr = d_desc.block_type.shape[0]
    N: gl.constexpr = d_desc.block_type.shape[1]
    K: gl.constexpr = a_desc.block_type.shape[1]
    block_m: gl.constexpr = 128 if M > 128 else M
    acc = allocate_tensor_memory(gl.float32, [M, N], TensorMemoryLayout((block_m, N), col_stride=1))
    acc.store(c.load(acc.get_reg_layout()))
    if LHS_IN_TMEM:
        lhs = allocate_tensor_memory(
            a_desc.dtype, [M, K], TensorMemoryLayout((block_m, K), col_stride=1)
        )
        lhs.store(a.load(lhs.get_reg_layout()))
    else:
        lhs = a
    if COMMIT:
        tcgen05_mma(lhs, b, acc)
        tcgen05_commit(done)
    else:
        tcgen05_mma(lhs, b, acc, mbarriers=[done], mbarrier_preds=[True])
    mbarrier.wait(done, phase=0)
    mbarrier.invalidate(loaded)
    mbarrier.invalidate(done)

    d = gl.allocate_shared_memory(d_desc.dtype, d_desc.block_type.shape, d_desc.layout)
    d.store(acc.load())
    fence_async_shared()
    tma.async_store(d_desc, [0, 0], d)
    tma.store_wait(pendings=0)


@gluon.jit
def blocked_matmul(a_desc, b_desc, c_desc, TRANSPOSE_B: gl.constexpr):
    """C = A B, one block of C per program, one K block in flight."""
    BM: gl.constexpr = c_desc.block_type.shape[0]
    BN: gl.constexpr = c_desc.block_type.shape[1]
    BK: gl.constexpr = a_desc.block_type.shape[1]
    dtype: gl.constexpr = a_desc.dtype
    row = gl.program_id(0) * BM
    column = gl.program_id(1) * BN
    a = gl.allocate_shared_memory(dtype, a_desc.block_type.shape, a_desc.layout)
    b = gl.allocate_shared_memory(dtype, b_desc.block_type.shape, b_desc.layout)
    loaded = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    done = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(loaded, count=1)
    mbarrier.init(done, count=1)
    acc = allocate_tensor_memory(gl.float32, [BM, BN], TensorMemoryLayout((BM, BN), col_stride=1))
    phase = 0
    accumulate = False
    for k in range(0, a_desc.shape[1], BK):
        mbarrier.expect(loaded, a_desc.block_type.nbytes + b_desc.block_type.nbytes)
        tma.async_load(a_desc, [row, k], loaded, a)
        if TRANSPOSE_B:
            tma.async_load(b_desc, [column, k], loaded, b)
        else:
            tma.async_load(b_desc, [k, column], loaded, b)
        mbarrier.wait(loaded, phase=phase)
        if TRANSPOSE_B:
            rhs = b.permute((1, 0))
        else:
            rhs = b
        tcgen05_mma(a, rhs, acc, use_acc=accumulate)
        tcgen05_commit(done)
        mbarrier.wait(done, phase=phase)
        accumulate = True
        phase ^= 1
    mbarrier.invalidate(loaded)
    mbarrier.invalidate(done)
    c = gl.allocate_shared_memory(dtype, c_desc.block_type.shape, c_desc.layout)
    c.store(acc.load().to(dtype))
    fence_async_shared()
    tma.async_store(c_desc, [row, column], c)
    tma.store_wait(pendings=0)


@gluon.jit
def two_accumulator_matmul(a_desc, b_desc, c_desc):
    """C = A B, two vertically adjacent blocks of C per program, operands double-buffered.

    Stage i % 2 holds the K block i of the upper A (and B, on one barrier) and of the lower A (on
    another). Both MMAs of stage i commit to barriers of their own; the stage is filled again, two
    blocks ahead, once they have completed.
    """
    BM: gl.constexpr = c_desc.block_type.shape[0]
    BN: gl.constexpr = c_desc.block_type.shape[1]
    BK: gl.constexpr = a_desc.block_type.shape[1]
    dtype: gl.constexpr = a_desc.dtype
    A_BYTES: gl.constexpr = a_desc.block_type.nbytes
    AB_BYTES: gl.constexpr = a_desc.block_type.nbytes + b_desc.block_type.nbytes
    upper_row = gl.program_id(0) * (2 * BM)
    lower_row = upper_row + BM
    column = gl.program_id(1) * BN
    upper = gl.allocate_shared_memory(dtype, [2] + a_desc.block_type.shape, a_desc.layout)  # noqa: RUF005
    lower = gl.allocate_shared_memory(dtype, [2] + a_desc.block_type.shape, a_desc.layout)  # noqa: RUF005
    b = gl.allocate_shared_memory(dtype, [2] + b_desc.block_type.shape, b_desc.layout)  # noqa: RUF005
    upper_loaded = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    lower_loaded = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    upper_done = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    lower_done = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(2):
        mbarrier.init(upper_loaded.index(i), count=1)
        mbarrier.init(lower_loaded.index(i), count=1)
        mbarrier.init(upper_done.index(i), count=1)
        mbarrier.init(lower_done.index(i), count=1)
    layout: gl.constexpr = TensorMemoryLayout((BM, BN), col_stride=1)
    upper_acc = allocate_tensor_memory(gl.float32, [BM, BN], layout)
    lower_acc = allocate_tensor_memory(gl.float32, [BM, BN], layout)
    blocks = gl.cdiv(a_desc.shape[1], BK)

    for i in gl.static_range(2):
        mbarrier.expect(upper_loaded.index(i), AB_BYTES)
        tma.async_load(a_desc, [upper_row, i * BK], upper_loaded.index(i), upper.index(i))
        tma.async_load(b_desc, [i * BK, column], upper_loaded.index(i), b.index(i))
        mbarrier.expect(lower_loaded.index(i), A_BYTES)
        tma.async_load(a_desc, [lower_row, i * BK], lower_loaded.index(i), lower.index(i))
    for block in range(blocks):
        stage = block % 2
        phase = (block // 2) & 1
        mbarrier.wait(upper_loaded.index(stage), phase)
        tcgen05_mma(upper.index(stage), b.index(stage), upper_acc, use_acc=block > 0)
        tcgen05_commit(upper_done.index(stage))
        mbarrier.wait(lower_loaded.index(stage), phase)
        tcgen05_mma(lower.index(stage), b.index(stage), lower_acc, use_acc=block > 0)
        tcgen05_commit(lower_done.index(stage))
        if block + 2 < blocks:
            k = (block + 2) * BK
            mbarrier.wait(upper_done.index(stage), phase)
            mbarrier.expect(upper_loaded.index(stage), AB_BYTES)
            tma.async_load(a_desc, [upper_row, k], upper_loaded.index(stage), upper.index(stage))
            mbarrier.wait(lower_done.index(stage), phase)
            tma.async_load(b_desc, [k, column], upper_loaded.index(stage), b.index(stage))
            mbarrier.expect(lower_loaded.index(stage), A_BYTES)
            tma.async_load(a_desc, [lower_row, k], lower_loaded.index(stage), lower.index(stage))

    last = blocks - 1
    mbarrier.wait(upper_done.index(last % 2), (last // 2) & 1)
    c = gl.allocate_shared_memory(dtype, c_desc.block_type.shape, c_desc.layout)
    c.store(upper_acc.load().to(dtype))
    fence_async_shared()
    tma.async_store(c_desc, [upper_row, column], c)
    mbarrier.wait(lower_done.index(last % 2), (last // 2) & 1)
    result = lower_acc.load()
    tma.store_wait(pendings=0)
    c.store(result.to(dtype))
    fence_async_shared()
    tma.async_store(c_desc, [lower_row, column], c)
    tma.store_wait(pendings=0)


@dataclasses.dataclass(frozen=True)
class Tile:
    """A tensor-descriptor argument: element type (``"fp16"``, ``"fp32"``), block and rank-2
    layout.
    """

    dtype: str
    block: tuple[int, int]

    @property
    def layout(self) -> gl.NVMMASharedLayout:
        element = {"fp16": gl.float16, "fp32": gl.float32}[self.dtype]
        return gl.NVMMASharedLayout.get_default_for(list(self.block), element)

    @property
    def signature(self) -> str:
        return f"tensordesc<{self.dtype}[{self.block[0]},{self.block[1]}],{self.layout!r}>"


@dataclasses.dataclass(frozen=True)
class Compiled:
    """PTX of one kernel and what a launcher has to know.

    ``tensor_maps`` has, for each `Tile` argument, the box of its tensor map and its swizzle mode.
    """

    ptx: str
    name: str
    threads: int
    shared_bytes: int
    tensor_maps: tuple[tuple[tuple[int, ...], str], ...]


def compile_kernel(
    kernel: object,
    arguments: dict[str, str | Tile],
    constants: dict[str, int | bool],
    num_warps: int,
) -> Compiled:
    """Compiles for compute capability 10.0.

    Args:
        kernel: One of the functions above.
        arguments: Run-time arguments in order: a `Tile` or a Triton type such as ``"*fp32"``.
        constants: Values of the constexpr parameters.
        num_warps: Warps per CTA.
    """
    signature = {n: a.signature if isinstance(a, Tile) else a for n, a in arguments.items()}
    signature |= dict.fromkeys(constants, "constexpr")
    source = GluonASTSource(
        fn=kernel,
        signature=signature,
        constexprs={(list(signature).index(n),): v for n, v in constants.items()},
    )
    compiled = triton.compile(
        source,
        target=GPUTarget("cuda", 100, 32),
        options={"num_warps": num_warps, "enable_fp_fusion": True},
    )
    metadata = compiled.metadata
    return Compiled(
        ptx=compiled.asm["ptx"],
        name=metadata.name,
        threads=32 * num_warps,
        shared_bytes=metadata.shared,
        tensor_maps=tuple(
            (tuple(m["block_size"]), ("none", "32B", "64B", "128B")[m["swizzle"]])
            for m in metadata.tensordesc_meta or ()
        ),
    )
