"""`fp8_ragged_dot`: accuracy of its three products, delayed scaling, training, errors."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numerics import (
    FRACTION_DB,
    PRODUCT_DB,
    SAME_OPERANDS_DB,
    assert_exact,
    assert_same_training,
    decibels,
)
from ragged_cases import expected

import jax_bwgemm as bw
from jax_bwgemm.scaled.recipes import RECIPES

# Of 8 bits, with scales of their own.
NAMES = tuple(name for name, r in RECIPES.items() if not r.history and not r.needs_key)
SIZES = np.array([70, 0, 130, 1, 40], np.int32)  # of 256 rows


def operands(dtype: str = "bfloat16") -> tuple[jax.Array, jax.Array, jax.Array]:
    """x [256, K], w [5, K, N] and a cotangent [256, N]."""
    rng = np.random.default_rng(0)
    shapes = ((256, 144), (5, 144, 80), (256, 80))
    return tuple(jnp.asarray(rng.standard_normal(s), dtype) for s in shapes)


def exact_products(x: Any, w: Any, g: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Result and gradients in f64."""
    x, w, g = (np.asarray(v, np.float64) for v in (x, w, g))
    ends = np.cumsum(SIZES)
    out, x_bar, w_bar = np.zeros(g.shape), np.zeros(x.shape), np.zeros(w.shape)
    for e, (start, end) in enumerate(zip(ends - SIZES, ends, strict=True)):
        rows = slice(start, end)
        out[rows], x_bar[rows] = x[rows] @ w[e], g[rows] @ w[e].T
        w_bar[e] = x[rows].T @ g[rows]
    return out, x_bar, w_bar


def with_gradients(f: Callable[..., jax.Array], g: jax.Array, *args: jax.Array) -> Any:
    """The result and the arguments' cotangents, of one program."""

    @jax.jit
    def both(g: jax.Array, *args: jax.Array) -> Any:
        out, back = jax.vjp(f, *args)
        return out, *back(g)

    return both(g, *args)


@pytest.mark.parametrize("recipe", NAMES)
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_all_three_products_are_as_good_as_their_operands(recipe: str, dtype: str) -> None:
    x, w, g = operands(dtype)
    dot = bw.fp8_ragged_dot(recipe)
    out, *gradients = with_gradients(lambda x, w: dot(x, w, SIZES), g, x, w)
    want = exact_products(x, w, g)
    assert out.dtype == dtype
    assert decibels(out, want[0]) > PRODUCT_DB[3, 3]
    least = PRODUCT_DB[3, int(jnp.finfo(RECIPES[recipe].gradient_dtype).nmant)]
    for got, exact in zip(gradients, want[1:], strict=True):
        assert got.dtype == dtype
        assert decibels(got, exact) > least
    assert not np.any(np.asarray(out, np.float32)[SIZES.sum() :])
    np.testing.assert_array_equal(dot(x, w, SIZES), out)  # without a gradient


@pytest.mark.parametrize("recipe", NAMES)
def test_products_are_those_of_the_quantized_operands(recipe: str) -> None:
    """Nothing is lost besides the rounding of operands, each of which is quantized once."""
    x, w, g = operands("float32")
    r = RECIPES[recipe]

    def quantized(value: jax.Array, scaling: str, dtype: str) -> bw.ScaledArray:
        function = functools.partial(
            bw.quantize, scaling=scaling, dtype=dtype, power_of_two=r.power_of_two
        )
        of_each = value.ndim == 3 and scaling == "tensor"
        return (jax.vmap(function) if of_each else function)(value)

    dot = bw.fp8_ragged_dot(recipe)
    out, x_bar, w_bar = with_gradients(lambda x, w: dot(x, w, SIZES), g, x, w)
    of_w = functools.partial(quantized, scaling=r.rhs, dtype=r.dtype)
    of_x = functools.partial(quantized, scaling=r.lhs, dtype=r.dtype)
    of_g = functools.partial(quantized, scaling=r.gradient, dtype=r.gradient_dtype)
    for got, a, b in (
        (out, of_x(x), of_w(w.mT)),
        (x_bar, of_g(g), of_w(w)),
        (w_bar, of_x(x.T), of_g(g.T)),
    ):
        assert decibels(got, expected(a, b, SIZES)) > SAME_OPERANDS_DB


