"""With jax_enable_x64 Python's numbers are of 64 bits: what that must not change."""

from __future__ import annotations

from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from numerics import assert_same_layers, normal

import jax_bwgemm as bw
from jax_bwgemm.epilogue.tracing import trace_epilogue

ROWS, K, N = 8, 32, 48


@pytest.fixture
def operands() -> Iterator[tuple[jax.Array, jax.Array]]:
    rng = np.random.default_rng(0)
    x, w = (jnp.asarray(normal(rng, shape, "bfloat16")) for shape in ((ROWS, K), (K, N)))
    with jax.enable_x64(True):
        yield x, w


def causal(z: jax.Array, scale: jax.Array) -> jax.Array:
    rows, columns = (lax.broadcasted_iota(jnp.int32, z.shape, d) for d in (0, 1))
    return jnp.where(rows >= columns, z * scale, -1.0)


@pytest.mark.parametrize("scale", [0.5, 3])
def test_numbers_in_and_beside_an_epilogue(operands, scale: float) -> None:
    got = bw.matmul(*operands, epilogue=causal, epilogue_operands=(scale,))
    want = causal(jnp.matmul(*operands).astype(jnp.float32), jnp.float32(scale))
    assert got.dtype == jnp.bfloat16
    assert_same_layers(got.astype(jnp.float32), want.astype(jnp.bfloat16).astype(jnp.float32))


@pytest.mark.parametrize(
    "epilogue",
    [
        lambda z: jnp.where(z > 0, 1, 0) * z,
        lambda z: jnp.where(z > 0, 1.1, 0.1) * z,
        lambda z: (z > 0).astype(int) * z,
        lambda z: lax.broadcasted_iota(int, z.shape, 1) * z,
        lambda z: jnp.where(jnp.arange(N)[None] < 3, z, -z),
        lambda z: lax.select(z > 0, jnp.full(z.shape, -3), jnp.zeros(z.shape, int)) + z,
    ],
)
def test_values_between_that_are_of_64_bits(operands, epilogue) -> None:
    got = bw.matmul(*operands, epilogue=epilogue)
    want = epilogue(jnp.matmul(*operands).astype(jnp.float32)).astype(jnp.bfloat16)
    np.testing.assert_array_equal(got.astype(jnp.float32), want.astype(jnp.float32))
    traced = trace_epilogue(epilogue, want.shape, ())
    assert {step.dtype for step in traced.program.steps} <= {"float32", "int32", "bool"}


@pytest.mark.parametrize(
    ("epilogue", "message"),
    [
        (lambda z: z.astype(jnp.float64) * 2, "'mul'.*it computes with float64"),
        (lambda z: z * np.float64(2), "'mul'.*it computes with float64"),
        (lambda z: jnp.round(z).astype(int) * z, "'convert_element_type'.*computes with int64"),
        (lambda z: (z > 0).astype(int) * 3 + z, "'mul'.*it computes with int64"),
        # Rounded to float32, the operand would be no larger than 0.1.
        (lambda z: z * (z.astype(jnp.float64) > 0.1), "'gt'.*it computes with float64"),
        # As float32 the number is even.
        (lambda z: z * jnp.full(z.shape, 2.0**24 + 1).astype(jnp.int32), "computes with float64"),
        # To float32 and then to bfloat16, it would be rounded twice.
        (lambda z: z * jnp.full(z.shape, 1 + 2.0**-8 + 2.0**-30).astype(jnp.bfloat16), "float64"),
        (lambda z: jnp.where(z > 0, 1, 0), "returns an array of type int64"),
    ],
)
def test_what_is_computed_in_64_bits(operands, epilogue, message: str) -> None:
    with pytest.raises(bw.EpilogueError, match=message):
        bw.matmul(*operands, epilogue=epilogue)


@pytest.mark.parametrize("name", ["eq", "ne", "lt", "le", "gt", "ge"])
def test_comparisons_of_integers(operands, name: str) -> None:
    def epilogue(z: jax.Array) -> jax.Array:
        rows, columns = (lax.broadcasted_iota(int, z.shape, d) for d in (0, 1))
        return jnp.where(getattr(lax, name)(rows, columns), z, -z)

    got = bw.matmul(*operands, epilogue=epilogue)
    want = epilogue(jnp.matmul(*operands).astype(jnp.float32)).astype(jnp.bfloat16)
    np.testing.assert_array_equal(got.astype(jnp.float32), want.astype(jnp.float32))


# Types whose values 32 bits of a wider one's sign hold.
HELD = {
    "int64": ("bool", "uint8", "uint16", "int8", "int16", "int32"),
    "uint64": ("bool", "uint8", "uint16", "uint32"),
}
INTEGERS = ("bool", "uint8", "uint16", "uint32", "int8", "int16", "int32")


