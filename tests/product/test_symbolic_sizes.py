"""Layers exported with a symbolic number of rows: XLA's, as a kernel is chosen by its sizes."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from numerics import normal

import jax_bwgemm as bw

ROWS, K, N, E = 7, 128, 32, 3
NUMBERS = (((1,), (0,)), ((), ()))
RNG = np.random.default_rng(0)
X, W, UPS, DOWNS = (
    jnp.asarray(normal(RNG, shape, "bfloat16"))
    for shape in ((ROWS, K), (K, N), (E, K, N), (E, N, K))
)

FUNCTIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "loss": lambda x: bw.linear_softmax_cross_entropy_loss(
        x, jnp.zeros(x.shape[:1], jnp.int32), W, logits="recomputed"
    ),
    "moe_mlp": lambda x: bw.moe_mlp(
        x, UPS, DOWNS, jnp.ones((x.shape[0], 1), jnp.int32), jnp.ones((x.shape[0], 1))
    ),
    "tiles": lambda x: bw.dequantize(bw.quantize(x, "128x128")),
    "blockwise": lambda x: bw.fp8_dot_general("blockwise")(x, W, NUMBERS),
    "mxfp8": lambda x: bw.fp8_dot_general("mxfp8")(x, W, NUMBERS),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_rows(name: str) -> None:
    layer = FUNCTIONS[name]
    f = jax.grad(lambda x: jnp.sum(layer(x).astype(jnp.float32) ** 2))
    if name == "tiles":  # which have no gradient
        f = layer
    (rows,) = jax.export.symbolic_shape("rows")
    exported = jax.export.export(jax.jit(f), disabled_checks=bw.DISABLE_EXPORT_CHECKS)(
        jax.ShapeDtypeStruct((rows, K), X.dtype)
    )
    got, want = (np.asarray(y, np.float32) for y in (exported.call(X), jax.jit(f)(X)))
    np.testing.assert_allclose(got, want, atol=0.02 * np.abs(want).max())
