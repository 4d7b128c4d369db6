"""ragged_dot and its gradients equal a loop over the groups, exactly, on the CPU.

Small-integer inputs make every order of summation exact. Sizes, offsets and values are random;
shapes are few, so that cases share compilations.
"""

from __future__ import annotations

import functools
from typing import Any

import grouped_oracle as oracle
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numerics import assert_exact, small_integers

import jax_bwgemm as bw

# (M, K, N, E, G, dtype): 0 and 1 are among the sizes, E < G needs an offset.
SHAPES = [
    (24, 5, 7, 4, 4, "bfloat16"),
    (64, 8, 16, 16, 16, "bfloat16"),
    (61, 3, 4, 64, 64, "bfloat16"),
    (40, 8, 8, 3, 8, "bfloat16"),
    (30, 4, 6, 5, 2, "float16"),
    (1, 4, 3, 3, 3, "float32"),
    (17, 1, 1, 1, 1, "float32"),
    (0, 4, 3, 2, 2, "bfloat16"),
    (6, 0, 3, 2, 2, "bfloat16"),
    (6, 4, 0, 2, 2, "bfloat16"),
    (6, 4, 3, 0, 0, "bfloat16"),
]
seeds = st.integers(0, 2**16)


@functools.partial(jax.jit, static_argnums=5)
def value_and_gradients(
    lhs: Any, rhs: Any, sizes: Any, offset: Any, cotangent: Any, preferred: Any
) -> Any:
    def f(a: Any, b: Any) -> Any:
        return bw.ragged_dot(a, b, sizes, group_offset=offset, preferred_element_type=preferred)

    out, vjp = jax.vjp(f, lhs, rhs)
    return out, *vjp(cotangent.astype(out.dtype))


def check(shape: Any, kind: str, offset: int, seed: int, preferred: Any = None) -> None:
    m, k, n, experts, groups, dtype = shape
    rng = np.random.default_rng(seed)
    lhs, rhs = small_integers(rng, (m, k), dtype), small_integers(rng, (experts, k, n), dtype)
    sizes = oracle.some_sizes(rng, m, groups, kind)
    cotangent = small_integers(rng, (m, n), "float32")
    got = value_and_gradients(lhs, rhs, sizes, np.int32(offset), cotangent, preferred)
    want = (
        oracle.rows(lhs, rhs, sizes, offset),
        oracle.rows(cotangent, rhs.swapaxes(1, 2), sizes, offset),
        oracle.contract(lhs, cotangent, sizes, offset, experts),
    )
    dtypes = (preferred or dtype, dtype, dtype)
    context = f"{shape} {kind} {offset} {seed} sizes {sizes.tolist()}"
    for name, value, expected, d in zip(("out", "dlhs", "drhs"), got, want, dtypes, strict=True):
        assert_exact(value, expected.astype(jnp.dtype(d)), f"{name} of {context}")


@settings(max_examples=330)
@given(st.sampled_from(SHAPES[:5] * 4 + SHAPES), st.sampled_from(oracle.KINDS), st.data())
def test_value_and_gradients_equal_a_loop(shape: Any, kind: str, data: st.DataObject) -> None:
    # Any offset is allowed on the device: it is clamped into [0, G].
    offset = data.draw(st.integers(-2, shape[4] + 2)) if data.draw(st.booleans()) else 0
    check(shape, kind, offset, data.draw(seeds))


@pytest.mark.parametrize("kind", oracle.KINDS)
@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_with_every_kind_of_sizes(shape: Any, kind: str) -> None:
    check(shape, kind, 0, 1)


@pytest.mark.parametrize("kind", oracle.KINDS)
def test_f32_result_of_bf16_operands(kind: str) -> None:
    check(SHAPES[0], kind, 1, 0, "float32")


SIZES_ON_THE_DEVICE = [
    [-5, 3, -1, 4],
    [100, 1, 1, 1],
    [3, 2**31 - 1, 2**31 - 1, 2**31 - 1],
    [-(2**31), 24, 0, 0],
    [10, 10, 10, 10],
]


@pytest.mark.parametrize("sizes", SIZES_ON_THE_DEVICE, ids=str)
def test_any_sizes_on_the_device_are_clamped(sizes: list[int]) -> None:
    m, k, n, experts, _, dtype = SHAPES[0]
    rng = np.random.default_rng(0)
    lhs, rhs = small_integers(rng, (m, k), dtype), small_integers(rng, (experts, k, n), dtype)
    ct = small_integers(rng, (m, n), "float32")
    got = value_and_gradients(lhs, rhs, jnp.asarray(sizes, jnp.int32), np.int32(0), ct, None)
    want = oracle.rows(lhs, rhs, sizes), oracle.rows(ct, rhs.swapaxes(1, 2), sizes)
    want += (oracle.contract(lhs, ct, sizes, 0, experts),)
    for value, expected in zip(got, want, strict=True):
        assert_exact(value, expected.astype(value.dtype), f"{sizes}")


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint32"])
def test_group_sizes_of_any_integer_type(dtype: str) -> None:
    rng = np.random.default_rng(0)
    lhs, rhs = small_integers(rng, (300, 2), "float32"), small_integers(rng, (3, 2, 3), "float32")
    largest = min(int(jnp.iinfo(dtype).max), 300)
    sizes = np.array([largest, 0, 300 - largest if 300 - largest <= largest else 1], dtype)
    got = jax.jit(bw.ragged_dot)(lhs, rhs, sizes)
    assert_exact(got, oracle.rows(lhs, rhs, sizes).astype(np.float32))