def test_delayed_scaling() -> None:
    """The history's gradient is the next one; scales of known magnitudes lose nothing."""
    # So unlike that the history of another one would make them zeros or saturate them.
    x, w, g = (v * 2.0**e for v, e in zip(operands("float32"), (0, -24, 24), strict=True))
    dot = bw.fp8_ragged_dot("per_tensor_delayed")
    history = dot.new_history().at[:, 3].set(jnp.array([jnp.max(abs(v)) for v in (x, w, g)]))

    def function(x: jax.Array, w: jax.Array, history: jax.Array) -> jax.Array:
        return dot(x, w, SIZES, amax_history=history)

    out, x_bar, w_bar, following = with_gradients(function, g, x, w, history)
    want = exact_products(x, w, g)
    assert decibels(out, want[0]) > PRODUCT_DB[3, 3]
    assert decibels(x_bar, want[1]) > PRODUCT_DB[3, 2]
    assert decibels(w_bar, want[2]) > PRODUCT_DB[3, 2]
    np.testing.assert_array_equal(following[:, 0], [jnp.max(abs(v)) for v in (x, w, g)])
    np.testing.assert_array_equal(following[:, 1:], history[:, :-1])


def test_an_offset_leaves_other_groups_out() -> None:
    x, w, g = operands("float32")
    dot = bw.fp8_ragged_dot()
    out, x_bar, w_bar = with_gradients(lambda x, w: dot(x, w, SIZES, group_offset=2), g, x, w[2:4])
    want = exact_products(x, w, g)
    inside = slice(SIZES[:2].sum(), SIZES[:4].sum())
    for got, exact in ((out, want[0]), (x_bar, want[1])):
        assert decibels(got[inside], exact[inside]) > PRODUCT_DB[3, 3]
        assert not np.any(np.delete(np.asarray(got), np.r_[inside], 0))
    assert w_bar.shape == (2, 144, 80)
    assert decibels(w_bar, want[2][2:4]) > PRODUCT_DB[3, 3]


def test_an_offset_that_int32_does_not_hold_is_behind_the_last_group() -> None:
    """On the device offsets are clamped: one converted without that would be negative."""
    dot = bw.fp8_ragged_dot()
    x, w = jnp.ones((8, 128)), jnp.ones((1, 128, 16))
    out = dot(x, w, jnp.array([4, 4]), group_offset=jnp.uint32(3 * 2**30))
    assert_exact(out, np.zeros((8, 16), np.float32))


@pytest.mark.parametrize("recipe", NAMES)
def test_jit_remat_and_vmap(recipe: str) -> None:
    x, w, g = operands("float32")
    dot = bw.fp8_ragged_dot(recipe)

    def gradient(x: jax.Array, sizes: jax.Array) -> Any:
        loss = jax.checkpoint(lambda x, w: jnp.sum(dot(x, w, sizes) * g))
        return jax.grad(loss, (0, 1))(x, w)

    plain = jax.jit(gradient)(x, jnp.asarray(SIZES))
    stacked = jnp.stack([x, x[::-1]]), jnp.stack([SIZES, SIZES[::-1]])
    mapped = jax.jit(jax.vmap(gradient))(*stacked)
    for got, want in zip(jax.tree.map(lambda v: v[0], mapped), plain, strict=True):
        assert decibels(got, want) > SAME_OPERANDS_DB


def test_experts_over_devices(cpu_devices: list[jax.Device]) -> None:
    """Matrices sharded, rows whole; and rows sharded, matrices whole."""
    kind = jax.sharding.AxisType.Auto
    mesh = jax.make_mesh((4,), ("x",), axis_types=(kind,), devices=cpu_devices[:4])
    rng = np.random.default_rng(0)
    x, w = (jnp.asarray(rng.standard_normal(s), jnp.float32) for s in ((512, 128), (4, 128, 128)))
    sizes = jnp.array([100, 212, 0, 200])
    dot = bw.fp8_ragged_dot()

    def step(x: jax.Array, w: jax.Array) -> Any:
        return jax.value_and_grad(lambda x, w: jnp.sum(dot(x, w, sizes) ** 2), (0, 1))(x, w)

    want = jax.jit(step)(x, w)
    for x_spec, w_spec in ((jax.P(), jax.P("x")), (jax.P("x"), jax.P())):
        placed = (
            jax.device_put(v, jax.NamedSharding(mesh, spec))
            for v, spec in ((x, x_spec), (w, w_spec))
        )
        got = jax.jit(step)(*placed)
        for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
            assert decibels(one, other) > SAME_OPERANDS_DB


