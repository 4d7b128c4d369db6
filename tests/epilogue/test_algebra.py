"""Activations and derivatives in few operations: the same functions, to a few units of float32."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from epilogue_host import COMPILER, run_on_host

import jax_bwgemm as bw
from jax_bwgemm import config
from jax_bwgemm.epilogue.algebra import in_few_operations
from jax_bwgemm.epilogue.tracing import trace_epilogue

Z = np.linspace(-30, 30, 40_000, dtype=np.float32).reshape(-1, 8)


def derivative(f: Any) -> Any:
    return lambda z, x: jax.vjp(f, x)[1](z)[0]


def kept(f: Any) -> Any:
    """With what the derivative needs as a second result."""
    return lambda z: (f(z), z)


def with_slope(f: Any) -> Any:
    """With the derivative as a second result."""

    def both(z: jax.Array) -> tuple[jax.Array, jax.Array]:
        y, pull = jax.vjp(f, z)
        return y, pull(jnp.ones_like(y))[0]

    return both


def with_tangent(f: Any) -> Any:
    """The same by `jax.jvp`, as `mlp` has it."""
    return lambda z: jax.jvp(f, (z,), (jnp.ones_like(z),))


def gradients_of_unit(z: jax.Array, gate: jax.Array, up: jax.Array) -> Any:
    return jax.vjp(lambda g, u: jax.nn.silu(g) * u, gate, up)[1](z)


# name -> (function, how many operands it has, how many operations are left of it)
FUNCTIONS: dict[str, tuple[Any, int, int]] = {
    "gelu": (jax.nn.gelu, 0, 6),
    "silu": (jax.nn.silu, 0, 3),
    "sigmoid": (jax.nn.sigmoid, 0, 2),
    "tanh, scaled": (lambda z: 0.5 + 0.5 * jnp.tanh(3 * z), 0, 2),
    "tanh, subtracted": (lambda z: 0.5 - 0.5 * jnp.tanh(3 * z), 0, 3),
    "gelu, kept": (kept(jax.nn.gelu), 0, 6),
    "gelu'": (derivative(jax.nn.gelu), 1, 13),
    "silu'": (derivative(jax.nn.silu), 1, 7),
    "tanh'": (derivative(jnp.tanh), 1, 6),
    "sigmoid'": (derivative(jax.nn.sigmoid), 1, 5),
    "gelu and gelu'": (with_slope(jax.nn.gelu), 0, 12),
    "gelu and its tangent": (with_tangent(jax.nn.gelu), 0, 12),
    "silu and silu'": (with_slope(jax.nn.silu), 0, 6),
    "sigmoid and sigmoid'": (with_slope(jax.nn.sigmoid), 0, 4),
    "a gated unit's gradients": (gradients_of_unit, 2, 9),
    "(1 - sigmoid)^2": (lambda z: jax.nn.sigmoid(z) * jnp.square(1 - jax.nn.sigmoid(z)), 0, 5),
    "a squared sum": (lambda z: 3 * jax.nn.sigmoid(z) * jnp.square(1 + z * 0.01), 0, 7),
    "1 - sigmoid, scaled": (lambda z: z * (1 - jax.nn.sigmoid(z)) + 2, 0, 5),
}


def traced(f: Any, operands: list[np.ndarray]) -> Any:
    return trace_epilogue(f, Z.shape, operands).program


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler")
def test_functions(name: str) -> None:
    f, count, _ = FUNCTIONS[name]
    operands = [Z[::-1].copy()] * count
    few = in_few_operations(traced(f, operands))
    with jax.enable_x64(True):
        exact = f(*(jnp.asarray(x, "float64") for x in (Z, *operands)))
    for got, want in zip(run_on_host(few, Z, operands), jax.tree.leaves(exact), strict=True):
        np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5)


@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler")
@pytest.mark.parametrize(
    "f",
    [
        jnp.tanh,
        jax.lax.erf,
        jax.lax.erfc,
        lambda z: jax.nn.gelu(z, approximate=False),
    ],
)
def test_approximations(f: Any) -> None:
    """Of kernels with 16-bit results: to 2^-14 of the result, but for what is next to nothing."""
    z = np.concatenate([Z.ravel() / 4, [0.0, 1e-6, -1e-6, 40.0, -40.0, 1e20, -1e20, np.nan]])
    z = z.astype(np.float32).reshape(-1, 8)
    (got,) = run_on_host(in_few_operations(traced(f, [])), z, [], approximate=True)
    with jax.enable_x64(True):
        exact = np.asarray(f(jnp.asarray(z, "float64")))
    np.testing.assert_allclose(got, exact, rtol=2**-14, atol=1e-30 if f is jax.lax.erfc else 1e-9)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_operations(name: str) -> None:
    f, count, most = FUNCTIONS[name]
    few = in_few_operations(traced(f, [Z] * count))
    if name.endswith("'") and jax.version.__version_info__ < (0, 11):
        pytest.skip("JAX 0.10 writes the derivative of tanh in more operations")
    assert sum(step.op != "literal" for step in few.steps) == most
    assert not {"tanh", "logistic"} & {step.op for step in few.steps}


@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler")
@pytest.mark.parametrize(
    "f",
    [
        lambda z: jnp.tanh(z) * 2 + (z + 12582912.0 - 12582912.0),  # rounds to an integer
        lambda z: jnp.tanh(z) * 2 + (z + 12582912.0 - 12582911.0),
        lambda z: jnp.tanh(z) + (z - z),
        lambda z: jnp.tanh((z + 1) * (z - 1)),
        lambda z: jnp.tanh(z) ** 3 + jnp.exp(-jnp.square(z)) * z.astype(jnp.bfloat16),
        lambda z: jnp.where(z > 0, jnp.tanh(z), z.astype(jnp.int32)) - 1,
        lambda z: jnp.tanh(z / 3) * -z + z**4,
        lambda z: 1 + jnp.tanh(z) ** 2,  # not 1 - tanh^2
        lambda z: 1 - jax.nn.sigmoid(z) ** 2,
        lambda z: 1 + jax.nn.sigmoid(z),
        lambda z: jnp.tanh(z) + 0.0,
        lambda z: 0.0 - jnp.tanh(z),
    ],
)
def test_what_has_no_better_form(f: Any) -> None:
    """Operations whose order matters keep it; tanh alone stays tanh."""
    program = traced(f, [])
    few = in_few_operations(program)
    (got,), (want,) = (run_on_host(p, Z, []) for p in (few, program))
    np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-6)


def test_without_activations_nothing_changes() -> None:
    program = traced(lambda z: jnp.exp(z * 2 * 3) + z, [])
    assert in_few_operations(program) is program


def test_factors_beyond_float32_are_not_multiplied_together() -> None:
    """0 * 1e20 * 1e20 is 0, and 0 times infinity no number."""
    f = lambda z: jnp.tanh(z) + z * 1e20 * 1e20  # noqa: E731
    a, b = jnp.zeros((128, 64), jnp.bfloat16), jnp.ones((64, 128), jnp.bfloat16)
    with config.target("sm90", 4):
        got = bw.matmul(a, b, epilogue=f, implementation=("emulator", "xla"))
    np.testing.assert_array_equal(got, 0)


@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler")
def test_a_sum_takes_no_constant_that_is_beyond_float32() -> None:
    tiny = np.full_like(Z, 1e-30)
    f = lambda z, x: (jnp.tanh(z) * 1e30) * (x * 1e10 + x * x)  # noqa: E731
    (got,) = run_on_host(in_few_operations(traced(f, [tiny])), Z, [tiny])
    np.testing.assert_allclose(got, np.tanh(Z) * 1e10, rtol=1e-5)


@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler")
def test_one_minus_the_square_of_a_power_that_is_too_high() -> None:
    """Of arcsin's derivative: 1 - z^12."""
    z = np.linspace(-0.9, 0.9, 64, dtype=np.float32).reshape(-1, 8)
    f = lambda z: jax.vjp(lambda x: jnp.arcsin(jnp.square(x**3)), z)[1](jnp.tanh(z))[0]  # noqa: E731
    program = trace_epilogue(f, z.shape, []).program
    (got,), (want,) = (run_on_host(p, z, []) for p in (in_few_operations(program), program))
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
