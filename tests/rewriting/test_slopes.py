"""Activations whose gradient reads their slope: the kernel of the forward product writes it."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from epilogue_host import COMPILER, run_on_host
from jaxprs import assert_defined_once
from numerics import LINKED, normal

import jax_bwgemm as bw
from jax_bwgemm.epilogue.primitive import bw_gemm_epilogue_p
from jax_bwgemm.epilogue.program import Operand
from jax_bwgemm.epilogue.tracing import trace_epilogue
from jax_bwgemm.product.implementations import DEFAULT_IMPLEMENTATIONS
from jax_bwgemm.product.jaxprs import equations
from jax_bwgemm.rewriting import slopes
from jax_bwgemm.rewriting.dataflow import Dataflow
from jax_bwgemm.rewriting.rewrite import rewrite
from jax_bwgemm.rewriting.uses import STORED

M, K, N = 128, 192, 256
F32 = jnp.float32
pytestmark = pytest.mark.usefixtures("everything_links")


@pytest.fixture
def arrays() -> dict[str, jax.Array]:
    rng = np.random.default_rng(0)
    shapes = {"x": (M, K), "w": (K, N), "b": (N,), "v": (N, K), "c": (K,)}
    found = {name: jnp.asarray(normal(rng, s, "bfloat16")) for name, s in shapes.items()}
    for name in "wv":
        found[name] = found[name] * jnp.bfloat16(found[name].shape[0] ** -0.5)
    return found


def layers(activation: Callable[..., Any]) -> Callable[..., Any]:
    def loss(a: dict[str, jax.Array]) -> jax.Array:
        hidden = activation(a["x"] @ a["w"] + a["b"])
        return jnp.mean((hidden @ a["v"] + a["c"]).astype(F32) ** 2)

    return jax.value_and_grad(loss)


def steps_of(f: Any, *args: Any) -> list[list[str]]:
    """Of every fused equation the operations of its kernel, without conversions."""
    assert_defined_once(rewrite(jax.make_jaxpr(f)(*args), DEFAULT_IMPLEMENTATIONS)[0])
    jaxpr = jax.make_jaxpr(bw.accelerate(f))(*args)
    return [
        [s.op for s in e.params["fused"].program.steps if s.op != "convert_element_type"]
        for e, _ in equations(jaxpr)
        if e.primitive is bw_gemm_epilogue_p
    ]


def check(f: Any, *args: Any) -> None:
    """Same results as without. Gradients are compared by their largest value."""
    got, want = jax.jit(bw.accelerate(f))(*args), jax.jit(f)(*args)
    for ours, theirs in zip(*map(jax.tree.leaves, (got, want)), strict=True):
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
        scale = max(float(jnp.max(jnp.abs(theirs.astype(F32)))), 1e-6)
        ours, theirs = (np.asarray(x.astype(F32)) / scale for x in (ours, theirs))
        np.testing.assert_allclose(ours, theirs, rtol=4 * LINKED["rtol"], atol=4 * LINKED["atol"])


def check_programs(f: Any, *args: Any) -> None:
    """What kernels compute of a product and operands is what is computed without kernels."""
    rng = np.random.default_rng(0)
    jaxpr = jax.make_jaxpr(bw.accelerate(f))(*args)
    for eqn in [e for e, _ in equations(jaxpr) if e.primitive is bw_gemm_epilogue_p]:
        fused = eqn.params["fused"]
        _, operands = fused.factors([x.aval for x in eqn.invars])
        product = normal(rng, fused.shape, "bfloat16")
        given = [normal(rng, x.shape, x.dtype.name) for x in operands]
        shapes = [
            [size if d in x.axes else 1 for d, size in enumerate(fused.shape)]
            for x in fused.program.operands
        ]
        got = run_on_host(
            fused.program,
            product.astype(np.float32),
            [x.reshape(shape) for x, shape in zip(given, shapes, strict=True)],
        )
        want = fused.function(*map(jnp.asarray, (product, *given)))
        for i, (ours, theirs) in enumerate(zip(got, want, strict=False)):
            if i not in fused.program.summed:
                close = {"rtol": 4 * LINKED["rtol"], "atol": 4 * LINKED["atol"]}
                # Without kernels every step is rounded to 16 bits: a few values are further apart.
                both = ours.astype(np.float32), theirs.astype(F32)
                assert np.isclose(*both, **close).mean() > 0.995
                np.testing.assert_allclose(*both, rtol=0.125, atol=0.0625)


@pytest.mark.parametrize(
    "activation",
    [
        jax.nn.gelu,
        lambda z: jax.nn.gelu(z, approximate=False),
        jax.nn.silu,
        lambda z: z * jax.nn.sigmoid(1.702 * z),
        lambda z: jnp.where(z > 0, jnp.sin(z) * z, jnp.expm1(z)),
    ],
    ids=["gelu", "exact gelu", "silu", "quick gelu", "where"],
)
def test_the_gradients_kernel_multiplies(arrays: Any, activation: Any) -> None:
    step = layers(activation)
    # The activation and its slope, the second layer's bias, the gradient.
    *_, gradient = steps_of(step, arrays)
    assert gradient == ["mul"]
    check(step, arrays)


def test_rows_of_batches(arrays: Any) -> None:
    step = layers(jax.nn.gelu)
    batch = arrays | {"x": arrays["x"].reshape(4, M // 4, K)}
    assert steps_of(step, batch)[-1] == ["mul"]
    check(step, batch)


def test_batches_of_matrices(arrays: Any) -> None:
    """With a bias of each matrix, whose gradient sums its rows."""
    step = layers(jax.nn.gelu)
    many = {name: jnp.stack([x, -x]) for name, x in arrays.items()}
    many |= {name: many[name][:, None] for name in "bc"}
    assert steps_of(step, many)[-1] == ["mul"]
    check(step, many)


def test_a_vector_along_another_dimension_is_another_operand() -> None:
    """Of square results both are possible."""
    (x,) = jax.make_jaxpr(lambda x: x)(jnp.zeros(M)).jaxpr.invars
    flow = types.SimpleNamespace(producer=lambda v: None)
    row, column = (Operand("float32", axes) for axes in ((1,), (0,)))
    assert slopes.array_of(flow, x, row) == slopes.array_of(flow, x, row)
    assert slopes.array_of(flow, x, row) != slopes.array_of(flow, x, column)


@pytest.mark.parametrize("activation", [jax.nn.relu, jnp.tanh])
def test_a_short_slope_stays_where_it_is(arrays: Any, activation: Any) -> None:
    step = layers(activation)
    assert steps_of(step, arrays)[-1] != ["mul"]
    check(step, arrays)


def test_a_value_that_something_else_reads_stays(arrays: Any) -> None:
    def loss(a: dict[str, jax.Array]) -> Any:
        before = a["x"] @ a["w"] + a["b"]
        return jnp.mean((jax.nn.gelu(before) @ a["v"]).astype(F32) ** 2), before

    step = jax.value_and_grad(loss, has_aux=True)
    assert len(steps_of(step, arrays)[-1]) > 8
    check(step, arrays)


def test_a_kernel_that_cannot_be_linked(arrays: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slopes, "link_refusal", lambda *_: "no reason")
    step = layers(jax.nn.gelu)
    assert len(steps_of(step, arrays)[-1]) > 8
    check(step, arrays)


def test_dropout_between(arrays: Any) -> None:
    """A mask is a second matrix that the gradient reads: the slope does not take its place."""
    keep = jax.random.bernoulli(jax.random.key(0), 0.9, (M, N))

    def activation(z: jax.Array) -> jax.Array:
        return jnp.where(keep, jax.nn.gelu(z), 0).astype(z.dtype)

    check(layers(activation), arrays)


@pytest.mark.parametrize(
    ("f", "expected"),
    [
        (lambda z, x: z * jnp.sin(x), True),
        (lambda z, x: z * x + z / x - (-z), True),
        (lambda z, x: (z * x, jnp.sum(z * x, 0)), True),
        (lambda z, x: jnp.where(x > 0, z * x, 0), True),
        (lambda z, x: (z * x, z), False),  # two multiples
        (lambda z, x: z * x + x, False),
        (lambda z, x: z * z, False),
        (lambda z, x: x / z, False),
        (lambda z, x: jnp.where(z > 0, z, 0), False),
        (lambda z, x: jnp.where(x > 0, z, 1), False),
        (lambda z, x: jnp.sum(z * x, 0), False),  # nothing but sums
        (lambda z, x: jnp.sin(x) + 0 * x, False),
    ],
)
def test_multiples_of_the_product(f: Callable[..., Any], expected: bool) -> None:
    shape = (8, 16)
    program = trace_epilogue(f, shape, [jax.ShapeDtypeStruct(shape, F32)]).program
    assert slopes.is_multiple(program) is expected


def test_slopes_beyond_float16_are_not_kept() -> None:
    """The slope of log(z + 1e-6) is 1e6 at 0, which float16 does not have."""
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.random((M, K)), jnp.float16).at[M - 8 :].set(0)
    w = jnp.asarray(rng.random((K, N)) * 0.01, jnp.float16)
    v = jnp.asarray(rng.standard_normal((N, K)) * 0.04, jnp.float16)

    def loss(w: jax.Array, x: jax.Array) -> jax.Array:
        features = jnp.log((x @ w).astype(F32) + 1e-6).astype(jnp.float16)
        return jnp.mean((features @ v).astype(F32) ** 2)

    step = jax.value_and_grad(loss, (0, 1))
    assert len(steps_of(step, w, x)) == 3
    assert all(bool(jnp.isfinite(g).all()) for g in jax.jit(bw.accelerate(step))(w, x)[1])


def scaled(factor: float) -> Callable[[jax.Array], jax.Array]:
    """The identity, whose gradient is multiplied by a constant in float32."""

    @jax.custom_vjp
    def identity(x: jax.Array) -> jax.Array:
        return x

    def backward(_: None, g: jax.Array) -> tuple[jax.Array]:
        return ((g.astype(F32) * factor).astype(g.dtype),)

    identity.defvjp(lambda x: (x, None), backward)
    return identity


@pytest.mark.parametrize(("factor", "kept"), [(2.0, True), (2.0**16, False), (2.0**-26, False)])
def test_a_scaled_gradient_brings_no_slope_out_of_float16(factor: float, kept: bool) -> None:
    """The factor times a gradient is in the range of float16; the slope times it is not."""
    rng = np.random.default_rng(0)
    arrays = {"x": (M, K), "w": (K, N), "v": (N, K)}
    x, w, v = (
        jnp.asarray(rng.standard_normal(shape) * shape[0] ** -0.5, jnp.float16)
        for shape in arrays.values()
    )
    g = jnp.asarray(rng.standard_normal((M, K)) * (2.0**-9 if factor > 1 else 2.0**12), jnp.float16)

    def gradient(w: jax.Array, x: jax.Array, g: jax.Array) -> jax.Array:
        return jax.vjp(lambda w: scaled(factor)(jax.nn.silu(x @ w)) @ v, w)[1](g)[0]

    multiplications = [steps for steps in steps_of(gradient, w, x, g) if steps == ["mul"]]
    assert bool(multiplications) == kept
    want = jax.jit(gradient)(w, x, g)
    got = jax.jit(bw.accelerate(gradient))(w, x, g)
    assert float(jnp.abs(want).max()) > 0
    np.testing.assert_allclose(
        got.astype(F32), want.astype(F32), rtol=0.02, atol=0.01 * float(jnp.abs(want).max())
    )


def test_what_is_computed_from_the_activation_is_no_operand_of_its_kernel(arrays: Any) -> None:
    """The gradient's factor exists only after the activation: the slope stays in the gradient."""

    def step(x: Any, w: Any, v: Any) -> Any:
        h, back = jax.vjp(jax.nn.gelu, x @ w)
        factor = jnp.max(h, 0)
        (z_bar,) = back(((x @ v.T).astype(F32) * factor).astype(h.dtype))
        return h, z_bar.T @ x

    check(step, arrays["x"], arrays["w"], arrays["v"])


