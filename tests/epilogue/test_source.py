"""The C++ of epilogues, compiled for the host, against JAX operation by operation."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from epilogue_host import COMPILER, numpy_type, run_on_host
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax
from numerics import ulps

from jax_bwgemm.epilogue.primitives import KINDS, PRIMITIVES, SPECIAL
from jax_bwgemm.epilogue.program import TYPES
from jax_bwgemm.epilogue.simplify import simplified
from jax_bwgemm.epilogue.tracing import EpilogueError, trace_epilogue

pytestmark = pytest.mark.skipif(COMPILER is None, reason="no C++ compiler")

INTEGERS = [t for t in TYPES if KINDS[t] in "iu"]
EDGES = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, 3e38, -3e38, 1e-37, 65520.0]
EDGES += [np.inf, -np.inf, np.nan, 127.5, 255.5, 32768.0, -32769.0, 2.0**31, -(2.0**31), 2.0**32]
# Where functions of limited domain are compared.
INSIDE = {"asin": (-1, 1), "acos": (-1, 1), "atanh": (-1, 1), "acosh": (1, 50), "log": (0, 50)}
INSIDE |= {"log1p": (-1, 50), "rsqrt": (0, 50), "sqrt": (0, 50), "sinh": (-20, 20)}
INSIDE |= {
    "logistic": (-80, 80),
    "cosh": (-20, 20),
    "tan": (-1.5, 1.5),
    "exp": (-80, 80),
    "expm1": (-80, 80),
}
WIDE = (-100.0, 100.0)


def values(rng: np.random.Generator, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    """Values of a type, its edges among them."""
    if KINDS[dtype] == "f":
        x = rng.standard_normal(shape) * rng.choice([0.1, 1.0, 30.0], shape)
        x = np.where(rng.random(shape) < 0.2, rng.choice(EDGES, shape), x)
        with np.errstate(over="ignore"):
            return x.astype(numpy_type(dtype))
    if dtype == "bool":
        return rng.random(shape) < 0.5
    info = np.iinfo(dtype)
    x = rng.integers(info.min, info.max, shape, dtype, endpoint=True)
    near = rng.integers(max(info.min, -9), 9, shape, dtype)
    return np.asarray(np.where(rng.random(shape) < 0.5, near, x), dtype)


def check(f: Any, accumulator: np.ndarray, *operands: np.ndarray) -> None:
    """Bitwise, up to the signs of zero and NaN, and to subnormals, which XLA's CPU flushes."""
    program = trace_epilogue(f, accumulator.shape, operands).program
    got = run_on_host(program, accumulator, operands)
    with jax.disable_jit():  # operation by operation: nothing is contracted
        want = jax.tree.leaves(f(jnp.asarray(accumulator), *map(jnp.asarray, operands)))
    for ours, theirs in zip(got, want, strict=True):
        theirs = np.asarray(theirs)
        assert ours.dtype == theirs.dtype
        np.testing.assert_array_equal(_flushed(ours), _flushed(theirs), err_msg=str(program))


def _flushed(x: np.ndarray) -> np.ndarray:
    if KINDS[x.dtype.name] != "f":
        return x
    wide = x.astype(np.float64)
    return np.where(np.abs(wide) < np.finfo(np.float32).tiny, 0, wide)


EXACT_UNARY = ("neg", "abs", "sign", "square", "floor", "ceil", "is_finite")
INTEGER_UNARY = ("neg", "abs", "sign", "square", "not", "population_count", "clz")
EXACT_BINARY = ("add", "sub", "mul", "div", "max", "min", "eq", "ne", "lt", "le", "gt", "ge")
INTEGER_BINARY = (*EXACT_BINARY, "rem", "and", "or", "xor")
INTEGER_BINARY += ("shift_left", "shift_right_logical", "shift_right_arithmetic")
_LAX = {"not": lax.bitwise_not, "and": lax.bitwise_and, "or": lax.bitwise_or}
_LAX["xor"] = lax.bitwise_xor


