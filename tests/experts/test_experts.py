"""`grouped_mlp` and `moe_mlp` against every expert on all rows. On XLA."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from typing import Any

import grouped_oracle
import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from experts_cases import SIZES, TOP, Arrays, E, H, K, M, N, T, moe, ours, routed
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
from jax.test_util import check_grads
from numerics import CHECK_GRADS, assert_same_layers, normal

import jax_bwgemm as bw
from jax_bwgemm.experts.routing import combine, sort_by_expert


def plain_arrays(a: Arrays) -> Arrays:
    return a | {"up": a["up"][:, :, 0]}


def one_expert(rows: Any, up: Any, down: Any, activation: Any = jax.nn.silu) -> jax.Array:
    dot = functools.partial(jnp.dot, precision="highest")
    if up.ndim == 2:
        return dot(activation(dot(rows, up)), down)
    return dot(activation(dot(rows, up[:, 0])) * dot(rows, up[:, 1]), down)


def formula(
    a: Arrays, sizes: Any = SIZES, offset: int = 0, activation: Any = jax.nn.silu
) -> jax.Array:
    """Every expert sees all rows; a mask takes those of its group."""
    experts = slice(offset, offset + a["up"].shape[0])
    ends, sizes = (np.asarray(x)[experts, None, None] for x in (np.cumsum(sizes), sizes))
    row = np.arange(a["rows"].shape[0])[:, None]
    each = jax.vmap(lambda up, down: one_expert(a["rows"], up, down, activation))
    y = jnp.sum(jnp.where((row >= ends - sizes) & (row < ends), each(a["up"], a["down"]), 0), 0)
    return y * a["row_weights"][:, None] if "row_weights" in a else y


def square(f: Any) -> Any:
    return lambda a: jnp.sum(f(a).astype(jnp.float32) ** 2)


def same_with_gradients(f: Any, g: Any, a: Arrays) -> None:
    """Values, outside of jit and in it, and gradients."""
    assert_same_layers(f(a), jax.jit(g)(a))
    for make in (lambda one: one, lambda one: jax.grad(square(one))):
        assert_same_layers(*(jax.jit(make(one))(a) for one in (f, g)))


FORMS = {
    "gated": lambda a: a,
    "plain": plain_arrays,
    "without weights": lambda a: {n: x for n, x in a.items() if n != "row_weights"},
}
forms = pytest.mark.parametrize("form", FORMS)


@pytest.fixture
def dense_products() -> Iterator[None]:
    """For rules of the layers alone: XLA's loop over groups is slow to compile."""
    with grouped_oracle.in_one_einsum():
        yield


dense = pytest.mark.usefixtures("dense_products")
recomputes = pytest.mark.parametrize("recompute", [False, True], ids=["", "recompute"])


@forms
@recomputes
def test_values_and_gradients(arrays: Arrays, form: str, recompute: bool) -> None:
    a = FORMS[form](arrays)
    f = functools.partial(ours, recompute=recompute)
    same_with_gradients(f, formula, a)


def test_exact_integers() -> None:
    """In bf16: all sums and products are integers below 2^8, or rounded as they should be."""
    rng = np.random.default_rng(1)
    draw = lambda *shape: jnp.asarray(rng.integers(-1, 2, shape), jnp.bfloat16)  # noqa: E731
    a = {"rows": draw(M, 4), "up": draw(E, 4, 2, 4), "down": draw(E, 4, N), "row_weights": draw(M)}
    f = functools.partial(ours, activation="relu")
    g = functools.partial(formula, activation=jax.nn.relu)
    wide = jax.tree.map(lambda x: x.astype(jnp.float32), a)
    np.testing.assert_array_equal(f(a).astype(jnp.float32), g(wide))
    bar = draw(M, N).at[:, 2:].set(0)
    got, want = (
        jax.jit(lambda a, bar, f=f: jax.vjp(f, a)[1](bar)[0])(*given)
        for f, given in ((f, (a, bar)), (g, (wide, bar.astype(jnp.float32))))
    )
    for name, value in want.items():
        assert got[name].dtype == jnp.bfloat16
        assert np.any(np.asarray(value)), name
        np.testing.assert_array_equal(got[name].astype(jnp.float32), value, name)


