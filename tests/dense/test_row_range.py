"""Two f32 operands of precision HIGHEST: terms of f16 where rows are narrow, of bf16 elsewhere.

Rows of the left operand and columns of the right one are what "rows" means in cc/dense/row_range.h.
"""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from emulator_cases import requires_emulator
from numerics import assert_exact, exact_factors

import jax_bwgemm as bw
from jax_bwgemm import runtime
from jax_bwgemm.dense.heuristics import F16_TERMS_MIN_K
from jax_bwgemm.product.kernels import Kernel

M, N, K = 72, 136, 264


def kernels() -> list[Any]:
    """A kernel of each tile and storage of the operand that is split in registers, by either way
    to run it.
    """
    found = []
    for implementation, marks in (("emulator", requires_emulator), ("cutlass", [pytest.mark.sm90])):
        tables = {"emulator": runtime.emulated_kernels, "cutlass": runtime.kernels}
        built = {
            (k.swap_ab, k.b_major if k.swap_ab else k.a_major): k
            for k in tables[implementation]()
            if k.term_dtype == "float16"
        }
        found += [
            pytest.param(implementation, k, marks=marks, id=f"{implementation}-{k.name}")
            for k in built.values()
        ] or [pytest.param(implementation, None, marks=marks, id=f"{implementation}: no kernels")]
    return found


every_kernel = pytest.mark.parametrize(("implementation", "kernel"), kernels())


