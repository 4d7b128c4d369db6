"""Sizes of zero: empty results or zeros, as XLA's formulas give them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from emulator_cases import requires_emulator

import jax_bwgemm as bw


def zeros(*shape: int) -> jax.Array:
    return jnp.zeros(shape, jnp.bfloat16)


def check(f: Callable[..., Any], *operands: jax.Array, shape: tuple[int, ...]) -> None:
    """A result of zeros, and gradients of zeros."""

    @jax.jit
    def with_gradients(*xs: jax.Array) -> tuple[jax.Array, Any]:
        total = lambda *xs: jnp.sum(f(*xs).astype(jnp.float32))  # noqa: E731
        return f(*xs), jax.grad(total, tuple(range(len(xs))))(*xs)

    got, gradients = with_gradients(*operands)
    assert got.shape == shape
    assert [g.shape for g in gradients] == [x.shape for x in operands]
    assert not any(np.any(v) for v in (got, *gradients))


@pytest.mark.parametrize("form", [(4,), (2, 4)], ids=["plain", "gated"])
@pytest.mark.parametrize(("tokens", "top", "k"), [(0, 2, 8), (6, 0, 8), (6, 2, 0)])
def test_experts(tokens: int, top: int, k: int, form: tuple[int, ...]) -> None:
    experts, weights = jnp.zeros((tokens, top), jnp.int32), jnp.ones((tokens, top))
    layer = lambda x, up: bw.moe_mlp(x, up, zeros(3, 4, 8), experts, weights)  # noqa: E731
    check(layer, zeros(tokens, k), zeros(3, k, *form), shape=(tokens, 8))


@pytest.mark.parametrize("logits", ["stored", "recomputed"])
def test_loss_of_no_features(logits: str) -> None:
    """Logits are zero: every column is as likely."""
    labels = jnp.zeros(4, jnp.int32)
    loss = bw.linear_softmax_cross_entropy_loss(zeros(4, 0), labels, zeros(0, 16), logits=logits)
    np.testing.assert_allclose(loss, 4 * np.log(16), rtol=1e-6)


@pytest.mark.parametrize("scaling", ["tensor", "row", "1x128", "mxfp8"])
def test_quantizing_no_matrices(scaling: str) -> None:
    made = jax.vmap(lambda x: bw.quantize(x, scaling))(zeros(0, 4, 32))
    assert made.values.shape == (0, 4, 32)


@pytest.mark.parametrize("recipe", ["per_tensor", "blockwise", "mxfp8", "nvfp4"])
@pytest.mark.parametrize(("m", "k", "n"), [(4, 0, 32), (4, 32, 0), (0, 32, 32)])
def test_products_in_low_precision(recipe: str, m: int, k: int, n: int) -> None:
    dot, grouped = bw.fp8_dot_general(recipe), bw.fp8_ragged_dot(recipe)
    more = {"key": jax.random.key(0)} if recipe == "nvfp4" else {}
    numbers, sizes = (((1,), (0,)), ((), ())), jnp.array([m, 0], jnp.int32)
    check(lambda x, w: dot(x, w, numbers, **more), zeros(m, k), zeros(k, n), shape=(m, n))
    of_groups = lambda x, w: grouped(x, w, sizes, **more)  # noqa: E731
    check(of_groups, zeros(m, k), zeros(2, k, n), shape=(m, n))


IMPLEMENTATIONS = [None, "xla", pytest.param("emulator", marks=requires_emulator)]


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize(("m", "k", "n"), [(4, 0, 32), (4, 32, 0), (0, 32, 32)])
def test_low_precision_by_any_implementation(
    implementation: str | None, m: int, k: int, n: int
) -> None:
    numbers, sizes = (((1,), (0,)), ((), ())), jnp.array([m, 0], jnp.int32)
    dot = bw.fp8_dot_general("blockwise", implementation=implementation)
    grouped = bw.fp8_ragged_dot("blockwise", implementation=implementation)
    check(lambda x, w: dot(x, w, numbers), zeros(m, k), zeros(k, n), shape=(m, n))
    of_groups = lambda x, w: grouped(x, w, sizes)  # noqa: E731
    check(of_groups, zeros(m, k), zeros(2, k, n), shape=(m, n))


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_a_batch_of_none_in_low_precision(implementation: str | None) -> None:
    dot = bw.fp8_dot_general("blockwise", implementation=implementation)
    product = lambda x, w: dot(x, w, (((2,), (1,)), ((0,), (0,))))  # noqa: E731
    check(product, zeros(0, 16, 32), zeros(0, 32, 32), shape=(0, 16, 32))


OF_NO_GROUP = {
    "ragged_dot": lambda x, w, sizes, **options: bw.ragged_dot(x, w, sizes, **options),
    "scaled_ragged_dot": lambda x, w, sizes, **options: bw.scaled_ragged_dot(
        bw.quantize(x, "row"), bw.quantize(w.mT, "row"), sizes, **options
    ),
}


@pytest.mark.parametrize("shape", [(0,), (0, 8)])
@pytest.mark.parametrize("groups", [0, 2])
@pytest.mark.parametrize("name", OF_NO_GROUP)
def test_epilogue_of_no_matrices(name: str, groups: int, shape: tuple[int, ...]) -> None:
    """Its value at zeros."""
    sizes = jnp.full(groups, 3)
    options = {"group_offset": 1} if groups else {}

    def product(values: jax.Array) -> jax.Array:
        return OF_NO_GROUP[name](
            zeros(6, 32),
            zeros(0, 32, 8),
            sizes,
            epilogue=lambda z, v: z + v + 3,
            epilogue_group_operands=(values,),
            **options,
        )

    values = jnp.ones(shape)
    np.testing.assert_array_equal(product(values), np.full((6, 8), 3))
    assert jax.grad(lambda v: jnp.sum(product(v)).astype(jnp.float32))(values).shape == shape


@pytest.mark.parametrize("recipe", ["per_tensor", "blockwise", "mxfp8", "nvfp4"])
@pytest.mark.parametrize("rows", [0, 4])
def test_no_matrices_in_low_precision(recipe: str, rows: int) -> None:
    more = {"key": jax.random.key(0)} if recipe == "nvfp4" else {}
    dot, sizes = bw.fp8_ragged_dot(recipe), jnp.zeros(0, jnp.int32)
    of_groups = lambda x, w: dot(x, w, sizes, **more)  # noqa: E731
    check(of_groups, jnp.ones((rows, 32)), zeros(0, 32, 8), shape=(rows, 8))
