"""`quantize` and `dequantize` against their formulas, special numbers, and errors."""

from __future__ import annotations

import re
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from numerics import FRACTION_DB, STOCHASTIC_MEAN, assert_exact, decibels
from scaled_cases import FOUR_BITS, SCALINGS, exact_operand, formula_values

import jax_bwgemm as bw
from jax_bwgemm.scaled.layouts import layout_of

FLOAT8 = ("float8_e4m3fn", "float8_e5m2")
F32_SCALED = ("tensor", "row", "1x128", "128x128")


def normal(*shape: int) -> jax.Array:
    return jnp.asarray(np.random.default_rng(0).standard_normal(shape), jnp.float32)


@pytest.mark.parametrize("scaling", SCALINGS)
@pytest.mark.parametrize("shape", [(256, 384), (3, 130, 200), (1, 16), (5, 0), (0, 32)])
def test_types_and_shapes(scaling: str, shape: tuple[int, ...]) -> None:
    q, t = bw.quantize(normal(*shape), scaling, transposed=True)
    layout = layout_of(scaling)
    assert q.shape == q.values.shape == shape
    assert q.ndim == len(shape)
    assert q.dtype == layout.value_dtypes[0]
    assert q.scales.shape == layout.scales_shapes(shape)[0]
    assert t.shape == (*shape[:-2], shape[-1], shape[-2])
    assert q.scaling == t.scaling == scaling


@pytest.mark.parametrize("scaling", SCALINGS)
def test_dequantize_is_values_times_scales(scaling: str) -> None:
    q = exact_operand(np.random.default_rng(1), (2, 130, 300), scaling)
    assert_exact(bw.dequantize(q), formula_values(q).astype(np.float32))
    assert bw.dequantize(q, jnp.bfloat16).dtype == jnp.bfloat16
    one_scale = bw.quantize(normal(2, 3, 20, 40), scaling)  # in some layouts, of rank 0
    want = bw.dequantize(one_scale)
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        assert_exact(jax.jit(bw.dequantize)(one_scale), want)


@pytest.mark.parametrize("scaling", SCALINGS)
@pytest.mark.parametrize("power_of_two", [False, True])
@pytest.mark.parametrize("dtype", FLOAT8)
def test_values_are_near(scaling: str, power_of_two: bool, dtype: str) -> None:
    if scaling in FOUR_BITS:
        dtype = "float4_e2m1fn"
    x = normal(200, 300)
    q, t = bw.quantize(x, scaling, dtype=dtype, power_of_two=power_of_two, transposed=True)
    least = FRACTION_DB[int(jnp.finfo(dtype).nmant)]
    assert decibels(bw.dequantize(q), x) > least
    assert decibels(bw.dequantize(t), x.T) > least


@pytest.mark.parametrize("scaling", F32_SCALED)
def test_largest_value_of_a_block_is_the_types_largest(scaling: str) -> None:
    q = bw.quantize(normal(256, 256) * 1e-3, scaling)
    blocks = {
        "tensor": (1, 256, 1, 256),
        "row": (256, 1, 1, 256),
        "1x128": (256, 1, 2, 128),
        "128x128": (2, 128, 2, 128),
    }[scaling]
    values = np.abs(np.asarray(q.values, np.float32)).reshape(blocks)
    assert np.all(values.max((1, 3)) == 448)


@pytest.mark.parametrize("scaling", [*F32_SCALED, "mxfp8", "mxfp4"])
def test_scales_that_are_powers_of_two(scaling: str) -> None:
    x = normal(256, 256)
    rounded = bw.quantize(x, scaling, power_of_two=True).scales.astype(jnp.float32)
    fractions, _ = np.frexp(np.asarray(rounded))
    assert np.all(fractions == 0.5)
    if scaling in F32_SCALED:
        exact = bw.quantize(x, scaling).scales
        assert np.all((exact <= rounded) & (rounded < 2 * exact))


