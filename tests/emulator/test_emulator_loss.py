"""The loss and its gradients with every product on emulated kernels."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numerics import normal

import jax_bwgemm as bw
from jax_bwgemm.loss import recomputed

pytestmark = pytest.mark.emulator


@pytest.mark.parametrize("logits", ["stored", "recomputed"])
def test_gradients_are_those_of_xla(monkeypatch: pytest.MonkeyPatch, logits: str) -> None:
    monkeypatch.setattr(recomputed, "block_columns", lambda vocabulary: 64)
    rng = np.random.default_rng(0)
    x = jnp.asarray(normal(rng, (32, 64), "bfloat16"))
    weights = jnp.asarray(normal(rng, (64, 96), "bfloat16"))
    labels = jnp.asarray(rng.integers(0, 96, 32))
    loss = functools.partial(bw.linear_softmax_cross_entropy_loss, logits=logits)
    found = {
        name: jax.jit(jax.value_and_grad(functools.partial(loss, implementation=name), (0, 2)))(
            x, labels, weights
        )
        for name in ("emulator", "xla")
    }
    for got, want in zip(*map(jax.tree.leaves, found.values()), strict=True):
        got, want = got.astype(jnp.float32), want.astype(jnp.float32)
        # Sums in another order: a result may round to the neighbouring bf16 number.
        assert jnp.max(jnp.abs(got - want)) <= 2 * float(jnp.finfo("bfloat16").eps) * jnp.max(
            jnp.abs(want)
        )