def of_lax(name: str) -> Any:
    return _LAX.get(name) or getattr(lax, name)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_exact_of_floats(dtype: str) -> None:
    rng = np.random.default_rng(0)
    z, x, y = (values(rng, t, (16, 32)) for t in ("float32", dtype, dtype))

    def f(z: jax.Array, x: jax.Array, y: jax.Array) -> list[jax.Array]:
        unary = [of_lax(name)(x) for name in EXACT_UNARY]
        unary += [lax.round(x, lax.RoundingMethod.TO_NEAREST_EVEN), lax.round(x)]
        # Of narrow types XLA rounds between the multiplications, which the C++ does not.
        powers = (0, 1, 2, 3) if dtype == "float32" else (0, 1, 2)
        unary += [lax.integer_pow(x, power) for power in powers]
        binary = [of_lax(name)(x, y) for name in EXACT_BINARY]
        return [*unary, *binary, lax.clamp(x, y, x + 1), lax.select(z > 0, x, y), z]

    check(f, z, x, y)
    # Not only what is stored is rounded: what other steps read is, too.
    check(lambda *xs: [r.astype(jnp.float32) for r in f(*xs)], z, x, y)


@pytest.mark.parametrize("dtype", INTEGERS)
def test_exact_of_integers(dtype: str) -> None:
    rng = np.random.default_rng(0)
    z, x, y = (values(rng, t, (16, 32)) for t in ("float32", dtype, dtype))

    def f(z: jax.Array, x: jax.Array, y: jax.Array) -> list[jax.Array]:
        unary = [
            of_lax(name)(x)
            for name in INTEGER_UNARY
            if name not in ("neg", "abs") or KINDS[dtype] == "i"
        ]
        three = lax.clamp(jnp.zeros((), dtype), y, jnp.full((), 9, dtype))
        which = lax.convert_element_type(lax.rem(three, jnp.full_like(three, 3)), jnp.int32)
        binary = [of_lax(name)(x, y) for name in INTEGER_BINARY]
        return [z, *unary, *binary, three, lax.select_n(which, x, y, three)]

    check(f, z, x, y)


@pytest.mark.parametrize("dtype", TYPES)
def test_conversions(dtype: str) -> None:
    rng = np.random.default_rng(1)
    z, x = values(rng, "float32", (16, 64)), values(rng, dtype, (16, 64))
    targets = [t for t in TYPES if not (KINDS[dtype] == "f" and KINDS[t] in "iu")]
    check(lambda z, x: [x.astype(t) for t in targets], z, x)
    narrow = ("bfloat16", "float16")
    check(lambda z, x: [y.astype(t).astype(jnp.float32) for y in (x, z) for t in narrow], z, x)
    z[~np.isfinite(z)] = 0  # XLA leaves open what integers become of these
    small = np.clip(z, 0, 100)
    check(lambda z: [z.astype(t) for t in TYPES], small.astype(np.float32))


def test_bits() -> None:
    z, x = values(np.random.default_rng(3), "float32", (16, 64)), np.arange(64, dtype=np.int32)

    def f(z: jax.Array, x: jax.Array) -> list[jax.Array]:
        bits = [lax.bitcast_convert_type(z, t) for t in (jnp.int32, jnp.uint32)]
        back = [lax.bitcast_convert_type(b ^ 1, jnp.float32) for b in bits]
        return [*bits, *back, lax.bitcast_convert_type(x, jnp.uint32) + z.astype(jnp.uint32)]

    check(f, np.where(np.isfinite(z) & (np.abs(z) < 100), np.abs(z), 1).astype(np.float32), x)
    with pytest.raises(EpilogueError, match="do not have it of bfloat16 to uint16"):
        trace_epilogue(
            lambda z: lax.bitcast_convert_type(z.astype(jnp.bfloat16), jnp.uint16), (8, 8), ()
        )


def test_conversions_saturate() -> None:
    z = np.asarray([[np.nan, np.inf, -np.inf, 1e10, -1e10, 300.7, -300.7, -0.5]], np.float32)
    program = trace_epilogue(lambda z: [z.astype(t) for t in INTEGERS], z.shape, ()).program
    for dtype, got in zip(INTEGERS, run_on_host(program, z, ()), strict=True):
        low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
        want = [int(np.clip(x, low, high)) for x in (high, low, high, low, 300, -300, 0)]
        assert got[0].tolist() == [0, *want], dtype