@pytest.mark.parametrize("wide", HELD)
@pytest.mark.parametrize("narrow", INTEGERS)
def test_integers_that_become_wider(operands, narrow: str, wide: str) -> None:
    def epilogue(z: jax.Array) -> jax.Array:
        x = (z > 0).astype(narrow).astype(wide)
        return z * x.astype(jnp.float32) - x.astype(jnp.int16)

    if narrow not in HELD[wide]:
        with pytest.raises(bw.EpilogueError, match=f"'convert_.*it computes with {wide}"):
            bw.matmul(*operands, epilogue=epilogue)
        return
    got = bw.matmul(*operands, epilogue=epilogue)
    want = epilogue(jnp.matmul(*operands).astype(jnp.float32)).astype(jnp.bfloat16)
    np.testing.assert_array_equal(got.astype(jnp.float32), want.astype(jnp.float32))


def test_an_integer_that_32_bits_do_not_hold(operands) -> None:
    with pytest.raises(NotImplementedError, match="constant of type int64"):
        bw.matmul(*operands, epilogue=lambda z: jnp.where(z > 0, 2**40, 0) * z)


@pytest.mark.parametrize("number", [2**31, -(2**31) - 1])
def test_an_operand_that_32_bits_do_not_hold(operands, number: int) -> None:
    def product(x: int) -> jax.Array:
        return bw.matmul(*operands, epilogue=lambda z, x: z * x, epilogue_operands=(x,))

    product(number - (1 if number > 0 else -1))
    with pytest.raises(TypeError, match="requires epilogue_operands that int32 holds, got"):
        product(number)


def test_layers(operands) -> None:
    x, w = operands
    layer = lambda x: bw.mlp(x, w, w.T, activation="elu").astype(jnp.float32).sum()  # noqa: E731
    got = jax.grad(layer)(x)
    with jax.enable_x64(False):
        np.testing.assert_array_equal(
            *(np.asarray(y, np.float32) for y in (got, jax.grad(layer)(x)))
        )


@pytest.mark.parametrize("logits", ["stored", "recomputed"])
def test_the_loss(operands, logits: str) -> None:
    x, w = operands
    labels = jnp.arange(ROWS) % N

    def loss(labels: jax.Array, **more: object) -> jax.Array:
        return bw.linear_softmax_cross_entropy_loss(x, labels, w, logits=logits, **more)

    assert labels.dtype == jnp.int64
    want = loss(labels.astype(jnp.int32))
    # No label is this number, though its last 32 bits are those of 0.
    assert loss(labels, ignore_index=2**32) == want
    assert jnp.isnan(loss(labels.at[3].set(2**32 + 3)))
    assert jnp.isnan(loss(labels.at[3].set(2**32 - 1), ignore_index=-1))
    numbers = {"z_loss": np.float64(0.1), "label_smoothing": np.float64(0.1)}
    assert loss(labels, **numbers).dtype == jnp.float32
    gradient = jax.grad(
        lambda w: bw.linear_softmax_cross_entropy_loss(x, labels, w, logits=logits)
    )(w)
    assert gradient.dtype == w.dtype
    assert jnp.all(jnp.isfinite(gradient.astype(jnp.float32)))


@pytest.mark.parametrize("scaling", ["tensor", "row", "1x128", "mxfp8", "nvfp4"])
def test_stochastic_rounding(operands, scaling: str) -> None:
    x, _ = operands
    quantize = lambda: bw.quantize(x, scaling, key=jax.random.key(0))  # noqa: E731
    got = quantize()
    with jax.enable_x64(False):
        want = quantize()
    np.testing.assert_array_equal(*(np.asarray(y.values.astype(jnp.float32)) for y in (got, want)))


def test_a_scale_is_float32(operands) -> None:
    assert bw.quantize(operands[0], "tensor", scale=2.0).scales.dtype == jnp.float32


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"row_weights": "f8"}, "grouped_mlp: row_weights must have .*, got float64"),
        ({"rows": "f8", "up": "f8", "down": "f8"}, "rows, up and down must have one type of .*64"),
    ],
)
def test_experts_take_no_arrays_of_64_bits(change: dict[str, str], message: str) -> None:
    shapes = {"rows": (ROWS, K), "up": (2, K, N), "down": (2, N, K), "row_weights": (ROWS,)}
    with jax.enable_x64(True):
        arrays = {name: jnp.ones(s, change.get(name, "f4")) for name, s in shapes.items()}
        with pytest.raises(TypeError, match=message):
            bw.grouped_mlp(group_sizes=jnp.array([3, 5]), **arrays)