def test_what_is_between_the_products_is_computed_in_float32() -> None:
    """In bf16: the result is the hidden values, each rounded once."""
    rng = np.random.default_rng(2)
    gate, up = (jnp.asarray(normal(rng, (H,), "bfloat16")) for _ in range(2))
    one = jnp.ones((1, 1), jnp.bfloat16)
    down, weights = jnp.eye(H, dtype=jnp.bfloat16)[None], jnp.full(1, 1 / 3)
    for given in (gate[None, None], jnp.stack([gate, up])[None, None]):
        got = bw.grouped_mlp(one, given, down, np.ones(1, int), row_weights=weights)
        hidden = jax.nn.silu(gate.astype(jnp.float32)) / 3
        hidden = hidden * up.astype(jnp.float32) if given.ndim == 4 else hidden
        wide = got[0].astype(jnp.float32)
        np.testing.assert_allclose(wide, hidden, rtol=2.0**-8, atol=0)


def test_tangents_of_a_product_are_added_in_float32() -> None:
    """3 * (256 + 3) is 777, next to 776 in bf16; of the sum in bf16, 260, it is 780."""
    one = jnp.ones((1, 1), jnp.bfloat16)

    def f(rows: jax.Array, up: jax.Array) -> jax.Array:
        weights, sizes = jnp.full(1, 3.0), np.ones(1, int)
        identity = lambda z: z  # noqa: E731
        return bw.grouped_mlp(
            rows, up[None], one[None], sizes, row_weights=weights, activation=identity
        )

    _, tangent = jax.jvp(f, (one, 256 * one), (one, 3 * one))
    assert tangent == 776


@dense
@forms
@recomputes
def test_derivatives_of_both_modes_and_orders(arrays: Arrays, form: str, recompute: bool) -> None:
    a = FORMS[form](arrays)
    f = functools.partial(ours, recompute=recompute)
    check_grads(f, (a,), order=2, **CHECK_GRADS)
    tangents = {name: jnp.asarray(np.asarray(x)[::-1]) for name, x in a.items()}
    both = (jax.jit(lambda a, t, f=f: jax.jvp(f, (a,), (t,))) for f in (f, formula))
    assert_same_layers(*(f(a, tangents) for f in both))


@pytest.mark.parametrize("name", ["rows", "up", "down", "row_weights"])
def test_derivatives_of_one_operand(arrays: Arrays, name: str) -> None:
    """Of the others none is computed."""
    alone = lambda f: lambda one: f(arrays | {name: one})  # noqa: E731
    one, toward = arrays[name], arrays[name][::-1]
    both = alone(ours), alone(formula)
    assert_same_layers(*(jax.jit(jax.grad(square(f)))(one) for f in both))
    forward = (jax.jit(lambda x, t, f=f: jax.jvp(f, (x,), (t,))) for f in both)
    assert_same_layers(*(f(one, toward) for f in forward))
    counts = []
    for f, x in ((alone(ours), one), (ours, arrays)):
        calls = jax.jit(jax.grad(square(f))).lower(x).as_text("hlo")
        counts.append(calls.count(" dot("))
    assert 0 < counts[0] < counts[1]


@dense
@forms
def test_mapped(arrays: Arrays, form: str) -> None:
    a = FORMS[form](arrays)
    stacked = jax.tree.map(lambda x: jnp.stack([x, -x, 2 * x]), a)
    for mapped in ({"rows"}, {"up", "down"}, set(a)):
        axes = {name: 0 if name in mapped else None for name in a}
        at = {name: (stacked if name in mapped else a)[name] for name in a}
        for f, g in ((ours, formula), (jax.grad(square(ours)), jax.grad(square(formula)))):
            assert_same_layers(*(jax.jit(jax.vmap(one, (axes,)))(at) for one in (f, g)))
    sizes = np.array([[7, 0, 11, 4], [1, 2, 3, 4]], np.int32)
    got = jax.jit(jax.vmap(lambda s: ours(a, s)))(jnp.asarray(sizes))
    assert_same_layers(got, jax.jit(lambda a: jnp.stack([formula(a, s) for s in sizes]))(a))


