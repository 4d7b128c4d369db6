"""Which functions are epilogues, what their programs look like, and why others are refused."""

from __future__ import annotations

import dataclasses
import functools
import re
import warnings
from pathlib import Path
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jax_bwgemm as bw
from jax_bwgemm.epilogue.held_types import narrowed
from jax_bwgemm.epilogue.primitives import PRIMITIVES
from jax_bwgemm.epilogue.program import MATRICES, Operand, as_matrix, batch_dims_of
from jax_bwgemm.epilogue.tracing import trace_epilogue

SHAPE = (4, 6)
DOCUMENT = Path(__file__).parents[2] / "docs" / "epilogues.md"


def spec(*shape: int, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


def test_operands_know_what_they_vary_along() -> None:
    operands = [spec(), spec(6), spec(1, 6), spec(4, 1), spec(4, 6), spec(1)]
    program = trace_epilogue(lambda z, *xs: z + sum(xs), SHAPE, operands).program
    axes = [(), (1,), (1,), (0,), (0, 1), ()]
    assert program.operands == tuple(Operand("float32", a) for a in axes)


def test_of_higher_rank() -> None:
    operands = [spec(6), spec(4, 6), spec(3, 1, 1)]
    program = trace_epilogue(lambda z, *xs: z + sum(xs), (3, *SHAPE), operands).program
    assert [x.axes for x in program.operands] == [(2,), (1, 2), (0,)]
    assert program.rank == 3


def test_bodies_are_inlined() -> None:
    @jax.custom_vjp
    def clipped(x: jax.Array) -> jax.Array:
        return jnp.minimum(x, 1)

    clipped.defvjp(lambda x: (clipped(x), None), lambda _, g: (g,))
    functions = [jax.nn.silu, jax.nn.relu, clipped, jax.checkpoint(jnp.sin), jax.jit(jnp.cos)]
    for f in functions:
        program = trace_epilogue(f, SHAPE, ()).program
        assert program.steps
        assert {step.op for step in program.steps} <= {*PRIMITIVES, "literal"}


def test_a_polynomial_is_sums_and_products() -> None:
    if not hasattr(lax, "polynomial"):
        pytest.skip("JAX 0.12 has it first")
    f = lambda z: lax.polynomial(z, [1.0, 2.0, 3.0])  # noqa: E731
    steps = [s for s in trace_epilogue(f, SHAPE, ()).program.steps if s.op != "literal"]
    assert [s.op for s in steps] == ["mul", "add", "mul", "add"]


def test_what_gradients_stop_at_is_computed() -> None:
    f = lambda z: z * lax.stop_gradient(jax.nn.sigmoid(z))  # noqa: E731
    plain = lambda z: z * jax.nn.sigmoid(z)  # noqa: E731
    assert trace_epilogue(f, SHAPE, ()) == trace_epilogue(plain, SHAPE, ())


def test_derivatives_are_epilogues() -> None:
    def backward(z: jax.Array, g: jax.Array) -> jax.Array:
        return jax.vjp(jax.nn.gelu, z)[1](g)[0]

    assert trace_epilogue(backward, SHAPE, [spec(*SHAPE)]).program.steps


def test_several_results_keep_their_structure() -> None:
    traced = trace_epilogue(lambda z: {"y": jnp.tanh(z), "z": z}, SHAPE, ())
    assert jax.tree.unflatten(traced.tree, traced.program.results) == {"y": 1, "z": 0}


def test_unused_and_repeated_steps_are_dropped() -> None:
    def f(z: jax.Array) -> jax.Array:
        jnp.exp(z)
        return jnp.sin(z) * jnp.sin(z)

    assert [step.op for step in trace_epilogue(f, SHAPE, ()).program.steps] == ["sin", "mul"]


def test_equal_functions_have_equal_programs() -> None:
    one, two = (trace_epilogue(lambda z, b: jax.nn.gelu(z + b), SHAPE, [spec(6)]) for _ in "ab")
    assert one.program == two.program
    assert hash(one.program) == hash(two.program)


def test_positions() -> None:
    def causal(z: jax.Array) -> jax.Array:
        rows, columns = (lax.broadcasted_iota(jnp.int32, z.shape, d) for d in (0, 1))
        return jnp.where(rows >= columns, z, -jnp.inf)

    steps = trace_epilogue(causal, SHAPE, ()).program.steps
    assert [step.param("axis") for step in steps if step.op == "iota"] == [0, 1]
    for f in (lambda z: z + jnp.arange(6.0), lambda z: z + jnp.arange(4.0)[:, None]):
        assert any(step.op == "iota" for step in trace_epilogue(f, SHAPE, ()).program.steps)
    one = trace_epilogue(lambda z: z + jnp.arange(1), (1, 6), ()).program.steps
    assert not any(step.op == "iota" for step in one)


def test_positions_along_a_symbolic_size() -> None:
    (rows,) = jax.export.symbolic_shape("rows")
    for d in (0, 1):
        count = functools.partial(lax.broadcasted_iota, jnp.float32, dimension=d)
        known, symbolic = (
            trace_epilogue(lambda z, count=count: z + count(shape=z.shape), shape, ()).program
            for shape in (SHAPE, (rows, 6))
        )
        assert str(known) == str(symbolic)


def test_the_text_of_a_program() -> None:
    program = trace_epilogue(lambda z, b: jnp.maximum(z + b, 0), SHAPE, [spec(6)]).program
    assert str(program).splitlines() == [
        "x0: float32 along (1,)",
        "v0: float32 = add acc x0",
        "v1: float32 = literal value=00000000",
        "v2: float32 = max v0 v1",
        "return v2",
    ]


def with_effect(z: jax.Array) -> jax.Array:
    jax.debug.print("z {}", z)
    return z


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda z: jax.nn.softmax(z), "cannot have 'reduce_max' at .*test_programs.py.*not elem"),
        (lambda z: z[::-1], "cannot have 'rev'"),
        (lambda z: z + z[0], "cannot have '.*slice'"),
        (lambda z: lax.erf_inv(z), "cannot have 'erf_inv'"),
        (lambda z: z + (z @ z.T)[:, :1], "cannot have 'dot_general'"),
        (lambda z: lax.cumsum(z), "cannot have 'cumsum'"),
        (with_effect, "cannot have 'debug_.*'"),
        (lambda z: z + jax.random.normal(jax.random.key(0), z.shape), "type key<fry>"),
        (lambda z: z.reshape(6, 4).T + z, "cannot have 'reshape'.*moves values"),
        (lambda z: z.astype(jnp.complex64).real, "its result is of type complex64"),
        (lambda z: z.astype(jnp.float8_e4m3fn).astype(z.dtype), "type float8_e4m3fn"),
        (lambda z: lax.integer_pow(z, 65), "do not have the power 65"),
        (lambda z: lax.reduce_precision(z, 4, 3), r"do not have numbers of \(4, 3\) bits"),
        (lambda z: lax.nextafter(z.astype(jnp.bfloat16), z.astype(jnp.bfloat16)), "of bfloat16"),
        (lambda z: lax.clamp(False, z > 0, True), "clamp.* of bool"),
        (lambda z: z[0], "cannot have"),
        (lambda z: z + np.ones(6, np.float32), r"constant array of shape \(6,\)"),
        (lambda z: z * np.complex64(1j), "complex64"),
        (lambda z: 1.0, "returns arrays, not float"),
        (lambda z: (), "at least one array"),
        (lambda z: z.T, r"arrays of the product's shape \(4, 6\), value by value; got \(6, 4\)"),
        (lambda z: jnp.zeros(6), r"got \(6,\)"),
    ],
)
def test_refused(function: Any, message: str) -> None:
    with pytest.raises(bw.EpilogueError, match=message):
        trace_epilogue(function, SHAPE, ())


