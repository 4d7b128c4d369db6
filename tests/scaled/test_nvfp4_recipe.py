"""The recipe `nvfp4`: 2-D weight scales, rotations of dW's operands, stochastic gradients."""

from __future__ import annotations

import logging
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numerics import FRACTION_DB, SAME_OPERANDS_DB, assert_exact, decibels

import jax_bwgemm as bw
from jax_bwgemm.product.implementations import log_once
from jax_bwgemm.scaled import hadamard

DOT = bw.fp8_dot_general("nvfp4")
LAYER = (((1,), (0,)), ((), ()))
# Of a product of two operands with one bit of fraction each.
PRODUCT_OF_TWO_DB = FRACTION_DB[1] - 3.5


def operands(m: int = 120) -> tuple[jax.Array, jax.Array, jax.Array]:
    rng = np.random.default_rng(0)
    shapes = ((m, 256), (256, 64), (m, 64))
    return tuple(jnp.asarray(rng.standard_normal(s), jnp.float32) for s in shapes)


def step(x: jax.Array, w: jax.Array, g: jax.Array, key: jax.Array) -> Any:
    out, back = jax.vjp(lambda x, w: DOT(x, w, LAYER, key=key), x, w)
    return out, *back(g)


@pytest.mark.parametrize("m", [120, 128])  # 120: the last block of 16 is half empty
def test_all_three_products(m: int) -> None:
    x, w, g = operands(m)
    wanted = [np.asarray(v, np.float64) for v in (x @ w, g @ w.T, x.T @ g)]
    for got, want in zip(jax.jit(step)(x, w, g, jax.random.key(0)), wanted, strict=True):
        # Stochastic rounding has up to four times the variance of rounding to nearest.
        assert decibels(got, want) > PRODUCT_OF_TWO_DB - 4


@pytest.mark.parametrize("experts", [False, True])
def test_keys_mapped_alone(experts: bool) -> None:
    """The result depends on no key, its gradient on each."""
    x, w, _ = operands(32)
    keys = jax.random.split(jax.random.key(0), 3)
    ragged = bw.fp8_ragged_dot("nvfp4")

    def loss(w: jax.Array, key: jax.Array) -> jax.Array:
        if experts:
            return jnp.sum(jnp.sin(ragged(x, w[None], jnp.array([32]), key=key)))
        return jnp.sum(jnp.sin(DOT(x, w, LAYER, key=key)))

    got = jax.jit(jax.grad(lambda w: jnp.sum(jax.vmap(loss, (None, 0))(w, keys))))(w)
    gradient = jax.jit(jax.grad(loss))
    want = sum(gradient(w, key) for key in keys)
    assert decibels(got, want) > SAME_OPERANDS_DB


def test_gradients_are_right_in_the_mean() -> None:
    """Of many keys: what is left is the rounding of x and w, which no key changes."""
    x, w, g = operands()
    keys = jax.random.split(jax.random.key(0), 64)
    _, x_bar, _ = jax.lax.map(lambda key: step(x, w, g, key), keys, batch_size=8)
    rounded = bw.dequantize(bw.quantize(w, "nvfp4", square_blocks=True))
    want = np.asarray(g, np.float64) @ np.asarray(rounded, np.float64).T
    one, mean = decibels(x_bar[0], want), decibels(x_bar.mean(0), want)
    assert mean > one + 10


def test_both_passes_multiply_by_the_same_weights() -> None:
    _, w, _ = operands()
    q, t = bw.quantize(w, "nvfp4", square_blocks=True, transposed=True)
    assert_exact(bw.dequantize(t), np.asarray(bw.dequantize(q)).T)
    scales = np.asarray(q.scales.astype(jnp.float32))
    assert_exact(scales, np.repeat(scales[::16], 16, 0))
    blocks = np.abs(np.asarray(w)).reshape(16, 16, 4, 16).max((1, 3))
    top = np.asarray(q.scales[::16], np.float32) * float(q.global_scale) * 6
    np.testing.assert_allclose(top, blocks, rtol=0.07)


def test_a_rotation_changes_no_product() -> None:
    rng = np.random.default_rng(0)
    a, b = (jnp.asarray(rng.standard_normal((n, 40)), jnp.float32) for n in (8, 12))
    matrix = hadamard.rotation(jax.random.key(0))
    np.testing.assert_allclose(matrix @ matrix.T, np.eye(16), atol=1e-6)
    x, y = hadamard.rotated(a, matrix), hadamard.rotated(b, matrix)
    assert x.shape == (8, 48)
    np.testing.assert_allclose(x @ y.T, a @ b.T, atol=1e-4)


def test_a_rotation_spreads_an_outlier() -> None:
    matrix = hadamard.rotation(jax.random.key(0))
    x = jnp.zeros((1, 32)).at[0, 5].set(8.0)
    assert_exact(jnp.abs(hadamard.rotated(x, matrix)), np.float32([[2] * 16 + [0] * 16]))


def test_signs_of_a_rotation_change_what_a_number_is_spread_to() -> None:
    """With signs of what it is spread to instead, magnitudes would be those of no signs."""
    x = jnp.asarray(np.random.default_rng(0).standard_normal((4, 16)), jnp.float32)
    one, other = (hadamard.rotated(x, hadamard.rotation(jax.random.key(i))) for i in (0, 1))
    assert not np.allclose(np.abs(one), np.abs(other))


def test_batches_have_keys_of_their_own() -> None:
    x, w, g = (jnp.stack([v, v]) for v in operands())
    numbers = (((2,), (1,)), ((0,), (0,)))

    @jax.jit
    def batched(x: jax.Array, w: jax.Array, g: jax.Array) -> Any:
        out, back = jax.vjp(lambda x, w: DOT(x, w, numbers, key=jax.random.key(0)), x, w)
        return out, back(g)[0]

    out, x_bar = batched(x, w, g)
    assert_exact(out[0], out[1])
    assert not np.array_equal(x_bar[0], x_bar[1])


def test_it_is_xlas_with_the_reason_but_on_sm100(caplog: pytest.LogCaptureFixture) -> None:
    log_once.cache_clear()
    x, w, _ = operands()
    with caplog.at_level(logging.INFO, "jax_bwgemm"):
        DOT(x, w, LAYER)
    assert "float4_e2m1fn nvfp4" in caplog.text
    q = bw.quantize(x, "nvfp4")
    found = bw.explain_scaled_matmul(q, q, device="sm90")
    assert (found.implementation, "no kernel of sm90" in found.reason) == ("xla", True)
    found = bw.explain_scaled_matmul(q, q, device="sm100")
    assert (found.implementation, "_e2m1_e2m1_bf16_mma_" in found.kernel) == ("cutlass", True)


X, W, _ = operands()


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda: jax.grad(lambda x: jnp.sum(DOT(x, W, LAYER)))(X),
            TypeError,
            "gradients of recipe 'nvfp4' depend on random numbers: pass key=",
        ),
        (
            lambda: bw.fp8_dot_general()(X, W, LAYER, key=jax.random.key(0)),
            ValueError,
            "fp8_dot_general: recipe 'blockwise' has no use for a key",
        ),
        (
            lambda: DOT(X, W, LAYER, key=3),
            TypeError,
            r"fp8_dot_general: key must be one key of jax.random, got int32 of shape \(\)",
        ),
        (
            lambda: bw.quantize(X, "1x128", square_blocks=True),
            ValueError,
            "quantize has square_blocks of layouts with scales of 8 bits, not '1x128'",
        ),
    ],
)
def test_errors(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()
