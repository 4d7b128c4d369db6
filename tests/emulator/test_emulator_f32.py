"""Two f32 operands through the public functions, on the emulated kernels of their precision."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from emulator_cases import emulated, requires_emulator
from numerics import F32_PRODUCTS

import jax_bwgemm as bw

pytestmark = [
    *requires_emulator,
    pytest.mark.skipif(
        not any(k.splits_both for k in emulated("sm90")),
        reason="the emulator was not built with kernels of two f32 operands",
    ),
]

SHAPES = (24, 40), (40, 72)


def emulated_product(a: Any, b: Any, precision: str) -> jax.Array:
    with bw.config.target("sm90"):
        return bw.matmul(a, b, precision=precision, implementation="emulator")


def normals(*shapes: tuple[int, ...]) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.standard_normal(shape).astype(np.float32) for shape in shapes]


def assert_close(got: Any, want: np.ndarray, precision: str) -> None:
    assert got.dtype == jnp.float32
    error = np.abs(np.asarray(got, np.float64) - want).max()
    assert error <= F32_PRODUCTS[precision] * np.sqrt(np.mean(want**2))


@pytest.mark.parametrize("precision", F32_PRODUCTS)
def test_sizes_that_are_padded(precision: str) -> None:
    a, b = normals((33, 70), (70, 129))
    assert_close(emulated_product(a, b, precision), np.float64(a) @ np.float64(b), precision)


@pytest.mark.parametrize("mapped", [(0, None), (None, 0), (0, 0)], ids=str)
def test_batches_of_which_one_operand_may_be_shared(mapped: tuple[int | None, int | None]) -> None:
    a, b = normals(*(s if m is None else (3, *s) for s, m in zip(SHAPES, mapped, strict=True)))
    got = jax.vmap(lambda x, y: emulated_product(x, y, "highest"), mapped)(a, b)
    assert_close(got, np.float64(a) @ np.float64(b), "highest")


@pytest.mark.parametrize("precision", F32_PRODUCTS)
def test_gradients_have_the_precision_of_the_product(precision: str) -> None:
    a, b, cotangent = normals((24, 40), (40, 72), (24, 72))
    _, transposed = jax.vjp(lambda x, y: emulated_product(x, y, precision), a, b)
    da, db = transposed(jnp.asarray(cotangent))
    assert_close(da, np.float64(cotangent) @ np.float64(b).T, precision)
    assert_close(db, np.float64(a).T @ np.float64(cotangent), precision)
