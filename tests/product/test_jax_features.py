"""Features of JAX that know lax.dot_general by name treat our products in the same way."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import checkify, jet
from numerics import CHECK_GRADS, small_integers

import jax_bwgemm as bw
from jax_bwgemm import runtime

POLICIES = jax.checkpoint_policies
EXPERTS = np.array([2, 1, 3], np.int32)


def primitives(jaxpr: Any) -> Iterator[str]:
    """Names of all equations' primitives, nested ones included; those of kernels as JAX's."""
    for eqn in jaxpr.eqns:
        yield {"bw_gemm": "dot_general"}.get(eqn.primitive.name, eqn.primitive.name)
        for value in eqn.params.values():
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                yield from primitives(inner)


def operands(shape: tuple[int, ...], *more: tuple[int, ...]) -> list[jax.Array]:
    rng = np.random.default_rng(0)
    return [jnp.asarray(small_integers(rng, s, "bfloat16")) for s in (shape, *more)]


def ragged(x: jax.Array, w: jax.Array) -> jax.Array:
    return bw.ragged_dot(x, w, EXPERTS)


def test_a_traced_call_leaves_no_call_in_the_jaxpr() -> None:
    x, w, experts = operands((6, 5), (5, 4), (3, 5, 4))
    for f, b in ((bw.matmul, w), (ragged, experts)):
        names = set(primitives(jax.make_jaxpr(f)(x, b).jaxpr))
        assert not names & {"jit", "pjit"}, names


# -- jax.checkpoint


def products_of_a_gradient(matmul: Callable, policy: Any, x: jax.Array, w: jax.Array) -> list[str]:
    layer = jax.checkpoint(lambda x, w: jnp.sin(matmul(x, w)), policy=policy)
    jaxpr = jax.make_jaxpr(jax.grad(lambda x, w: layer(x, w).astype(jnp.float32).sum(), (0, 1)))
    wanted = ("dot_general", "bw_m_grouped", "bw_k_grouped", "device_put")
    return sorted(name for name in primitives(jaxpr(x, w).jaxpr) if name in wanted)


OFFLOAD = POLICIES.offload_dot_with_no_batch_dims("device", "pinned_host")


@pytest.mark.parametrize("batch", [(), (3,)], ids=["one", "batched"])
@pytest.mark.parametrize(
    ("name", "policy", "saves"),
    [
        ("nothing", POLICIES.nothing_saveable, ()),
        ("everything", POLICIES.everything_saveable, ("one", "batched")),
        ("dots", POLICIES.dots_saveable, ("one", "batched")),
        ("no_batch_dims", POLICIES.dots_with_no_batch_dims_saveable, ("one",)),
        ("offload", OFFLOAD, ("one",)),
    ],
)
def test_policies_by_name_save_our_products(
    batch: tuple[int, ...], name: str, policy: Any, saves: tuple[str, ...]
) -> None:
    x, w = operands((*batch, 4, 5), (*batch, 5, 6))
    got = products_of_a_gradient(bw.matmul, policy, x, w)
    assert got == products_of_a_gradient(jnp.matmul, policy, x, w)
    saved = ("batched" if batch else "one") in saves
    assert got.count("dot_general") == (3 if saved else 4)
    assert ("device_put" in got) == (name == "offload" and saved)


@pytest.mark.parametrize("policy", [POLICIES.dots_saveable, OFFLOAD], ids=["saved", "offloaded"])
def test_gradients_of_saved_products_are_right(policy: Any) -> None:
    x, w = operands((4, 5), (5, 6))

    def gradients(matmul: Callable, policy: Any) -> Any:
        layer = jax.checkpoint(lambda x, w: jnp.sin(matmul(x, w)), policy=policy)
        return jax.jit(jax.grad(lambda x, w: layer(x, w).astype(jnp.float32).sum(), (0, 1)))(x, w)

    for got, want in zip(
        gradients(bw.matmul, policy), gradients(bw.matmul, POLICIES.nothing_saveable), strict=True
    ):
        np.testing.assert_array_equal(got, want)


def test_policies_by_name_save_grouped_products() -> None:
    x, w = operands((6, 5), (3, 5, 4))
    saved = products_of_a_gradient(ragged, POLICIES.dots_with_no_batch_dims_saveable, x, w)
    assert saved == ["bw_k_grouped", "bw_m_grouped", "bw_m_grouped"]
    recomputed = products_of_a_gradient(ragged, POLICIES.nothing_saveable, x, w)
    assert recomputed == ["bw_k_grouped", *["bw_m_grouped"] * 3]


@pytest.mark.parametrize("recipe", ["per_tensor", "per_tensor_delayed", "blockwise", "nvfp4"])
@pytest.mark.parametrize("experts", [False, True])
def test_policies_by_name_save_products_in_8_bits(recipe: str, experts: bool) -> None:
    make = bw.fp8_ragged_dot if experts else bw.fp8_dot_general
    dot = make(recipe)
    state = {"key": jax.random.key(0)} if recipe == "nvfp4" else {}
    if recipe == "per_tensor_delayed":
        state["amax_history"] = dot.new_history()
    more = (np.array([64, 64]),) if experts else (None,)
    x, w = operands((128, 256), (2, 256, 64) if experts else (256, 64))

    def products(policy: Any) -> int:
        layer = jax.checkpoint(lambda x, w: jnp.sin(dot(x, w, *more, **state)), policy=policy)
        gradient = jax.grad(lambda x, w: layer(x, w).astype(jnp.float32).sum(), (0, 1))
        found = list(primitives(jax.make_jaxpr(gradient)(x, w).jaxpr))
        return found.count("bw_scaled_ragged" if experts else "bw_scaled_matmul")

    assert products(POLICIES.nothing_saveable) == 4
    assert products(POLICIES.dots_with_no_batch_dims_saveable) == 3
    assert products(POLICIES.everything_saveable) == 3


def test_products_in_8_bits_with_batch_dimensions_are_told_apart() -> None:
    dot = bw.fp8_dot_general("blockwise")
    numbers = (((2,), (1,)), ((0,), (0,)))
    x, w = operands((2, 128, 256), (2, 256, 64))

    def products(policy: Any) -> int:
        layer = jax.checkpoint(lambda x, w: jnp.sin(dot(x, w, numbers)), policy=policy)
        gradient = jax.grad(lambda x, w: layer(x, w).astype(jnp.float32).sum(), (0, 1))
        return list(primitives(jax.make_jaxpr(gradient)(x, w).jaxpr)).count("bw_scaled_matmul")

    assert products(POLICIES.dots_saveable) == 3
    assert products(POLICIES.dots_with_no_batch_dims_saveable) == 4


def test_grouped_products_with_batch_dimensions_are_told_apart() -> None:
    x, w = operands((2, 6, 5), (2, 3, 5, 4))

    def products(policy: Any) -> int:
        return len(products_of_a_gradient(jax.vmap(ragged), policy, x, w))

    assert products(POLICIES.dots_saveable) == 3
    assert products(POLICIES.dots_with_no_batch_dims_saveable) == 4


def test_grouped_products_in_8_bits_with_batch_dimensions_are_told_apart() -> None:
    dot = bw.fp8_ragged_dot("blockwise")
    x, w = operands((2, 128, 256), (2, 2, 256, 64))

    def products(policy: Any) -> int:
        one = jax.vmap(lambda x, w: dot(x, w, np.array([64, 64])))
        layer = jax.checkpoint(lambda x, w: jnp.sin(one(x, w)), policy=policy)
        gradient = jax.grad(lambda x, w: layer(x, w).astype(jnp.float32).sum(), (0, 1))
        return list(primitives(jax.make_jaxpr(gradient)(x, w).jaxpr)).count("bw_scaled_ragged")

    assert products(POLICIES.dots_saveable) == 3
    assert products(POLICIES.dots_with_no_batch_dims_saveable) == 4


def test_a_policy_may_name_the_primitive() -> None:
    x, w = operands((4, 5), (5, 6))

    def policy(primitive: Any, *_: Any, **__: Any) -> bool:
        return primitive.name == "bw_gemm"

    assert products_of_a_gradient(bw.matmul, policy, x, w).count("dot_general") == 3


@pytest.mark.skipif(jax.__version_info__ < (0, 12), reason="the rules of jax_remat3 are of 0.12")
@pytest.mark.parametrize("policy", [POLICIES.dots_saveable, POLICIES.nothing_saveable])
def test_policies_by_name_under_the_new_remat(policy: Any) -> None:
    x, w = operands((4, 5), (5, 6))
    before = jax.config.jax_remat3
    jax.config.update("jax_remat3", True)
    try:
        got = products_of_a_gradient(bw.matmul, policy, x, w)
        assert got == products_of_a_gradient(jnp.matmul, policy, x, w)
    finally:
        jax.config.update("jax_remat3", before)


# -- checkify, jet, transfer guards


@pytest.mark.parametrize("function", ["matmul", "ragged_dot"])
def test_float_checks_see_a_nan(function: str) -> None:
    x, w, experts = operands((6, 5), (5, 4), (3, 5, 4))
    f = (lambda x: bw.matmul(x, w)) if function == "matmul" else (lambda x: ragged(x, experts))
    checked = checkify.checkify(f, errors=checkify.float_checks)
    assert checked(x)[0].get() is None
    primitive = {"matmul": "bw_gemm", "ragged_dot": "bw_m_grouped"}[function]
    message = checked(x.at[0, 0].set(jnp.nan))[0].get()
    assert message.startswith(f"nan generated by primitive: {primitive}.")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_index_checks_find_nothing_in_rows_of_no_group(dtype: str) -> None:
    x, factors, experts = (v.astype(dtype) for v in operands((6, 5), (3, 4), (3, 5, 4)))

    def f(factors: jax.Array) -> jax.Array:
        return bw.ragged_dot(
            x,
            experts,
            jnp.array([2, 0, 3]),
            epilogue=lambda z, factor: z + factor,
            epilogue_group_operands=(factors,),
        )

    error, got = checkify.checkify(f, errors=checkify.index_checks)(factors)
    assert error.get() is None
    assert not np.any(np.float32(got[5]))
    gradient = jax.grad(lambda factors: jnp.sum(f(factors)))(factors)
    np.testing.assert_array_equal(np.float32(gradient[:, 0]), [2, 0, 3])


@pytest.mark.parametrize("experts", [False, True])
def test_float_checks_see_a_nan_of_scaled_products(experts: bool) -> None:
    x, w = (jnp.asarray(v, jnp.float32) for v in operands((128, 256), (64, 256)))
    a, b = bw.quantize(x, "row"), bw.quantize(w[None] if experts else w, "row")

    def f(scales: jax.Array) -> jax.Array:
        left = bw.ScaledArray(a.values, scales, "row")
        return (
            bw.scaled_ragged_dot(left, b, jnp.array([128]))
            if experts
            else bw.scaled_matmul(left, b)
        )

    checked = checkify.checkify(f, errors=checkify.float_checks)
    assert checked(a.scales)[0].get() is None
    message = checked(a.scales.at[0].set(jnp.nan))[0].get()
    primitive = "bw_scaled_ragged" if experts else "bw_scaled_matmul"
    assert message.startswith(f"nan generated by primitive: {primitive}.")


FUSED: dict[str, Callable[[jax.Array, jax.Array], jax.Array]] = {
    "linear": lambda x, w: bw.linear(x, w, activation="silu"),
    "gated_linear_unit": lambda x, w: bw.gated_linear_unit(x, (w, w), activation="silu"),
    "ragged_dot": lambda x, w: bw.ragged_dot(x, w[None], np.array([128]), epilogue=jax.nn.silu),
    "accelerate": bw.accelerate(lambda x, w: jax.nn.silu(x @ w)),
    "mlp": lambda x, w: bw.mlp(x, w, w, activation="silu"),
}


def normals(count: int) -> list[jax.Array]:
    keys = jax.random.split(jax.random.key(0), count)
    return [jax.random.normal(key, (128, 128), jnp.bfloat16) / 8 for key in keys]


@pytest.mark.parametrize("name", FUSED)
@pytest.mark.parametrize("gradient", [False, True])
def test_float_checks_see_a_nan_of_fused_products(name: str, gradient: bool) -> None:
    x, w = normals(2)

    def f(changed: jax.Array) -> jax.Array:
        if gradient:  # alone: the forward pass has no NaN
            return jax.vjp(lambda x: FUSED[name](x, w), x)[1](changed)[0]
        return FUSED[name](changed, w)

    with bw.config.target("sm90"), bw.config.linked_epilogues(True):
        checked = checkify.checkify(jax.jit(f), errors=checkify.float_checks)
        assert checked(x)[0].get() is None
        message = checked(x.at[0, 0].set(jnp.nan))[0].get()
    assert message.startswith("nan generated by primitive: ")


def test_float_checks_see_a_nan_of_products_of_columns() -> None:
    x, w = normals(2)
    labels = jnp.zeros(128, jnp.int32)

    def f(x: jax.Array) -> jax.Array:
        return bw.linear_softmax_cross_entropy_loss(x, labels, w, logits="recomputed")

    checked = checkify.checkify(f, errors=checkify.float_checks)
    assert checked(x)[0].get() is None
    message = checked(x.at[0, 0].set(jnp.nan))[0].get()
    assert message.startswith("nan generated by primitive: bw_gemm.")


@pytest.mark.parametrize("accelerated", [False, True])
def test_float_checks_see_divisions_in_epilogues(accelerated: bool) -> None:
    x, w = normals(2)
    scale = jnp.ones(128, jnp.float32)

    def f(scale: jax.Array) -> jax.Array:
        if accelerated:
            return bw.accelerate(lambda x, w, s: jnp.exp(x @ w / s))(x, w, scale)
        return bw.matmul(x, w, epilogue=lambda z, s: z / s, epilogue_operands=(scale,))

    with bw.config.target("sm90"), bw.config.linked_epilogues(True):
        checked = checkify.checkify(f, errors=checkify.float_checks)
        assert checked(scale)[0].get() is None
        assert checked(scale.at[3].set(0))[0].get().startswith("division by zero")


def test_other_checks_leave_fused_products() -> None:
    x, w = normals(2)

    def f(x: jax.Array) -> jax.Array:
        checkify.check(jnp.all(x[0] > 1), "small")
        return bw.linear(x, w, activation="silu")

    with bw.config.target("sm90"), bw.config.linked_epilogues(True):
        jaxpr = jax.make_jaxpr(checkify.checkify(f, errors=checkify.user_checks))(x)
        assert checkify.checkify(f)(x)[0].get() == "small (`check` failed)"
    assert "bw_gemm_epilogue" in set(primitives(jaxpr.jaxpr))


@pytest.mark.parametrize("name", [n for n in FUSED if n != "mlp"])  # jet has no custom_jvp
def test_jet_of_fused_products(name: str) -> None:
    x, w, dx = normals(3)
    with bw.config.target("sm90"), bw.config.linked_epilogues(True):
        primal, (first, second) = jet.jet(lambda x: FUSED[name](x, w), (x,), ([dx, 0 * dx],))
        want, slope = jax.jvp(lambda x: FUSED[name](x, w), (x,), (dx,))
        with bw.config.linked_epilogues(False):
            plain = jet.jet(jax.jit(lambda x: FUSED[name](x, w)), (x,), ([dx, 0 * dx],))
    for got, right in ((primal, want), (first, slope), (second, plain[1][1])):
        scale = np.abs(np.asarray(right, np.float32)).max()
        np.testing.assert_allclose(
            np.asarray(got, np.float32), np.asarray(right, np.float32), atol=0.02 * scale
        )
    assert np.any(second)


def test_jet_of_terms_of_all_orders(monkeypatch: pytest.MonkeyPatch) -> None:
    """Against the plain function: terms of a fused one are neither scaled twice nor lost."""
    monkeypatch.setattr(jax, "device_count", lambda: 1)  # then layouts of products are pinned
    x, w, dx = normals(3)
    f = lambda x: jnp.exp((x @ w) @ w)  # noqa: E731
    with bw.config.target("sm90"), bw.config.linked_epilogues(True):
        got = jet.jet(bw.accelerate(f), (x,), ([dx, dx, dx],))
    for ours, plain in zip(got[1], jet.jet(f, (x,), ([dx, dx, dx],))[1], strict=True):
        ours, plain = (np.asarray(v, np.float32) for v in (ours, plain))
        np.testing.assert_allclose(ours, plain, atol=0.03 * np.abs(plain).max())


def test_no_tracer_is_kept() -> None:
    x, w = normals(2)
    with jax.checking_leaks():
        jax.jit(bw.accelerate(lambda x: jnp.tanh(x @ w)))(x)
        jax.jit(lambda x: bw.quantize(x, "1x128").values)(x)
        jax.jit(lambda x: bw.ragged_dot(x, w[None], np.array([128])))(x)


def test_jet_takes_no_kernel_of_two_products_apart() -> None:
    x, w = normals(2)
    found = runtime.gated_kernels("cutlass")
    if not found:
        pytest.skip("no kernels of two products were built")
    name = found[0].name
    with bw.config.target("sm90"), bw.config.linked_epilogues(True):
        layer = functools.partial(bw.gated_linear_unit, weights=(w, w), config=name)
        with pytest.raises(NotImplementedError, match="checkify and jet look at the products one"):
            jet.jet(layer, (x,), ([x],))


def test_jet() -> None:
    x, w, dx, dw = operands((6, 5), (5, 4), (6, 5), (5, 4))
    got = jet.jet(bw.matmul, (x, w), ([dx, dx], [dw, dw]))
    want = jet.jet(jnp.matmul, (x, w), ([dx, dx], [dw, dw]))
    for g, w in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(g.astype(jnp.float32), w.astype(jnp.float32), **CHECK_GRADS)


def test_jet_of_a_grouped_product() -> None:
    x, w, dx = operands((6, 5), (3, 5, 4), (6, 5))
    primal, (first, second) = jet.jet(lambda x: ragged(x, w), (x,), ([dx, 0 * dx],))
    np.testing.assert_array_equal(primal, ragged(x, w))
    np.testing.assert_array_equal(first, ragged(dx, w))
    assert not np.any(second)


def test_transfer_guard_of_eager_calls() -> None:
    x, w, experts = operands((6, 5), (5, 4), (3, 5, 4))
    sizes = jax.device_put(EXPERTS)
    numbers = lax.RaggedDotDimensionNumbers((((0,), (0,)), ((), ())), (0,), ())
    labels = jax.device_put(np.zeros(6, np.int32))
    loss = functools.partial(bw.linear_softmax_cross_entropy_loss, ignore_index=1, z_loss=0.1)
    codes = bw.quantize(x, "tensor"), bw.quantize(w.T, "tensor")
    matrices = bw.quantize(jnp.swapaxes(experts, 1, 2), "128x128")
    dots = [bw.fp8_ragged_dot(recipe) for recipe in ("per_tensor", "blockwise")]
    back = jnp.swapaxes(experts, 1, 2)
    with jax.transfer_guard("disallow"):
        for dot in dots:
            dot(x, experts, sizes)
        bw.scaled_ragged_dot(codes[0], matrices, sizes)
        bw.scaled_ragged_dot(codes[0], matrices, sizes, epilogue=lambda z: z * 2)
        bw.grouped_mlp(x, experts, back, sizes, activation="relu")
        bw.matmul(x, w)
        bw.scaled_matmul(*codes)
        bw.ragged_dot(x, experts, sizes)
        bw.ragged_dot_general(x, x, sizes, numbers)
        loss(x, labels, w, label_smoothing=0.1, reduction="mean")
        loss(x, labels, w, logits="recomputed")


@pytest.mark.parametrize("name", ["dot_general", "ragged_dot", "ragged_dot_general"])
def test_parameters_come_in_the_order_of_lax(name: str) -> None:
    ours = inspect.signature(getattr(bw, name)).parameters.values()
    theirs = inspect.signature(getattr(lax, name)).parameters.values()
    shared = [(p.name, p.kind, p.default) for p in ours][: len(theirs)]
    assert shared == [(p.name, p.kind, p.default) for p in theirs]


def accelerated_loss(x: jax.Array) -> jax.Array:
    def loss(x: jax.Array) -> jax.Array:
        return jnp.sum(jnp.tanh(x @ x).astype(jnp.float32))

    with bw.config.target("sm90"), bw.config.linked_epilogues(True):
        return jax.grad(bw.accelerate(loss))(x)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: jax.grad(lambda y: jnp.sum(bw.matmul(y, x)))(x),
        lambda x: bw.linear(x, x, activation="gelu"),
        lambda x: bw.scaled_matmul(bw.quantize(x, "1x128"), bw.quantize(x, "128x128")),
        accelerated_loss,
    ],
)
def test_without_jit(function: Callable[[jax.Array], jax.Array]) -> None:
    """`jax.disable_jit`, to debug a step: a product by itself is compiled nevertheless."""
    (x,) = operands((128, 128))
    want = function(x)
    with jax.disable_jit():
        got = function(x)
    np.testing.assert_array_equal(got, want)


def linked(z_of: Callable[[jax.Array], jax.Array]) -> Callable[[jax.Array, jax.Array], jax.Array]:
    """A product and a function of it that is one primitive."""

    def function(x: jax.Array, w: jax.Array) -> jax.Array:
        with bw.config.target("sm90"), bw.config.linked_epilogues(True):
            return bw.matmul(x, w, epilogue=z_of)

    return function


@pytest.mark.parametrize("look_for", ["nan", "inf"])
def test_looking_for_nans(look_for: str) -> None:
    """`jax.debug_nans` of a result that has one: an error, of one that has none: the result."""
    (x,) = operands((128, 128))
    good, bad = linked(jnp.tanh), linked(lambda z: (0 * z if look_for == "nan" else z * z + 1) / 0)
    want = good(x, x)
    with jax.debug_nans(look_for == "nan"), jax.debug_infs(look_for == "inf"):
        for compiled in (lambda f: f, jax.jit):
            np.testing.assert_array_equal(compiled(good)(x, x), want)
            with pytest.raises(FloatingPointError, match=look_for):
                compiled(bad)(x, x)


@pytest.mark.parametrize("outside", [lambda f: f, jax.jit])
def test_transposed(outside: Callable) -> None:
    """`jax.linear_transpose` of a product with an epilogue that is linear in it."""
    x, w, c = operands((128, 64), (64, 256), (128, 256))
    scaled = linked(lambda z: 2 * z)

    def transposed(x: jax.Array, w: jax.Array, c: jax.Array) -> list[jax.Array]:
        (of_x,) = jax.linear_transpose(lambda x: scaled(x, w), x)(c)
        (of_w,) = jax.linear_transpose(lambda w: scaled(x, w), w)(c)
        return [of_x, of_w]

    for got, want in zip(outside(transposed)(x, w, c), [2 * c @ w.T, 2 * x.T @ c], strict=True):
        np.testing.assert_array_equal(got, want)
