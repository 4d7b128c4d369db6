"""What tests of `autocast` share: arrays, and which products of a function are cast."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numerics import normal

import jax_bwgemm as bw

BF16, F32 = jnp.bfloat16, jnp.float32
T, D, F = 128, 256, 384


def array(*shape: int, seed: int = 0) -> jax.Array:
    x = jnp.asarray(normal(np.random.default_rng(seed), shape, "float32"))
    return (x * shape[-2] ** -0.5).astype(BF16)


X, W, V = array(T, D, seed=1), array(D, F, seed=2), array(F, D, seed=3)


def cast(f: Callable[..., Any], *args: Any, **options: Any) -> list[bool]:
    """Of every product of the function: whether it was cast."""
    found = bw.explain_program(bw.autocast(f, **options), *args, device="sm90").rewrites
    assert {one.by for one in found} <= {"autocast"}
    return [one.rewritten for one in found]


def why(f: Callable[..., Any], *args: Any, **options: Any) -> str:
    """Why its only product was not."""
    (one,) = bw.explain_program(bw.autocast(f, **options), *args, device="sm90").rewrites
    assert not one.rewritten
    assert f"left as it is: {one.reason}" in str(one)
    return one.reason


def sized(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, BF16)
