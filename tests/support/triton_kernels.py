"""Ordinary Triton kernels, compiled to PTX without a GPU for several architectures.

What the compiler emits for them covers most of the emulator's ordinary instructions: reductions by
shuffles, ``cp.async``, ``ldmatrix`` and ``mma.sync`` (sm_80), ``wgmma`` (sm_90), ``tcgen05``
(sm_100), approximate functions, atomics, narrow floats. Needs ``triton`` (an optional test
dependency).
"""

from __future__ import annotations

import dataclasses

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource


@triton.jit
def softmax(out_ptr, in_ptr, columns, BLOCK: tl.constexpr):
    """One row to a program."""
    row = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    x = tl.load(in_ptr + row * columns + column, mask=column < columns, other=-float("inf"))
    e = tl.exp(x - tl.max(x, 0))
    tl.store(out_ptr + row * columns + column, e / tl.sum(e, 0), mask=column < columns)


@triton.jit
def matmul(
    a_ptr, b_ptr, c_ptr, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr
):  # fmt: skip
    """C = A B, row major, any shape."""
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    k = tl.arange(0, BK)
    total = tl.zeros((BM, BN), tl.float32)
    for begin in range(0, K, BK):
        in_k = begin + k
        a_mask = (m[:, None] < M) & (in_k[None, :] < K)
        b_mask = (in_k[:, None] < K) & (n[None, :] < N)
        a = tl.load(a_ptr + m[:, None] * K + in_k[None, :], mask=a_mask, other=0.0)
        b = tl.load(b_ptr + in_k[:, None] * N + n[None, :], mask=b_mask, other=0.0)
        total = tl.dot(a, b, total)
    mask = (m[:, None] < M) & (n[None, :] < N)
    tl.store(c_ptr + m[:, None] * N + n[None, :], total, mask=mask)


@triton.jit
def attention(
    q_ptr, k_ptr, v_ptr, out_ptr, length, scale, D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr
):  # fmt: skip
    """Causal attention of one head, softmax on the fly."""
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    d = tl.arange(0, D)
    q = tl.load(q_ptr + m[:, None] * D + d[None, :])
    top = tl.full((BM,), -float("inf"), tl.float32)
    weight = tl.zeros((BM,), tl.float32)
    total = tl.zeros((BM, D), tl.float32)
    for begin in range(0, length, BN):
        n = begin + tl.arange(0, BN)
        k = tl.load(k_ptr + n[:, None] * D + d[None, :])
        v = tl.load(v_ptr + n[:, None] * D + d[None, :])
        s = tl.where(m[:, None] >= n[None, :], tl.dot(q, tl.trans(k)) * scale, -float("inf"))
        new_top = tl.maximum(top, tl.max(s, 1))
        p = tl.exp(s - new_top[:, None])
        shrink = tl.exp(top - new_top)
        weight = weight * shrink + tl.sum(p, 1)
        total = tl.dot(p.to(tl.float16), v, total * shrink[:, None])
        top = new_top
    tl.store(out_ptr + m[:, None] * D + d[None, :], total / weight[:, None])


@triton.jit
def integers(in_ptr, out_ptr, counts_ptr, N: tl.constexpr, BINS: tl.constexpr):
    """Sorted, prefix sums, reversed, divided; a histogram and the sum by atomics."""
    i = tl.arange(0, N)
    x = tl.load(in_ptr + i)
    u = x.to(tl.uint32)
    tl.store(out_ptr + i, tl.sort(x))
    tl.store(out_ptr + N + i, tl.cumsum(x, 0))
    tl.store(out_ptr + 2 * N + i, tl.flip(x))
    tl.store(out_ptr + 3 * N + i, (tl.umulhi(u, u) // 7 + u % 5).to(tl.int32))
    tl.store(counts_ptr + tl.arange(0, BINS), tl.histogram(x % BINS, BINS))
    tl.atomic_add(counts_ptr + BINS + i % 2, x)


@triton.jit
def functions(in_ptr, out_ptr, N: tl.constexpr):
    """Elementary functions and narrow formats, one block of N results each."""
    i = tl.arange(0, N)
    x = tl.load(in_ptr + i)
    tl.store(out_ptr + i, tl.sin(x))
    tl.store(out_ptr + N + i, tl.exp2(x))
    tl.store(out_ptr + 2 * N + i, tl.log(tl.abs(x) + 1))
    tl.store(out_ptr + 3 * N + i, tl.sigmoid(x))
    tl.store(out_ptr + 4 * N + i, tl.erf(x))
    tl.store(out_ptr + 5 * N + i, tl.rsqrt(tl.abs(x) + 0.5))
    tl.store(out_ptr + 6 * N + i, tl.math.div_rn(x, x * x + 1.0))
    tl.store(out_ptr + 7 * N + i, x.to(tl.bfloat16).to(tl.float32))
    tl.store(out_ptr + 8 * N + i, x.to(tl.float16).to(tl.float32))
    tl.store(out_ptr + 9 * N + i, x.to(tl.float8e5).to(tl.float32))


@dataclasses.dataclass(frozen=True)
class Compiled:
    """PTX and what its launch needs."""

    ptx: str
    name: str
    threads: int
    shared_bytes: int
    parameters: int


def compile_kernel(
    kernel: object, arguments: dict[str, str], constants: dict[str, int], capability: int
) -> Compiled:
    """Compiles with four warps for compute capability `capability` / 10."""
    signature = arguments | dict.fromkeys(constants, "constexpr")
    compiled = triton.compile(
        ASTSource(kernel, signature, constants, {}),
        target=GPUTarget("cuda", capability, 32),
        options={"num_warps": 4, "num_stages": 3, "enable_fp_fusion": True},
    )
    ptx = compiled.asm["ptx"]
    entry = ptx[ptx.index(".entry") :]
    return Compiled(
        ptx,
        compiled.metadata.name,
        128,
        compiled.metadata.shared,
        entry[: entry.index("{")].count(".param"),
    )