def test_reduced_precision_and_constants() -> None:
    z = values(np.random.default_rng(2), "float32", (8, 64))

    def f(z: jax.Array) -> list[jax.Array]:
        reduced = [lax.reduce_precision(z, 8, 23), lax.reduce_precision(z, 8, 7)]
        constants = [jnp.full(z.shape, c) for c in (np.inf, 1e-30, -0.0, np.pi, np.nan)]
        constants += [jnp.full(z.shape, c) for c in (True, -(2**31), np.uint32(2**32 - 1))]
        constants += [jnp.full(z.shape, np.int8(-128)), jnp.full(z.shape, jnp.bfloat16(0.1))]
        return [*reduced, *constants]

    check(f, z)


def _erf(x: np.ndarray) -> np.ndarray:
    return np.vectorize(math.erf)(x)


def _erfc(x: np.ndarray) -> np.ndarray:
    return np.vectorize(math.erfc)(x)


EXACT = {
    **{name: getattr(np, name) for name in ("exp", "exp2", "expm1", "log", "log1p", "sin", "cos")},
    **{name: getattr(np, name) for name in ("tan", "sinh", "cosh", "tanh", "cbrt")},
    **{name: getattr(np, f"arc{name[1:]}") for name in ("asin", "acos", "atan", "atan2")},
    **{name: getattr(np, f"arc{name[1:]}") for name in ("asinh", "acosh", "atanh")},
    "rsqrt": lambda x: x**-0.5,
    "pow": np.power,
    "erf": _erf,
    "erfc": _erfc,
    "logistic": lambda x: 1 / (1 + np.exp(-x)),
}


@pytest.mark.parametrize("name", sorted(n for n in PRIMITIVES if n in EXACT))
def test_accuracy(name: str) -> None:
    """Within the documented error and that of the host's own functions, against f64."""
    rng = np.random.default_rng(0)
    low, high = INSIDE.get(name, WIDE)
    z = rng.uniform(low, high, (64, 64)).astype(np.float32)
    x = rng.uniform(-3, 3, z.shape).astype(np.float32)
    if name == "pow":
        z = np.abs(z) / 10 + np.float32(0.1)
    binary = name in ("pow", "atan2")
    f = (lambda z, x: of_lax(name)(z, x)) if binary else (lambda z, x: of_lax(name)(z))
    (got,) = run_on_host(trace_epilogue(f, z.shape, (x,)).program, z, (x,))
    exact = EXACT[name](*(a.astype(np.float64) for a in ((z, x) if binary else (z,))))
    assert ulps(got, exact) <= PRIMITIVES[name].ulp + 1


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_values_of_narrow_types_are_rounded(dtype: str) -> None:
    """What other steps read is, as what is stored."""
    z = np.random.default_rng(0).uniform(0.1, 2, (16, 16)).astype(np.float32)

    def f(z: jax.Array) -> list[jax.Array]:
        x = z.astype(dtype)
        found = [of_lax(n)(x, x + 1) if n in ("pow", "atan2") else of_lax(n)(x) for n in EXACT]
        found += [lax.reduce_precision(x / 3, 8, 23), 1 + jnp.tanh(x), lax.integer_pow(x, 3)]
        return [y.astype(jnp.float32) for y in found]

    program = simplified(trace_epilogue(f, z.shape, ()).program)
    for got in run_on_host(program, z, ()):
        np.testing.assert_array_equal(got, got.astype(numpy_type(dtype)).astype(np.float32))


def test_every_primitive_is_tested() -> None:
    exact = {*EXACT_UNARY, *INTEGER_UNARY, *EXACT_BINARY, *INTEGER_BINARY, "clamp", "add_any"}
    exact |= {"sqrt", "nextafter", "one_minus_square"}
    assert exact | set(EXACT) == set(PRIMITIVES)
    special = {"literal", "iota", "convert_element_type", "integer_pow", "round"}
    special |= {"reduce_precision", "select_n", "one_plus_tanh", "logistic_of_log2"}
    special |= {"bitcast_convert_type"}
    assert set(SPECIAL) == special