@pytest.mark.parametrize("scaling", SCALINGS)
def test_exact_numbers_stay(scaling: str) -> None:
    """Integers up to 4 and a scale that is a power of two: nothing is rounded."""
    x = np.random.default_rng(0).integers(-4, 5, (128, 256)).astype(np.float32)
    x[:, ::16] = 4 if scaling in FOUR_BITS else 3.5  # 3.5 is no e2m1fn
    q = bw.quantize(jnp.asarray(x), scaling, power_of_two=True)
    if scaling == "nvfp4":  # 4 / 6 is no scale of this format: its neighbours are
        assert decibels(bw.dequantize(q), x) > FRACTION_DB[1]
    else:
        assert_exact(bw.dequantize(q), x)


@pytest.mark.parametrize("scaling", SCALINGS)
def test_zeros(scaling: str) -> None:
    q = bw.quantize(jnp.zeros((128, 128)), scaling)
    assert_exact(bw.dequantize(q), np.zeros((128, 128), np.float32))
    assert np.all(np.asarray(q.scales, np.float32) == 1)


@pytest.mark.parametrize("scaling", SCALINGS)
@pytest.mark.parametrize("size", [1e-45, 1e-38, 3e-36, 3e38])
def test_tiny_and_huge_numbers_are_finite(scaling: str, size: float) -> None:
    if (scaling, size) == ("mxfp4", 3e38):
        size = 2.5e38  # 3e38 is rounded to 2^128, which is no f32
    q = bw.quantize(jnp.full((128, 128), size, jnp.float32), scaling)
    got = np.asarray(bw.dequantize(q))
    assert np.all(np.isfinite(got))
    if size > float(jnp.finfo(jnp.float32).tiny):
        assert decibels(got, np.full((128, 128), size)) > FRACTION_DB[1]


