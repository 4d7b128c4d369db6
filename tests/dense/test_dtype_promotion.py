"""Types of results, under strict dtype promotion too: as JAX has them, or refused as JAX does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from numerics import assert_exact, small_integers

import jax_bwgemm as bw

M, N, K, E = 16, 24, 32, 4
NUMBERS = (((1,), (0,)), ((), ()))
SIZES = np.array([4, 0, 7, 5], np.int32)

# name: (ours, JAX's, shape of the right operand)
PRODUCTS: dict[str, tuple[Callable, Callable, tuple[int, ...]]] = {
    "matmul": (bw.matmul, jnp.matmul, (K, N)),
    "dot_general": (
        lambda a, b, **kw: bw.dot_general(a, b, NUMBERS, **kw),
        lambda a, b, **kw: lax.dot_general(a, b, NUMBERS, **kw),
        (K, N),
    ),
    "ragged_dot": (
        lambda a, b, **kw: bw.ragged_dot(a, b, SIZES, **kw),
        lambda a, b, **kw: lax.ragged_dot(a, b, jnp.asarray(SIZES), **kw),
        (E, K, N),
    ),
}
PAIRS = [
    ("bfloat16", "bfloat16"),
    ("bfloat16", "float32"),
    ("float32", "float16"),
    ("bfloat16", "float16"),
    ("float16", "int8"),
]


def operands(name: str, lhs_dtype: str, rhs_dtype: str) -> tuple[jax.Array, jax.Array]:
    rng = np.random.default_rng(0)
    a = small_integers(rng, (M, K), lhs_dtype)
    return jnp.asarray(a), jnp.asarray(small_integers(rng, PRODUCTS[name][2], rhs_dtype))


def type_or_error(f: Callable, *args: Any, **kwargs: Any) -> Any:
    try:
        return jax.eval_shape(lambda *xs: f(*xs, **kwargs), *args).dtype
    except Exception as error:
        return type(error)


@pytest.mark.parametrize("promotion", ["standard", "strict"])
@pytest.mark.parametrize("preferred", [None, "float32", "bfloat16"])
@pytest.mark.parametrize("types", PAIRS, ids="-".join)
@pytest.mark.parametrize("name", PRODUCTS)
def test_result_type_or_refusal_is_that_of_jax(
    name: str, types: tuple[str, str], preferred: str | None, promotion: str
) -> None:
    ours, jaxs, _ = PRODUCTS[name]
    args = operands(name, *types)
    with jax.numpy_dtype_promotion(promotion):
        expected = type_or_error(jaxs, *args, preferred_element_type=preferred)
        assert type_or_error(ours, *args, preferred_element_type=preferred) == expected


@pytest.mark.parametrize("name", PRODUCTS)
def test_products_of_truth_values(name: str) -> None:
    ours, jaxs, _ = PRODUCTS[name]
    args = operands(name, "bool", "bool")
    got, want = (f(*args, preferred_element_type=bool) for f in (ours, jaxs))
    assert got.dtype == want.dtype == jnp.bool_
    assert_exact(got, np.asarray(want))


@pytest.mark.parametrize("name", PRODUCTS)
def test_gradient_of_f32_results_of_bf16_operands(name: str) -> None:
    ours, jaxs, _ = PRODUCTS[name]
    args = operands(name, "bfloat16", "bfloat16")

    def gradients(product: Callable) -> Any:
        def loss(a: Any, b: Any) -> Any:
            return jnp.sum(product(a, b, preferred_element_type=jnp.float32) ** 2)

        return jax.grad(loss, argnums=(0, 1))

    with jax.numpy_dtype_promotion("strict"):
        for got, expected in zip(gradients(ours)(*args), gradients(jaxs)(*args), strict=True):
            assert got.dtype == expected.dtype
            assert_exact(got, expected)
        found = bw.explain_program(gradients(ours), *args, device="sm90")
        mapped = jax.vmap(gradients(ours), in_axes=(0, None))(args[0][None], args[1])
    assert len(found.products) == 3
    assert [x.shape[0] for x in mapped] == [1, 1]


@pytest.mark.parametrize("other", ["bfloat16", "float32"])
@pytest.mark.parametrize("right", [False, True])
def test_weak_types_of_results_and_derivatives_are_those_of_jax(other: str, right: bool) -> None:
    b = jnp.ones((8, 8), other)

    def types(matmul: Callable) -> list[Any]:
        def f(scalar: Any) -> jax.Array:
            a = jnp.broadcast_to(scalar, (8, 8))
            return matmul(b, a) if right else matmul(a, b)

        gradient = jax.grad(lambda s: f(s).astype(jnp.float32).sum())(2.0)
        return [(x.dtype, x.weak_type) for x in (f(2.0), gradient, *jax.jvp(f, (2.0,), (1.0,)))]

    assert types(bw.matmul) == types(jnp.matmul)
