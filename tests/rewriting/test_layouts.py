"""Results of products are row-major to XLA: what is computed from them is not turned."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from emulator_cases import requires_emulator
from numerics import LINKED, normal

import jax_bwgemm as bw
from jax_bwgemm import config
from jax_bwgemm.product.jaxprs import equations
from jax_bwgemm.rewriting.layouts import settled

B, T, D = 4, 64, 128


@pytest.fixture(autouse=True)
def _one_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jax, "device_count", lambda: 1)


@pytest.fixture
def arrays() -> tuple[jax.Array, ...]:
    rng = np.random.default_rng(0)
    shapes = ((B, T, D), (D, D), (B, 1, D))
    x, w, gate = (jnp.asarray(normal(rng, s, "bfloat16")) for s in shapes)
    return x, w / 8, gate


def pinned(f: Callable[..., Any], *args: Any, linked: bool = False) -> list[tuple[int, ...]]:
    """Shapes of the arrays that are pinned."""
    with config.target("sm90"), config.linked_epilogues(linked):
        jaxpr = jax.make_jaxpr(bw.accelerate(f))(*args)
    found = [e for e, _ in equations(jaxpr) if e.primitive.name == "layout_constraint"]
    for eqn in found:
        layout = eqn.params["layout"]
        assert layout.major_to_minor == tuple(range(eqn.outvars[0].aval.ndim))
    return [e.outvars[0].aval.shape for e in found]


def block(x: jax.Array, w: jax.Array, gate: jax.Array) -> jax.Array:
    """A gate for each image, as in diffusion transformers: its gradient sums over tokens."""
    return jnp.sum((x + gate * (x @ w)).astype(jnp.float32) ** 2)


def test_results_of_products_are_pinned(arrays) -> None:
    assert pinned(lambda x, w, gate: x + gate * (x @ w), *arrays) == [(B, T, D)]
    # The product again: the gradient of w is a matrix, that of x stays with XLA, which adds to it.
    assert pinned(jax.grad(block, (0, 1, 2)), *arrays) == [(B, T, D)]


def test_the_same_program_in_every_process() -> None:
    """The order of a set of variables is another one in every process."""
    x, w = jnp.zeros((B, T, D), jnp.bfloat16), jnp.zeros((12, D, D), jnp.bfloat16)

    def f(x: jax.Array, w: jax.Array) -> list[jax.Array]:
        kept = []
        for one in w:
            product = x @ one
            x = jnp.tanh(product)
            kept.append(product)
        return [jnp.sum(jnp.exp(product)) for product in kept]

    with config.target("sm90"):
        eqns = jax.make_jaxpr(bw.accelerate(f))(x, w).eqns
    made = [e.outvars for e in eqns if e.primitive.name == "bw_gemm_epilogue"]
    pairs = [vs for vs in made if len(vs) > 1]
    reads = [e.invars[0] for e in eqns if e.primitive.name == "layout_constraint"]
    assert len(pairs) > 8
    assert [[v for v in reads if v in vs] for vs in pairs] == pairs


def assert_as_wanted(ours: jax.Array, theirs: jax.Array) -> None:
    """Sums in another order, relative to the largest."""
    scale = float(jnp.max(jnp.abs(theirs.astype(jnp.float32))))
    ours, theirs = (np.asarray(y.astype(jnp.float32)) / scale for y in (ours, theirs))
    np.testing.assert_allclose(ours, theirs, rtol=4 * LINKED["rtol"], atol=4 * LINKED["atol"])


def test_values_stay_the_same(arrays) -> None:
    steps = jax.value_and_grad(block, (0, 1, 2))
    got, want = jax.jit(bw.accelerate(steps))(*arrays), jax.jit(steps)(*arrays)
    jax.tree.map(assert_as_wanted, got, want)


@pytest.mark.emulator
@requires_emulator[1]
def test_under_transformations(arrays) -> None:
    with config.target("sm90", 4), config.linked_epilogues(False):
        accelerated = bw.accelerate(block, implementation="emulator")
        assert_as_wanted(jax.jit(jax.grad(accelerated))(*arrays), jax.grad(block)(*arrays))
        mapped = jax.make_jaxpr(jax.vmap(accelerated, (0, None, None)))(
            arrays[0][None], *arrays[1:]
        )
    (constraint,) = [e for e, _ in equations(mapped) if e.primitive.name == "layout_constraint"]
    assert constraint.outvars[0].aval.shape == (1, B, T, D)


def test_matrices_are_left_alone(arrays) -> None:
    x, w, _ = arrays
    assert pinned(lambda x, w: x @ w, x[0], w) == []


def test_a_result_that_is_transposed_is_left_alone(arrays) -> None:
    x = arrays[0]
    mixed = jnp.ones((T, T), jnp.bfloat16)

    def mixer(x: jax.Array, w: jax.Array) -> jax.Array:
        tokens = (jnp.sin(x.swapaxes(1, 2)) @ w).swapaxes(1, 2)
        return x + tokens

    assert pinned(mixer, x, mixed) == []


def test_several_devices_are_left_alone(arrays, monkeypatch) -> None:
    monkeypatch.setattr(jax, "device_count", lambda: 2)
    assert pinned(lambda x, w, gate: x + gate * (x @ w), *arrays) == []


def test_results_with_epilogues_are_pinned(arrays) -> None:
    def layer(x: jax.Array, w: jax.Array, gate: jax.Array) -> jax.Array:
        return jax.nn.gelu(x @ w) + gate

    shapes = pinned(layer, *arrays, linked=True)
    assert shapes == [(B, T, D)]


def test_results_of_a_kernel_that_a_loop_keeps_and_others_read_are_settled() -> None:
    """XLA would compute them twice; those that it only keeps may be written in their place."""
    x = jax.ShapeDtypeStruct((4096, 4096), jnp.bfloat16)
    with config.target("sm90"), config.linked_epilogues(True):
        matmul = functools.partial(bw.matmul, epilogue=lambda z: (jax.nn.gelu(z), z))
        jaxpr = jax.make_jaxpr(matmul)(x, x)
    (fused,) = (e for e, _ in equations(jaxpr) if e.primitive.name == "bw_gemm_epilogue")
    y, z = fused.outvars
    assert settled([fused], [y, z]) == [fused]
    assert settled([fused], [y, y, z]) == [fused]  # the call settles the first result itself
    product, barrier = settled([fused], [y, z, z])
    assert barrier.primitive.name == "optimization_barrier"
    assert barrier.invars == [product.outvars[1]] != [z]
    assert (product.outvars[0], barrier.outvars) == (y, [z])