@pytest.mark.parametrize("recipe", [*NAMES, "nvfp4"])
def test_partly_manual_mesh(cpu_devices: list[jax.Device], recipe: str) -> None:
    """Each device of the manual axis has rows of its own; the other axis is the compiler's."""
    kind = jax.sharding.AxisType.Auto
    mesh = jax.make_mesh((2, 2), ("x", "y"), axis_types=(kind, kind), devices=cpu_devices[:4])
    rng = np.random.default_rng(0)
    x, w = (jnp.asarray(rng.standard_normal(s), jnp.float32) for s in ((128, 64), (4, 64, 48)))
    more = {"key": jax.random.key(0)} if recipe == "nvfp4" else {}
    sizes, dot = jnp.array([20, 0, 30, 9]), bw.fp8_ragged_dot(recipe)

    def step(x: jax.Array, w: jax.Array) -> tuple[jax.Array, jax.Array]:
        out, back = jax.vjp(lambda x: dot(x, w, sizes, **more), x)
        return out, *back(jnp.cos(out))

    mapped = jax.shard_map(
        step, mesh=mesh, in_specs=(jax.P("x"), jax.P()), out_specs=jax.P("x"), axis_names={"x"}
    )
    got = jax.jit(mapped)(x, w)
    each = [jax.jit(step)(part, w) for part in jnp.split(x, 2)]
    for one, *parts in zip(got, *each, strict=True):
        assert decibels(one, jnp.concatenate(parts)) > SAME_OPERANDS_DB


@pytest.mark.parametrize("recipe", NAMES)
def test_a_mixture_of_experts_trains_as_in_bfloat16(recipe: str) -> None:
    """Two products of experts, tokens sorted by a router that is fixed."""
    optax = pytest.importorskip("optax")
    rng = np.random.default_rng(0)
    experts = 4
    x = jnp.asarray(rng.standard_normal((256, 64)), jnp.float32)
    y = jnp.sin(x @ jnp.asarray(rng.standard_normal((64, 32)) / 8, jnp.float32))
    chosen = jnp.argmax(x[:, :experts], 1)
    order = jnp.argsort(chosen)
    x, y, sizes = x[order], y[order], jnp.bincount(chosen, length=experts)
    shapes = {"up": (experts, 64, 128), "down": (experts, 128, 32)}
    start = {
        name: jnp.asarray(rng.standard_normal(shape) * shape[1] ** -0.5, jnp.float32)
        for name, shape in shapes.items()
    }

    def losses(dot: Callable[..., jax.Array]) -> list[float]:
        optimizer = optax.adam(3e-3)

        @jax.jit
        def step(params: Any, state: Any) -> Any:
            def loss(p: Any) -> jax.Array:
                p = jax.tree.map(lambda v: v.astype(jnp.bfloat16), p)
                hidden = jax.nn.relu(dot(x.astype(jnp.bfloat16), p["up"], sizes))
                return jnp.mean(jnp.square(dot(hidden, p["down"], sizes).astype(jnp.float32) - y))

            value, grads = jax.value_and_grad(loss)(params)
            updates, state = optimizer.update(grads, state)
            return optax.apply_updates(params, updates), state, value

        params, state, found = start, optimizer.init(start), []
        for _ in range(30):
            params, state, value = step(params, state)
            found.append(float(value))
        return found

    narrow, wide = losses(bw.fp8_ragged_dot(recipe)), losses(bw.ragged_dot)
    assert narrow[-1] < 0.5 * narrow[0]
    assert_same_training(narrow, wide, low_precision=True)


def test_four_bits() -> None:
    """All three products are those of the operands, as good as a format of 4 bits allows."""
    x, w, g = operands("float32")
    dot = bw.fp8_ragged_dot("nvfp4")
    found = with_gradients(lambda x, w: dot(x, w, SIZES, key=jax.random.key(1)), g, x, w)
    for got, exact in zip(found, exact_products(x, w, g), strict=True):
        assert decibels(got, exact) > FRACTION_DB[1] - 7.5
    assert_exact(dot(x, w, SIZES), found[0])  # the key is for gradients


def test_rotations_stay_within_groups() -> None:
    """Rows of one group reach no other group's gradient, be they as large as they may."""
    x, w, g = operands("float32")
    ends = np.cumsum(SIZES)
    second = np.arange(x.shape[0])[:, None] >= ends[0]
    dot = bw.fp8_ragged_dot("nvfp4")

    @jax.jit
    def gradient(x: jax.Array) -> jax.Array:
        return jax.vjp(lambda w: dot(x, w, SIZES, key=jax.random.key(1)), w)[1](g)[0]

    assert not np.any(np.asarray(gradient(jnp.where(second, x, 0)))[0])
    zeros = np.asarray(gradient(jnp.where(second, 0, x)))
    assert np.any(zeros[0])
    assert not np.any(zeros[1:])


