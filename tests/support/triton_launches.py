"""Kernels that tests launch as Triton's users do. Needs ``triton``."""

from __future__ import annotations

import triton
import triton.language as tl
from triton.tools.ragged_tma import load_ragged, store_ragged


@triton.jit
def scaled_sum(x_ptr, y_ptr, out_ptr, n, alpha, BLOCK: tl.constexpr):
    """out = alpha x + y, or alpha x without y."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.load(x_ptr + i, mask=i < n).to(tl.float32) * alpha
    if y_ptr is not None:
        total += tl.load(y_ptr + i, mask=i < n)
    tl.store(out_ptr + i, total, mask=i < n)


@triton.jit
def incremented(x_ptr, WAITS: tl.constexpr, BLOCK: tl.constexpr):
    """x += 1, behind the end of the launch before if it waits for that."""
    i = tl.arange(0, BLOCK)
    if WAITS:
        tl.extra.cuda.gdc_wait()
    tl.store(x_ptr + i, tl.load(x_ptr + i) + 1)


@triton.jit
def scalars(out_ptr, pair, flag):
    """The values of plain arguments."""
    tl.store(out_ptr, pair[0].to(tl.float64))
    tl.store(out_ptr + 1, pair[1].to(tl.float64))
    tl.store(out_ptr + 2, tl.where(flag, 1.0, 0.0).to(tl.float64))


@triton.jit
def described_matmul(a, b, c, K, BLOCK: tl.constexpr):
    """C = A B by TMA, one block of C to a program."""
    m, n = tl.program_id(0) * BLOCK, tl.program_id(1) * BLOCK
    total = tl.zeros((BLOCK, BLOCK), tl.float32)
    for k in range(0, K, BLOCK):
        total = tl.dot(a.load([m, k]), b.load([k, n]), total)
    c.store([m, n], total)


@triton.jit
def block_sums(a_ptr, out_ptr, M, N, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Sums of blocks of rows, through a descriptor that the kernel makes."""
    described = tl.make_tensor_descriptor(
        a_ptr, shape=[M, N], strides=[N, 1], block_shape=[ROWS, COLUMNS]
    )
    block = described.load([tl.program_id(0) * ROWS, 0])
    tl.store(out_ptr + tl.program_id(0), tl.sum(block))


@triton.autotune(
    configs=[triton.Config({"BLOCK": 32}, num_warps=1), triton.Config({"BLOCK": 1024})], key=["n"]
)
@triton.jit
def tuned_copy(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + i, tl.load(x_ptr + i, mask=i < n), mask=i < n)


@triton.jit
def doubled_through_addresses(addresses_ptr, BLOCK: tl.constexpr):
    """Doubles each of the arrays whose addresses are in an array."""
    at = tl.load(addresses_ptr + tl.program_id(0)).to(tl.pointer_type(tl.float32))
    i = tl.arange(0, BLOCK)
    tl.store(at + i, 2.0 * tl.load(at + i))


@triton.jit
def next_rows(source, target, first, count, row):
    """Adds one to rows of a slice of ``count`` rows, and leaves those past it alone."""
    block = load_ragged(source, first, count, [row, 0])
    store_ragged(target, first, count, [row, 0], block + 1)
