"""Layers inside of `jax.shard_map`: rows over devices, weights on all of them, sizes for each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P
from numerics import normal
from sharded import mesh_of

import jax_bwgemm as bw

M, K, N, E = 32, 32, 16, 3
NUMBERS = (((1,), (0,)), ((), ()))


def array(*shape: int) -> jax.Array:
    return jnp.asarray(normal(np.random.default_rng(0), shape, "float32"))


def key_of(recipe: str) -> dict[str, Any]:
    return {"key": jax.random.key(0)} if recipe == "nvfp4" else {}


@pytest.fixture(scope="module")
def mesh(cpu_devices: list[jax.Device]) -> jax.sharding.Mesh:
    return mesh_of(cpu_devices)


def check(mesh: Any, f: Callable[..., jax.Array], x: jax.Array, *weights: jax.Array) -> None:
    """Result and gradients are those of the devices' rows, of the weights the sum of these."""

    def squares(y: jax.Array) -> jax.Array:
        return jnp.sum(y.astype(jnp.float32) ** 2)

    def sharded(*arrays: jax.Array) -> jax.Array:
        specs = (P("x"), *[P()] * len(weights))
        return squares(jax.shard_map(f, mesh=mesh, in_specs=specs, out_specs=P("x"))(*arrays))

    def one_by_one(x: jax.Array, *weights: jax.Array) -> jax.Array:
        parts = x.reshape(4, M // 4, K)
        return jnp.sum(lax.map(lambda rows: squares(f(rows, *weights)), parts))

    places = tuple(range(1 + len(weights)))
    got, wanted = (
        jax.jit(jax.value_and_grad(g, places))(x, *weights) for g in (sharded, one_by_one)
    )
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4 * float(jnp.max(jnp.abs(b))))


@pytest.mark.parametrize(("gated", "recompute"), [(False, False), (True, True), (False, 2)])
def test_mlp(mesh: Any, gated: bool, recompute: bool | int) -> None:
    def layer(x: jax.Array, up: jax.Array, down: jax.Array, bias: jax.Array) -> jax.Array:
        ups, biases = ((up, 2 * up), (bias, bias)) if gated else (up, bias)
        return bw.mlp(x, ups, down, up_bias=biases, recompute=recompute)

    check(mesh, layer, array(M, K), array(K, N), array(N, K), array(N))


@pytest.mark.parametrize("recipe", ["per_tensor", "blockwise", "nvfp4"])
def test_products_in_low_precision(mesh: Any, recipe: str) -> None:
    dot, grouped = bw.fp8_dot_general(recipe), bw.fp8_ragged_dot(recipe)
    sizes = jnp.array([3, 0, 4])
    check(mesh, lambda x, w: dot(x, w, NUMBERS, **key_of(recipe)), array(M, K), array(K, N))
    of_groups = lambda x, w: grouped(x, w, sizes, **key_of(recipe))  # noqa: E731
    check(mesh, of_groups, array(M, K), array(E, K, N))


@pytest.mark.parametrize("grouped", [False, True])
def test_a_shared_history_gets_the_largest_of_all_devices(mesh: Any, grouped: bool) -> None:
    """Of rows and cotangents; that of weights is the same everywhere."""
    make = bw.fp8_ragged_dot if grouped else bw.fp8_dot_general
    dot = make("per_tensor_delayed")
    how = jnp.array([3, 0, 5]) if grouped else NUMBERS
    x, w, history = array(M, K), array(E, K, N), dot.new_history().at[:, 0].set(448.0)
    w = w if grouped else w[0]

    def loss(w: jax.Array, history: jax.Array, x: jax.Array) -> jax.Array:
        return jnp.sum(dot(x, w, how, amax_history=history) * x[:, :N])

    def sharded(w: jax.Array, history: jax.Array) -> jax.Array:
        one = lambda *arrays: lax.psum(loss(*arrays), "x")  # noqa: E731
        specs = (P(), P(), P("x"))
        return jax.shard_map(one, mesh=mesh, in_specs=specs, out_specs=P())(w, history, x)

    found = jax.jit(jax.grad(sharded, (0, 1)))(w, history)
    gradient = jax.jit(jax.grad(loss, (0, 1)))
    each = [gradient(w, history, rows) for rows in jnp.split(x, 4)]
    np.testing.assert_allclose(found[0], sum(g for g, _ in each), rtol=1e-5, atol=1e-4)
    np.testing.assert_array_equal(found[1], jnp.max(jnp.stack([h for _, h in each]), 0))


@pytest.mark.parametrize("scaling", ["1x128", "nvfp4"])
def test_scaled_groups(mesh: Any, scaling: str) -> None:
    """Both forms, each with an operand that is on all devices alike."""
    x, w, sizes = array(M, K), array(E, N, K), jnp.array([3, 0, 4])

    def forms(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        rows, matrices = bw.quantize(x, scaling), bw.quantize(w, scaling)
        columns, others = bw.quantize(x.T, scaling), bw.quantize(array(N, x.shape[0]), scaling)
        return (
            bw.scaled_ragged_dot(rows, matrices, sizes),
            bw.scaled_ragged_dot(columns, others, sizes),
        )

    specs = {"in_specs": P("x"), "out_specs": P("x")}
    got = jax.jit(jax.shard_map(forms, mesh=mesh, **specs))(x)
    one = jax.jit(forms)
    wanted = [one(rows) for rows in jnp.split(x, 4)]
    for found, parts in zip(got, zip(*wanted, strict=True), strict=True):
        np.testing.assert_array_equal(found, jnp.concatenate(parts))
