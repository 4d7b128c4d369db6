"""What tests of fused functions share: operands, what was fused, and its results."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxprs import assert_defined_once
from numerics import LINKED, normal

import jax_bwgemm as bw
from jax_bwgemm.epilogue.primitive import bw_gemm_epilogue_p
from jax_bwgemm.product.implementations import DEFAULT_IMPLEMENTATIONS
from jax_bwgemm.product.jaxprs import equations
from jax_bwgemm.rewriting.rewrite import rewrite

M, K, N = 128, 192, 256
F32 = jnp.float32


def operands() -> dict[str, jax.Array]:
    rng = np.random.default_rng(0)
    shapes = {"x": (M, K), "w": (K, N), "b": (N,), "v": (N, K), "c": (K,), "s": (N, N)}
    found = {name: jnp.asarray(normal(rng, s, "bfloat16")) for name, s in shapes.items()}
    for name in "wvs":
        found[name] = found[name] * jnp.bfloat16(found[name].shape[0] ** -0.5)
    return found


def fused(f: Any, *args: Any) -> list[tuple[list[tuple[int, ...]], int]]:
    """Of every fused equation: the axes of its operands, and how many results it has."""
    assert_defined_once(rewrite(jax.make_jaxpr(f)(*args), DEFAULT_IMPLEMENTATIONS)[0])
    jaxpr = jax.make_jaxpr(bw.accelerate(f))(*args)
    return [
        ([x.axes for x in eqn.params["fused"].program.operands], len(eqn.outvars))
        for eqn, _ in equations(jaxpr)
        if eqn.primitive is bw_gemm_epilogue_p
    ]


def check(f: Any, *args: Any) -> None:
    """Same results as without. Gradients are compared by their largest value."""
    got, want = jax.jit(bw.accelerate(f))(*args), jax.jit(f)(*args)
    for ours, theirs in zip(*map(jax.tree.leaves, (got, want)), strict=True):
        ours, theirs = jnp.asarray(ours), jnp.asarray(theirs)
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
        scale = max(float(jnp.max(jnp.abs(theirs.astype(F32)))), 1e-6)
        ours, theirs = (np.asarray(x.astype(F32)) / scale for x in (ours, theirs))
        np.testing.assert_allclose(ours, theirs, rtol=4 * LINKED["rtol"], atol=4 * LINKED["atol"])


def mlp(x: Any, w: Any, b: Any, v: Any, c: Any) -> Any:
    return jax.nn.gelu(x @ w + b) @ v + c
