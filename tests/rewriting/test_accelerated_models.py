"""Models of Flax, Equinox, Haiku and Optax as they are: 100 steps have the losses of plain ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numerics
import numpy as np
import pytest
from accelerated import counts, has_all_majors

import jax_bwgemm as bw

WIDTH, ROWS, STEPS = 128, 64, 100

Losses = Callable[[Callable[[Any], Any]], list[float]]


def batches(count: int = STEPS) -> Iterator[tuple[jax.Array, jax.Array]]:
    """Random rows, and a fixed random function of them to fit."""
    rng = np.random.default_rng(0)
    w = rng.normal(size=(WIDTH, WIDTH)).astype(np.float32) / WIDTH**0.5
    for _ in range(count):
        x = rng.normal(size=(ROWS, WIDTH)).astype(np.float32)
        yield jnp.asarray(x, jnp.bfloat16), jnp.asarray(np.tanh(x @ w))


def squares(y: jax.Array, target: jax.Array) -> jax.Array:
    return jnp.mean((y.astype(jnp.float32) - target) ** 2)


def linen(transform: Callable[[Any], Any]) -> tuple[Any, Any, Any]:
    nn = pytest.importorskip("flax.linen")
    optax = pytest.importorskip("optax")

    class Model(nn.Module):
        @nn.compact
        def __call__(self, x: jax.Array) -> jax.Array:
            block = nn.remat(nn.Dense)
            x = x + nn.gelu(block(WIDTH, dtype=jnp.bfloat16)(nn.LayerNorm(dtype=jnp.bfloat16)(x)))
            return nn.Dense(WIDTH, dtype=jnp.bfloat16)(nn.relu(x))

    model, optimizer = Model(), optax.adamw(1e-3)
    params = model.init(jax.random.key(0), jnp.zeros((1, WIDTH), jnp.bfloat16))

    def step(state: Any, x: jax.Array, y: jax.Array) -> tuple[Any, jax.Array]:
        params, moments = state
        loss, grads = jax.value_and_grad(lambda p: squares(model.apply(p, x), y))(params)
        updates, moments = optimizer.update(grads, moments, params)
        return (optax.apply_updates(params, updates), moments), loss

    return jax.jit(transform(step), donate_argnums=0), (params, optimizer.init(params)), step


def equinox(transform: Callable[[Any], Any]) -> tuple[Any, Any, Any]:
    eqx = pytest.importorskip("equinox")
    optax = pytest.importorskip("optax")
    model = eqx.nn.MLP(WIDTH, WIDTH, WIDTH, 1, activation=jax.nn.silu, key=jax.random.key(0))
    optimizer = optax.sgd(1e-1, momentum=0.9)

    def loss(model: Any, x: jax.Array, y: jax.Array) -> jax.Array:
        half = jax.tree.map(lambda a: a.astype(x.dtype) if eqx.is_array(a) else a, model)
        return squares(jax.vmap(half)(x), y)

    def step(state: Any, x: jax.Array, y: jax.Array) -> tuple[Any, jax.Array]:
        model, moments = state
        value, grads = eqx.filter_value_and_grad(loss)(model, x, y)
        updates, moments = optimizer.update(grads, moments, model)
        return (eqx.apply_updates(model, updates), moments), value

    state = (model, optimizer.init(eqx.filter(model, eqx.is_array)))
    return eqx.filter_jit(transform(step)), state, step


def haiku(transform: Callable[[Any], Any]) -> tuple[Any, Any, Any]:
    hk = pytest.importorskip("haiku")
    optax = pytest.importorskip("optax")

    def model(x: jax.Array) -> jax.Array:
        mlp = hk.nets.MLP([WIDTH, WIDTH], activation=jax.nn.gelu)
        return mlp(x)

    net, optimizer = hk.without_apply_rng(hk.transform(model)), optax.adam(1e-3)
    params = net.init(jax.random.key(0), jnp.zeros((1, WIDTH), jnp.bfloat16))

    def step(state: Any, x: jax.Array, y: jax.Array) -> tuple[Any, jax.Array]:
        params, moments = state
        loss, grads = jax.value_and_grad(lambda p: squares(net.apply(p, x), y))(params)
        updates, moments = optimizer.update(grads, moments)
        return (optax.apply_updates(params, updates), moments), loss

    return jax.jit(transform(step)), (params, optimizer.init(params)), step


@pytest.mark.parametrize("make", [linen, equinox, haiku])
def test_a_hundred_steps(make: Callable[[Any], tuple[Any, Any, Any]]) -> None:
    losses: list[list[float]] = []
    for transform in (lambda f: f, bw.accelerate):
        run, state, step = make(transform)
        found = []
        for x, y in batches():
            state, loss = run(state, x, y)
            found.append(float(loss))
        losses.append(found)
    numerics.assert_same_training(losses[1], losses[0])
    if has_all_majors() and make is not equinox:  # whose state counts cannot trace
        x, y = next(batches(1))
        calls, _ = counts(bw.accelerate(step), state, x, y)
        assert calls >= 3


def test_nnx_objects_are_changed_in_place() -> None:
    nnx = pytest.importorskip("flax.nnx")
    optax = pytest.importorskip("optax")

    class Model(nnx.Module):
        def __init__(self, rngs: Any) -> None:
            options = {"dtype": jnp.bfloat16, "rngs": rngs}
            self.first = nnx.Linear(WIDTH, WIDTH, **options)
            self.norm = nnx.BatchNorm(WIDTH, **options)
            self.drop = nnx.Dropout(0.1, rngs=rngs)
            self.last = nnx.Linear(WIDTH, WIDTH, **options)
            self.calls = nnx.Variable(jnp.zeros((), jnp.int32))

        def __call__(self, x: jax.Array) -> jax.Array:
            self.calls[...] += 1
            return self.last(self.drop(nnx.gelu(self.norm(self.first(x)))))

    def step(model: Any, optimizer: Any, x: jax.Array, *, y: jax.Array) -> jax.Array:
        loss, grads = nnx.value_and_grad(lambda model: squares(model(x), y))(model)
        optimizer.update(model, grads)
        return loss

    found = {}
    ways = {
        "plain": nnx.jit(step),
        "inside": nnx.jit(bw.accelerate(step)),
        "outside": bw.accelerate(nnx.jit(step)),
    }
    for name, run in ways.items():
        model = Model(nnx.Rngs(0))
        optimizer = nnx.Optimizer(model, optax.adam(1e-3), wrt=nnx.Param)
        steps = STEPS if name != "outside" else 3
        losses = [float(run(model, optimizer, x, y=y)) for x, y in batches(steps)]
        assert model.calls[...] == optimizer.step[...] == steps
        found[name] = losses
    numerics.assert_same_training(found["inside"], found["plain"])
    numerics.assert_same_training(found["outside"], found["plain"][:3])
    x = next(batches(1))[0]
    for kind in (x, jax.ShapeDtypeStruct(x.shape, x.dtype)):
        explained = bw.explain_program(ways["inside"], model, optimizer, kind, y=x)
        assert len(explained.rewrites) >= 5


def test_a_changed_nnx_structure_is_refused() -> None:
    nnx = pytest.importorskip("flax.nnx")

    def f(model: Any, x: jax.Array) -> jax.Array:
        model.extra = nnx.Variable(x)
        return model(x)

    model = nnx.Linear(8, 8, rngs=nnx.Rngs(0))
    with pytest.raises(ValueError, match=r"changes the structure of a flax\.nnx module"):
        bw.accelerate(f)(model, jnp.ones((2, 8)))
    assert not hasattr(model, "extra")

    def evaluated(model: Any, x: jax.Array) -> jax.Array:
        model.eval()
        return model(x)

    norm = nnx.BatchNorm(8, rngs=nnx.Rngs(0))
    with pytest.raises(ValueError, match=r"eval\(\).* use nnx\.view instead"):
        bw.accelerate(evaluated)(norm, jnp.ones((2, 8)))
    view = bw.accelerate(lambda m, x: nnx.view(m, use_running_average=True)(x))
    assert view(norm, jnp.ones((2, 8))).shape == (2, 8)


def test_returned_nnx_modules_are_the_arguments() -> None:
    nnx = pytest.importorskip("flax.nnx")
    optax = pytest.importorskip("optax")

    def step(optimizer: Any, x: jax.Array) -> Any:
        grads = nnx.grad(lambda model: jnp.mean(model(x) ** 2))(optimizer.model)
        optimizer.update(grads)
        return {"model": optimizer.model, "bias": optimizer.model.bias, "new": nnx.Variable(x)}

    for f in (bw.accelerate(step), nnx.jit(bw.accelerate(step)), bw.accelerate(nnx.jit(step))):
        model = nnx.Linear(8, 8, rngs=nnx.Rngs(0))
        found = f(nnx.ModelAndOptimizer(model, optax.sgd(0.1)), jnp.ones((2, 8)))
        assert found["model"] is model
        assert found["bias"] is model.bias
        assert isinstance(found["new"], nnx.Variable)
