"""`fp8_dot_general`: accuracy of a layer's three products, transformations, models, errors."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from numerics import PRODUCT_DB, SAME_OPERANDS_DB, assert_exact, assert_same_training, decibels
from scaled_cases import formula_product

import jax_bwgemm as bw
from jax_bwgemm.scaled.recipes import RECIPES

NAMES = tuple(name for name, r in RECIPES.items() if not (r.history or r.needs_key))
LAYER = (((2,), (0,)), ((), ()))


def operands(dtype: str = "bfloat16") -> tuple[jax.Array, jax.Array, jax.Array]:
    """x [4, 64, K], w [K, N] and a cotangent [4, 64, N]."""
    rng = np.random.default_rng(0)
    shapes = ((4, 64, 384), (384, 200), (4, 64, 200))
    return tuple(jnp.asarray(rng.standard_normal(s), dtype) for s in shapes)


def fractions(recipe: str) -> int:
    """Bits of fraction of the gradients' values."""
    return int(jnp.finfo(RECIPES[recipe].gradient_dtype).nmant)


@pytest.mark.parametrize("recipe", NAMES)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_all_three_products_are_as_good_as_their_operands(recipe: str, dtype: str) -> None:
    x, w, g = operands(dtype)
    out, back = jax.vjp(lambda x, w: bw.fp8_dot_general(recipe)(x, w, LAYER), x, w)
    exact = [np.asarray(v, np.float64) for v in (x, w, g)]
    assert out.dtype == dtype
    assert decibels(out, exact[0] @ exact[1]) > PRODUCT_DB[3, 3]
    x_bar, w_bar = back(g)
    assert (x_bar.dtype, w_bar.dtype) == (dtype, dtype)
    least = PRODUCT_DB[3, fractions(recipe)]
    assert decibels(x_bar, exact[2] @ exact[1].T) > least
    assert decibels(w_bar, np.einsum("bmk,bmn->kn", exact[0], exact[2])) > least


@pytest.mark.parametrize("recipe", NAMES)
def test_products_are_those_of_the_quantized_operands(recipe: str) -> None:
    """Nothing is lost besides the rounding of operands, in either pass."""
    x, w, g = operands("float32")
    r = RECIPES[recipe]
    flat, flat_g = x.reshape(-1, x.shape[-1]), g.reshape(-1, g.shape[-1])

    def quantized(value: jax.Array, scaling: str, dtype: str) -> bw.ScaledArray:
        return bw.quantize(value, scaling, dtype=dtype, power_of_two=r.power_of_two)

    out, back = jax.vjp(lambda x, w: bw.fp8_dot_general(recipe)(x, w, LAYER), x, w)
    x_bar, w_bar = back(g)
    cases = (
        (out, (flat, r.lhs, r.dtype), (w.T, r.rhs, r.dtype)),
        (x_bar, (flat_g, r.gradient, r.gradient_dtype), (w, r.rhs, r.dtype)),
        (w_bar, (flat.T, r.lhs, r.dtype), (flat_g.T, r.gradient, r.gradient_dtype)),
    )
    for got, a, b in cases:
        want = formula_product(quantized(*a), quantized(*b))
        assert decibels(np.asarray(got).reshape(want.shape), want) > SAME_OPERANDS_DB


@pytest.mark.parametrize("recipe", NAMES)
def test_the_programs_products_have_8_bit_operands(recipe: str) -> None:
    """In the jaxpr; mxfp8's are widened, exactly, where there is no kernel."""
    x, w, g = operands()

    def step(x: jax.Array, w: jax.Array) -> Any:
        dot = bw.fp8_dot_general(recipe, implementation="xla")
        return jax.vjp(lambda x, w: dot(x, w, LAYER), x, w)[1](g)

    text = str(jax.make_jaxpr(step)(x, w))
    assert text.count("dot_general") == 3
    wide = jax.make_jaxpr(lambda x, w: lax.dot_general(x, w, LAYER))(x, w)
    assert "f8_" not in str(wide)
    assert "f8_e4m3fn" in text


@pytest.mark.parametrize("recipe", NAMES)
@pytest.mark.parametrize(
    ("lhs", "rhs", "numbers"),
    [
        ((64, 48), (48, 32), (((1,), (0,)), ((), ()))),
        ((48, 64), (32, 48), (((0,), (1,)), ((), ()))),
        ((3, 16, 48), (3, 48, 8), (((2,), (1,)), ((0,), (0,)))),
        ((16, 3, 4, 5), (5, 4, 3, 7, 2), (((3, 2), (0, 1)), ((1,), (2,)))),
        ((48,), (48,), (((0,), (0,)), ((), ()))),
    ],
)
def test_dimension_numbers(recipe: str, lhs: Any, rhs: Any, numbers: Any) -> None:
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.integers(-2, 3, lhs), jnp.float32)
    w = jnp.asarray(rng.integers(-2, 3, rhs), jnp.float32)

    @jax.jit
    def products(x: jax.Array, w: jax.Array) -> Any:
        names = "mxfp8", recipe
        narrow = (bw.fp8_dot_general(name)(x, w, numbers) for name in names)
        return lax.dot_general(x, w, numbers), *narrow

    want, exact, out = products(x, w)
    assert_exact(exact, want)
    assert decibels(out, want) > PRODUCT_DB[3, 3]