def test_square_roots_remainders_and_neighbours() -> None:
    rng = np.random.default_rng(3)
    z, x = (np.abs(rng.standard_normal((16, 16))).astype(np.float32) for _ in "ab")
    check(
        lambda z, x: [lax.sqrt(z), lax.rem(z, x), lax.nextafter(z, x), lax.integer_pow(z, -1)], z, x
    )


# Random functions. Operations are exact, so that results are compared bit for bit.

SHAPES = [(), (8,), (1, 8), (6, 1), (6, 8), (1, 1)]


@st.composite
def functions(draw: Any) -> tuple[Any, list[tuple[str, tuple[int, ...]]]]:
    """A function of an accumulator and operands, and the operands' types and shapes."""
    operands = draw(
        st.lists(st.tuples(st.sampled_from(TYPES), st.sampled_from(SHAPES)), max_size=4)
    )
    choices = draw(st.lists(st.integers(0, 2**30), min_size=3, max_size=14))

    def f(z: jax.Array, *xs: jax.Array) -> list[jax.Array]:
        found = [z, *(x for x in xs)]
        found += [lax.broadcasted_iota(jnp.int32, z.shape, d) for d in (0, 1)]
        for c in choices:
            x, y = found[c % len(found)], found[c // 7 % len(found)]
            wide = jnp.result_type(x, y)
            x, y = (
                jnp.broadcast_to(v.astype(wide), jnp.broadcast_shapes(x.shape, y.shape))
                for v in (x, y)
            )
            name = wide.name
            if name == "bool":
                ops = [lax.bitwise_and, lax.bitwise_or, lax.bitwise_xor, lax.ne]
            elif KINDS[name] == "f":
                ops = [
                    lax.add,
                    lax.sub,
                    lax.mul,
                    lax.max,
                    lax.min,
                    lax.lt,
                    lax.ge,
                    lambda x, y: lax.select(x > y, x, y),
                    lambda x, y: lax.neg(x),
                    lambda x, y: x.astype(jnp.bfloat16),
                    lambda x, y: x.astype(jnp.float32),
                    lambda x, y: lax.floor(y),
                ]
            else:
                ops = [
                    lax.add,
                    lax.mul,
                    lax.bitwise_xor,
                    lax.max,
                    lax.eq,
                    lax.shift_left,
                    lax.shift_right_logical,
                    lax.div,
                    lambda x, y: x.astype(jnp.float32),
                ]
            found.append(ops[c // 64 % len(ops)](x, y))
        return [jnp.broadcast_to(x, z.shape) for x in found[-2:]]

    return f, operands


@settings(max_examples=30)
@given(functions(), st.integers(0, 1000))
def test_random_functions(function: Any, seed: int) -> None:
    f, types = function
    rng = np.random.default_rng(seed)
    check(f, values(rng, "float32", (6, 8)), *(values(rng, t, s) for t, s in types))


def test_one_plus_tanh_does_not_cancel() -> None:
    z = np.linspace(-20, 20, 4000, dtype=np.float32).reshape(40, 100)
    for f in (lambda z: 1 + jnp.tanh(z), lambda z: jnp.tanh(z) + 1):
        program = simplified(trace_epilogue(f, z.shape, ()).program)
        assert [step.op for step in program.steps if step.inputs] == ["tanh", "one_plus_tanh"]
        (got,) = run_on_host(program, z, ())
        # 1 + tanh(x) is 2 / (1 + exp(-2 x)).
        assert ulps(got, 2 / (1 + np.exp(-2 * z.astype(np.float64)))) <= 6
    other = trace_epilogue(lambda z: 2 + jnp.tanh(z), z.shape, ()).program
    assert simplified(other) == other


def test_one_case_is_all_there_is_to_select() -> None:
    z = np.arange(-3, 3, dtype=np.float32).reshape(2, 3)
    check(lambda z: lax.select_n(z > 0, z) * 2, z)
