"""How readers of a product's result are counted, and what that decides."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from accelerated import SIZE, counts

import jax_bwgemm as bw
from jax_bwgemm.config import make_target
from jax_bwgemm.dense.costs import TYPICAL_GAIN, typical_gain
from jax_bwgemm.dense.spec import GemmDims
from jax_bwgemm.rewriting import policy, products
from jax_bwgemm.rewriting.uses import STORED, Uses, uses_of

X = jax.ShapeDtypeStruct((SIZE, SIZE), jnp.bfloat16)
BIAS = jax.ShapeDtypeStruct((SIZE,), jnp.bfloat16)


def after_product(f: Callable[..., Any]) -> Uses:
    """What reads x @ x in ``f(x @ x, x, bias)``."""
    closed = jax.make_jaxpr(lambda x, bias: f(x @ x, x, bias))(X, BIAS)
    product = next(e for e in closed.eqns if e.primitive.name == "dot_general")
    uses = uses_of(closed, [STORED] * len(closed.out_avals))
    return uses.get(product.outvars[0], Uses())


@pytest.mark.parametrize(
    ("f", "passes"),
    [
        (lambda d, x, bias: d, 0),
        (lambda d, x, bias: x, 0),  # nothing reads it
        (lambda d, x, bias: d + bias, 2),
        (lambda d, x, bias: jax.jit(jnp.add)(d, x), 2),
        (lambda d, x, bias: jax.nn.relu(d + bias), 2),
        (lambda d, x, bias: (d + bias) * 0.5, 2),
        (lambda d, x, bias: (d + x).reshape(-1), 2),
        (lambda d, x, bias: jax.vjp(lambda t: (t, t), x)[1]((d, x))[0], 2),  # a sum of gradients
        # A pass comes anyway.
        (lambda d, x, bias: jax.nn.gelu(d + bias), 0),
        (lambda d, x, bias: jnp.sum(d + bias), 0),
        (lambda d, x, bias: jnp.tanh(d), 0),
        (lambda d, x, bias: jnp.tanh(d + x), 0),
        # That pass also writes the sum.
        (lambda d, x, bias: (jnp.tanh(d + bias), d + bias), 0),  # two sums: two readers of d
        (lambda d, x, bias: (lambda z: (jnp.tanh(z), z))(d + bias), 1),
        (lambda d, x, bias: (lambda z: jnp.tanh(z) + jnp.sum(z))(d + bias), 0),
        (lambda d, x, bias: (lambda z: jnp.tanh(z) + jnp.sum(z))(d + x), 1),
        # In memory for a product, a loop.
        (lambda d, x, bias: (d + bias) @ x, 2),
        (lambda d, x, bias: jax.lax.fori_loop(0, 2, lambda _, c: jnp.sin(c), d + bias), 2),
    ],
)
def test_extra_passes(f: Callable[..., Any], passes: int) -> None:
    assert after_product(f).extra_passes == passes


def test_a_long_product_is_worth_a_pass_and_a_short_one_is_not() -> None:
    target = make_target("sm90")
    none, short = policy.Copies(), GemmDims(4096, 4096, 512, 1, 1, 1)
    long = GemmDims(4096, 4096, 32768, 1, 1, 1)
    assert policy.loses(short, "bfloat16", 2, none, target, TYPICAL_GAIN)
    assert policy.loses(long, "bfloat16", 2, none, target, TYPICAL_GAIN) is None
    assert policy.loses(short, "bfloat16", 0, none, target, TYPICAL_GAIN) is None


def test_products_of_f32_are_worth_more() -> None:
    """Their gain is many times bf16's product, by the algorithm that is asked for."""
    gains = [
        typical_gain(types, precision)
        for types, precision in (
            ("bfloat16", "highest"),
            ("float32", jax.lax.Precision.HIGH),
            ("float32 x bfloat16", None),
            ("float32", jax.lax.Precision.HIGHEST),
        )
    ]
    assert gains == sorted(gains)
    assert gains[0] == TYPICAL_GAIN
    target, short = make_target("sm90"), GemmDims(4096, 4096, 512, 1, 1, 1)
    copies = policy.Copies(alone=16 << 20)
    lost = [policy.loses(short, "float32", 0, copies, target, gain) is not None for gain in gains]
    assert lost == [True, True, False, False]


@pytest.mark.parametrize(
    ("precision", "left"),
    [
        ("high", True),
        (("high", "default"), True),
        ("highest", False),
        (jax.lax.DotAlgorithmPreset.BF16_BF16_F32_X3, False),
    ],
    ids=str,
)
def test_high_of_f32_is_xlas_tf32(precision: Any, left: bool) -> None:
    x = jax.ShapeDtypeStruct((2048, 2048), jnp.float32)
    step = bw.accelerate(lambda a, b: jnp.dot(a, b, precision=precision))
    explained = str(bw.explain_program(step, x, x, device="sm90"))
    assert ("XLA computes precision=HIGH of float32 as TF32" in explained) == left
    assert ("rewritten: a kernel takes it" in explained) != left