def flipped(z: jax.Array) -> jax.Array:
    return jnp.flip(z)


def flipped_inside(z: jax.Array) -> jax.Array:
    return jax.jit(jax.checkpoint(flipped))(z)


@pytest.mark.parametrize("function", [flipped, flipped_inside])
def test_the_line_that_calls_a_function_of_jax_numpy(function: Any) -> None:
    """What it is made of has no line of the user's: that of the call, which is the innermost."""
    line = flipped.__code__.co_firstlineno + 1
    with pytest.raises(bw.EpilogueError, match=rf"'rev' at .*test_programs.py:{line} \(flipped\)"):
        bw.matmul(jnp.ones((4, 4)), jnp.ones((4, 6)), epilogue=function)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda z, x: z + x.T, "'add'.*its operands meet at different positions"),
        (lambda z, x: x.T, "value by value"),
        (lambda z, x: z + jnp.arange(4.0), "'iota'.*not clear which.*broadcasted_iota"),
    ],
)
def test_refused_of_a_square(function: Any, message: str) -> None:
    with pytest.raises(bw.EpilogueError, match=message):
        trace_epilogue(function, (4, 4), [spec(4, 4)])


def test_arrays_from_elsewhere_are_refused() -> None:
    def outer(b: jax.Array) -> jax.Array:
        return bw.matmul(jnp.ones((4, 4)), jnp.ones((4, 6)), epilogue=lambda z: z + b)

    with pytest.raises(
        bw.EpilogueError, match="traced outside of it: pass it in epilogue_operands"
    ):
        jax.jit(outer)(jnp.ones(6))