def gradients(dot: Any, x: jax.Array, w: jax.Array) -> Any:
    def loss(x: jax.Array, w: jax.Array) -> jax.Array:
        return jnp.sum(jnp.sin(dot(x, w, LAYER).astype(jnp.float32)))

    return jax.jit(jax.grad(loss, (0, 1)))(x, w)


@pytest.mark.parametrize("recipe", NAMES)
def test_jit_remat_and_scan(recipe: str) -> None:
    x, w, _ = operands()
    dot = bw.fp8_dot_general(recipe)
    want = gradients(dot, x, w)
    checkpointed = jax.checkpoint(lambda *args: dot(args[0], args[1], LAYER))
    for got in (
        jax.jit(lambda x, w: gradients(dot, x, w))(x, w),
        gradients(lambda x, w, _: checkpointed(x, w), x, w),
    ):
        jax.tree.map(lambda g, t: assert_close(g, t), got, want)

    def layers(w: jax.Array) -> jax.Array:
        square = w[:, : w.shape[1] // 2]

        def layer(x: jax.Array, w: jax.Array) -> Any:
            return jnp.tanh(dot(x, w, LAYER)), None

        stack = jnp.stack([square.T @ square] * 2)
        return jnp.sum(lax.scan(layer, x[..., : stack.shape[1]], stack)[0].astype(jnp.float32))

    assert np.all(np.isfinite(jax.jit(jax.grad(layers))(w).astype(jnp.float32)))


def assert_close(got: jax.Array, want: jax.Array) -> None:
    """Fusions may round a number of 16 bits differently before it is quantized."""
    assert decibels(got.astype(jnp.float32), want.astype(jnp.float32)) > PRODUCT_DB[3, 2]


@pytest.mark.parametrize("recipe", NAMES)
def test_vmap_is_a_product_for_each(recipe: str) -> None:
    x, w, _ = operands()
    dot = bw.fp8_dot_general(recipe)
    numbers = (((1,), (0,)), ((), ()))
    one = jax.jit(lambda m: dot(m, w, numbers))
    got = np.asarray(jax.jit(jax.vmap(one))(x))
    for i, m in enumerate(np.asarray(x)):
        assert_close(got[i], one(m))


@pytest.mark.parametrize("recipe", NAMES)
def test_data_parallel_training_step(recipe: str, cpu_devices: list[jax.Device]) -> None:
    """Rows over devices: per-tensor scales are those of the whole array."""
    mesh = jax.sharding.Mesh(cpu_devices[:4], "data")
    x, w, _ = operands()
    dot = bw.fp8_dot_general(recipe)
    sharded = jax.device_put(x, jax.NamedSharding(mesh, jax.P("data")))
    whole = jax.device_put(w, jax.NamedSharding(mesh, jax.P()))
    got = jax.jit(lambda x, w: gradients(dot, x, w))(sharded, whole)
    jax.tree.map(assert_close, got, gradients(dot, x, w))


@pytest.mark.parametrize("recipe", NAMES)
def test_a_flax_model_trains_as_in_bfloat16(recipe: str) -> None:
    linen = pytest.importorskip("flax.linen")
    optax = pytest.importorskip("optax")
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.standard_normal((256, 64)), jnp.float32)
    y = jnp.sin(x @ jnp.asarray(rng.standard_normal((64, 32)) / 8, jnp.float32))

    def losses(dot: Any) -> list[float]:
        class Model(linen.Module):
            @linen.compact
            def __call__(self, x: jax.Array) -> jax.Array:
                x = linen.relu(linen.Dense(256, dtype=jnp.bfloat16, dot_general=dot)(x))
                return linen.Dense(32, dtype=jnp.bfloat16, dot_general=dot)(x)

        model, optimizer = Model(), optax.adam(3e-3)
        params = jax.jit(model.init)(jax.random.key(0), x)
        state = optimizer.init(params)

        @jax.jit
        def step(params: Any, state: Any) -> Any:
            def loss(p: Any) -> jax.Array:
                return jnp.mean(jnp.square(model.apply(p, x).astype(jnp.float32) - y))

            value, grads = jax.value_and_grad(loss)(params)
            updates, state = optimizer.update(grads, state)
            return optax.apply_updates(params, updates), state, value

        found = []
        for _ in range(30):
            params, state, value = step(params, state)
            found.append(float(value))
        return found

    narrow, wide = losses(bw.fp8_dot_general(recipe)), losses(lax.dot_general)
    assert_same_training(narrow, wide, low_precision=True)


