"""Products that return to XLA since no kernel takes along what follows, and who reads them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from accelerated import has_all_majors
from numerics import assert_exact

import jax_bwgemm as bw
from jax_bwgemm.rewriting import policy

pytestmark = pytest.mark.skipif(
    not has_all_majors(), reason="this build lacks kernels of some majors"
)


def integers(*shape: int) -> jax.Array:
    rng = np.random.default_rng(shape)
    return jnp.asarray((rng.random(shape) < 0.02) * rng.choice([-1, 1], shape), jnp.bfloat16)


def transposed(x: jax.Array, w: jax.Array, y: jax.Array) -> jax.Array:
    return (x @ w).T @ y  # the second product reads x @ w through the transpose


def chained(x: jax.Array, w: jax.Array, y: jax.Array) -> jax.Array:
    return jnp.einsum("mk,kn,mp->np", x, w, y)


def batched(x: jax.Array, w: jax.Array, y: jax.Array) -> jax.Array:
    xs, ys = jnp.stack([x, -x]), jnp.stack([y, y + y])
    return jnp.einsum("bmk,kn,bmp->bnp", xs, w, ys)


def both(x: jax.Array, w: jax.Array, y: jax.Array) -> tuple[jax.Array, ...]:
    z = x @ w
    return z.T @ y, jnp.tanh(z).T @ y, z.T


@pytest.mark.parametrize("f", [transposed, chained, batched, both])
@pytest.mark.parametrize("k", [32, 64])
@pytest.mark.parametrize("gradient", [False, True])
def test_programs_stay_whole(
    monkeypatch: pytest.MonkeyPatch, f: Callable[..., Any], k: int, gradient: bool
) -> None:
    """With K of 32 the first product is left to XLA; where all are small, every one of them."""
    args = integers(256, k), integers(k, 512), integers(256, 384)

    def loss(*args: jax.Array) -> jax.Array:
        return sum(jnp.sum(out.astype(jnp.float32)) for out in jax.tree.leaves(f(*args)))

    g = jax.grad(loss, (0, 1, 2)) if gradient else f
    want = jax.jit(g)(*args)
    for limit in (0, 6_000, 10**9):
        monkeypatch.setattr(policy, "SMALL_CYCLES", limit)
        with bw.config.target("sm90"):
            got = jax.jit(bw.accelerate(g))(*args)
        for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
            if f is both or gradient:
                np.testing.assert_allclose(np.float32(a), np.float32(b), rtol=2e-2, atol=1e-1)
            else:
                assert_exact(a, b)


def test_a_result_read_before_its_transpose_of_three_dimensions() -> None:
    """That transpose is not its own inverse."""
    x, w, y = integers(512, 32), integers(32, 256), integers(256, 384)

    def f(x: jax.Array, w: jax.Array, y: jax.Array) -> jax.Array:
        z = jnp.tensordot(x.reshape(4, 128, 32), w, 1).transpose(2, 0, 1)
        return jnp.tensordot(z, y, ((0,), (0,)))

    with bw.config.target("sm90"):
        assert_exact(jax.jit(bw.accelerate(f))(x, w, y), jax.jit(f)(x, w, y))