def test_keys_from_elsewhere_are_refused() -> None:
    key = jax.random.key(0)
    with pytest.raises(bw.EpilogueError, match="has a constant of type key<fry>"):
        bw.matmul(
            jnp.ones((4, 4)),
            jnp.ones((4, 6)),
            epilogue=lambda z: jnp.where(jax.random.bernoulli(key, 0.5, z.shape), z, 0),
        )


@pytest.mark.parametrize(
    ("operand", "message"),
    [
        (spec(5), r"operand 0 of shape \(5,\) does not broadcast to \(4, 6\)"),
        (spec(1, 4, 6), r"operand 0 of shape \(1, 4, 6\) does not broadcast"),
        (spec(4, 6, 1), r"operand 0 of shape \(4, 6, 1\) does not broadcast"),
        (spec(6, dtype=jnp.complex64), "operand 0 is of type complex64; types are float32"),
    ],
)
def test_operands_that_do_not_fit(operand: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        trace_epilogue(lambda z, x: z + x, SHAPE, [operand])


def test_the_documented_accuracy_is_that_of_the_table() -> None:
    rows = re.findall(r"^\| (.*`.*) \| (\d) \|$", DOCUMENT.read_text(), re.MULTILINE)
    documented = {}
    for names, error in rows[1:]:
        documented |= dict.fromkeys(re.findall(r"`(\w+)`", names), float(error))
    rounded = {name: p.ulp for name, p in PRIMITIVES.items() if p.ulp}
    assert documented == {k: v for k, v in rounded.items() if k != "one_minus_square"}


def test_axes_of_a_batch() -> None:
    shape = (2, 1, 3, 5, 6)
    operands = [(), (6,), (5, 6), (2, 1, 3, 1, 1), (2, 1, 3, 5, 6), (2, 1, 3, 5, 1), (3, 5, 6)]
    types = [jax.ShapeDtypeStruct(s, np.float32) for s in operands]
    program = trace_epilogue(lambda z, *xs: z + sum(xs), shape, types).program
    refused = as_matrix(program, shape, 3)
    assert refused == "operand 6 varies along some of the batch's dimensions and not along others"
    most = dataclasses.replace(program, operands=program.operands[:-1], steps=())
    found = as_matrix(most, shape, 3)
    axes = [(), (1,), (0, 1), (MATRICES,), (MATRICES, 0, 1), (MATRICES, 0)]
    assert found.operands == tuple(Operand("float32", a) for a in axes)
    assert (found.rank, found.whole) == (3, (MATRICES, 0, 1))


def test_positions_in_a_batch() -> None:
    def program(dim: int) -> Any:
        f = lambda z: z + jax.lax.broadcasted_iota(jnp.float32, z.shape, dim)  # noqa: E731
        return trace_epilogue(f, (2, 3, 5, 6), ()).program

    for batch_dims, dim, axis in ((1, 0, MATRICES), (1, 3, 1), (3, 3, 1)):
        steps = as_matrix(program(dim), (2, 3, 5, 6), batch_dims).steps
        assert steps[0].param("axis") == axis
    for batch_dims, dim in ((1, 1), (1, 2), (2, 0)):
        assert "a position along one of several" in as_matrix(
            program(dim), (2, 3, 5, 6), batch_dims
        )


@pytest.mark.parametrize(
    ("shape", "batch", "found"),
    [((4, 5), 1, 0), ((2, 3, 4, 5), 6, 2), ((1, 6, 4, 5), 6, 2), ((2, 3, 4, 5), 3, None)],
)
def test_leading_dimensions_of_a_batch(
    shape: tuple[int, ...], batch: int, found: int | None
) -> None:
    assert batch_dims_of(shape, batch) == found


@pytest.mark.parametrize(
    ("number", "narrow"),
    [
        (1e300, np.float32(np.inf)),
        (7, np.int32(7)),
        (2**31, np.int64(2**31)),
        (np.uint64(2**32 - 1), np.uint32(2**32 - 1)),
        (np.uint64(2**32), np.uint64(2**32)),
    ],
)
def test_constants_of_64_bits(number: float, narrow: np.generic) -> None:
    with warnings.catch_warnings(action="error"):
        got = narrowed(np.array(number))
    assert (got, got.dtype) == (narrow, narrow.dtype)
