"""Scaled products on a GPU: exact, close, and the three products of a layer."""

from __future__ import annotations

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numerics import PRODUCT_DB, assert_exact, assert_similar, decibels
from scaled_cases import exact_operand, formula_product

import jax_bwgemm as bw
from jax_bwgemm import runtime

TOOLS = Path(__file__).resolve().parents[2] / "tools"
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.sm90,
    pytest.mark.skipif(not TOOLS.is_dir(), reason="not part of an installed package"),
]


def test_every_kernel_and_layout_is_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(TOOLS))
    import sanitize_scaled

    for case in sanitize_scaled.cases("sm90", ""):
        assert_exact(*case.run("cutlass"), str(case))


def test_random_problems_are_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(TOOLS))
    import sanitize_scaled

    kernels = [k for k in runtime.scaled_kernels() if k.arch == "sm90"]
    for case in sanitize_scaled.random_cases(kernels, 200):
        assert_exact(*case.run("cutlass"), str(case))


def test_every_grouped_kernel_and_layout_is_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(TOOLS))
    import sanitize_scaled_grouped

    kernels = [k for k in runtime.scaled_grouped_kernels() if k.arch == "sm90"]
    found = sanitize_scaled_grouped.cases("sm90", "")
    assert {case.kernel for case in found} == {k.name for k in kernels}
    found += sanitize_scaled_grouped.random_cases(kernels, 100)
    for case in found:
        assert_exact(*case.run("cutlass"), str(case))


@pytest.mark.parametrize("b", ["tensor", "row", "1x128", "128x128"])
@pytest.mark.parametrize("a", ["tensor", "row", "1x128", "128x128"])
@pytest.mark.parametrize("m", [16, 1000])
def test_promoted_sums_are_close_to_f64(a: str, b: str, m: int) -> None:
    keys = jax.random.split(jax.random.key(0))
    x = bw.quantize(jax.random.normal(keys[0], (m, 4096)), a)
    y = bw.quantize(jax.random.normal(keys[1], (512, 4096)), b)
    got = bw.scaled_matmul(x, y, preferred_element_type=jnp.float32, implementation="cutlass")
    assert_similar(got, formula_product(x, y))


@pytest.mark.parametrize("recipe", ["per_tensor", "blockwise"])
def test_a_layer(recipe: str) -> None:
    rng = np.random.default_rng(0)
    x, w, g = (
        jnp.asarray(rng.standard_normal(shape), jnp.bfloat16)
        for shape in ((512, 1024), (1024, 768), (512, 768))
    )
    dot = bw.fp8_dot_general(recipe, implementation="cutlass")

    @jax.jit
    def step(x: jax.Array, w: jax.Array, g: jax.Array) -> tuple[jax.Array, ...]:
        out, back = jax.vjp(lambda x, w: dot(x, w, (((1,), (0,)), ((), ()))), x, w)
        return out, *back(g)

    x64, w64, g64 = (np.asarray(v, np.float64) for v in (x, w, g))
    narrow = 2 if recipe == "per_tensor" else 3
    wanted = ((x64 @ w64, 3), (g64 @ w64.T, narrow), (x64.T @ g64, narrow))
    for got, (want, bits) in zip(step(x, w, g), wanted, strict=True):
        assert decibels(got, want) > PRODUCT_DB[3, bits]


def test_xla_computes_the_same() -> None:
    """What the kernels do not take, by the same call."""
    rng = np.random.default_rng(0)
    x, y = exact_operand(rng, (40, 136), "1x128"), exact_operand(rng, (24, 136), "128x128")
    got = bw.scaled_matmul(x, y)  # K=136 is not a multiple of 16
    assert_exact(got, formula_product(x, y).astype(jnp.bfloat16))
