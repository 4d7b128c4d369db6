"""What bench_scaled.py compares: this package, XLA's products and torch's, on the same numbers.

Every candidate has operands that were quantized before, but for `bf16` products.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from common.timing import Candidate
from jax import lax

import jax_bwgemm as bw

# Layouts of both operands, accumulation.
KINDS = {
    "tensor": ("tensor", "tensor", "fast"),
    "row": ("row", "row", "fast"),
    "blockwise": ("1x128", "128x128", "promoted"),
    "dW": ("1x128", "1x128", "promoted"),
    "dW 2d": ("128x128", "1x128", "promoted"),
    "tensor promoted": ("tensor", "tensor", "promoted"),
}


class Unsupported(Exception):
    """A candidate that cannot run here; the message says why."""


@dataclasses.dataclass(frozen=True)
class ScaledProblem:
    """Sizes of D[m, n] = A[m, k] x transpose(B[n, k])."""

    m: int
    n: int
    k: int

    def __str__(self) -> str:
        return f"{self.m},{self.n},{self.k}"

    @property
    def flops(self) -> int:
        return 2 * self.m * self.n * self.k

    @property
    def bytes(self) -> int:
        """Of one call with 8-bit operands and a 16-bit result."""
        return (self.m + self.n) * self.k + 2 * self.m * self.n


PROBLEMS = tuple(
    ScaledProblem(*sizes)
    for sizes in (
        (4096, 7168, 16384),
        (4096, 4096, 7168),
        (4096, 24576, 1536),
        (4096, 32768, 512),
        (4096, 7168, 2048),
        (8192, 8192, 8192),
        (128, 7168, 16384),
        (64, 2112, 7168),
        (16, 7168, 16384),
    )
)
SMALL = (ScaledProblem(48, 64, 144), ScaledProblem(16, 32, 256))

Operands = Sequence[tuple[jax.Array, jax.Array]]


def _candidate(name: str, function: Callable[..., Any], pairs: Sequence[Any]) -> Candidate:
    compiled = jax.jit(function).lower(*pairs[0]).compile()
    call = functools.partial(lambda f, i: f(*pairs[i]), compiled)
    return Candidate(name, call, jax.block_until_ready, len(pairs))


def quantized(pairs: Operands, kind: str) -> list[tuple[bw.ScaledArray, bw.ScaledArray]]:
    """The operands in the layouts of a kind."""
    a, b, _ = KINDS[kind]

    @jax.jit
    def both(x: jax.Array, w: jax.Array) -> Any:
        return bw.quantize(x, a), bw.quantize(w, b)

    return [both(*pair) for pair in pairs]


def ours(kind: str, pairs: Sequence[Any], implementation: str | None) -> Candidate:
    """`scaled_matmul`."""
    accumulation = KINDS[kind][2]
    function = functools.partial(
        bw.scaled_matmul, accumulation=accumulation, implementation=implementation
    )
    return _candidate(f"bwgemm {kind}", function, pairs)


def ours_bf16(pairs: Operands, implementation: str | None) -> Candidate:
    """`dot_general` of the numbers that were quantized: no transpose, which would be a copy."""
    product = functools.partial(
        bw.dot_general, dimension_numbers=(((1,), (1,)), ((), ())), implementation=implementation
    )
    return _candidate("bwgemm bf16", product, pairs)


def xla_bf16(pairs: Operands) -> Candidate:
    """XLA's product of them."""
    return _candidate("xla bf16", lambda x, w: x @ w.T, pairs)


def xla_raw(pairs: Sequence[Any]) -> Candidate:
    """XLA's product of 8-bit values, without scales: what its fast path needs."""

    def raw(a: bw.ScaledArray, b: bw.ScaledArray) -> jax.Array:
        dimensions = (((1,), (1,)), ((), ()))
        return lax.dot_general(a.values, b.values, dimensions, preferred_element_type=jnp.bfloat16)

    return _candidate("xla raw fp8", raw, pairs)


def torch(kind: str, pairs: Sequence[Any]) -> Candidate:
    """`torch._scaled_mm` with the scales of a kind, on the same buffers.

    Raises:
        Unsupported: torch or its product is not there, or it refuses.
    """
    try:
        import torch as th
    except ModuleNotFoundError:
        raise Unsupported("torch is not installed") from None
    if not th.cuda.is_available():
        raise Unsupported("this torch has no CUDA")

    def values(x: bw.ScaledArray) -> Any:
        bits = lax.bitcast_convert_type(x.values, jnp.uint8)
        return th.from_dlpack(bits).view(th.float8_e4m3fn)

    def scales(x: bw.ScaledArray, side: int) -> Any:
        found = th.from_dlpack(x.scales)
        if x.scaling == "tensor":
            return found.reshape(())
        if x.scaling == "row":
            return found[:, None] if side == 0 else found[None, :]
        return found.t()  # [R, K/128] with R contiguous; of 128x128 [K/128, N/128], K contiguous

    calls = [(values(a), values(b).t(), scales(a, 0), scales(b, 1)) for a, b in pairs]

    def run(i: int) -> Any:
        a, b, a_scales, b_scales = calls[i]
        return th._scaled_mm(
            a,
            b,
            scale_a=a_scales,
            scale_b=b_scales,
            out_dtype=th.bfloat16,
            use_fast_accum=KINDS[kind][2] == "fast",
        )

    try:
        run(0)
        th.cuda.synchronize()
    except (RuntimeError, ValueError) as error:
        raise Unsupported(str(error).strip().split("\n", 1)[0]) from None
    return Candidate(f"torch {kind}", run, lambda _: th.cuda.synchronize(), len(calls))


def difference(result: Any, pair: tuple[Any, Any]) -> float:
    """1 - 2xy / (xx + yy) of a result and the f32 product of what its operands stand for."""
    wide = [bw.dequantize(x) if isinstance(x, bw.ScaledArray) else x for x in pair]

    @jax.jit
    def compare(x: jax.Array, w: jax.Array, got: jax.Array) -> jax.Array:
        x, w, got = (v.astype(jnp.float32) for v in (x, w, got))
        want = lax.dot_general(x, w, (((1,), (1,)), ((), ())), precision=lax.Precision.HIGHEST)
        return 1 - 2 * jnp.sum(got * want) / jnp.sum(got * got + want * want)

    if not isinstance(result, jax.Array):  # torch's
        result = jax.dlpack.from_dlpack(result)
    return float(compare(*wide, result))
