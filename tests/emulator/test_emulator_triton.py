"""Kernels that Triton compiled for Ampere, Hopper and Blackwell, in the emulator.

Optional: needs ``triton``. Another compiler's code is an outside check of the ordinary
instructions.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from emulator_cases import requires_emulator

from jax_bwgemm import emulator

pytest.importorskip("triton", reason="triton is not installed")
pytestmark = [*requires_emulator, pytest.mark.parametrize("capability", [80, 90, 100])]


def launch(
    name: str,
    args: dict[str, tuple[str, Any]],
    constants: dict[str, int],
    capability: int,
    grid: tuple[int, ...],
) -> None:
    """Compiles and runs a kernel of triton_kernels; `args` are (Triton type, value) by name."""
    import triton_kernels

    types = {key: kind for key, (kind, _) in args.items()}
    compiled = triton_kernels.compile_kernel(
        getattr(triton_kernels, name), types, constants, capability
    )
    values = [value for _, value in args.values()]
    values += [0] * (compiled.parameters - len(values))  # scratch pointers, unused here
    emulator.Module(compiled.ptx).launch(
        compiled.name,
        *values,
        grid=grid,
        block=compiled.threads,
        shared_bytes=compiled.shared_bytes,
    )


def test_softmax(capability: int) -> None:
    x = np.random.default_rng(0).standard_normal((7, 300)).astype(np.float32)
    out = np.zeros_like(x)
    args = {"out_ptr": ("*fp32", out), "in_ptr": ("*fp32", x), "columns": ("i32", 300)}
    launch("softmax", args, {"BLOCK": 512}, capability, (7,))
    e = np.exp(x - x.max(1, keepdims=True))
    np.testing.assert_allclose(out, e / e.sum(1, keepdims=True), rtol=1e-5)


@pytest.mark.parametrize(("dtype", "kind"), [(np.float16, "*fp16"), (np.float32, "*fp32")])
def test_matmul_of_integers_is_exact(capability: int, dtype: type, kind: str) -> None:
    m, n, k = 100, 136, 200
    rng = np.random.default_rng(1)
    a, b = (rng.integers(-3, 4, shape).astype(dtype) for shape in ((m, k), (k, n)))
    out = np.full((m, n), np.nan, np.float32)
    args = {"a_ptr": (kind, a), "b_ptr": (kind, b), "c_ptr": ("*fp32", out)}
    args |= {"M": ("i32", m), "N": ("i32", n), "K": ("i32", k)}
    launch("matmul", args, {"BM": 64, "BN": 64, "BK": 32}, capability, (2, 3))
    np.testing.assert_array_equal(out, a.astype(np.float32) @ b.astype(np.float32))


def test_attention(capability: int) -> None:
    length, dim = 128, 64
    rng = np.random.default_rng(2)
    q, k, v = ((rng.standard_normal((length, dim)) / 2).astype(np.float16) for _ in range(3))
    out = np.zeros((length, dim), np.float32)
    args = {"q_ptr": ("*fp16", q), "k_ptr": ("*fp16", k), "v_ptr": ("*fp16", v)}
    args |= {"out_ptr": ("*fp32", out), "length": ("i32", length)}
    args |= {"scale": ("fp32", np.float32(0.125))}
    launch("attention", args, {"D": dim, "BM": 64, "BN": 32}, capability, (2,))
    s = q.astype(np.float32) @ k.astype(np.float32).T * 0.125
    s[np.triu_indices(length, 1)] = -np.inf
    p = np.exp(s - s.max(1, keepdims=True))
    # The probabilities are rounded to f16 before the second product.
    np.testing.assert_allclose(out, p / p.sum(1, keepdims=True) @ v, atol=1e-3)


def test_integers(capability: int) -> None:
    n, bins = 256, 32
    x = np.random.default_rng(3).integers(0, 1000, n).astype(np.int32)
    out, counts = np.zeros((4, n), np.int32), np.zeros(bins + 2, np.int32)
    args = {"in_ptr": ("*i32", x), "out_ptr": ("*i32", out), "counts_ptr": ("*i32", counts)}
    launch("integers", args, {"N": n, "BINS": bins}, capability, (1,))
    wide = x.astype(np.int64)
    np.testing.assert_array_equal(out[0], np.sort(x))
    np.testing.assert_array_equal(out[1], np.cumsum(x))
    np.testing.assert_array_equal(out[2], x[::-1])
    np.testing.assert_array_equal(out[3], (wide * wide >> 32) // 7 + wide % 5)
    np.testing.assert_array_equal(counts[:bins], np.bincount(x % bins, minlength=bins))
    np.testing.assert_array_equal(counts[bins:], [x[::2].sum(), x[1::2].sum()])


def test_functions(capability: int) -> None:
    n = 256
    x = (np.random.default_rng(4).standard_normal(n) * 3).astype(np.float32)
    out = np.zeros((10, n), np.float32)
    args = {"in_ptr": ("*fp32", x), "out_ptr": ("*fp32", out)}
    launch("functions", args, {"N": n}, capability, (1,))
    d = x.astype(np.float64)
    exact = [
        np.sin(d),
        np.exp2(d),
        np.log(abs(d) + 1),
        1 / (1 + np.exp(-d)),
        np.vectorize(math.erf)(d),
        1 / np.sqrt(abs(d) + 0.5),
        d / (d * d + 1),
    ]
    for result, expected in zip(out, exact, strict=False):
        np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-6)
    # Half a unit in the last of 8, 11 and 3 significant bits.
    for result, bits in zip(out[7:], (8, 11, 3), strict=True):
        assert (abs(result - x) <= abs(x) * 2.0**-bits + 2.0**-17).all()
        assert (result != x).any()
