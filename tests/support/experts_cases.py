"""Layers of experts that tests share."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numerics import normal

import jax_bwgemm as bw

T, TOP, E, K, H, N = 12, 2, 4, 8, 16, 24
M = T * TOP
SIZES = np.array([7, 0, 11, 4], np.int32)  # the last two rows are no group's
Arrays = dict[str, Any]


def operands() -> Arrays:
    rng = np.random.default_rng(0)
    shapes = {"rows": (M, K), "up": (E, K, 2, H), "down": (E, H, N), "row_weights": (M,)}
    scales = {"up": K**-0.5, "down": H**-0.5}
    return {
        name: jnp.asarray(normal(rng, shape, "float32")) * scales.get(name, 1.0)
        for name, shape in shapes.items()
    }


def ours(a: Arrays, sizes: Any = SIZES, **more: Any) -> jax.Array:
    return bw.grouped_mlp(
        a["rows"], a["up"], a["down"], sizes, row_weights=a.get("row_weights"), **more
    )


def routed(seed: int = 0) -> tuple[Arrays, jax.Array]:
    rng = np.random.default_rng(seed)
    shapes = {"x": (T, K), "up": (E, K, 2, H), "down": (E, H, N), "weights": (T, TOP)}
    a = {name: jnp.asarray(normal(rng, shape, "float32")) for name, shape in shapes.items()}
    a |= {"up": a["up"] * K**-0.5, "down": a["down"] * H**-0.5}
    experts = np.stack([rng.permutation(E)[:TOP] for _ in range(T)])
    return a, jnp.asarray(experts)


def moe(a: Arrays, experts: jax.Array, **more: Any) -> jax.Array:
    return bw.moe_mlp(a["x"], a["up"], a["down"], experts, a["weights"], **more)
