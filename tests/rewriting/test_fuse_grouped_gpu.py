"""`accelerate` around layers of experts of `jax.lax.ragged_dot`, on an SM90 GPU."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from linked_cases import requires_linker
from numerics import LINKED, normal

import jax_bwgemm as bw
from jax_bwgemm import config

pytestmark = [pytest.mark.sm90, requires_linker]

M, K, H, E = 4096, 512, 384, 8
F32 = jnp.float32


def stacked(x: Any, both: Any, down: Any, weights: Any, sizes: Any) -> Any:
    gate, up = jnp.split(jax.lax.ragged_dot(x, both, sizes), 2, axis=-1)
    return jax.lax.ragged_dot(jax.nn.silu(gate) * up * weights[:, None], down, sizes)


def apart(x: Any, both: Any, down: Any, weights: Any, sizes: Any) -> Any:
    gate, up = (jax.lax.ragged_dot(x, w, sizes) for w in jnp.split(both, 2, axis=-1))
    return jax.lax.ragged_dot(jax.nn.silu(gate) * up, down, sizes) * weights[:, None]


@pytest.mark.parametrize("layer", [stacked, apart])
@pytest.mark.parametrize("sizes", [(600, 0, 1, 900, 700, 95, 1000, 800), (512,) * 8])
def test_gradients(layer: Any, sizes: tuple[int, ...]) -> None:
    """As with passes of XLA's, of the same products."""
    rng = np.random.default_rng(0)
    shapes = {"x": (M, K), "both": (E, K, 2 * H), "down": (E, H, K), "weights": (M,)}
    arrays = [jnp.asarray(normal(rng, s, "bfloat16")) for s in shapes.values()]
    arrays[1] = arrays[1] * jnp.bfloat16(K**-0.5)
    arrays[2] = arrays[2] * jnp.bfloat16(H**-0.5)
    groups = jnp.asarray(sizes, jnp.int32)

    def loss(*args: Any) -> Any:
        return jnp.sum(jnp.sin(layer(*args, groups).astype(F32)))

    step = jax.value_and_grad(loss, (0, 1, 2, 3))
    found = {}
    for linked in (True, False):
        with config.linked_epilogues(linked):
            f = jax.jit(bw.accelerate(step))
            assert ("epilogue_digest" in f.lower(*arrays).as_text()) == linked
            found[linked] = f(*arrays)
    for ours, theirs in zip(*map(jax.tree.leaves, (found[True], found[False])), strict=True):
        scale = float(jnp.max(jnp.abs(theirs)))
        got, wanted = (x.astype(F32) / scale for x in (ours, theirs))
        np.testing.assert_allclose(got, wanted, rtol=4 * LINKED["rtol"], atol=4 * LINKED["atol"])