@pytest.mark.parametrize("kind", ["alone", "rows", "batch"])
def test_what_a_copy_may_cost_depends_on_whether_xla_has_one(kind: str) -> None:
    target = make_target("sm90")
    dims = GemmDims(1024, 1024, 4096, 16, 16, 16)  # 138 us; a MiB is read and written in 0.5

    def left(size: int) -> str | None:
        copies = policy.Copies(**{kind: size})
        return policy.loses(dims, "bfloat16", 0, copies, target, TYPICAL_GAIN)

    limits = {"alone": 6 << 20, "rows": 24 << 20, "batch": 88 << 20}
    assert left(limits[kind]) is None
    assert f"transposing {2 * limits[kind]} bytes" in (left(2 * limits[kind]) or "")


@pytest.mark.parametrize(
    ("shape", "contracted", "batch", "kind"),
    [
        ((16, 8, 128, 64), [3], [0], "alone"),
        ((8, 16, 128, 64), [3], [1], "rows"),  # experts between groups and their rows
        ((1, 16, 128, 64), [3], [1], "alone"),
        ((8, 128, 16, 64), [2, 3], [0], "alone"),
        ((8, 16, 128, 64), [0, 2], [1], "rows"),  # contracted ones apart
        ((4, 128, 16, 64), [3], [0, 2], "batch"),  # attention
        ((1, 128, 16, 64), [3], [0, 2], "alone"),
    ],
)
def test_which_operands_have_several_strides(
    shape: tuple[int, ...], contracted: list[int], batch: list[int], kind: str
) -> None:
    x = jax.ShapeDtypeStruct(shape, jnp.bfloat16)
    numbers = ((contracted, contracted), (batch, batch))
    product = jax.make_jaxpr(lambda a, b: jax.lax.dot_general(a, b, numbers))(x, x).eqns[0]
    assert products.scattered(product, 0) == products.scattered(product, 1) == kind


def test_a_short_k_is_left_to_xla_unless_a_kernel_takes_more_along() -> None:
    a, b = jnp.ones((128, 32), jnp.bfloat16), jnp.ones((32, 128), jnp.bfloat16)
    (one,) = bw.explain_program(bw.accelerate(jnp.matmul), a, b, device="sm90").rewrites
    assert not one.rewritten
    assert one.reason == "K is 32, at most 32: XLA writes the result as fast as a kernel would"
    assert policy.short(GemmDims(128, 128, 33, 1, 1, 1)) is None


def test_the_decision_is_taken_where_the_bias_is() -> None:
    def biased(x: jax.Array, bias: jax.Array) -> jax.Array:
        return x @ x + bias

    def activated(x: jax.Array, bias: jax.Array) -> jax.Array:
        return jax.nn.gelu(biased(x, bias))

    assert counts(bw.accelerate(biased), X, BIAS) == (0, 1)
    assert counts(bw.accelerate(activated), X, BIAS) == (1, 0)
    # The same jitted function, with and without a pass after it.
    inner = jax.jit(biased)

    def both(x: jax.Array, bias: jax.Array) -> tuple[jax.Array, jax.Array]:
        return inner(x, bias), jax.nn.gelu(inner(2 * x, bias))

    assert counts(bw.accelerate(both), X, BIAS) == (1, 1)
    first, second = bw.explain_program(bw.accelerate(both), X, BIAS, device="sm90").rewrites
    assert (first.rewritten, second.rewritten) == (False, True)
    assert "2 more passes over the result" in first.reason
    assert first.place == "jit biased"


@pytest.mark.parametrize(
    ("x", "reason"),
    [
        (jax.ShapeDtypeStruct((SIZE, SIZE), jnp.int8), "no kernel multiplies int8 x int8 -> int8"),
        (jax.ShapeDtypeStruct((16, 16), jnp.bfloat16), "4096 multiply-adds are fewer than 262144"),
    ],
)
def test_what_no_kernel_takes_stays_untouched(x: Any, reason: str) -> None:
    def f(x: jax.Array) -> jax.Array:
        return x @ x

    plain = str(jax.make_jaxpr(f)(x))
    assert str(jax.make_jaxpr(bw.accelerate(f))(x)) == plain
    (one,) = bw.explain_program(bw.accelerate(f), x, device="sm90").rewrites
    assert not one.rewritten
    assert reason in one.reason


def test_the_least_product_that_is_not_tiny() -> None:
    x = jax.ShapeDtypeStruct((64, 64), jnp.bfloat16)
    (product,) = jax.make_jaxpr(jnp.matmul)(x, x).eqns
    assert policy.tiny(product) is None


def test_a_bias_repeated_by_the_program_is_no_residual() -> None:
    f = lambda d, x, bias: (lambda z: jnp.tanh(z) + jnp.sum(z))(  # noqa: E731
        d + jnp.broadcast_to(bias, d.shape)
    )
    assert after_product(f).extra_passes == 0
