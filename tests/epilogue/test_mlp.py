"""`mlp` against its formula: values, derivatives, mapping, sharding, memory, errors. On XLA."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from jax.test_util import check_grads
from numerics import CHECK_GRADS, assert_same_layers, normal

import jax_bwgemm as bw
from jax_bwgemm.epilogue.activations import ACTIVATIONS

M, K, H, N = 6, 16, 32, 24
Arrays = dict[str, Any]


@pytest.fixture
def arrays() -> Arrays:
    rng = np.random.default_rng(0)
    shapes = {"x": (M, K), "up": (K, H), "down": (H, N), "up_bias": (H,), "down_bias": (N,)}
    shapes |= {"gate": (K, H), "gate_bias": (H,)}
    found = {name: jnp.asarray(normal(rng, shape, "float32")) for name, shape in shapes.items()}
    scales = {"up": K**-0.5, "gate": K**-0.5, "down": H**-0.5}
    return {name: array * scales.get(name, 1.0) for name, array in found.items()}


def plain(a: Arrays, **more: Any) -> jax.Array:
    biases = {name: a.get(name) for name in ("up_bias", "down_bias")}
    return bw.mlp(a["x"], a["up"], a["down"], **biases, **more)


def gated(a: Arrays, **more: Any) -> jax.Array:
    pair = (a["gate_bias"], a["up_bias"]) if "up_bias" in a else None
    biases = {"up_bias": pair, "down_bias": a.get("down_bias"), "activation": "silu"}
    return bw.mlp(a["x"], (a["gate"], a["up"]), a["down"], **biases, **more)


def formula(a: Arrays) -> jax.Array:
    dot = functools.partial(jnp.dot, precision="highest")
    h = jax.nn.gelu(dot(a["x"], a["up"]) + a.get("up_bias", 0))
    return dot(h, a["down"]) + a.get("down_bias", 0)


def gated_formula(a: Arrays) -> jax.Array:
    dot = functools.partial(jnp.dot, precision="highest")
    gate = jax.nn.silu(dot(a["x"], a["gate"]) + a.get("gate_bias", 0))
    return dot(gate * (dot(a["x"], a["up"]) + a.get("up_bias", 0)), a["down"]) + a.get(
        "down_bias", 0
    )


FORMS = {
    "plain": (plain, formula),
    "plain, recomputed": (functools.partial(plain, recompute=True), formula),
    "gated": (gated, gated_formula),
    "gated, recomputed": (functools.partial(gated, recompute=True), gated_formula),
}
forms = pytest.mark.parametrize("form", FORMS)
linked = pytest.mark.parametrize("linking", [False, True], ids=["", "linking"])


def without_biases(a: Arrays) -> Arrays:
    return {name: array for name, array in a.items() if "bias" not in name}


def square(f: Any) -> Any:
    return lambda a: jnp.sum(f(a) ** 2)


@forms
@linked
def test_values_and_gradients(arrays: Arrays, form: str, linking: bool) -> None:
    ours, want = FORMS[form]
    with bw.config.linked_epilogues(linking):
        for a in (arrays, without_biases(arrays)):
            assert_same_layers(*(jax.jit(f)(a) for f in (ours, want)))
            assert_same_layers(*(jax.jit(jax.grad(square(f)))(a) for f in (ours, want)))
    batch = arrays | {"x": arrays["x"].reshape(2, 3, K)}
    assert_same_layers(ours(batch).reshape(M, N), jax.jit(want)(arrays))  # outside of jit
    got, wanted = (jax.jit(jax.grad(square(f)))(a) for f, a in ((ours, batch), (want, arrays)))
    assert_same_layers(got | {"x": got["x"].reshape(M, K)}, wanted)


@forms
def test_derivatives_of_both_modes_and_orders(arrays: Arrays, form: str) -> None:
    ours, want = FORMS[form]
    check_grads(jax.jit(ours), (arrays,), order=2, **CHECK_GRADS)
    tangents = {name: jnp.asarray(np.asarray(a)[::-1]) for name, a in arrays.items()}
    both = (jax.jit(lambda a, t, f=f: jax.jvp(f, (a,), (t,))) for f in (ours, want))
    assert_same_layers(*(f(arrays, tangents) for f in both))


@pytest.mark.parametrize("name", ["x", "gate", "up", "down", "gate_bias", "up_bias", "down_bias"])
def test_gradients_of_one_operand(arrays: Arrays, name: str) -> None:
    """Of the others no gradient is computed."""
    alone = lambda f: lambda one: square(f)(arrays | {name: one})  # noqa: E731
    both = (jax.jit(jax.grad(alone(f))) for f in (gated, gated_formula))
    assert_same_layers(*(f(arrays[name]) for f in both))
    text = jax.jit(jax.grad(alone(gated))).lower(arrays[name]).as_text()
    whole = jax.jit(jax.grad(square(gated))).lower(arrays).as_text()
    assert text.count("stablehlo.dot_general") < whole.count("stablehlo.dot_general")


@forms
def test_gradients_of_a_single_row(arrays: Arrays, form: str) -> None:
    ours, want = FORMS[form]
    row = arrays | {"x": arrays["x"][0]}
    assert_same_layers(jax.grad(square(ours))(row), jax.grad(square(want))(row))


def test_every_activation_and_none(arrays: Arrays) -> None:
    x, up, down = arrays["x"], arrays["up"], arrays["down"]
    assert_same_layers(bw.mlp(x, up, down, activation=None), x @ up @ down)
    assert_same_layers(bw.mlp(x, up, down, activation=jnp.sin), jnp.sin(x @ up) @ down)
    assert_same_layers(bw.mlp(x, up, down, activation="relu"), jax.nn.relu(x @ up) @ down)
    assert_same_layers(bw.mlp(x[0], up, down), jax.nn.gelu(x[0] @ up) @ down)


@pytest.mark.parametrize("recompute", [False, True, 2])
@pytest.mark.parametrize("names", [("up",), ("gate", "up")], ids="-".join)
def test_gradients_without_an_activation(
    arrays: Arrays, names: tuple[str, ...], recompute: bool | int
) -> None:
    a = {name: arrays[name] for name in ("x", "down", *names)}

    def ours(a: Arrays) -> jax.Array:
        ups = tuple(a[name] for name in names)
        ups = ups if len(ups) > 1 else ups[0]
        return bw.mlp(a["x"], ups, a["down"], activation=None, recompute=recompute)

    def want(a: Arrays) -> jax.Array:
        return functools.reduce(jnp.multiply, (a["x"] @ a[name] for name in names)) @ a["down"]

    assert_same_layers(*(jax.jit(jax.grad(square(f)))(a) for f in (ours, want)))


@pytest.mark.parametrize("step", [lambda z: z > 0, lambda z: jnp.round(z).astype(jnp.int32)])
@pytest.mark.parametrize("recompute", [False, True, 2])
def test_activations_without_a_slope(arrays: Arrays, step: Any, recompute: Any) -> None:
    """They return bools or integers."""
    x, up, down = arrays["x"], arrays["up"], arrays["down"]

    def ours(x: jax.Array, down: jax.Array) -> jax.Array:
        return bw.mlp(x, up, down, activation=step, recompute=recompute)

    def want(x: jax.Array, down: jax.Array) -> jax.Array:
        return step(x @ up).astype(x.dtype) @ down

    assert_same_layers(ours(x, down), want(x, down))
    pulled = [jax.vjp(f, x, down)[1](jnp.ones_like(want(x, down))) for f in (ours, want)]
    assert_same_layers(*pulled)
    pushed = [jax.jvp(f, (x, down), (x, down))[1] for f in (ours, want)]
    assert_same_layers(*pushed)


@forms
def test_mapped(arrays: Arrays, form: str) -> None:
    ours, want = FORMS[form]
    stacked = {name: jnp.stack([a, -a, 2 * a]) for name, a in arrays.items()}
    for mapped in ({"x"}, {"up"}, {"x", "down", "up_bias"}, set(arrays)):
        axes = {name: 0 if name in mapped else None for name in arrays}
        at = {name: (stacked if name in mapped else arrays)[name] for name in arrays}
        for f, g in ((ours, want), (jax.grad(square(ours)), jax.grad(square(want)))):
            assert_same_layers(*(jax.jit(jax.vmap(one, (axes,)))(at) for one in (f, g)))


@forms
def test_rounding(arrays: Arrays, form: str) -> None:
    """Products and hidden values are rounded, what is between is not."""
    a = {name: x.astype(jnp.bfloat16) for name, x in arrays.items()}
    wide = lambda x: x.astype(jnp.float32)  # noqa: E731
    biased = lambda w, b: wide(jnp.dot(a["x"], a[w])) + wide(a[b])  # noqa: E731
    if "gated" in form:
        h = jax.nn.silu(biased("gate", "gate_bias")) * biased("up", "up_bias")
    else:
        h = jax.nn.gelu(biased("up", "up_bias"))
    want = wide(jnp.dot(h.astype(jnp.bfloat16), a["down"])) + wide(a["down_bias"])
    got = jax.jit(FORMS[form][0])(a)
    assert got.dtype == jnp.bfloat16
    np.testing.assert_array_equal(got, want.astype(jnp.bfloat16))
    gradients = jax.grad(lambda a: square(FORMS[form][0])(a).astype(jnp.float32))(a)
    assert {g.dtype.name for g in gradients.values()} == {"bfloat16"}


@pytest.mark.parametrize("recompute", [False, True])
def test_rounding_of_gradients(arrays: Arrays, recompute: bool) -> None:
    """Products are rounded before and after, what is between is not."""
    names = ("x", "gate", "up", "down")
    a = {name: arrays[name].astype(jnp.bfloat16) for name in names}
    y_bar = jnp.asarray(normal(np.random.default_rng(1), (M, N), "bfloat16"))
    wide = lambda x: x.astype(jnp.float32)  # noqa: E731

    # Not compiled: XLA may leave roundings out.
    products = [wide(jnp.dot(a["x"], a[name])) for name in ("gate", "up")]
    hidden_bar = wide(jnp.dot(y_bar, a["down"].T))
    bars = jax.vjp(lambda gate, up: jax.nn.silu(gate) * up, *products)[1](hidden_bar)
    (got,) = jax.vjp(functools.partial(gated, recompute=recompute), a)[1](y_bar)
    for name, bar in zip(("gate", "up"), bars, strict=True):
        np.testing.assert_array_equal(got[name], jnp.dot(a["x"].T, bar.astype(jnp.bfloat16)))


@pytest.mark.parametrize(("recompute", "kept"), [(False, 2), (True, 0)])
def test_what_is_kept(arrays: Arrays, recompute: bool, kept: int) -> None:
    """Arrays of [M, H] between the forward and the backward pass."""
    pull = jax.vjp(functools.partial(plain, recompute=recompute), arrays)[1]
    assert sum(leaf.shape == (M, H) for leaf in jax.tree.leaves(pull)) == kept


def test_recomputing_is_not_undone(arrays: Arrays) -> None:
    """The compiler may not merge the second computation with the first."""
    f = functools.partial(plain, recompute=True)
    text = jax.jit(jax.grad(square(f))).lower(arrays).as_text()
    assert "optimization_barrier" in text


@forms
def test_sharded(arrays: Arrays, form: str) -> None:
    """Rows over one axis of the mesh, hidden values over the other, in a jitted step."""
    ours, want = FORMS[form]
    mesh = jax.make_mesh((2, 4), ("i", "j"), axis_types=(AxisType.Auto,) * 2)
    p = PartitionSpec
    specs = {
        "x": p("i"),
        "up": p(None, "j"),
        "gate": p(None, "j"),
        "down": p("j"),
        "up_bias": p("j"),
    }
    placed = {
        name: jax.device_put(a, NamedSharding(mesh, specs.get(name, p())))
        for name, a in arrays.items()
    }
    assert_same_layers(jax.jit(jax.grad(square(ours)))(placed), jax.grad(square(want))(arrays))


def test_exported_with_a_symbolic_size(arrays: Arrays) -> None:
    rows = jax.export.symbolic_shape("rows")[0]
    types = {name: jax.ShapeDtypeStruct(a.shape, a.dtype) for name, a in arrays.items()}
    types["x"] = jax.ShapeDtypeStruct((rows, K), jnp.float32)
    exported = jax.export.export(jax.jit(jax.grad(square(gated))))(types)
    assert_same_layers(exported.call(arrays), jax.grad(square(gated_formula))(arrays))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": (M, K + 1)}, r"x must be \[..., K\], up \[K, H\] or a pair"),
        ({"down": (H + 1, N)}, r"x must be \[..., K\], up \[K, H\] or a pair"),
        ({"up_bias": (N,)}, r"up_bias must have the shape \(32,\), got \(24,\)"),
        ({"down_bias": (H,)}, r"down_bias must have the shape \(24,\), got \(32,\)"),
    ],
)
def test_shapes_that_do_not_fit(arrays: Arrays, change: Any, message: str) -> None:
    wrong = arrays | {name: jnp.zeros(shape) for name, shape in change.items()}
    with pytest.raises(TypeError, match=message):
        plain(wrong)


def test_types_that_do_not_fit(arrays: Arrays) -> None:
    low = arrays | {"up": arrays["up"].astype(jnp.bfloat16)}
    with pytest.raises(TypeError, match="one floating-point type, got bfloat16, float32"):
        plain(low)
    integers = {name: jnp.ones(a.shape, jnp.int32) for name, a in arrays.items()}
    with pytest.raises(TypeError, match="one floating-point type, got int32"):
        plain(integers)
    x, up, down, bias = (arrays[name] for name in ("x", "up", "down", "up_bias"))
    with pytest.raises(TypeError, match="up_bias must be a pair of arrays, as up is"):
        bw.mlp(x, (up, up), down, up_bias=bias)
    with pytest.raises(TypeError, match="up_bias must be an array, as up is"):
        bw.mlp(x, up, down, up_bias=(bias, bias))
    for ups in ((up, up, up), (up,)):
        with pytest.raises(TypeError, match=r"mlp: up must be a pair of arrays$"):
            bw.mlp(x, ups, down)
    with pytest.raises(ValueError, match="mlp: unknown activation 'geluu'"):
        bw.mlp(x, up, down, activation="geluu")


@pytest.mark.parametrize("name", sorted(ACTIVATIONS))
def test_every_activation_has_a_gradient(arrays: Arrays, name: str) -> None:
    """Derivatives may have primitives of their own: polynomials, in JAX 0.12."""
    function = ACTIVATIONS[name]
    a = {k: arrays[k] for k in ("x", "up", "down")}

    def formula(a: Arrays) -> jax.Array:
        dot = functools.partial(jnp.dot, precision="highest")
        return dot(function(dot(a["x"], a["up"])), a["down"])

    ours = functools.partial(plain, activation=name)
    assert_same_layers(jax.grad(square(ours))(a), jax.grad(square(formula))(a))