def test_flax_nnx_linear() -> None:
    nnx = pytest.importorskip("flax.nnx")
    layer = nnx.Linear(64, 32, rngs=nnx.Rngs(0), dot_general=bw.fp8_dot_general())
    x = operands("float32")[0][0, :, :64]
    assert decibels(layer(x), x @ layer.kernel[...]) > PRODUCT_DB[3, 3]


def test_result_type() -> None:
    x, w, _ = operands()
    dot = bw.fp8_dot_general()
    assert dot(x, w, LAYER, preferred_element_type=jnp.float32).dtype == jnp.float32
    assert dot(x, w.astype(jnp.float32), LAYER).dtype == jnp.float32


def test_instances_compare_by_value() -> None:
    assert bw.fp8_dot_general("mxfp8") == bw.fp8_dot_general(RECIPES["mxfp8"])
    assert hash(bw.fp8_dot_general()) == hash(bw.fp8_dot_general("blockwise"))
    assert bw.fp8_dot_general("mxfp8") != bw.fp8_dot_general()


X, W, _ = operands()


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: bw.fp8_dot_general("delayed"), ValueError, "recipe must be one of 'per_tensor'"),
        (lambda: bw.fp8_dot_general()([1.0], W, LAYER), TypeError, "requires arrays, got lhs"),
        (
            lambda: bw.fp8_dot_general()(X.astype(jnp.int32), W, LAYER),
            TypeError,
            "requires bfloat16, float16 or float32, got lhs: int32",
        ),
        (
            lambda: bw.fp8_dot_general()(X, W, LAYER, preferred_element_type=jnp.int32),
            TypeError,
            "preferred_element_type must be bfloat16, float16 or float32, got int32",
        ),
        (
            lambda: bw.fp8_dot_general()(X, W, LAYER, lax.Precision.HIGHEST),
            ValueError,
            "fp8_dot_general: the recipe says the precision, and precision must be None or DEFAULT",
        ),
        (
            lambda: bw.fp8_dot_general()(X, W, LAYER, preferred_element_type="f32"),
            TypeError,
            "fp8_dot_general: preferred_element_type must be a type, got 'f32'",
        ),
        (
            lambda: bw.fp8_dot_general()(X, W, LAYER, out_sharding=jax.P()),
            NotImplementedError,
            "takes an out_sharding only where",
        ),
        (
            lambda: bw.fp8_dot_general()(X, W[1:], LAYER),
            TypeError,
            "fp8_dot_general requires contracting dimensions of equal sizes",
        ),
        *(
            (lambda numbers=numbers: bw.fp8_dot_general()(X, W, numbers), error, message)
            for numbers, error, message in (
                ("ab", TypeError, "fp8_dot_general dimension_numbers must be"),
                (
                    (((5,), (0,)), ((), ())),
                    TypeError,
                    r"fp8_dot_general lhs contracting dimensions \(5,\) are out of range",
                ),
            )
        ),
        (
            lambda: bw.fp8_dot_general()(X[None], W, None),
            ValueError,
            "fp8_dot_general dimension_numbers=None is for products of matrices and vectors",
        ),
        (
            lambda: bw.fp8_dot_general(implementation="cutlass")(X, W, LAYER),
            NotImplementedError,
            "implementation='cutlass' cannot run quantize",
        ),
        (
            lambda: jax.jvp(lambda x: bw.fp8_dot_general()(x, W, LAYER), (X,), (X,)),
            TypeError,
            "forward-mode",
        ),
    ],
)
def test_errors(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"lhs": "rows"}, ValueError, "Recipe: lhs must be one of 'tensor', 'row',"),
        ({"gradient": None}, ValueError, "Recipe: gradient must be one of .*, got None"),
        ({"dtype": "e4m3"}, TypeError, "Recipe: dtype must be a type, got 'e4m3'"),
        (
            {"rhs": "nvfp4"},
            TypeError,
            "Recipe: rhs='nvfp4' has values of type float4_e2m1fn, got dtype=float8_e4m3fn",
        ),
        (
            {"gradient_dtype": "int8"},
            TypeError,
            "Recipe: gradient='row' has values of type .*, got gradient_dtype=int8",
        ),
        (
            {"gradient_accumulation": "slow"},
            ValueError,
            "Recipe: gradient_accumulation must be 'promoted' or 'fast', got 'slow'",
        ),
        ({"hadamard": "no"}, TypeError, "Recipe: hadamard must be True or False, got 'no'"),
        (
            {"square_rhs": True},
            ValueError,
            "Recipe: square_rhs is of layouts with scales of 8 bits, not 'row'",
        ),
    ],
)
def test_recipes_that_mean_nothing(options: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        bw.Recipe(**{"lhs": "row", "rhs": "row", "gradient": "row"} | options)


def test_types_of_recipes_are_compared_by_what_they_are() -> None:
    by_type = bw.Recipe("row", "row", "row", dtype=jnp.float8_e5m2)
    assert by_type == bw.Recipe("row", "row", "row", dtype="float8_e5m2")
    assert hash(by_type) == hash(bw.Recipe("row", "row", "row", dtype="float8_e5m2"))
