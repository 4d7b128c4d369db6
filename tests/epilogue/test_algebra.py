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
    if name.endswith(("'", "tangent")) and jax.version.__version_info__ < (0, 11):
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


def values(*numbers: float) -> np.ndarray:
    return np.tile(np.asarray(numbers, np.float32), 8).reshape(-1, 8)


C = 1.0625**2 + 2**-14  # exact in float32, as the square is
# name -> (function, sums, operands). Exact in another order or with other factors first, wrong.
EXACT: dict[str, tuple[Any, float, list[float]]] = {
    "a square of a function": (lambda z: jnp.square(jax.nn.silu(z)), -1e20, []),
    "a power of a function": (lambda z: jax.nn.gelu(z) ** 2, -1e20, []),
    "a function times itself": (lambda z: jax.nn.silu(z) * jax.nn.silu(z), -1e20, []),
    "a masked function": (lambda z, m: jnp.square(jax.nn.silu(z + m)), 1.0, [-1e30]),
    "a small power": (lambda z: jnp.tanh(z * 1e-9) + (z * 1e-9) ** 4, 1e10, []),
    "two small factors": (lambda z: jnp.tanh(z * 1e-9) + (z * 1e-9) * (z * 1e-9), 1e25, []),
    "a constant that is moved": (lambda z, x: jnp.tanh(z) + z * 1e-9 * x, 1e30, [1e16]),
    "a large one": (lambda z, x: 0 * jnp.tanh(z) + z * 1e9 * x, 1e-30, [1e-12]),
    "scales": (lambda z, a, b: jax.nn.silu(z * a * b), 2.0**80, [2.0**-80, 2.0**-80]),
    "a scaled difference": (lambda z, x: jax.nn.sigmoid(1000 * (z - x)), 1000, [1000 - 2**-10]),
    "a difference": (lambda z, x: jax.nn.sigmoid(z - x), 65536, [65536 - 2**-7]),
    "a difference of tanh": (lambda z, x: jnp.tanh((z - x) * 1e4), 1.0, [1 + 2**-23]),
    "a difference with a factor": (lambda z, x: jax.nn.silu(z - x) * 3, 1000, [1000 - 2**-10]),
    "a difference outside": (lambda z, x: jnp.tanh(x) * 0 + 3 * (z - x), 1000, [1000 - 2**-14]),
    "the first two cancel": (lambda z, x, b: jax.nn.sigmoid(z + x + b), 2**27, [-(2**27), 1]),
    "the last two cancel": (lambda z, x, b: jax.nn.sigmoid(z + (x + b)), 1, [2**27, -(2**27)]),
    "a sum beside a function": (lambda z, x, b: jnp.tanh(b) + (z - x + b), 2**27, [2**27, 1]),
    "a sum times a function": (lambda z, x, b: jnp.tanh(b) * (z - x + b), 2**27, [2**27, 1]),
    "even and odd": (lambda z, x: jnp.tanh(3 * (1.5 * z - x * z)), 1024, [1.5 - 2**-18]),
    "a square subtracted": (lambda z, x: x * jnp.tanh(x) + 1.7 * (C - z**2), 1.0625, [0]),
    "a negative term": (lambda z, x: x * jnp.tanh(x) + 1.7 * (C + z), 2**-14 - C, [0]),
    "a negative factor": (
        lambda z, x: x * jnp.tanh(x) + 1.7 * (1000 * C + -1000 * (z * z) * x**2),
        1.0,
        [1.0625],
    ),
    "a negative multiple": (
        lambda z, x: 1.7 * (75 + 2**-10 + -300 * jax.nn.sigmoid(z) * jax.nn.sigmoid(x)),
        0.0,
        [0.0],
    ),
    "a factor of both": (lambda z, x, b: jnp.tanh(b) + (z * x) * (z * b), 1e30, [1e-30, 1e-30]),
    "multiples of a function": (
        lambda z, x, b: (z + jax.nn.sigmoid(99 * b) * x) - jax.nn.sigmoid(99 * b) * b,
        -(2**27),
        [2**27, 1],
    ),
    "multiples of a value": (
        lambda z, x, b: 0 * jnp.tanh(b) + ((z + x) + x * b**2),
        -(2**27),
        [2**27, 2**-14],
    ),
    "one term in two orders": (
        lambda z, x: (x + z * jax.nn.sigmoid(z)) + jax.nn.sigmoid(z) * z,
        0.5,
        [3.0],
    ),
    "a factor beyond float32": (lambda z: jax.nn.sigmoid(z * 4.2e37), 1e-38 * 4, []),
}


@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler")
@pytest.mark.parametrize("name", EXACT)
def test_rounding_is_of_the_result(name: str) -> None:
    """Nothing overflows, and no digits are lost, that the function itself keeps."""
    f, z, operands = EXACT[name]
    arrays = [values(x) for x in operands]
    program = trace_epilogue(f, values(z).shape, arrays).program
    (got,) = run_on_host(in_few_operations(program), values(z), arrays)
    with jax.enable_x64(True):
        want = np.asarray(f(*(jnp.asarray(x, "float64") for x in (values(z), *arrays))))
    np.testing.assert_allclose(got, want, rtol=1e-6)


# Functions whose values are read twice in each step of a chain.
CHAINS: dict[str, Any] = {
    "Newton's": lambda y, a: y * (1.5 - 0.5 * a * y * y),
    "reciprocal": lambda y, a: y * (2 - a * y),
    "two sums": lambda y, a: (y + a) * (y - 3 * a),
    "gated": lambda y, a: y * jax.nn.sigmoid(y) + a,
    "a function": lambda y, a: y * jax.nn.sigmoid(y),
    "tanh": lambda y, a: jnp.tanh(y) * y + 0.5 * y,
}


@pytest.mark.parametrize("chain", CHAINS)
def test_long_programs_do_not_grow(chain: str) -> None:
    """Nor take long: with one operation more for each use, a chain would have 2^40."""

    def f(z: jax.Array, a: jax.Array) -> jax.Array:
        y = jnp.tanh(z)
        for _ in range(40):
            y = CHAINS[chain](y, a)
        return y

    program = traced(f, [Z])
    few = in_few_operations(program)
    assert len(few.steps) <= 1.5 * len(program.steps) + 10


@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler")
def test_functions_within_functions() -> None:
    """More of them than Python's recursion has room for, were they written from the outside."""

    def f(z: jax.Array, a: jax.Array) -> jax.Array:
        for _ in range(400):
            z = jnp.tanh(0.5 * z + a)
        return z

    operand = values(0.25)
    program = trace_epilogue(f, operand.shape, [operand]).program
    (got,) = run_on_host(in_few_operations(program), operand, [operand])
    np.testing.assert_allclose(got, np.asarray(f(operand, operand)), rtol=1e-5)


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
