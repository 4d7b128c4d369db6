"""Products that a program computes twice are computed once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.xla_metadata import set_xla_metadata
from numerics import LINKED, normal

import jax_bwgemm as bw
from jax_bwgemm import compat_jaxpr, config
from jax_bwgemm.product.jaxprs import equations
from jax_bwgemm.rewriting.duplicates import without_duplicates

N, D, F = 64, 128, 256
F32 = jnp.float32


@pytest.fixture
def arrays() -> tuple[Any, jax.Array]:
    rng = np.random.default_rng(0)
    make = lambda *shape: jnp.asarray(normal(rng, shape, "bfloat16"))  # noqa: E731
    layers = [(make(D, F) / 8, make(F), make(F, D) / 8) for _ in range(2)]
    return layers, make(N, D)


def model(params: Any, x: jax.Array, activation: Callable[..., Any] = jax.nn.gelu) -> jax.Array:
    for up, bias, down in params:
        x = x + activation(x @ up + bias) @ down
    return jax.nn.softmax(x, axis=-1)


def loss(params: Any, x: jax.Array, activation: Callable[..., Any] = jax.nn.gelu) -> jax.Array:
    return jnp.mean(model(params, x, activation).astype(F32) ** 2)


def products(f: Callable[..., Any], *args: Any) -> int:
    """How many there are."""
    with config.target("sm90"), config.linked_epilogues(False):
        jaxpr = jax.make_jaxpr(bw.accelerate(f))(*args)
    names = ("dot_general", "bw_gemm")
    return sum(e.primitive.name in names for e, _ in equations(jaxpr))


def check(f: Callable[..., Any], *args: Any) -> None:
    got, want = jax.jit(bw.accelerate(f))(*args), jax.jit(f)(*args)
    assert jax.tree.structure(got) == jax.tree.structure(want)
    for ours, theirs in zip(*map(jax.tree.leaves, (got, want)), strict=True):
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
        ours, theirs = (np.asarray(y, np.float32) for y in (ours, theirs))
        np.testing.assert_allclose(ours, theirs, rtol=4 * LINKED["rtol"], atol=LINKED["atol"])


@pytest.mark.parametrize("activation", [jax.nn.gelu, jax.nn.relu, jax.nn.silu])
@pytest.mark.parametrize("jitted", ["neither", "loss", "metric", "both"])
def test_a_metric_beside_a_gradient(arrays, activation: Any, jitted: str) -> None:
    """Of functions that JAX defines with derivatives of their own, too; within jit and not."""

    def value(params: Any, x: jax.Array) -> jax.Array:
        return loss(params, x, activation)

    def metric(params: Any, x: jax.Array) -> jax.Array:
        return jnp.argmax(model(params, x, activation), -1).sum()

    one = jax.jit(value) if jitted in ("loss", "both") else value
    other = jax.jit(metric) if jitted in ("metric", "both") else metric

    def step(params: Any, x: jax.Array) -> Any:
        return jax.value_and_grad(one)(params, x), other(params, x)

    alone = products(lambda *args: jax.value_and_grad(one)(*args), *arrays)
    assert alone > 0
    assert products(step, *arrays) == alone
    check(step, *arrays)


def test_what_is_returned_twice(arrays) -> None:
    def f(params: Any, x: jax.Array) -> Any:
        return model(params, x), model(params, x), jax.jit(model)(params, x)

    assert products(f, *arrays) == products(model, *arrays)
    check(f, *arrays)


def test_other_operands_types_and_random_numbers_differ(arrays) -> None:
    (((up, _, _), _), x) = arrays

    def f(x: jax.Array, up: jax.Array, key: Any) -> Any:
        one, two = jax.random.split(key)
        noise = [jax.random.normal(k, x.shape, x.dtype) for k in (one, two)]
        exact = jnp.matmul(x, up, preferred_element_type=F32)
        return x @ up, exact, (x * 2) @ up, *((x + n) @ up for n in noise)

    assert products(f, x, up, jax.random.key(0)) == 5
    check(f, x, up, jax.random.key(0))


def test_numbers_of_a_generator_without_a_key_differ(arrays) -> None:
    (up, _, _), x = arrays[0][0], arrays[1]

    def f(x: jax.Array) -> Any:
        first, second = (jax.lax.rng_uniform(0.0, 1.0, (64,)) for _ in range(2))
        return x @ up, x @ up, first, second

    assert products(f, x) == 1
    *_, first, second = jax.jit(bw.accelerate(f))(x)
    assert not np.array_equal(first, second)


def test_scopes_of_merged_calls(arrays) -> None:
    x = arrays[1]
    inner = jax.jit(lambda x: jnp.tanh(x @ x.T))

    def f(x: jax.Array) -> Any:
        with jax.named_scope("outer"):
            first = inner(x)
        return first, inner(x)

    with config.target("sm90"):
        lowered = jax.jit(bw.accelerate(f)).trace(x).lower(lowering_platforms=("cuda",))
    assert "outer/jit(<lambda>)/" in lowered.as_text(debug_info=True)


def test_a_product_with_metadata_of_its_own_stays(arrays) -> None:
    """The compiler is told something of one of two equal products."""

    def f(x: jax.Array) -> Any:
        with set_xla_metadata(scheduling_group="first"):
            first = x @ x.T
        return first, x @ x.T, x @ x.T

    assert products(f, arrays[1]) == 2
    check(f, arrays[1])


def test_what_checkpoint_computes_again_stays(arrays) -> None:
    def f(params: Any, x: jax.Array) -> Any:
        return jax.grad(jax.checkpoint(loss))(params, x)

    def kept(params: Any, x: jax.Array) -> Any:
        return jax.grad(loss)(params, x)

    assert products(f, *arrays) > products(kept, *arrays)


def test_own_derivatives_of_functions_stay(arrays) -> None:
    """Two functions of equal values and different gradients are not one."""

    @jax.custom_jvp
    def scaled(x: jax.Array) -> jax.Array:
        return x

    scaled.defjvp(lambda primals, tangents: (primals[0], tangents[0] * 0.5))
    (((up, _, _), _), x) = arrays

    def f(x: jax.Array) -> jax.Array:
        return jnp.sum((x @ up).astype(F32)) + jnp.sum((scaled(x) @ up).astype(F32))

    got, want = (jax.jit(jax.grad(g))(x) for g in (bw.accelerate(f), f))
    np.testing.assert_allclose(*(np.asarray(y, np.float32) for y in (got, want)), rtol=2e-2)


def test_shared_bodies_and_constants_of_calls(arrays) -> None:
    """One jitted function twice: of equal operands, of others, with results that are operands."""
    (((up, _, _), _), x) = arrays
    weights = np.asarray(up)
    f = jax.jit(lambda x: (x @ weights, x, x @ weights))

    def g(x: jax.Array) -> Any:
        return f(x), f(x), f(x + 1), x @ up

    check(g, x)


@pytest.mark.parametrize("within", [False, True])
def test_values_that_a_call_overwrites(arrays, within: bool) -> None:
    """They are no other's. Within a call nothing is overwritten; in its place it would be."""
    (((up, _, _), _), x) = arrays
    add = jax.jit(lambda y: y + 1, donate_argnums=0)

    def call(x: jax.Array, up: jax.Array) -> jax.Array:
        return add(x @ up)

    def f(x: jax.Array, up: jax.Array) -> Any:
        return x @ up, (jax.jit(call) if within else call)(x, up)

    assert products(f, x, up) == 2
    for got, want in zip(bw.accelerate(f)(x, up), f(x, up), strict=True):
        np.testing.assert_array_equal(*(np.asarray(y, np.float32) for y in (got, want)))


def test_nothing_changes_where_all_products_differ(arrays) -> None:
    body = compat_jaxpr.opened(jax.make_jaxpr(jax.grad(loss))(*arrays))
    assert without_duplicates(body) is body
