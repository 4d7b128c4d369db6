"""`scaled_matmul` in the emulator, through selection: layouts, formats, batches, layers."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from emulator_cases import requires_emulator
from numerics import assert_exact
from scaled_cases import exact_operand, formula_product

import jax_bwgemm as bw
from jax_bwgemm import config, emulator

pytestmark = requires_emulator


@pytest.mark.parametrize("a", ["tensor", "row", "1x128", "128x128"])
@pytest.mark.parametrize("b", ["tensor", "row", "1x128", "128x128"])
@pytest.mark.parametrize("accumulation", ["promoted", "fast"])
@pytest.mark.parametrize("m", [24, 136])
def test_scaled_matmul(a: str, b: str, accumulation: str, m: int) -> None:
    """Through selection; float16 by way of float32."""
    rng = np.random.default_rng(0)
    x, y = exact_operand(rng, (m, 272), a), exact_operand(rng, (144, 272), b)
    got = bw.scaled_matmul(
        x,
        y,
        accumulation=accumulation,
        preferred_element_type=jnp.float16,
        implementation="emulator",
    )
    assert_exact(got, formula_product(x, y).astype(np.float16))


@pytest.mark.parametrize(
    "layouts",
    [
        ("1x128", "128x128"),
        ("128x128", "1x128"),
        ("1x128", "1x128"),
        ("row", "1x128"),
        ("1x128", "tensor"),
    ],
)
@pytest.mark.parametrize("shape", [(24, 136, 16), (256, 128, 512), (300, 280, 656)])
def test_blocks_of_128_on_sm100(layouts: tuple[str, str], shape: tuple[int, int, int]) -> None:
    """By a grouped kernel: one matrix, and a batch of which one operand is shared."""
    rng = np.random.default_rng(0)
    m, n, k = shape
    x, y = exact_operand(rng, (m, k), layouts[0]), exact_operand(rng, (2, n, k), layouts[1])

    def product(x: bw.ScaledArray, y: bw.ScaledArray) -> jax.Array:
        with config.target("sm100"):
            return bw.scaled_matmul(
                x, y, preferred_element_type=jnp.float32, implementation="emulator"
            )

    want = formula_product(x, y).astype(np.float32)
    assert_exact(product(x, y), want)
    stats = emulator.last_launch()
    assert stats is not None
    assert stats.ok
    assert not stats.warnings
    first = jax.tree.map(lambda leaf: leaf[0] if leaf.ndim else leaf, y)
    assert_exact(product(x, first), want[0])


@pytest.mark.parametrize("shared", ["a", "b", None])
def test_batches_and_vmap(shared: str | None) -> None:
    rng = np.random.default_rng(0)
    x = exact_operand(rng, (40, 144) if shared == "a" else (3, 40, 144), "1x128")
    y = exact_operand(rng, (32, 144) if shared == "b" else (3, 32, 144), "128x128")

    def product(x: bw.ScaledArray, y: bw.ScaledArray) -> jax.Array:
        return bw.scaled_matmul(x, y, preferred_element_type=jnp.float32, implementation="emulator")

    want = formula_product(x, y).astype(np.float32)
    assert_exact(product(x, y), want)
    axes = (None if shared == "a" else 0, None if shared == "b" else 0)
    assert_exact(jax.vmap(product, in_axes=axes)(x, y), want)
    stack = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf], 1), x if shared != "a" else y)
    if shared is None:  # a second batch over one operand only
        got = jax.vmap(product, in_axes=(1, None), out_axes=1)(stack, y)
        assert_exact(got, np.stack([want, want], 1))


@pytest.mark.parametrize("scaling", ["mxfp8", "nvfp4"])
@pytest.mark.parametrize("shared", ["a", "b", None])
def test_formats_that_an_mma_reads(scaling: str, shared: str | None) -> None:
    """Through selection, of two batches, with global scales of their own."""
    rng = np.random.default_rng(0)
    x = exact_operand(rng, (40, 160) if shared == "a" else (3, 40, 160), scaling)
    y = exact_operand(rng, (136, 160) if shared == "b" else (3, 136, 160), scaling)
    if scaling == "nvfp4" and shared != "a":
        x = bw.ScaledArray(x.values, x.scales, scaling, jnp.asarray([0.5, 2, 4], jnp.float32))
    factors = 1 if x.global_scale is None else np.asarray(x.global_scale)[..., None, None]
    ones = None if x.global_scale is None else jnp.float32(1)
    want = formula_product(bw.ScaledArray(x.values, x.scales, scaling, ones), y) * factors

    def product(x: bw.ScaledArray, y: bw.ScaledArray) -> jax.Array:
        return bw.scaled_matmul(x, y, preferred_element_type=jnp.float32, implementation="emulator")

    before = emulator.launch_count()
    assert_exact(product(x, y), want.astype(np.float32))
    assert emulator.launch_count() == before + 1
    stats = emulator.last_launch()
    assert stats is not None
    assert stats.ok
    assert not stats.warnings

    def axes(operand: bw.ScaledArray) -> Any:
        if operand.ndim == 2:
            return None
        one = operand.global_scale is not None and operand.global_scale.ndim == 0
        return bw.ScaledArray.tree_unflatten(scaling, (0, 0, None if one else 0))

    if scaling == "mxfp8":
        axes_of = [None if operand.ndim == 2 else 0 for operand in (x, y)]
    else:
        axes_of = [axes(operand) for operand in (x, y)]
    assert_exact(jax.vmap(product, in_axes=axes_of)(x, y), want.astype(np.float32))


@pytest.mark.parametrize("other", ["mxfp4", "mxfp8"])
def test_mxfp4_is_multiplied_as_mxfp8(other: str) -> None:
    rng = np.random.default_rng(0)
    x, y = exact_operand(rng, (40, 160), other), exact_operand(rng, (136, 160), "mxfp4")
    product = functools.partial(
        bw.scaled_matmul, preferred_element_type=jnp.float32, implementation="emulator"
    )
    before = emulator.launch_count()
    assert_exact(jax.jit(product)(x, y), formula_product(x, y).astype(np.float32))
    assert emulator.launch_count() == before + 1


@pytest.mark.parametrize(
    ("recipe", "arch"),
    [
        ("per_tensor", "sm90"),
        ("blockwise", "sm90"),
        ("blockwise", "sm100"),
        ("mxfp8", "sm100"),
        ("nvfp4", "sm100"),
    ],
)
def test_all_three_products_of_a_layer_run_on_kernels(recipe: str, arch: str) -> None:
    """The same results as XLA's, whose sums differ by f32 roundings only."""
    rng = np.random.default_rng(0)
    x, w, g = (
        jnp.asarray(rng.standard_normal(shape), jnp.float32)
        for shape in ((160, 288), (288, 192), (160, 192))
    )

    def step(implementation: Any) -> Any:
        dot = bw.fp8_dot_general(recipe, implementation=implementation)
        key = {"key": jax.random.key(0)} if recipe == "nvfp4" else {}
        out, back = jax.vjp(lambda x, w: dot(x, w, (((1,), (0,)), ((), ())), **key), x, w)
        return jax.block_until_ready((out, *back(g)))

    before = emulator.launch_count()
    # Three operands are quantized, once each; layouts with 8-bit scales by XLA.
    formats = recipe in ("mxfp8", "nvfp4")
    with config.target(arch):
        ours = step(("emulator", "xla") if formats else "emulator")
    assert emulator.launch_count() == before + (3 if formats else 6)
    for got, want in zip(ours, step("xla"), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-3)


@pytest.mark.parametrize("shape", [(0, 8, 128), (8, 0, 128), (8, 8, 0)])
@pytest.mark.parametrize("scaling", ["row", "1x128", "mxfp8"])
def test_an_empty_problem_runs_no_kernel(scaling: str, shape: tuple[int, int, int]) -> None:
    m, n, k = shape
    rng, before = np.random.default_rng(0), emulator.launch_count()
    a, b = exact_operand(rng, (m, k), scaling), exact_operand(rng, (n, k), scaling)
    got = bw.scaled_matmul(a, b, implementation="emulator")
    assert_exact(got, jnp.zeros((m, n), jnp.bfloat16))
    found = bw.explain_scaled_matmul(a, b, implementation="emulator", device="cpu")
    assert found.reason.startswith("an empty problem runs no kernel")
    assert emulator.launch_count() == before