@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler")
def test_a_factor_of_the_gradient_alone_becomes_the_activation_s_operand(arrays: Any) -> None:
    """After its own, so that all values that its kernel computes have other numbers."""

    def step(x: Any, w: Any, b: Any, v: Any, factor: Any) -> Any:
        h, back = jax.vjp(lambda z: jax.nn.gelu(z + b), x @ w)
        (z_bar,) = back((x @ v.T) * factor)
        return h, z_bar.T @ x

    args = *(arrays[name] for name in "xwbv"), arrays["b"] + 2
    assert steps_of(step, *args)[-1] == ["mul"]
    check(step, *args)
    check_programs(step, *args)


def test_a_row_repeated_in_another_order_is_another_array() -> None:
    tile = lambda b: jax.lax.broadcast_in_dim(b, (2, M), (1,)).reshape(-1)  # noqa: E731
    repeat = lambda b: jax.lax.broadcast_in_dim(b, (M, 2), (0,)).reshape(-1)  # noqa: E731
    body = jax.make_jaxpr(lambda b: (tile(b), repeat(b)))(jnp.zeros(M)).jaxpr
    flow = Dataflow(body, body.eqns, [STORED] * 2)
    tiled, repeated = (slopes.array_of(flow, x, Operand("float32", (1,))) for x in body.outvars)
    assert tiled != repeated


@pytest.mark.parametrize("f", [lambda z, x: (z * x).astype(jnp.int32).astype(F32)])
def test_rounding_to_an_integer_is_no_multiple(f: Callable[..., Any]) -> None:
    shape = (8, 16)
    program = trace_epilogue(f, shape, [jax.ShapeDtypeStruct(shape, F32)]).program
    assert not slopes.is_multiple(program)