@recomputes
def test_what_is_kept(arrays: Arrays, recompute: bool) -> None:
    """Hidden values and product, or neither."""
    pull = jax.vjp(functools.partial(ours, recompute=recompute), arrays)[1]
    wide = [leaf.shape for leaf in jax.tree.leaves(pull) if leaf.shape in ((M, H), (M, 2 * H))]
    assert sorted(wide) == ([] if recompute else [(M, H), (M, 2 * H)])
    text = jax.jit(jax.grad(square(functools.partial(ours, recompute=recompute)))).lower(arrays)
    assert ("optimization_barrier" in text.as_text()) == recompute


def test_offset(arrays: Arrays) -> None:
    """Some of the experts: other rows are zero, and so are their gradients."""
    a = arrays | {name: arrays[name][1:3] for name in ("up", "down")}
    f = functools.partial(ours, group_offset=jnp.int32(1))
    g = functools.partial(formula, offset=1)
    same_with_gradients(f, g, a)


# --- moe_mlp ---


def moe_formula(a: Arrays, experts: jax.Array) -> jax.Array:
    own = experts == np.arange(E)[:, None, None]
    shares = jnp.sum(jnp.where(own, a["weights"], 0), axis=2, keepdims=True)
    each = jax.vmap(lambda up, down: one_expert(a["x"], up, down))(a["up"], a["down"])
    return jnp.sum(shares * each, 0)


@recomputes
def test_tokens_through_their_experts(recompute: bool) -> None:
    a, experts = routed()
    f = functools.partial(moe, experts=experts, recompute=recompute)
    g = functools.partial(moe_formula, experts=experts)
    same_with_gradients(f, g, a)


@dense
@recomputes
def test_derivatives_of_tokens(recompute: bool) -> None:
    a, experts = routed()
    f = functools.partial(moe, experts=experts, recompute=recompute)
    check_grads(f, (a,), order=2, **CHECK_GRADS)


def test_tokens_mapped() -> None:
    """As over the microbatches of a step: every batch has a choice of its own."""
    (a, experts), (b, others) = routed(), routed(1)
    stacked = jax.tree.map(lambda *x: jnp.stack(x), {**a, "e": experts}, {**b, "e": others})
    stacked |= {name: a[name] for name in ("up", "down")}
    axes = {name: None if name in ("up", "down") else 0 for name in stacked}
    got = jax.vmap(lambda s: moe(s, s["e"]), (axes,))(stacked)
    second = b | {name: a[name] for name in ("up", "down")}
    assert_same_layers(got, jnp.stack([moe_formula(a, experts), moe_formula(second, others)]))


def scattered(f: Any) -> set[str]:
    """Types of all results of scatters in the program of a gradient."""
    a, _ = routed()
    text = jax.jit(jax.grad(square(f))).lower(a).as_text("hlo")
    return set(re.findall(r"= (\w+\[[\d,]*\])[^=]* scatter\(", text))


def test_rows_of_a_token_are_added_in_float32() -> None:
    """In bf16 256 + 1 is 256."""
    rows = jnp.array([[256.0], [1], [1]], jnp.bfloat16)
    order = jnp.arange(3, dtype=jnp.int32)
    assert combine(rows, order, order[None]) == 258


