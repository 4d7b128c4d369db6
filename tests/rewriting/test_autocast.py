"""`autocast`: which products become 8-bit ones, and that they are `fp8_dot_general`'s."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from autocast_cases import BF16, F32, D, F, T, V, W, X, array, cast, why
from jax import lax
from jax.sharding import PartitionSpec as P

import jax_bwgemm as bw


def same(f: Callable[..., Any], by_hand: Callable[..., Any], *args: Any, **options: Any) -> None:
    """Results and gradients are those of a function that calls `fp8_dot_general` itself."""

    def with_gradients(g: Callable[..., Any]) -> Any:
        def loss(*xs: Any) -> Any:
            y = g(*xs)
            return jnp.sum(y.astype(F32) ** 2), y

        places = tuple(range(len(args)))
        return jax.jit(jax.value_and_grad(loss, places, has_aux=True))(*args)

    got, want = (with_gradients(g) for g in (bw.autocast(f, **options), by_hand))
    for ours, theirs in zip(*map(jax.tree.leaves, (got, want)), strict=True):
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
        np.testing.assert_array_equal(np.asarray(ours), np.asarray(theirs))


@pytest.mark.parametrize("recipe", ["per_tensor", "blockwise", "mxfp8", bw.Recipe(*["row"] * 3)])
def test_a_layer(recipe: Any) -> None:
    dot = bw.fp8_dot_general(recipe)
    numbers = (((1,), (0,)), ((), ()))
    same(jnp.matmul, lambda x, w: dot(x, w, numbers), X, W, recipe=recipe)


def test_weights_on_the_left_and_of_more_dimensions() -> None:
    dot = bw.fp8_dot_general()
    x, w = X.reshape(2, T // 2, D), array(D, 4 * F).reshape(D, 4, F)

    def heads(x: Any, w: Any) -> Any:
        return jnp.einsum("btd,dhf->bthf", jnp.tanh(x) * jnp.sum(x), w)

    same(
        lambda x, w: heads(x @ jnp.eye(D, dtype=BF16), w),
        lambda x, w: dot(
            jnp.tanh(y := dot(x, jnp.eye(D, dtype=BF16), (((2,), (0,)), ((), ())))) * jnp.sum(y),
            w,
            (((2,), (0,)), ((), ())),
        ),
        x,
        w,
    )
    left = lambda x, v: jnp.einsum("df,...f->...d", v.T, jnp.sort(x) * 1)  # noqa: E731
    by_hand = lambda x, v: dot(jnp.sort(x), v.T, (((2,), (1,)), ((), ())))  # noqa: E731
    assert cast(left, array(2, T, F), V) == [True]
    same(left, by_hand, array(2, T, F), V)


def test_experts() -> None:
    dot = bw.fp8_dot_general()
    w = array(3, D, F)

    def layer(dot: Callable[..., Any]) -> Callable[..., Any]:
        return lambda x, w: dot(jnp.sort(x), w, (((2,), (1,)), ((0,), (0,))))

    same(layer(lax.dot_general), layer(dot), array(3, T, D), w)
    sizes = jnp.array([100, 0, T - 100])
    ragged = bw.fp8_ragged_dot()
    same(
        lambda x, w: lax.ragged_dot(jnp.sort(x), w, sizes),
        lambda x, w: ragged(jnp.sort(x), w, sizes),
        X,
        w,
    )
    mixed = bw.Recipe("mxfp8", "mxfp8", "row")
    assert "fp8_ragged_dot does not take" in why(
        lambda x, w: lax.ragged_dot(x, w, sizes), X, w, recipe=mixed
    )


def test_through_bodies() -> None:
    """Weights are arguments of jit, scan, while, cond and checkpoint; what is carried is none."""
    layers = jnp.stack([array(D, D, seed=s) for s in (4, 5)])

    @jax.jit
    def jitted(x: Any, w: Any) -> Any:
        return jnp.tanh(x @ w)

    def scan(x: Any, layers: Any) -> Any:
        def body(h: Any, w: Any) -> Any:
            h = jax.checkpoint(jitted)(h, w)
            return jnp.tanh(h @ h.T) @ h, None  # two products of activations

        return lax.scan(body, x, layers)[0]

    assert cast(scan, X, layers) == [True, False, False]

    def loop(x: Any, w: Any) -> Any:
        return lax.fori_loop(0, jnp.sum(w > 9), lambda _, h: jitted(h, w), x)

    assert cast(loop, X, layers[0]) == [True]

    def branches(x: Any, w: Any) -> Any:
        return lax.cond(jnp.sum(x) > 0, lambda h: h @ w, lambda h: h @ (2 * w), jnp.sort(x))

    assert cast(branches, X, layers[0]) == [True, True]
    for f in (scan, branches):
        gradient = jax.grad(lambda *xs, f=f: jnp.sum(bw.autocast(f)(*xs).astype(F32)), (0, 1))
        want = jax.grad(lambda *xs, f=f: jnp.sum(f(*xs).astype(F32)), (0, 1))
        args = (X, layers if f is scan else layers[0])
        for ours, theirs in zip(jax.jit(gradient)(*args), jax.jit(want)(*args), strict=True):
            ours, theirs = ours.astype(F32), theirs.astype(F32)
            assert float(jnp.linalg.norm(ours - theirs)) < 0.2 * float(jnp.linalg.norm(theirs))


def test_a_body_is_cast_for_each_target() -> None:
    """JAX keeps the body of a jitted function, whose kernels depend on the GPU."""
    layer = jax.jit(lambda x, w: jnp.sort(x) @ w)
    for arch in ("sm90", "sm100", "sm90"):
        with bw.config.target(arch):
            text = str(jax.make_jaxpr(bw.autocast(lambda x, w: layer(x, w)))(X, W))
        assert f"arch='{arch}'" in text
        assert f"arch='{'sm90' if arch == 'sm100' else 'sm100'}'" not in text


def test_within_shard_map() -> None:
    mesh = jax.make_mesh((2,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
    f = jax.shard_map(
        lambda x, w: jnp.sort(x) @ w, mesh=mesh, in_specs=(P("i"), P()), out_specs=P("i")
    )
    x = jnp.concatenate([X, X])
    assert cast(f, x, W) == [True]
    got, want = jax.jit(bw.autocast(f))(x, W).astype(F32), f(x, W).astype(F32)
    assert 0 < float(jnp.linalg.norm(got - want)) < 0.1 * float(jnp.linalg.norm(want))


@pytest.mark.parametrize("kind", ["shard_map", "pmap"])
def test_around_gradients_of_what_is_mapped_over_devices(kind: str) -> None:
    mesh = jax.make_mesh((2,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
    f = {
        "shard_map": jax.shard_map(jnp.matmul, mesh=mesh, in_specs=(P("i"), P()), out_specs=P("i")),
        "pmap": lambda x, w: jax.pmap(jnp.matmul, in_axes=(0, None))(x.reshape(2, -1, D), w),
    }[kind]
    grads = jax.grad(lambda x, w: jnp.sum(f(x, w).astype(F32) ** 2), (0, 1))
    x = jnp.concatenate([X, X])
    got, want = jax.jit(bw.autocast(grads))(x, W), jax.jit(grads)(x, W)
    for a, b in zip(got, want, strict=True):
        a, b = a.astype(F32), b.astype(F32)
        assert float(jnp.linalg.norm(a - b)) < 0.1 * float(jnp.linalg.norm(b))


def test_beside_linear_systems() -> None:
    """Their products stay as they are."""

    def f(x: jax.Array, w: jax.Array) -> Any:
        def operator(v: jax.Array) -> jax.Array:
            return 2 * v + (w.T @ (w @ v))

        return x @ w, jax.scipy.sparse.linalg.cg(operator, x.T, maxiter=2)[0]

    square = W[:, :D]
    decisions = bw.explain_program(bw.autocast(f), X, square, device="sm90").rewrites
    assert [one.rewritten for one in decisions].count(True) == 1
    left = {one.reason for one in decisions if not one.rewritten}
    assert left == {"it is part of the solution of a linear system"}
    solved = lambda x, w: (x @ w, jnp.linalg.solve(jnp.eye(8), jnp.ones(8)))  # noqa: E731
    np.testing.assert_array_equal(jax.jit(bw.autocast(solved))(X, W)[1], np.ones(8))


def test_what_weights_are_made_of() -> None:
    """Casts, reshapes, slices, reductions and elementwise operations of arguments alone."""
    master = W.astype(F32)
    assert cast(lambda x, w: jnp.sort(x) @ w.astype(BF16), X, master) == [True]
    assert cast(lambda x, w: jnp.sort(x) @ (jnp.tanh(w) / 2).T, X, W.T) == [True]
    assert cast(lambda x, w: jnp.sort(x) @ (w / jnp.max(jnp.abs(w), 0)), X, W) == [True]
    assert cast(lambda x, w: jnp.sort(x) @ (w + jnp.cumsum(w)[0]), X, W) == [False]
    assert cast(lambda x: jnp.sort(x) @ W, X) == [True]  # closed over


def test_the_default_precision_is_no_layer_s_own() -> None:
    with jax.default_matmul_precision("high"):
        assert cast(jnp.matmul, X, W) == [True]
        highest = lambda x, w: jnp.matmul(x, w, precision="highest")  # noqa: E731
        assert why(highest, X, W) == "it asks for a precision"


def test_what_stays() -> None:
    @jax.custom_vjp
    def own(x: Any, w: Any) -> Any:
        return x @ w

    own.defvjp(lambda x, w: (own(x, w), (x, w)), lambda kept, g: (g @ kept[1].T, kept[0].T @ g))
    wide = (X.astype(F32), W.astype(F32))
    reasons = {
        "operands are float32 and float32: only 16-bit ones are cast": (jnp.matmul, *wide),
        "it asks for a precision": (lambda x, w: jnp.matmul(x, w, precision="highest"), X, W),
        "its result is float8_e5m2": (
            lambda x, w: jnp.matmul(x, w, preferred_element_type=jnp.float8_e5m2),
            X,
            W,
        ),
        "no operand is a weight": (lambda x: jnp.sort(x) @ jnp.sort(x).T, X),
        "both operands of a batch are arguments": (
            jnp.matmul,
            jnp.stack([X, X]),
            jnp.stack([W, W]),
        ),
        "64 rows; sizes of layers in low precision are at least 128": (jnp.matmul, X[:64], W),
        "136 columns; sizes of layers in low precision are at least 128 and multiples of 16": (
            lambda x, w: x @ w[:, :136],
            X,
            W,
        ),
        "it is inside of a function with a derivative of its own": (own, X, W),
        "it is a product of this package: call fp8_dot_general": (bw.matmul, X, W),
        "it is not of the form of ragged_dot": (
            lambda x, w: lax.ragged_dot_general(
                x,
                w,
                jnp.array([T]),
                lax.RaggedDotDimensionNumbers((((1,), (2,)), ((), ())), [0], [0]),
            ),
            X,
            W.T[None],
        ),
    }
    for reason, (f, *args) in reasons.items():
        assert why(f, *args).startswith(reason)


@pytest.mark.parametrize(
    "f",
    [
        bw.accelerate(lambda x, w, v: jnp.tanh(x @ w) @ v),
        lambda x, w, v: bw.linear(bw.linear(x, w, activation="gelu"), v),
        lambda x, w, v: bw.mlp(x, w, v, activation="gelu"),
    ],
    ids=["accelerate", "linear", "mlp"],
)
def test_products_of_this_package_are_listed(f: Callable[..., Any]) -> None:
    with bw.config.target("sm90"):
        found = bw.explain_program(bw.autocast(f), X, W, V, device="sm90").rewrites
    found = tuple(one for one in found if one.by == "autocast")
    assert len(found) == 2
    for one in found:
        assert not one.rewritten
        assert one.reason.startswith("it is a product of this package")


def test_accelerate_around_it() -> None:
    """All six products of two layers have 8 bits, the others 16."""

    def loss(w: Any, v: Any, x: Any) -> Any:
        h = jax.nn.gelu(x @ w)
        return jnp.mean(((h @ h.T) @ h @ v).astype(F32) ** 2)

    step = jax.value_and_grad(bw.autocast(loss), (0, 1))
    text = str(jax.make_jaxpr(bw.accelerate(step))(W, V, X))
    assert text.count("bw_scaled_matmul[") + text.count("bw_scaled_epilogue[") == 6
    (got, grads), (want, plain) = (
        bw.accelerate(step)(W, V, X),
        jax.value_and_grad(loss, (0, 1))(W, V, X),
    )
    assert abs(got - want) < 0.05 * abs(want)
    for ours, theirs in zip(grads, plain, strict=True):
        ours, theirs = ours.astype(F32), theirs.astype(F32)
        assert float(jnp.linalg.norm(ours - theirs)) < 0.2 * float(jnp.linalg.norm(theirs))


def test_flax_modules() -> None:
    nn, nnx = pytest.importorskip("flax.linen"), pytest.importorskip("flax.nnx")

    class Model(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            h = nn.relu(nn.Dense(F, dtype=BF16, name="up")(x))
            return nn.Dense(D, dtype=BF16, name="down")(h)

    model = Model()
    params = model.init(jax.random.key(0), X)
    scopes: list[str] = []
    assert cast(model.apply, params, X, only=lambda p: scopes.append(p.scope) or True) == [True] * 2
    assert [s.split("/")[-1] for s in scopes] == ["up", "down"]

    layer = nnx.Linear(D, F, dtype=BF16, rngs=nnx.Rngs(0))
    loss = lambda layer, x: jnp.sum(layer(x).astype(F32) ** 2)  # noqa: E731
    assert cast(loss, layer, X) == [True]
    got, want = nnx.grad(bw.autocast(loss))(layer, X), nnx.grad(loss)(layer, X)
    ours, theirs = (x["kernel"][...].astype(F32) for x in (got, want))
    assert 0 < float(jnp.linalg.norm(ours - theirs)) < 0.1 * float(jnp.linalg.norm(theirs))


def test_as_a_decorator_and_what_is_said() -> None:
    @bw.autocast(recipe="per_tensor")
    def f(x: Any, w: Any) -> Any:
        """Of two arrays."""
        return x @ w

    assert (f.__name__, f.__doc__) == ("f", "Of two arrays.")
    text = str(bw.explain_program(jax.jit(f), X, W, device="sm90"))
    assert "autocast, of the products that it found:" in text
    assert "rewritten: recipe 'per_tensor'" in text
    assert "float8_e4m3fn tensor x float8_e4m3fn tensor" in text


@pytest.mark.parametrize(
    ("error", "message", "arguments", "options"),
    [
        (TypeError, "autocast takes a function, got int", (3,), {}),
        (TypeError, "only must be a function or 'faster', got 'mlp'", (jnp.matmul,),
         {"only": "mlp"}),
        (TypeError, "only must be a function or 'faster', got int", (jnp.matmul,), {"only": 3}),
        (ValueError, "recipe must be one of", (jnp.matmul, "fp7"), {}),
        (ValueError, "no place for a history of recipe 'per_tensor_delayed': call fp8_dot_general",
         (jnp.matmul, "per_tensor_delayed"), {}),
        (ValueError, "no place for random numbers of recipe 'nvfp4'", (jnp.matmul, "nvfp4"), {}),
        (ValueError, "implementation", (jnp.matmul,), {"implementation": "magic"}),
    ],
)  # fmt: skip
def test_errors(
    error: type[Exception], message: str, arguments: tuple[Any, ...], options: dict[str, Any]
) -> None:
    with pytest.raises(error, match=message):
        bw.autocast(*arguments, **options)


@pytest.mark.parametrize("loop", ["scan", "while"])
def test_what_a_loop_carries_is_no_weight(loop: str) -> None:
    """Not even where it begins with an argument: a power of a matrix stays in 16 bits."""
    body = lambda h, _=None: (h @ h, None)  # noqa: E731

    def power(x: Any) -> Any:
        if loop == "scan":
            return lax.scan(body, x, length=3)[0]
        return lax.fori_loop(0, jnp.sum(x > 9), lambda _, h: body(h)[0], x)

    assert why(power, array(D, D)) == "no operand is a weight"


def test_a_loop_may_pick_its_weights() -> None:
    """Whatever the index is made of."""
    stacked = jnp.stack([array(D, D, seed=i) for i in range(3)])

    def layers(w: Any, x: Any) -> Any:
        body = lambda i, h: jax.nn.gelu(h @ lax.dynamic_index_in_dim(w, i, 0, False))  # noqa: E731
        return lax.fori_loop(0, 3, body, x)

    assert cast(layers, stacked, array(T, D)) == [True]


def test_a_branch_has_the_weights_of_its_operands() -> None:
    """The activations are the left operand: layouts of both differ."""
    dot = bw.fp8_dot_general()

    def layer(times: Callable[..., Any]) -> Callable[..., Any]:
        def f(x: Any, w: Any) -> Any:
            return lax.cond(jnp.sum(x) > 0, times, lambda h, w: times(h, 2 * w), jnp.sort(x), w)

        return f

    numbers = (((1,), (0,)), ((), ()))
    same(layer(jnp.matmul), layer(lambda h, w: dot(h, w, numbers)), X, W)


def test_products_out_of_reach_are_listed() -> None:
    def loop(x: Any, w: Any) -> Any:
        return lax.while_loop(lambda h: jnp.sum(h @ w) < 0, lambda h: h * 2, x)

    assert why(loop, X, W) == "it is part of the condition of a loop"
    linear = jax.custom_derivatives.linear_call
    call = lambda x, w: linear(lambda w, x: x @ w, lambda w, y: y @ w.T, w, x)  # noqa: E731
    decisions = bw.explain_program(bw.autocast(call), X, W, device="sm90").rewrites
    assert {one.reason for one in decisions} == {"autocast does not rewrite what it holds"}


def test_a_condition_s_arrays_are_not_the_body_s() -> None:
    def loop(x: Any, w: Any, v: Any) -> Any:
        limit = jnp.sort(v)
        return lax.while_loop(lambda h: jnp.sum(limit * h) < 0, lambda h: jnp.tanh(h @ w), x)

    assert cast(loop, array(T, D), array(D, D), array(T, D)) == [True]


@pytest.mark.parametrize("left", [False, True])
def test_out_sharding_is_kept(left: bool) -> None:
    """Of the layer's result, in the order of its own dimensions."""
    mesh = jax.make_mesh((4, 2), ("d", "m"), axis_types=(jax.sharding.AxisType.Explicit,) * 2)

    def placed(x: jax.Array, *spec: Any) -> jax.Array:
        return jax.device_put(x, jax.sharding.NamedSharding(mesh, P(*spec)))

    def layer(x: Any, w: Any) -> Any:
        x = jnp.tanh(x * jnp.sort(jnp.ones(2, x.dtype))[0])
        if left:
            return jnp.einsum("df,td->ft", w, x, out_sharding=P(None, "d"))
        return jnp.einsum("td,df->tf", x, w, out_sharding=P("d"))

    with jax.set_mesh(mesh):
        x, w = placed(array(1024, 256), None, "m"), placed(array(256, 512), "m")
        got, want = jax.jit(bw.autocast(layer))(x, w), jax.jit(layer)(x, w)
        assert jax.typeof(got) == jax.typeof(want)
        got, want = (np.asarray(y.astype(F32)) for y in (got, want))
    assert 0 < np.linalg.norm(got - want) < 0.1 * np.linalg.norm(want)
