"""Accelerated and low-precision steps over two GPUs: as on one of them, by the same kernels."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from numerics import assert_same_training, normal

import jax_bwgemm as bw
from jax_bwgemm.scaled import recipes

ROWS, WIDTH, HIDDEN, STEPS = 512, 256, 1024, 10

pytestmark = pytest.mark.multigpu


def _batch() -> tuple[jax.Array, ...]:
    rng = np.random.default_rng(0)
    up = normal(rng, (WIDTH, HIDDEN), "float32") * WIDTH**-0.5
    down = normal(rng, (HIDDEN, WIDTH), "float32") * HIDDEN**-0.5
    x, wanted = (normal(rng, (ROWS, WIDTH), "bfloat16") for _ in range(2))
    return (
        jnp.asarray(up, jnp.bfloat16),
        jnp.asarray(down, jnp.bfloat16),
        *map(jnp.asarray, (x, wanted)),
    )


def _step(dot_general: Any, weights: Any, x: jax.Array, wanted: jax.Array) -> tuple[Any, jax.Array]:
    def loss(weights: Any) -> jax.Array:
        product = functools.partial(dot_general, dimension_numbers=(((1,), (0,)), ((), ())))
        y = product(jax.nn.gelu(product(x, weights[0])), weights[1])
        return jnp.mean((y - wanted).astype(jnp.float32) ** 2)

    value, gradients = jax.value_and_grad(loss)(weights)
    return jax.tree.map(lambda w, g: w - 4 * g.astype(w.dtype), weights, gradients), value


def _losses(step: Any, sharding: Any) -> list[float]:
    """Of a few steps. `sharding` of the weights and of the rows; None: one GPU."""
    *weights, x, wanted = _batch()
    if sharding is not None:
        weights = [jax.device_put(w, s) for w, s in zip(weights, sharding[0], strict=True)]
        x, wanted = (jax.device_put(r, sharding[1]) for r in (x, wanted))
    compiled = jax.jit(step)
    losses = []
    for _ in range(STEPS):
        weights, loss = compiled(weights, x, wanted)
        losses.append(float(loss))
    return losses


@pytest.mark.parametrize("kind", ["data", "tensor"])
@pytest.mark.parametrize("products", ["accelerate", "ours", "per_tensor", "blockwise"])
def test_a_step_on_two_gpus(kind: str, products: str) -> None:
    mesh = jax.make_mesh((2,), ("x",), axis_types=(AxisType.Auto,), devices=jax.devices("gpu")[:2])
    specs = {
        "data": ((P(), P()), P("x")),
        "tensor": ((P(None, "x"), P("x", None)), P()),
    }[kind]
    sharding = jax.tree.map(
        functools.partial(NamedSharding, mesh), specs, is_leaf=lambda s: isinstance(s, P)
    )
    if products == "accelerate":
        step = bw.accelerate(functools.partial(_step, jax.lax.dot_general))
    elif products == "ours":
        step = functools.partial(_step, functools.partial(bw.dot_general, implementation="cutlass"))
    else:
        step = functools.partial(_step, bw.fp8_dot_general(products))
    low = products in recipes.RECIPES
    assert_same_training(_losses(step, sharding), _losses(step, None), low_precision=low)
