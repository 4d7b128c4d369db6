"""Operations after a product become part of it, where nothing is lost by that."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from fuse_cases import F32, K, M, N, check, fused, mlp

import jax_bwgemm as bw
from jax_bwgemm import config
from jax_bwgemm.epilogue.fused import Fused
from jax_bwgemm.epilogue.program import MATRICES
from jax_bwgemm.rewriting import fuse, slopes

pytestmark = pytest.mark.usefixtures("functions_link")


def test_a_short_k_is_ours_if_a_kernel_takes_more_along(
    arrays: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, w = arrays["x"][:, :16], arrays["w"][:16]
    assert fused(lambda x, w: jax.nn.gelu(x @ w), x, w) == [([], 1)]
    monkeypatch.setattr(fuse, "link_refusal", lambda *_: "no reason")
    jax.clear_caches()
    assert fused(lambda x, w: jax.nn.gelu(x @ w), x, w) == []


@pytest.mark.parametrize("activation", [jax.nn.silu, jax.jit(jax.nn.gelu)])
def test_a_function_whose_other_results_are_read(arrays: Any, activation: Any) -> None:
    """Of a jitted activation a kernel writes one result: the rest of it computes no other."""

    def loss(a: dict[str, jax.Array]) -> jax.Array:
        hidden = activation(a["x"] @ a["w"] + a["b"])
        return jnp.mean((hidden @ a["v"]).astype(F32) ** 2)

    step = jax.value_and_grad(loss)
    jaxpr = jax.make_jaxpr(bw.accelerate(step))(arrays)
    read = {id(v) for e in jaxpr.eqns for v in e.invars}
    bodies = [e for e in jaxpr.eqns if e.primitive.name in ("jit", "pjit")]
    assert not [v for e in bodies for v in e.outvars if v.aval.shape == (M, N) and id(v) in read]
    check(step, arrays)


def test_a_kernel_is_chosen_once_for_equal_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """However deep the network is: choosing compares predictions of every kernel."""
    choose, chosen = Fused._choose, []

    def counted(self: Fused, *args: Any) -> Any:
        chosen.append(self)
        return choose(self, *args)

    def refusal(operands: Any, one: Fused) -> None:
        one.choose("cutlass", "cuda", operands)

    monkeypatch.setattr(Fused, "_choose", counted)
    monkeypatch.setattr(fuse, "link_refusal", refusal)
    monkeypatch.setattr(slopes, "link_refusal", refusal)
    x, w = (jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in ((256, 128), (128, 128)))

    def step(layers: int) -> int:
        def network(weights: Any, x: Any) -> Any:
            for w in weights:
                x = jax.nn.gelu(x @ w)
            return jnp.sum(x.astype(F32))

        del chosen[:]
        text = str(jax.make_jaxpr(bw.accelerate(jax.grad(network)))([w] * layers, x))
        assert text.count("bw_gemm_epilogue[") >= layers
        return len(chosen)

    assert 0 < step(5) == step(3)


def test_bias_and_activation_between_products(arrays) -> None:
    args = [arrays[name] for name in "xwbvc"]
    # The second layer's result goes to memory too.
    assert fused(mlp, *args) == [([(1,)], 1), ([(1,)], 1)]
    check(mlp, *args)


def test_a_training_step_keeps_the_product_alone(arrays) -> None:
    def loss(params: Any, x: Any) -> Any:
        return jnp.mean(jnp.square(mlp(x, *params).astype(F32)))

    params = tuple(arrays[name] for name in "wbvc")
    step = jax.value_and_grad(loss)
    # Forward: the activation and the product; then the cotangent of the loss, and the product,
    # which the loss needs, and the second bias's gradient. Backward: the activation's derivative,
    # from product and bias, and the first bias's gradient.
    found = fused(step, params, arrays["x"])
    assert found == [([(1,)], 2), ([(1,)], 3), ([(0, 1), (1,)], 2)]
    check(step, params, arrays["x"])
    check(jax.grad(lambda *a: bw.accelerate(loss)(*a)), params, arrays["x"])


def test_residuals_scales_and_leading_dimensions(arrays) -> None:
    x, w, b = (arrays[name] for name in "xwb")
    x = x.reshape(2, M // 2, K)
    r, t = jnp.ones((2, M // 2, N), jnp.bfloat16), jnp.ones((2, M // 2, 1), jnp.bfloat16)

    def f(x: Any, w: Any, b: Any, r: Any, t: Any) -> Any:
        return jax.nn.relu(x @ w + b) * t * 0.5 + r

    assert fused(f, x, w, b, r, t) == [([(1,), (0,), (0, 1)], 1)]
    check(f, x, w, b, r, t)


@pytest.mark.parametrize("kind", ["scan", "cond", "while", "jit", "checkpoint", "custom_vjp"])
def test_within_bodies(arrays, kind: str) -> None:
    s, x = arrays["s"], jnp.ones((M, N), jnp.bfloat16)

    def layer(x: Any, s: Any) -> Any:
        return jnp.tanh(x @ s) + x

    custom = jax.custom_vjp(layer)
    custom.defvjp(lambda x, s: (layer(x, s), (x, s)), lambda r, g: jax.vjp(layer, *r)[1](g))

    def f(x: Any, s: Any) -> Any:
        if kind == "scan":
            return jax.lax.scan(lambda x, _: (layer(x, s), None), x, length=3)[0]
        if kind == "cond":
            return jax.lax.cond(jnp.sum(x) > 0, layer, lambda x, s: x, x, s)
        if kind == "while":
            return jax.lax.fori_loop(0, 3, lambda _, x: layer(x, s), x)
        return {"jit": jax.jit(layer), "checkpoint": jax.checkpoint(layer)}.get(kind, custom)(x, s)

    assert fused(f, x, s) == [([(0, 1)], 1)]
    check(f, x, s)
    if kind != "while":
        check(jax.grad(lambda x, s: jnp.sum(f(x, s).astype(F32))), x, s)


def test_what_only_passes_read_stays_with_them(arrays) -> None:
    x, w, b = (arrays[name] for name in "xwb")
    for f in (
        lambda x, w, b: jnp.sum(jnp.square((x @ w + b).astype(F32)), -1),
        lambda x, w, b: (x @ w + b).astype(F32),
        lambda x, w, b: jax.nn.softmax((x @ w).astype(F32)),
        lambda x, w, b: x @ w,
    ):
        assert fused(f, x, w, b) == []
        check(f, x, w, b)


def test_what_comes_later_is_no_operand(arrays) -> None:
    x, s = jnp.ones((M, N), jnp.bfloat16), arrays["s"]

    def f(x: Any, s: Any) -> Any:
        first = x @ s
        second = jnp.sin(x) @ s
        return jnp.tanh(first) * second

    assert fused(f, x, s) == [([(0, 1)], 1)]  # the second takes the first along
    check(f, x, s)


def test_results_with_other_readers_are_kept(arrays) -> None:
    x, w, b = (arrays[name] for name in "xwb")

    def f(x: Any, w: Any, b: Any) -> Any:
        z = x @ w
        y = jax.nn.silu(z + b)
        return z, y, jnp.sum(z.astype(F32)), y.T @ y

    assert fused(f, x, w, b) == [([(1,)], 2)]
    check(f, x, w, b)


def test_not_elementwise_not_of_the_shape_or_with_effects(arrays, capfd) -> None:
    x, s, c = jnp.ones((N, N), jnp.bfloat16), arrays["s"], jnp.ones((N, 1), jnp.bfloat16)

    def printing(y: Any) -> Any:
        jax.debug.print("seen")
        return y + 1

    cases = [
        lambda x, s, c: jnp.cumsum(x @ s, axis=0),
        lambda x, s, c: (x @ s)[::-1],
        lambda x, s, c: (x @ s).reshape(2, N // 2, N) + jnp.ones((2, 1, 1), jnp.bfloat16),
        lambda x, s, c: jax.lax.erf_inv(x @ s),
        lambda x, s, c: jax.lax.broadcast_in_dim(c, (N, N, 2), (0, 1))[..., 0] + jnp.sort(x @ s),
    ]
    for f in cases[:2] + cases[3:]:
        assert fused(f, x, s, c) == []
        check(f, x, s, c)
    transposed = lambda x, s, c: (x @ s) + x.T  # noqa: E731
    assert fused(transposed, x, s, c) == []
    check(transposed, x, s, c)
    f = lambda x, s, c: printing(x @ s)  # noqa: E731
    check(f, x, s, c)
    assert "seen" in capfd.readouterr().out


def test_operands_are_computed_again_from_what_is_in_memory(arrays) -> None:
    x, w, b = (arrays[name] for name in "xwb")
    r = jnp.ones((M, N), jnp.bfloat16)

    def f(x: Any, w: Any, b: Any, r: Any) -> Any:
        gate = jax.nn.sigmoid(jnp.sin(r) + b)  # a pass of its own otherwise
        return (x @ w) * gate

    assert fused(f, x, w, b, r) == [([(0, 1), (1,)], 1)]
    check(f, x, w, b, r)


def test_within_shard_map(arrays) -> None:
    args = [arrays[name] for name in "xwb"]
    mesh = jax.make_mesh((2,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
    p = jax.sharding.PartitionSpec
    specs = {"in_specs": (p("i"), p(), p()), "out_specs": p("i")}

    def layer(x: Any, w: Any, b: Any) -> Any:
        return jnp.tanh(x @ w + b)

    for vma in (True, False):
        f = jax.shard_map(layer, mesh=mesh, check_vma=vma, **specs)
        assert fused(f, *args) == [([(1,)], 1)]
        check(f, *args)
        check(jax.grad(lambda x, w, b, f=f: jnp.sum(f(x, w, b).astype(F32)), (0, 1, 2)), *args)


@pytest.mark.parametrize("activation", [jax.nn.gelu, jax.nn.relu, jax.nn.silu, jax.nn.softplus])
def test_constants_within_shard_map(arrays, activation: Any) -> None:
    """Data parallel steps: constants do not vary over mesh axes until they meet what does."""
    args = [arrays[name] for name in "xwb"]
    mesh = jax.make_mesh((2,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
    p = jax.sharding.PartitionSpec

    @functools.partial(jax.shard_map, mesh=mesh, in_specs=(p("i"), p(), p()), out_specs=p())
    def gradients(x: Any, w: Any, b: Any) -> Any:
        def loss(w: Any, b: Any) -> Any:
            y = activation(x @ w + b) @ w.T
            return jnp.mean(jnp.square(y.astype(F32) - 1))

        return jax.lax.pmean(jax.value_and_grad(loss, (0, 1))(w, b), "i")

    assert len(fused(gradients, *args)) == 3
    check(gradients, *args)
    check(jax.grad(lambda x, w, b: gradients(x, w, b)[0]), *args)


def test_custom_derivatives_within_shard_map(arrays) -> None:
    """Their casts are for operands of the types that they were traced with."""

    @jax.custom_jvp
    def layer(y: Any, b: Any) -> Any:
        return jnp.maximum(y + b, 0) * 2.0

    layer.defjvp(lambda primals, tangents: (layer(*primals), tangents[0] * 2.0))
    args = [arrays[name] for name in "xwb"]
    mesh = jax.make_mesh((2,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
    p = jax.sharding.PartitionSpec
    for split, count in ((p(), 0), (p("i"), 1)):
        x, w, b = args
        b = b if split == p() else jnp.concatenate([b, b])
        specs = {"in_specs": (p("i"), p(), split), "out_specs": p("i")}
        f = jax.shard_map(lambda x, w, b: layer(x @ w, b), mesh=mesh, **specs)
        assert len(fused(f, x, w, b)) == count
        check(f, x, w, b)


def test_explicit_sharding_stays(arrays) -> None:
    mesh = jax.make_mesh((2,), ("i",), axis_types=(jax.sharding.AxisType.Explicit,))
    with jax.set_mesh(mesh):
        rows = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("i"))
        x, w, b = jax.device_put(arrays["x"], rows), arrays["w"], arrays["b"]
        check(lambda x, w, b: jnp.tanh(x @ w + b), x, w, b)


def test_constant_and_repeated_results(arrays) -> None:
    x, w, b = (arrays[name] for name in "xwb")

    def f(x: Any, w: Any, b: Any) -> Any:
        y = jnp.tanh(x @ w + b)
        return 1.0, y, jnp.float32(2), y

    assert fused(f, x, w, b) == [([(1,)], 1)]
    check(f, x, w, b)


def test_off_by_default(arrays) -> None:
    args = [arrays[name] for name in "xwbvc"]
    with config.linked_epilogues(False):
        assert fused(mlp, *args) == []


def test_products_of_other_types_stay(arrays) -> None:
    x, w = arrays["x"], arrays["w"]

    def wide(x: Any, w: Any) -> Any:
        return jnp.tanh(jax.lax.dot(x, w, preferred_element_type=F32))

    assert fused(wide, x, w) == []
    check(wide, x, w)


def test_batches(arrays) -> None:
    x, b = arrays["x"].reshape(2, M // 2, K), arrays["b"]
    w = jnp.stack([arrays["w"], -arrays["w"]])

    def experts(x: Any, w: Any, b: Any) -> Any:
        return jnp.tanh(jnp.einsum("eij,ejk->eik", x, w) + b)

    def step(x: Any, w: Any, b: Any) -> Any:
        loss = lambda *xs: jnp.sum(experts(*xs).astype(F32) * 0.5)  # noqa: E731
        return jax.grad(loss, (0, 1, 2))(x, w, b)

    own = jnp.stack([b, b + 1])[:, None]
    heads = own.reshape(2, 1, 1, N) * jnp.ones((1, 3, 1, 1), own.dtype)
    assert fused(experts, x, w, b) == [([(1,)], 1)]
    assert fused(experts, x, w, own) == [([(MATRICES, 1)], 1)]
    check(experts, x, w, own)
    check(step, x, w, own)

    def two_dims(x: Any, w: Any, own: Any) -> Any:
        return jnp.tanh(jnp.einsum("bhij,bhjk->bhik", x, w) * own)

    many = [jnp.stack([a] * 3, 1) for a in (x, w)]
    assert fused(two_dims, *many, heads) == [([(MATRICES, 1)], 1)]
    assert fused(two_dims, *many, heads[:, :1]) == []  # along one of the batch's dimensions
    check(two_dims, *many, heads)


def test_sums_of_each_matrix(arrays) -> None:
    x, w = arrays["x"].reshape(2, M // 2, K), jnp.stack([arrays["w"], -arrays["w"]])

    def f(x: Any, w: Any) -> Any:
        y = jnp.tanh(x @ w)
        return y, jnp.sum(y, 1)

    def whole(x: Any, w: Any) -> Any:
        y = jnp.tanh(x @ w)
        return y, jnp.sum(y, (0, 1))

    assert fused(f, x, w) == [([], 2)]
    assert fused(whole, x, w) == [([], 1)]
    check(f, x, w)
    check(whole, x, w)
