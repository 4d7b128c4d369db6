"""Delayed scaling: scales from a history of largest magnitudes, whose gradient is the next one."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numerics import PRODUCT_DB, assert_exact, assert_same_training, decibels

import jax_bwgemm as bw
from jax_bwgemm.scaled.recipes import as_recipe

DOT = bw.fp8_dot_general("per_tensor_delayed")
NUMBERS = (((1,), (0,)), ((), ()))


def operands() -> tuple[jax.Array, jax.Array, jax.Array]:
    rng = np.random.default_rng(0)
    shapes = ((64, 48), (48, 32), (64, 32))
    x, w, g = (jnp.asarray(rng.standard_normal(s), jnp.float32) for s in shapes)
    return 1000 * x, w, 1e-3 * g  # without scales, x would saturate and g vanish


def step(x: jax.Array, w: jax.Array, g: jax.Array, history: jax.Array) -> Any:
    dot = functools.partial(DOT, dimension_numbers=NUMBERS)
    out, back = jax.vjp(lambda x, w, h: dot(x, w, amax_history=h), x, w, history)
    return out, *back(g)


def test_the_gradient_of_the_history_is_the_next_history() -> None:
    x, w, g = operands()
    history = DOT.new_history()
    *_, after = jax.jit(step)(x, w, g, history)
    amax = [np.abs(np.asarray(v)).max() for v in (x, w, g)]
    assert_exact(after[:, 0], np.asarray(amax, np.float32))
    assert not np.any(after[:, 1:])
    *_, later = jax.jit(step)(x / 2, w, g, after)
    assert_exact(later[:, 1], after[:, 0])
    assert_exact(later[0, 0], np.float32(amax[0] / 2))


def test_products_are_as_good_as_with_current_scaling_once_the_history_is_filled() -> None:
    x, w, g = operands()
    *_, history = step(x, w, g, DOT.new_history())
    delayed = step(x, w, g, history)
    current, back = jax.vjp(lambda x, w: bw.fp8_dot_general("per_tensor")(x, w, NUMBERS), x, w)
    for got, want in zip(delayed[:3], (current, *back(g)), strict=True):
        assert_exact(got, want)
    assert decibels(delayed[0], np.asarray(x, np.float64) @ np.asarray(w)) > PRODUCT_DB[3, 3]


def test_the_first_step_saturates() -> None:
    """Nothing is known yet: scales are 1."""
    x, w, g = operands()
    out, *_ = step(x, w, g, DOT.new_history())
    clipped = jnp.clip(x, -448, 448)
    assert decibels(out, np.asarray(clipped, np.float64) @ np.asarray(w)) > PRODUCT_DB[3, 3]


def test_an_overflow_is_not_remembered() -> None:
    x, w, g = operands()
    *_, history = step(x.at[0, 0].set(jnp.inf), w, g.at[0, 0].set(jnp.nan), DOT.new_history())
    assert_exact(history[:, 0], np.asarray([0, np.abs(w).max(), 0], np.float32))


def test_sharded_rows_have_one_history(cpu_devices: list[jax.Device]) -> None:
    mesh = jax.sharding.Mesh(cpu_devices[:4], "data")
    x, w, g = operands()
    rows = jax.NamedSharding(mesh, jax.P("data"))
    got = jax.jit(step)(jax.device_put(x, rows), w, jax.device_put(g, rows), DOT.new_history())
    for ours, want in zip(got, step(x, w, g, DOT.new_history()), strict=True):
        assert decibels(ours, want) > 100


def test_rows_over_two_mesh_axes_have_one_history(cpu_devices: list[jax.Device]) -> None:
    mesh = jax.sharding.Mesh(np.array(cpu_devices[:4]).reshape(2, 2), ("x", "y"))
    x, w, g = operands()

    def next_of(x: jax.Array, g: jax.Array, history: jax.Array) -> jax.Array:
        return jax.vjp(lambda h: DOT(x, w, NUMBERS, amax_history=h), history)[1](g)[0]

    rows = jax.P(("x", "y"))
    shared = jax.shard_map(next_of, mesh=mesh, in_specs=(rows, rows, jax.P()), out_specs=jax.P())
    got = jax.jit(shared)(x, g, DOT.new_history())
    want = [np.abs(np.asarray(one)).max() for one in (x, w, g)]
    assert_exact(got[:, 0], np.asarray(want))


def mapped_history(histories: int | None, nested: bool) -> Any:
    """The next history, or that of each element, of examples of growing magnitudes."""
    x, w, _ = operands()
    x = x.reshape(4, 16, 48) * jnp.arange(1, 5)[:, None, None]

    def total(history: jax.Array) -> jax.Array:
        dot = functools.partial(DOT, dimension_numbers=NUMBERS)
        one = lambda x, h: dot(x, w, amax_history=h)  # noqa: E731
        inner = jax.vmap(lambda x, h: one(x[None], h), (0, None)) if nested else one
        return jnp.sum(jax.vmap(inner, (0, None if histories is None else 0))(x, history))

    history = jnp.full_like(DOT.new_history(), 9.0)
    if histories is not None:
        history = jnp.broadcast_to(history, (histories, *history.shape))
    found = jax.jit(jax.grad(total))(history)
    return found, [np.abs(np.asarray(one)).max() for one in x], np.abs(np.asarray(w)).max()


@pytest.mark.parametrize("nested", [False, True])
def test_elements_of_vmap_share_a_history(nested: bool) -> None:
    """As devices do: the largest magnitudes of all, not their sum."""
    found, of_x, of_w = mapped_history(None, nested)
    assert_exact(found[:, 0], np.asarray([max(of_x), of_w, 1], np.float32))
    assert np.all(found[:, 1:] == 9)


def test_elements_of_vmap_have_histories_of_their_own() -> None:
    found, of_x, of_w = mapped_history(4, nested=True)
    assert_exact(found[:, 0, 0], np.asarray(of_x, np.float32))
    assert np.all(found[:, 1, 0] == of_w)
    assert np.all(found[:, :, 1:] == 9)


def test_histories_of_an_inner_vmap_that_an_outer_one_shares() -> None:
    x = jnp.arange(1.0, 7)[:, None, None] * jnp.ones((6, 4, 48))
    w = operands()[1]
    one = jax.vmap(lambda x, h: DOT(x, w, NUMBERS, amax_history=h))
    histories = jnp.full((3, *DOT.new_history().shape), 9.0)
    found = jax.grad(lambda h: jnp.sum(jax.vmap(one, (0, None))(x.reshape(2, 3, 4, 48), h)))(
        histories
    )
    assert_exact(found[:, 0, 0], np.asarray([4, 5, 6], np.float32))
    assert np.all(found[:, :, 1:] == 9)


def test_batch_dimensions_have_one_history() -> None:
    x, w, g = operands()
    x, w, g = x.reshape(4, 16, 48), jnp.stack([w, 2 * w, w / 2, w]), g.reshape(4, 16, 32)
    numbers = (((2,), (1,)), ((0,), (0,)))
    amax = [np.abs(np.asarray(v)).max() for v in (x, w, g)]
    history = jnp.zeros_like(DOT.new_history()).at[:, 0].set(np.asarray(amax))
    out, back = jax.vjp(lambda x, w, h: DOT(x, w, numbers, amax_history=h), x, w, history)
    *gradients, after = back(g)
    exact = np.asarray(x, np.float64) @ np.asarray(w)
    assert decibels(out, exact) > PRODUCT_DB[3, 3]
    assert decibels(gradients[1], np.asarray(x, np.float64).mT @ np.asarray(g)) > PRODUCT_DB[3, 2]
    assert_exact(after[:, 0], np.asarray(amax, np.float32))


def test_no_examples_leave_a_history_of_zeros() -> None:
    numbers = (((2,), (1,)), ((0,), (0,)))
    x, w = jnp.zeros((0, 4, 8)), jnp.zeros((0, 8, 4))
    after = jax.grad(lambda h: jnp.sum(DOT(x, w, numbers, amax_history=h)))(DOT.new_history())
    assert not np.any(after)


def test_a_flax_model_keeps_its_histories_in_a_collection() -> None:
    """As docs/low_precision.md has it."""
    linen = pytest.importorskip("flax.linen")
    optax = pytest.importorskip("optax")
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.standard_normal((256, 64)), jnp.float32)
    y = jnp.sin(x @ jnp.asarray(rng.standard_normal((64, 32)) / 8, jnp.float32))

    class Delayed(linen.Module):
        @linen.compact
        def __call__(self, *args: Any, **options: Any) -> jax.Array:
            history = self.variable("_overwrite_with_gradient", "amax", DOT.new_history)
            return DOT(*args, **options, amax_history=history.value)

    def losses(low: bool) -> list[float]:
        options = {"dot_general_cls": Delayed} if low else {}

        class Model(linen.Module):
            @linen.compact
            def __call__(self, x: jax.Array) -> jax.Array:
                x = linen.relu(linen.Dense(256, dtype=jnp.bfloat16, **options)(x))
                return linen.Dense(32, dtype=jnp.bfloat16, **options)(x)

        model, optimizer = Model(), optax.adam(3e-3)
        variables = model.init(jax.random.key(0), x)
        state = optimizer.init(variables["params"])

        @jax.jit
        def train(variables: Any, state: Any) -> Any:
            def loss(v: Any) -> jax.Array:
                return jnp.mean(jnp.square(model.apply(v, x).astype(jnp.float32) - y))

            value, grads = jax.value_and_grad(loss)(variables)
            updates, state = optimizer.update(grads["params"], state)
            params = optax.apply_updates(variables["params"], updates)
            return grads | {"params": params}, state, value

        found = []
        for _ in range(30):
            variables, state, value = train(variables, state)
            found.append(float(value))
        return found

    assert_same_training(losses(True), losses(False), low_precision=True)


X, W, _ = operands()


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda: DOT(X, W, NUMBERS),
            TypeError,
            r"requires amax_history, float32 \(3, 1024\), got None",
        ),
        (
            lambda: DOT(X, W, NUMBERS, amax_history=jnp.zeros(3)),
            TypeError,
            r"requires amax_history, float32 \(3, 1024\), got float32\(3,\)",
        ),
        (
            lambda: bw.fp8_dot_general()(X, W, NUMBERS, amax_history=DOT.new_history()),
            ValueError,
            "fp8_dot_general: recipe 'blockwise' keeps no amax_history",
        ),
        (
            lambda: bw.fp8_dot_general(bw.Recipe("row", "row", "row")).new_history(),
            ValueError,
            r"^Recipe\(lhs='row'.*keeps no amax_history",
        ),
        (
            lambda: bw.Recipe("1x128", "128x128", "1x128", history=4),
            ValueError,
            "delayed scaling needs 'tensor' layouts",
        ),
        (
            lambda: bw.Recipe("tensor", "tensor", "tensor", history=-1),
            ValueError,
            "history must be a number of steps below 2.31, got -1",
        ),
        (
            lambda: bw.Recipe("tensor", "tensor", "tensor", history=2**31),
            ValueError,
            "history must be a number of steps below 2.31, got 2147483648",
        ),
        (
            lambda: bw.Recipe("tensor", "tensor", "tensor", history=4, hadamard=True),
            ValueError,
            "delayed scaling has neither rotations nor stochastic rounding",
        ),
        (
            lambda: DOT(X, W, NUMBERS, amax_history=[[0.0]]),
            TypeError,
            r"float32 \(3, \d+\), got \[\[0.0\]\]",
        ),
        (
            lambda: bw.quantize(X, "row", scale=1.0),
            ValueError,
            "takes a scale for scaling 'tensor', not 'row'",
        ),
        (
            lambda: bw.quantize(X, "tensor", scale=jnp.ones(2)),
            TypeError,
            r"requires a float32 scale of shape \(\), got float32\(2,\)",
        ),
        *(
            (
                lambda scale=scale: bw.quantize(X, "tensor", scale=scale),
                ValueError,
                r"quantize requires a positive, normal scale of at most 2\^126, got ",
            )
            for scale in (-1.0, 0.0, 1e-40, np.float32("nan"), 8.6e37, 1e300, -1e300, np.inf)
        ),
        *(
            (
                lambda scale=scale: bw.quantize(X, "tensor", scale=scale),
                TypeError,
                r"requires a float32 scale of shape \(\), got a Python int",
            )
            for scale in (2, 2**31, 10**400)
        ),
        (
            lambda: bw.quantize(X, "tensor", scale="a"),
            TypeError,
            "quantize requires arrays, got scale of type str",
        ),
        (
            lambda: bw.quantize(X, "tensor", scale=1.0, epsilon=1.0),
            ValueError,
            "uses a scale as given: power_of_two and epsilon find others",
        ),
    ],
)
def test_errors(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


def test_scales_that_are_powers_of_two() -> None:
    """Integers up to 8 divided by 8 / 448 would be rounded."""
    rng = np.random.default_rng(0)
    x, w = (jnp.asarray(rng.integers(-8, 9, s), jnp.float32) for s in ((64, 48), (48, 32)))
    dot = bw.fp8_dot_general(bw.Recipe("tensor", "tensor", "tensor", history=1, power_of_two=True))
    assert_exact(dot(x, w, NUMBERS, amax_history=jnp.full((3, 1), 8.0)), x @ w)


def test_but_for_its_scales_it_is_current_scaling() -> None:
    current = as_recipe("per_tensor")
    assert dataclasses.replace(current, history=1024) == as_recipe("per_tensor_delayed")


def test_a_given_scale_is_used() -> None:
    q, t = bw.quantize(X, "tensor", scale=jnp.float32(8), transposed=True)
    want = (np.clip(np.asarray(X) / 8, -448, 448)).astype(jnp.float8_e4m3fn)
    assert_exact(q.values, want)
    assert_exact(t.values, want.T)
    assert q.scales == 8


def test_devices_with_histories_of_their_own(cpu_devices: list[jax.Device]) -> None:
    """As elements of vmap: only those that share one get the largest magnitudes of all."""
    mesh = jax.sharding.Mesh(cpu_devices[:2], "i")
    _, w, _ = operands()
    x = jnp.arange(1.0, 3)[:, None, None] * jnp.ones((2, 4, 48))

    @functools.partial(jax.shard_map, mesh=mesh, in_specs=jax.P("i"), out_specs=jax.P("i"))
    def next_histories(x: jax.Array, history: jax.Array) -> jax.Array:
        loss = lambda h: jnp.sum(DOT(x[0], w, NUMBERS, amax_history=h))  # noqa: E731
        return jax.grad(loss)(history[0])[None]

    found = jax.jit(next_histories)(x, jnp.zeros((2, *DOT.new_history().shape)))
    assert_exact(found[:, 0, 0], np.float32([1, 2]))


def test_delayed_scaling_has_no_stochastic_rounding() -> None:
    recipe = {"history": 4, "stochastic_gradient": True}
    with pytest.raises(ValueError, match="neither rotations nor stochastic rounding"):
        bw.Recipe("tensor", "tensor", "tensor", **recipe)