@pytest.mark.parametrize("scaling", SCALINGS)
@pytest.mark.parametrize("special", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("dtype", FLOAT8)
def test_special_numbers_are_seen(scaling: str, special: float, dtype: str) -> None:
    x = np.ones((128, 256), np.float32)
    x[3, 5] = special
    if scaling in FOUR_BITS:
        dtype = "float4_e2m1fn"
    got = np.array(bw.dequantize(bw.quantize(jnp.asarray(x), scaling, dtype=dtype)))
    if dtype == "float8_e5m2" and not np.isnan(special):
        assert got[3, 5] == special
    else:
        assert np.isnan(got[3, 5])
    if scaling not in FOUR_BITS:  # whose scale it is that says so
        got[3, 5] = 1
        assert_exact(got, np.ones((128, 256), np.float32))


@pytest.mark.parametrize("scaling", ["tensor", "row", "mxfp8", "nvfp4"])
def test_the_largest_epsilon(scaling: str) -> None:
    q = bw.quantize(jnp.ones((32, 128)), scaling, epsilon=float(np.finfo(np.float32).max))
    scales = np.asarray(q.scales, np.float32) * (1 if q.global_scale is None else q.global_scale)
    least = np.finfo(np.float32).max / float(jnp.finfo(q.values.dtype).max)
    assert np.all((scales > 0.99 * least) & (scales < 2.01 * least))
    assert not np.any(np.asarray(q.values, np.float32))


def test_epsilon_is_the_least_amax() -> None:
    q = bw.quantize(jnp.full((2, 128), 1e-6), "1x128", epsilon=1e-4)
    np.testing.assert_array_equal(q.scales, np.float32(1e-4) / np.float32(448))


@pytest.mark.parametrize("scaling", SCALINGS)
def test_stochastic_rounding_is_right_in_the_mean(scaling: str) -> None:
    """Of many copies of a number between two neighbours, both are found, and their mean is it."""
    x = np.full((64, 64), 1.07, np.float32)
    x[:, ::16] = 6.0  # so that all scales are those of 6
    q = bw.quantize(jnp.asarray(x), scaling, power_of_two=True, key=jax.random.key(0))
    got = np.asarray(bw.dequantize(q))[:, 1::16]
    low, high = np.unique(got)
    assert low < 1.07 < high
    # 256 numbers, not 4,096: four times the deviation.
    assert abs(got.mean() - 1.07) < 4 * STOCHASTIC_MEAN * (high - low)


def test_stochastic_rounding_leaves_exact_numbers() -> None:
    x = jnp.asarray(np.random.default_rng(0).integers(-8, 9, (64, 128)), jnp.float32)
    q = bw.quantize(x, "1x128", power_of_two=True, key=jax.random.key(1))
    assert_exact(bw.dequantize(q), np.asarray(x))


@pytest.mark.parametrize("scaling", ["tensor", "128x128"])
def test_transposed_copy_shares_the_scales(scaling: str) -> None:
    q, t = bw.quantize(normal(3, 256, 384), scaling, transposed=True)
    for got, want in zip(jax.tree.leaves(t), jax.tree.leaves(q.mT), strict=True):
        assert_exact(got, want)
    assert_exact(bw.dequantize(t), np.swapaxes(np.asarray(bw.dequantize(q)), -1, -2))


@pytest.mark.parametrize("scaling", ["row", "1x128", "mxfp8", "mxfp4", "nvfp4"])
def test_transposed_copy_has_its_own_scales(scaling: str) -> None:
    x = normal(96, 160)
    _, t = bw.quantize(x, scaling, transposed=True)
    for got, want in zip(
        jax.tree.leaves(t), jax.tree.leaves(bw.quantize(x.T, scaling)), strict=True
    ):
        assert_exact(got, want)
    with pytest.raises(ValueError, match="has no transpose without quantizing again"):
        _ = bw.quantize(x, scaling).mT


@pytest.mark.parametrize("scaling", SCALINGS)
def test_jit_and_vmap(scaling: str) -> None:
    x = normal(3, 64, 96)
    batched = jax.jit(jax.vmap(lambda y: bw.quantize(y, scaling)))(x)
    for i in range(3):
        want = jax.jit(lambda y: bw.quantize(y, scaling))(x[i])
        for got, expected in zip(jax.tree.leaves(batched), jax.tree.leaves(want), strict=True):
            assert_exact(got[i], expected)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda: bw.quantize(normal(4, 4), "column"),
            ValueError,
            "scaling must be one of 'tensor'",
        ),
        (lambda: bw.quantize([1.0], "row"), TypeError, "quantize requires arrays, got x of type"),
        (
            lambda: bw.quantize(10**400, "row"),
            TypeError,
            "requires arrays of JAX's types, got x: too large a number",
        ),
        (
            lambda: bw.quantize(np.array([["a"]]), "row"),
            TypeError,
            "requires arrays of JAX's types, got x: <U1",
        ),
        (
            lambda: bw.quantize(jnp.ones((4, 4), jnp.int32), "row"),
            TypeError,
            "requires 16-bit floating point or wider, got int32",
        ),
        (
            lambda: bw.quantize(jnp.ones((4, 4), jnp.float8_e5m2), "row"),
            TypeError,
            "requires 16-bit floating point or wider, got float8_e5m2",
        ),
        (
            lambda: bw.quantize(jnp.ones(4), "row"),
            TypeError,
            r"requires x \[..., R, K\], got shape",
        ),
        (
            lambda: bw.quantize(normal(4, 4), "nvfp4", dtype="float8_e5m2"),
            TypeError,
            "has values of type float4_e2m1fn, got float8_e5m2",
        ),
        *(
            (
                lambda dtype=dtype: bw.quantize(normal(4, 4), "row", dtype=dtype),
                TypeError,
                f"quantize: dtype must be a type, got {dtype!r}",
            )
            for dtype in ("e4m3", 3)
        ),
        *(
            (
                lambda name=name: bw.quantize(normal(4, 4), "mxfp8", **{name: "no"}),
                TypeError,
                f"quantize: {name} must be True or False, got 'no'",
            )
            for name in ("transposed", "power_of_two", "square_blocks")
        ),
        (
            lambda: bw.dequantize(bw.quantize(normal(4, 4), "row"), None),
            TypeError,
            "dequantize: dtype must be a type, got None",
        ),
        (
            lambda: bw.quantize(normal(4, 4), "row", epsilon=-1.0),
            ValueError,
            "a finite epsilon of at least 0, got -1.0",
        ),
        *(
            (
                lambda epsilon=epsilon: bw.quantize(normal(4, 4), "row", epsilon=epsilon),
                ValueError,
                f"a finite epsilon of at least 0, got {re.escape(repr(epsilon))}",
            )
            for epsilon in (1e300, 3.5e38, 10**400, True)
        ),
        *(
            (
                lambda key=key: bw.quantize(normal(4, 4), "row", key=key),
                TypeError,
                f"quantize{text}",
            )
            for key, text in (
                (3, ": key must be one key of jax.random, got int32 of shape"),
                ("a", " requires arrays, got key of type str"),
                (jnp.ones(2), ": key must be one key of jax.random, got float32 of shape"),
                (jax.random.split(jax.random.key(0)), ": key must be one key.*of shape"),
            )
        ),
        (
            lambda: bw.dequantize(bw.quantize(normal(4, 4), "row"), jnp.int8),
            TypeError,
            "dequantize: dtype must be a floating-point type, got .*int8",
        ),
        (lambda: bw.dequantize(jnp.ones((2, 2))), TypeError, "dequantize requires a ScaledArray"),
        (
            lambda: jax.grad(lambda x: jnp.sum(bw.dequantize(bw.quantize(x, "row"))))(normal(4, 4)),
            TypeError,
            "quantize is not differentiable: use fp8_dot_general or fp8_ragged_dot",
        ),
    ],
)
def test_errors(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


VALUES = np.zeros((256, 256), np.dtype("float8_e4m3fn"))


@pytest.mark.parametrize(
    ("values", "scales", "scaling", "whole", "message"),
    [
        (VALUES, 1.0, "tensor", None, "scales must be an array, got float"),
        (VALUES, jnp.float32, "tensor", None, "scales must be an array, got _ScalarMeta"),
        (VALUES.astype(np.float32), np.float32(1), "tensor", None, "must be of type float8_e4m3fn"),
        (VALUES[0], np.float32(1), "tensor", None, r"values must be \[..., R, K\], got shape"),
        (VALUES, np.float16(1), "tensor", None, "must be of type float32, got float16"),
        (VALUES, np.ones(3, np.float32), "tensor", None, r"must have shape \(\), got \(3,\)"),
        (VALUES, np.ones(255, np.float32), "row", None, r"must have shape \(256,\), got \(255,\)"),
        (
            VALUES,
            np.ones((256, 2), np.float32),
            "1x128",
            None,
            r"must have shape \(2, 256\), got \(256, 2\)",
        ),
        (VALUES, np.ones((2, 3), np.float32), "128x128", None, r"must have shape \(2, 2\)"),
        (VALUES, np.float32(1), "tensor", np.float32(1), "scaling 'tensor' has no global_scale"),
        (
            VALUES.astype("float4_e2m1fn"),
            np.ones((256, 16), "float8_e4m3fn"),
            "nvfp4",
            None,
            "scaling 'nvfp4' needs a global_scale",
        ),
        (
            VALUES.astype("float4_e2m1fn"),
            np.ones((256, 16), "float8_e4m3fn"),
            "nvfp4",
            np.ones(2, np.float32),
            r"global_scale must be float32 of shape \(\), got float32 of shape \(2,\)",
        ),
    ],
)
def test_wrong_scales(values: Any, scales: Any, scaling: str, whole: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        bw.ScaledArray(values, scales, scaling, whole)


@pytest.mark.parametrize("scaling", ["row", "nvfp4"])
def test_exported_programs_take_and_return_it(scaling: str) -> None:
    q = bw.quantize(normal(16, 32), scaling)
    exported = jax.export.export(jax.jit(lambda q: (q, bw.dequantize(q))))(q)
    same, numbers = jax.export.deserialize(exported.serialize()).call(q)
    assert jax.tree.structure(same) == jax.tree.structure(q)
    np.testing.assert_array_equal(numbers, bw.dequantize(q))


def test_outside_of_a_trace_it_is_one_program(caplog: pytest.LogCaptureFixture) -> None:
    """And within one it is part of that, without an equation of its own."""
    x = jnp.asarray(np.random.default_rng(0).standard_normal((37, 129)), "bfloat16")

    def quantized(x: jax.Array) -> jax.Array:
        return bw.dequantize(bw.quantize(x, "1x128"))

    with jax.log_compiles(), caplog.at_level("WARNING"):
        quantized(x)
    found = re.findall(r"Finished XLA compilation of jit\((\S+)\)", caplog.text)
    assert sorted(found) == ["_product_with_scales", "_quantize"]
    names = {str(e.params.get("name")) for e in jax.make_jaxpr(quantized)(x).eqns}
    assert not names & set(found)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_spoils_its_own_block_of_nvfp4_alone(bad: float) -> None:
    x = np.full((2, 64), 5000.0, np.float32)
    x[1] = 3.0
    clean = bw.quantize(jnp.asarray(x), "nvfp4")
    x[0, 3] = bad
    q = bw.quantize(jnp.asarray(x), "nvfp4")
    spoilt = np.isnan(np.asarray(q.scales, np.float32))
    np.testing.assert_array_equal(spoilt, [[True, False, False, False], [False] * 4])
    assert float(q.global_scale) == float(clean.global_scale)
    np.testing.assert_array_equal(
        np.asarray(bw.dequantize(q))[~np.repeat(spoilt, 16, 1)],
        np.asarray(bw.dequantize(clean))[~np.repeat(spoilt, 16, 1)],
    )


def test_epsilon_of_numpy() -> None:
    x = jnp.full((2, 128), 1e-6)
    for epsilon in (np.float32(0.5), np.int32(1)):
        same = bw.quantize(x, "row", epsilon=float(epsilon))
        jax.tree.map(np.testing.assert_array_equal, bw.quantize(x, "row", epsilon=epsilon), same)


def test_ties_between_scales_do_not_depend_on_the_program() -> None:
    """The second block's scale is between two e4m3fn: XLA rearranges divisions in some programs."""
    x = jnp.zeros((2, 32), jnp.bfloat16).at[0, 0].set(1.09375).at[1, 16].set(0.8203125)
    want = bw.quantize(x, "nvfp4").scales
    with jax.disable_jit():
        eager = bw.quantize(x, "nvfp4").scales
    mapped = jax.vmap(lambda x: bw.quantize(x, "nvfp4"))(x[None]).scales[0]
    constant = jax.jit(lambda: bw.quantize(x, "nvfp4").scales)()
    for got in (eager, mapped, constant):
        assert_exact(got, want)


def test_a_block_too_small_for_its_scale_stays_finite() -> None:
    """A scale of e4m3fn relative to the global one would be zero, and 0 / 0 no number."""
    x = jnp.zeros((2, 16)).at[0, 0].set(1.0).at[1, 3].set(1e-9)
    q = bw.quantize(x, "nvfp4")
    assert float(q.scales[1, 0]) > 0
    assert_exact(bw.dequantize(q), x.at[1, 3].set(0))


@pytest.mark.parametrize("other", [0.0, 1e-35, 1e-33])
@pytest.mark.parametrize("key", [None, 0])
def test_the_least_numbers_of_float32(other: float, key: int | None) -> None:
    """Both of nvfp4's scales are normal numbers; so must their product be."""
    row = np.zeros(16, np.float32)
    row[:3] = 5e-38, 1.2e-38, -2.5e-38
    x = np.stack([row, np.where(np.arange(16) == 7, np.float32(other), 0)])
    q = bw.quantize(x, "nvfp4", key=None if key is None else jax.random.key(key))
    got = np.asarray(bw.dequantize(q))
    tiny = np.finfo(np.float32).tiny
    assert np.abs(got[0] - row).max() <= 2 * tiny  # a step of the largest, from four scales on
    np.testing.assert_allclose(got[1], x[1], rtol=0.15)
    np.testing.assert_array_equal(got[x == 0], 0)
    assert not np.signbit(got[x == 0]).any()


@pytest.mark.parametrize("scaling", ["mxfp8", "mxfp4", "nvfp4"])
def test_both_copies_are_rounded_by_the_same_random_numbers(scaling: str) -> None:
    q, t = bw.quantize(
        normal(96, 64), scaling, square_blocks=True, transposed=True, key=jax.random.key(0)
    )
    assert_exact(bw.dequantize(t), np.asarray(bw.dequantize(q)).T)
