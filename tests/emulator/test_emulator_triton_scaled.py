"""Block-scaled products that Triton and Gluon compiled for Blackwell: an outside check of scales,
their places in tensor memory and the formats.

Optional: needs ``triton`` 3.9.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from emulator_cases import requires_emulator

from jax_bwgemm import emulator

pytest.importorskip("triton", minversion="3.9", reason="triton 3.9 or newer is not installed")
pytestmark = [
    *requires_emulator,
    pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION"),
]
FLOAT8 = {"e4m3": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2}


def operand(rng: np.random.Generator, kind: str, rows: int, k: int) -> tuple[np.ndarray, ...]:
    """Small integers, and the same as a kernel takes them: e2m1 two to a byte, the first below."""
    values = rng.integers(-2, 3, (rows, k)).astype(np.float32)
    if kind != "e2m1":
        return values, values.astype(FLOAT8[kind])
    nibbles = values.astype(ml_dtypes.float4_e2m1fn).view(np.uint8)
    return values, nibbles[:, ::2] | nibbles[:, 1::2] << 4


def scales(rng: np.random.Generator, block: int, rows: int, k: int) -> tuple[np.ndarray, ...]:
    """Powers of two for every element, and the same as UE8M0, or UE4M3 of blocks of 16."""
    exponents = rng.integers(-1, 2, (rows, k // block))
    powers = np.exp2(exponents.astype(np.float32))
    coded = (exponents + 127).astype(np.uint8)
    if block == 16:
        coded = powers.astype(ml_dtypes.float8_e4m3fn)
    return np.repeat(powers, block, 1), coded


@pytest.mark.parametrize(
    ("a_kind", "b_kind", "block"),
    [
        ("e4m3", "e4m3", 32),
        ("e5m2", "e4m3", 32),
        ("e4m3", "e2m1", 32),
        ("e2m1", "e2m1", 32),
        ("e2m1", "e2m1", 16),
    ],
)
def test_dot_scaled(a_kind: str, b_kind: str, block: int) -> None:
    import triton_scaled

    from jax_bwgemm.emulator.triton import driver

    m, n, k = 256, 128, 256
    rng = np.random.default_rng(0)
    (a, a_bytes), (b, b_bytes) = operand(rng, a_kind, m, k), operand(rng, b_kind, n, k)
    (sa, a_scales), (sb, b_scales) = scales(rng, block, m, k), scales(rng, block, n, k)
    c = np.full((m, n), np.nan, np.float32)
    arrays = (a_bytes.view(np.uint8), b_bytes.view(np.uint8), a_scales, b_scales, c)
    formats = {"A_FORMAT": a_kind, "B_FORMAT": b_kind, "BLOCK": block}
    with driver("sm100"):
        triton_scaled.dot_scaled[(2, 1)](*arrays, n, k, **formats, BM=128, BN=128, BK=128)
    np.testing.assert_array_equal(c, (a * sa) @ (b * sb).T)
    stats = emulator.last_launch()
    assert stats is not None
    assert stats.mma_flops == 2 * m * n * k


def at_address(array: np.ndarray, rest: int) -> np.ndarray:
    """A copy whose address is `rest` more than a multiple of 32."""
    buffer = np.empty(array.nbytes + 32, np.uint8)
    start = (rest - buffer.ctypes.data) % 32
    copy = buffer[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def test_descriptors_of_padded_operands_need_an_aligned_array() -> None:
    import triton_scaled
    from triton.tools.tensor_descriptor import TensorDescriptor

    from jax_bwgemm.emulator.triton import Array, aligned, driver

    m, n, k = 128, 128, 256
    rng = np.random.default_rng(2)
    (a, a_bytes), (b, b_bytes) = operand(rng, "e4m3", m, k), operand(rng, "e2m1", n, k)
    (sa, a_scales), (sb, b_scales) = scales(rng, 32, m, k), scales(rng, 32, n, k)
    c = np.full((m, n), np.nan, np.float32)

    def launch(b_array: np.ndarray) -> None:
        described = (
            TensorDescriptor.from_tensor(Array(a_bytes), [128, 128]),
            TensorDescriptor.from_tensor(Array(b_array), [128, 64]),
        )
        triton_scaled.described_dot_scaled[(1,)](
            *described, a_scales, b_scales, c, n, k, BM=128, BN=128, BK=128
        )

    odd = at_address(b_bytes.view(np.uint8), 16)
    message = (
        r"tensor descriptor 'b': globalAddress must be a multiple of 32, got \d+\. "
        r"NumPy promises 16; jax_bwgemm\.emulator\.triton\.aligned\(array\) is a copy at 128"
    )
    with driver("sm100"):
        with pytest.raises(ValueError, match=message):
            launch(odd)
        launch(aligned(odd))
    np.testing.assert_array_equal(c, (a * sa) @ (b * sb).T)
    assert aligned(odd).ctypes.data % 128 == 0


@pytest.mark.parametrize(
    ("kind", "block"), [("e4m3", 32), ("e5m2", 32), ("e2m1", 32), ("e2m1", 16)]
)
def test_gluon_mma_scaled(kind: str, block: int) -> None:
    import triton_scaled

    from jax_bwgemm.emulator.triton import driver

    m, n, k = 128, 128, 256 if kind == "e2m1" else 128
    rng = np.random.default_rng(1)
    (a, a_bytes), (b, b_bytes) = operand(rng, kind, m, k), operand(rng, kind, n, k)
    (sa, a_scales), (sb, b_scales) = scales(rng, block, m, k), scales(rng, block, n, k)
    c = np.full((m, n), np.nan, np.float32)
    with driver("sm100"):
        triton_scaled.mma_scaled[(1,)](
            a_bytes, b_bytes, a_scales, b_scales, c, FORMAT=kind, BLOCK=block, M=m, N=n, K=k
        )
    np.testing.assert_array_equal(c, (a * sa) @ (b * sb).T)
    stats = emulator.last_launch()
    assert stats is not None
    assert stats.mma_flops == 2 * m * n * k