def test_instances_compare_by_value() -> None:
    assert bw.fp8_ragged_dot() == bw.fp8_ragged_dot(RECIPES["blockwise"])
    assert hash(bw.fp8_ragged_dot()) == hash(bw.fp8_ragged_dot("blockwise"))
    assert bw.fp8_ragged_dot("per_tensor") != bw.fp8_ragged_dot()


X, W, _ = operands()


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: bw.fp8_ragged_dot("fp8"), ValueError, "recipe must be one of 'per_tensor'"),
        (
            lambda: bw.fp8_ragged_dot(dataclasses.replace(RECIPES["mxfp8"], rhs="row")),
            ValueError,
            "recipes with f32 scales, or with one layout, got 'mxfp8', 'row' and 'mxfp8'",
        ),
        (
            lambda: bw.fp8_ragged_dot("mxfp8")(X, W, SIZES, key=jax.random.key(0)),
            ValueError,
            "fp8_ragged_dot: recipe 'mxfp8' has no use for a key",
        ),
        (
            lambda: bw.fp8_ragged_dot("nvfp4")(X, W, SIZES, key="a"),
            TypeError,
            "fp8_ragged_dot requires arrays, got key of type str",
        ),
        (
            lambda: jax.grad(lambda w: bw.fp8_ragged_dot("nvfp4")(X, w, SIZES).sum())(W),
            TypeError,
            "depend on random numbers: pass key=",
        ),
        (lambda: bw.fp8_ragged_dot()([1.0], W, SIZES), TypeError, "requires arrays, got lhs"),
        (
            lambda: bw.fp8_ragged_dot()(X.astype(jnp.int32), W, SIZES),
            TypeError,
            "fp8_ragged_dot requires bfloat16, float16 or float32, got lhs: int32",
        ),
        (
            lambda: bw.fp8_ragged_dot()(X, W, SIZES, jnp.int32),
            TypeError,
            "fp8_ragged_dot: preferred_element_type must be",
        ),
        (lambda: bw.fp8_ragged_dot()(X, W[0], SIZES), TypeError, "rhs of rank 3"),
        (lambda: bw.fp8_ragged_dot()(X, W, SIZES[1:]), TypeError, "one matrix for each"),
        (lambda: bw.fp8_ragged_dot()(X, W, 2 * SIZES), ValueError, "group_sizes sum to 482"),
        (
            lambda: bw.fp8_ragged_dot()(X, W, SIZES, group_offset=6),
            ValueError,
            "group_offset must be between",
        ),
        (
            lambda: bw.fp8_ragged_dot()(X, W, SIZES, amax_history=jnp.zeros((3, 4))),
            ValueError,
            "keeps no amax_history",
        ),
        (
            lambda: bw.fp8_ragged_dot()(X[0], W, SIZES),
            TypeError,
            "fp8_ragged_dot requires lhs of rank 2 and rhs of rank 3",
        ),
        (
            lambda: bw.fp8_ragged_dot()(X, W[:, 1:], SIZES),
            TypeError,
            "fp8_ragged_dot contracts dimension 1 of lhs",
        ),
        (
            lambda: bw.fp8_ragged_dot("per_tensor_delayed")(X, W, SIZES),
            TypeError,
            "requires amax_history, float32 .* see Fp8RaggedDot.new_history",
        ),
        (lambda: bw.fp8_ragged_dot().new_history(), ValueError, "keeps no amax_history"),
        (
            lambda: bw.fp8_ragged_dot(implementation="cutlass")(X, W, SIZES),
            NotImplementedError,
            "implementation='cutlass' cannot run quantize",
        ),
    ],
)
def test_errors(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


@pytest.mark.parametrize(("sizes", "same_as"), [((100, 400), (100, 156)), ((-20, 100), (0, 100))])
def test_rotated_groups_end_with_the_rows(sizes: Any, same_as: Any) -> None:
    """Sizes that are negative or go beyond the last row count as elsewhere."""
    x, w, g = operands()
    dot, key = bw.fp8_ragged_dot("nvfp4"), jax.random.key(0)

    def gradients(sizes: Any) -> Any:
        return with_gradients(lambda x, w: dot(x, w, jnp.array(sizes), key=key), g, x, w[:2])

    for got, want in zip(gradients(sizes), gradients(same_as), strict=True):
        assert_exact(got, want)