def test_sizes_wider_than_32_bits() -> None:
    rng = np.random.default_rng(0)
    lhs, rhs = small_integers(rng, (9, 2), "float32"), small_integers(rng, (3, 2, 3), "float32")
    with jax.enable_x64(True):
        sizes = jnp.array([2, -(2**40), 2**40], jnp.int64)
        got = bw.ragged_dot(lhs, rhs, sizes)
        offset = bw.ragged_dot(lhs, rhs[:1], sizes, group_offset=jnp.int64(2**40))
    assert_exact(got, oracle.rows(lhs, rhs, [2, 0, 7]).astype(np.float32))
    assert not np.asarray(offset).any()


TYPES = [
    ("bfloat16", "float32", None),
    ("float16", "bfloat16", None),
    ("int8", "int8", "int32"),
    ("int32", "float16", None),
    ("bfloat16", "bfloat16", "float32"),
]


@pytest.mark.parametrize("types", TYPES, ids=str)
def test_types_follow_lax(types: Any) -> None:
    rng = np.random.default_rng(0)
    lhs, rhs = small_integers(rng, (9, 4), types[0]), small_integers(rng, (3, 4, 5), types[1])
    sizes = np.array([4, 0, 3])
    got = bw.ragged_dot(lhs, rhs, sizes, preferred_element_type=types[2])
    want = jax.lax.ragged_dot(lhs, rhs, sizes, preferred_element_type=types[2])
    assert_exact(got, want)


def test_rows_of_no_group_may_hold_anything() -> None:
    """Neither a result nor a gradient reads them."""
    lhs = jnp.full((8, 4), jnp.nan).at[2:5].set(1.0)
    rhs, sizes = jnp.ones((1, 4, 3)), np.array([2, 3, 2])

    def total(a: Any, b: Any) -> Any:
        return bw.ragged_dot(a, b, sizes, group_offset=1).sum()

    out = bw.ragged_dot(lhs, rhs, sizes, group_offset=1)
    inside = (np.arange(8) >= 2) & (np.arange(8) < 5)
    assert_exact(out, np.where(inside[:, None], 4.0, 0.0).astype(np.float32).repeat(3, 1))
    da, db = jax.grad(total, (0, 1))(lhs, rhs)
    assert_exact(da, np.where(inside[:, None], 3.0, 0.0).astype(np.float32).repeat(4, 1))
    assert_exact(db, np.full((1, 4, 3), 3.0, np.float32))


def test_precision_reaches_the_reference() -> None:
    lhs, rhs = jnp.ones((4, 3)), jnp.ones((2, 3, 2))
    text = jax.jit(functools.partial(bw.ragged_dot, precision="highest")).lower(
        lhs, rhs, np.array([2, 2])
    )
    assert "precision = [HIGHEST, HIGHEST]" in text.as_text()


def test_memory_does_not_grow_with_the_groups() -> None:
    """The reference never repeats an operand for every group, as a dense rewrite does."""
    shapes = [jax.ShapeDtypeStruct(s, jnp.float32) for s in ((512, 64), (64, 64, 32))]
    sizes = jax.ShapeDtypeStruct((64,), jnp.int32)

    def step(a: Any, b: Any, s: Any) -> Any:
        out, vjp = jax.vjp(lambda x, y: bw.ragged_dot(x, y, s), a, b)
        return vjp(out)

    used = jax.jit(step).lower(*shapes, sizes).compile().memory_analysis()
    assert used.temp_size_in_bytes < used.output_size_in_bytes


@pytest.mark.parametrize("mapped", [False, True])
@pytest.mark.parametrize(
    ("dtype", "results"),
    [
        ("int4", ["int4", "int8", "int32", "float32"]),
        ("uint4", ["uint4", "uint8", "int32"]),
        ("int2", ["int8", "int32"]),
        ("float4_e2m1fn", ["float4_e2m1fn", "float16", "bfloat16", "float32"]),
    ],
)
def test_operands_narrower_than_a_byte(dtype: str, results: list[str], mapped: bool) -> None:
    """Into their own type and into wider ones: the numbers of lax."""
    rng = np.random.default_rng(0)
    low = 0 if dtype.startswith("u") else -2
    lhs, rhs = (
        jnp.asarray(rng.integers(low, 2, shape), jnp.float32).astype(dtype)
        for shape in ((6, 4), (3, 4, 5))
    )
    sizes = jnp.array([2, 0, 3])
    for result in results:
        want = jax.lax.ragged_dot(lhs, rhs, sizes, preferred_element_type=result)
        dot = functools.partial(bw.ragged_dot, preferred_element_type=result)
        if mapped:
            got = jax.vmap(dot, (0, 0, None))(jnp.stack([lhs] * 2), jnp.stack([rhs] * 2), sizes)
            want = jnp.stack([want] * 2)
        else:
            got = dot(lhs, rhs, sizes)
        assert got.dtype == want.dtype
        np.testing.assert_array_equal(*(np.asarray(x, np.float32) for x in (got, want)))


@pytest.mark.parametrize("dtype", ["int4", "uint4", "int2", "float4_e2m1fn"])
def test_contracted_rows_narrower_than_a_byte(dtype: str) -> None:
    rng = np.random.default_rng(0)
    low = 0 if dtype.startswith("u") else -2
    lhs, rhs = (jnp.asarray(rng.integers(low, 2, shape), jnp.float32) for shape in ((6, 4), (6, 5)))
    sizes = jnp.array([2, 0, 3])
    numbers = jax.lax.RaggedDotDimensionNumbers((((0,), (0,)), ((), ())), (0,), ())
    result = "float32" if dtype.startswith("float") else "int32"
    got = bw.ragged_dot_general(
        lhs.astype(dtype), rhs.astype(dtype), sizes, numbers, preferred_element_type=result
    )
    assert got.dtype == result
    np.testing.assert_array_equal(got, jax.lax.ragged_dot_general(lhs, rhs, sizes, numbers))