def product(implementation: str, kernel: Kernel, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """By that kernel. a: [M, K] and b: [K, N], or either for each of a batch, stored as it wants
    them.
    """
    dims = (
        (1,) if kernel.a_major == "k" else (0,),
        (0,) if kernel.b_major == "n" else (1,),
    )
    stored = (
        jnp.asarray(a if kernel.a_major == "k" else a.swapaxes(-1, -2)),
        jnp.asarray(b if kernel.b_major == "n" else b.swapaxes(-1, -2)),
    )

    def multiply(x: jax.Array, y: jax.Array) -> jax.Array:
        return bw.dot_general(
            x,
            y,
            (dims, ((), ())),
            precision="highest",
            implementation=implementation,
            config=kernel.name,
        )

    mapped = [0 if x.ndim == 3 else None for x in stored]
    call = multiply if mapped == [None, None] else jax.vmap(multiply, mapped)
    emulated = implementation == "emulator"
    with bw.config.target("sm90", 4) if emulated else contextlib.nullcontext():
        return call(*stored)


def narrow(kernel: Kernel, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Integers whose products are exact in f16's terms: many bits times few, few times many."""
    a, b = np.empty((M, K), np.float32), np.empty((K, N), np.float32)
    exact_factors(np.random.default_rng(seed), a, b, (1, 0), kernel)
    return a, b


@every_kernel
def test_rows_of_any_size_are_scaled(implementation: str, kernel: Kernel) -> None:
    """Powers of two from row to row, some below f32's least normal number, leave sums exact."""
    a, b = narrow(kernel)
    powers = np.linspace(-100, 90, M).astype(int), np.linspace(-45, 30, N).astype(int)
    want = np.ldexp(np.float64(a) @ np.float64(b), powers[0][:, None] + powers[1])
    a = np.ldexp(a, powers[0][:, None]).astype(np.float32)
    b = np.ldexp(b, powers[1]).astype(np.float32)
    a[3], b[:, 5], want[3], want[:, 5] = 0, 0, 0, 0
    with np.errstate(over="ignore", under="ignore"):
        assert_exact(product(implementation, kernel, a, b), want.astype(np.float32))


@every_kernel
@pytest.mark.parametrize("shared", ["", "a", "b"])
def test_every_matrix_of_a_batch_has_its_own_scales(
    implementation: str, kernel: Kernel, shared: str
) -> None:
    matrices = [narrow(kernel, seed) for seed in range(3)]
    a, b = (np.stack(x) for x in zip(*matrices, strict=True))
    a *= np.float32(2.0) ** np.array([[[-20]], [[3]], [[35]]], np.float32)
    b *= np.float32(2.0) ** np.array([[[17]], [[-9]], [[2]]], np.float32)
    if shared:
        a, b = (x[1] if name == shared else x for name, x in zip("ab", (a, b), strict=True))
    want = np.float64(a) @ np.float64(b)
    assert_exact(product(implementation, kernel, a, b), want.astype(np.float32))


@every_kernel
def test_denormal_rows_are_exact(implementation: str, kernel: Kernel) -> None:
    rng = np.random.default_rng(1)
    a = np.ldexp(rng.integers(-(2**10), 2**10, (M, K)), -149).astype(np.float32)
    b = np.float32(2.0**100) * rng.integers(-1, 2, (K, N)).astype(np.float32)
    want = np.float64(a) @ np.float64(b)
    assert_exact(product(implementation, kernel, a, b), want.astype(np.float32))


@every_kernel
@pytest.mark.parametrize("side", ["a", "b"])
def test_a_row_of_many_exponents_is_not_left_to_f16(
    implementation: str, kernel: Kernel, side: str
) -> None:
    """Its small values are all that the other operand multiplies."""
    rng = np.random.default_rng(2)
    a = rng.integers(-300, 301, (M, K)).astype(np.float32)
    b = rng.integers(-300, 301, (K, N)).astype(np.float32)
    if side == "a":
        a[M - 1, 7], b[7] = 2.0**60, 0
    else:
        b[7, N - 1], a[:, 7] = 2.0**60, 0
    want = np.float64(a) @ np.float64(b)
    assert_exact(product(implementation, kernel, a, b), want.astype(np.float32))


@every_kernel
@pytest.mark.parametrize("alone", [False, True])
def test_infinities_and_nan_are_those_of_the_product(
    implementation: str, kernel: Kernel, alone: bool
) -> None:
    """Beside other values of a row, and where nothing else is in it but zeros."""
    a, b = narrow(kernel)
    if alone:
        a[1], b[2] = 0, 1
    else:
        a[3, 4], b[5, 6] = np.nan, -np.inf
    a[1, 2] = np.inf
    with np.errstate(invalid="ignore"):
        want = np.float64(a) @ np.float64(b)
    got = np.float64(product(implementation, kernel, a, b))
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    infinite = np.isinf(want)
    np.testing.assert_array_equal(np.isinf(got), infinite)
    np.testing.assert_array_equal(got[infinite], want[infinite])


@every_kernel
def test_errors_are_those_of_f32(implementation: str, kernel: Kernel) -> None:
    """Normal values, those of a heavy tail, and zeros: of narrow rows, and of some that are not."""
    rng = np.random.default_rng(3)
    for draw in (rng.standard_normal, lambda s: rng.standard_t(2, s), _half_zeros(rng)):
        a, b = (draw(shape).astype(np.float32) for shape in ((M, K), (K, N)))
        exact, sizes = np.float64(a) @ np.float64(b), np.abs(np.float64(a)) @ np.abs(np.float64(b))
        plain = np.zeros((M, N), np.float32)
        for k in range(K):  # rounded once for each product, as by fused multiply-add
            plain = np.float32(np.float64(plain) + np.outer(np.float64(a[:, k]), b[k]))
        got, want = (
            np.abs(np.float64(c) - exact) / sizes
            for c in (product(implementation, kernel, a, b), plain)
        )
        assert got.max() <= 2 * want.max()


def _half_zeros(rng: np.random.Generator) -> Any:
    return lambda shape: np.maximum(rng.standard_normal(shape), 0)


def f32(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


@pytest.mark.skipif(
    not any(k.term_dtype == "float16" for k in runtime.kernels()),
    reason="installed without kernels of f16 terms",
)
class TestSelection:
    def kernel(self, a: Any, b: Any, precision: Any) -> str:
        return bw.explain(a, b, precision=precision, device="sm90").kernel

    def test_large_products_are_of_f16(self) -> None:
        for a, b in (
            (f32(4096, 4096), f32(4096, 4096)),
            (f32(512, 4096), f32(4096, 6144)),
            (f32(8192, 1024), f32(1024, 1024)),
        ):
            assert self.kernel(a, b, "highest").startswith("sm90_f32f16x3_f32_kn_")

    def test_few_rows_are_not_read_twice(self) -> None:
        assert self.kernel(f32(16, 4096), f32(4096, 14336), "highest").startswith("sm90_f32x6_")

    def test_an_algorithm_that_is_named_is_kept(self) -> None:
        preset = jax.lax.DotAlgorithmPreset.BF16_BF16_F32_X6
        found = bw.explain(f32(4096, 4096), f32(4096, 4096), precision=preset, device="sm90")
        assert found.kernel.startswith("sm90_f32x6_")
        assert "multiplies terms of float16, the precision asks for bfloat16" in {
            reason for name, reason in found.rejected if "f32f16x3_f32_kn" in name
        }

    def test_short_sums_do_not_hide_the_rounding_of_f16(self) -> None:
        k = F16_TERMS_MIN_K - 8
        found = bw.explain(f32(8192, k), f32(k, 8192), precision="highest", device="sm90")
        assert not found.kernel.startswith("sm90_f32f16x3_")
        assert any(f"K={k} is below {F16_TERMS_MIN_K}" in reason for _, reason in found.rejected)


def test_the_document_has_the_limit() -> None:
    """docs/accuracy.md and the kernels agree on which rows are narrow."""
    root = Path(__file__).parents[2]
    source = (root / "cc/dense/row_range.h").read_text()
    square = int(re.search(r"kMostSquare = (\d+);", source)[1])
    assert f"at most {square**0.5:.1f} in a narrow row" in re.sub(
        r"\s+", " ", (root / "docs/accuracy.md").read_text()
    )