def test_no_scatter_of_rows() -> None:
    """Neither pass adds rows to others, nor writes them to places that must be zero before."""
    _, experts = routed()
    order = np.argsort(experts.reshape(-1))
    assert f"f32[{T},{K}]" in scattered(lambda a: a["x"][order // TOP])
    found = scattered(functools.partial(moe, experts=experts))
    assert found <= {f"s32[{M}]", f"f32[{M}]"}


def test_experts_on_several_devices() -> None:
    a, experts = routed()
    mesh = Mesh(np.array(jax.devices("cpu")[:2]), ("experts",))

    def local(a: Arrays) -> jax.Array:
        first = jax.lax.axis_index("experts") * a["up"].shape[0]
        y = moe(a, experts, num_experts=E, group_offset=first)
        return jax.lax.psum(y, "experts")

    specs = {"x": P(), "up": P("experts"), "down": P("experts"), "weights": P()}
    f = jax.jit(jax.shard_map(local, mesh=mesh, in_specs=(specs,), out_specs=P()))
    g = functools.partial(moe_formula, experts=experts)
    same_with_gradients(f, g, a)


@pytest.mark.parametrize("missing", [-1, -7, E, E + 3])
def test_experts_that_are_none(missing: int) -> None:
    """Padding of routers: a token gets nothing from it, and others what they get without it."""
    a, experts = routed()
    experts = np.array(experts)
    experts[2, 0] = experts[5] = missing
    weights = jnp.where(experts == missing, 0, a["weights"])
    want = moe_formula(a | {"weights": weights}, np.where(experts == missing, 0, experts))
    assert_same_layers(moe(a, experts), want)


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_more_experts_than_their_type_counts(dtype: str) -> None:
    a, experts = routed()
    narrow = functools.partial(moe, num_experts=300, group_offset=0)
    assert_same_layers(narrow(a, experts.astype(dtype)), narrow(a, experts))


def test_exported_with_a_symbolic_mapped_dimension(arrays: Arrays) -> None:
    """Token sequences of which there are any number; with gradients."""
    rng = np.random.default_rng(0)
    x = jnp.asarray(normal(rng, (3, T, K), "float32"))
    experts = jnp.asarray(rng.integers(0, E, (3, T, TOP)), jnp.int32)
    weights = jnp.asarray(rng.random((3, T, TOP)), jnp.float32)

    def loss(x: Any, up: Any, down: Any, experts: Any, weights: Any) -> Any:
        layer = jax.vmap(bw.moe_mlp, (0, None, None, 0, 0))
        return jnp.sum(layer(x, up, down, experts, weights) ** 2)

    f = jax.jit(jax.value_and_grad(loss, (0, 1, 2, 4)))
    (b,) = jax.export.symbolic_shape("b")
    args = x, arrays["up"], arrays["down"], experts, weights
    types = [jax.ShapeDtypeStruct((b, *a.shape[1:]), a.dtype) for a in args]
    types[1:3] = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in args[1:3]]
    exported = jax.export.export(f, disabled_checks=bw.DISABLE_EXPORT_CHECKS)(*types)
    for count in (1, 3):
        some = [a if i in (1, 2) else a[:count] for i, a in enumerate(args)]
        assert_same_layers(exported.call(*some), f(*some))


@pytest.mark.parametrize("count", [1, 7, 255, 256, 300, 65535, 70000])
@pytest.mark.parametrize("dtype", ["int32", "uint32", "int16", "uint8"])
def test_rows_are_sorted_by_expert_whatever_their_number(count: int, dtype: str) -> None:
    """Numbers that are none of the experts' do not wrap around to one in a narrower key."""
    rng = np.random.default_rng(count)
    limits = np.iinfo(dtype)
    experts = rng.integers(0, min(count, limits.max + 1), (64, 3))
    strange = [-1, count, count + 1, count + 256, count + 2**16, limits.max]
    for i, number in enumerate(x for x in strange if limits.min <= x <= limits.max):
        experts[5 * i, 1] = number
    order, place, sizes = sort_by_expert(jnp.asarray(experts.astype(dtype)), count)
    flat = experts.reshape(-1)
    flat = np.where((flat < 0) | (flat >= count), count, flat)
    want = np.argsort(flat, kind="stable")
    np.testing.assert_array_equal(order, want)
    np.testing.assert_array_equal(np.asarray(place).reshape(-1)[want], np.arange(flat.size))
    np.testing.assert_array_equal(sizes, np.bincount(flat, minlength=count + 1)[:count])
    assert {x.dtype.name for x in (order, place, sizes)} == {"int32"}
