"""Operands of qwix and of `jax.nn.scaled_matmul`; checkpoints by Flax."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from numerics import assert_exact, normal
from scaled_cases import exact_operand, formula_product

import jax_bwgemm as bw
from jax_bwgemm.scaled.conversions import as_scaled_array


@dataclasses.dataclass
class QArray:
    """The attributes of qwix's that matter."""

    qvalue: Any
    scale: Any
    zero_point: Any = None


def foreign(x: bw.ScaledArray) -> tuple[jax.Array, jax.Array]:
    """Values and scales of the same rank, as others have them."""
    scales = x.scales
    if x.scaling == "tensor":
        scales = scales.reshape((1,) * x.ndim)
    elif x.scaling == "row":
        scales = scales[..., None]
    elif x.scaling == "1x128":
        scales = jnp.swapaxes(scales, -1, -2)
    return x.values, scales


@pytest.mark.parametrize("scaling", ["tensor", "row", "1x128", "128x128", "mxfp8", "mxfp4"])
@pytest.mark.parametrize("shape", [(256, 384), (2, 128, 384)])
def test_every_layout_is_recognised(scaling: str, shape: tuple[int, ...]) -> None:
    x = exact_operand(np.random.default_rng(0), shape, scaling)
    for operand in (x, foreign(x), QArray(*foreign(x))):
        found = as_scaled_array(operand, "x")
        assert found.scaling == scaling
        for got, want in zip(jax.tree.leaves(found), jax.tree.leaves(x), strict=True):
            assert_exact(got, want)


@pytest.mark.parametrize(("scaling", "k"), [("row", 100), ("mxfp8", 24), ("mxfp4", 16)])
def test_a_block_may_be_a_short_row(scaling: str, k: int) -> None:
    x = exact_operand(np.random.default_rng(0), (8, k), scaling)
    found = as_scaled_array(foreign(x), "x")
    assert found.scaling == scaling
    assert_exact(bw.dequantize(found), bw.dequantize(x))


@pytest.mark.parametrize("shape", [(2, 40, 256), (3, 2, 16, 64), (0, 40, 256)])
def test_a_scale_for_each_matrix(shape: tuple[int, ...]) -> None:
    """As stacked weights of experts have them."""
    x = exact_operand(np.random.default_rng(0), shape, "row")
    scales = jnp.exp2(jnp.arange(x.scales[..., :1].size, dtype=jnp.float32))
    scales = scales.reshape(*shape[:-2], 1, 1)
    found = as_scaled_array((x.values, scales), "x")
    assert found.scaling == "tensor"
    assert_exact(bw.dequantize(found), x.values.astype(jnp.float32) * scales)
    want = bw.scaled_matmul(found, found)
    assert_exact(bw.scaled_matmul((x.values, scales), QArray(x.values, scales)), want)


def test_products_are_the_same() -> None:
    rng = np.random.default_rng(0)
    x, y = exact_operand(rng, (40, 256), "1x128"), exact_operand(rng, (128, 256), "128x128")
    want = bw.scaled_matmul(x, y)
    assert_exact(bw.scaled_matmul(QArray(*foreign(x)), foreign(y)), want)
    assert bw.explain_scaled_matmul(foreign(x), QArray(*foreign(y)), device="cpu").implementation


@pytest.mark.skipif(
    jax.version.__version_info__ < (0, 11), reason="JAX 0.10 has no scaled_matmul on CPUs"
)
@pytest.mark.parametrize(
    ("scaling", "values"), [("mxfp8", "float8_e4m3fn"), ("nvfp4", "float4_e2m1fn")]
)
def test_operands_of_jax_nn_scaled_matmul(scaling: str, values: str) -> None:
    rng = np.random.default_rng(0)
    pairs = [exact_operand(rng, (2, rows, 64), scaling, values) for rows in (16, 24)]
    a, b = ((x.values, x.scales) for x in pairs)
    want = jax.nn.scaled_matmul(a[0], b[0], a[1], b[1])
    got = bw.scaled_matmul(a, b, preferred_element_type=jnp.float32)
    assert_exact(got, want)


def test_weights_that_are_packed_in_bytes() -> None:
    """As docs/low_precision.md reads a checkpoint: the first value is in the low half."""
    rng = np.random.default_rng(0)
    blocks = rng.integers(0, 256, (3, 24, 2, 16), np.uint8)
    scales = rng.integers(120, 130, (3, 24, 2), np.uint8)
    values = lax.bitcast_convert_type(blocks, jnp.float4_e2m1fn).reshape(*scales.shape[:-1], -1)
    w = bw.ScaledArray(values, lax.bitcast_convert_type(scales, jnp.float8_e8m0fnu), "mxfp4")
    magnitudes = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    numbers = np.concatenate([magnitudes, -magnitudes])
    halves = np.stack([blocks & 15, blocks >> 4], -1).reshape(3, 24, 2, 32)
    want = numbers[halves] * 2.0 ** (scales.astype(np.int64) - 127)[..., None]
    assert_exact(bw.dequantize(w), want.reshape(3, 24, 64).astype(np.float32))
    x = exact_operand(rng, (10, 64), "mxfp8")
    got = bw.scaled_ragged_dot(x, w, np.array([4, 0, 6]), preferred_element_type=jnp.float32)
    of_groups = [formula_product(x, jax.tree.map(lambda leaf, e=e: leaf[e], w)) for e in range(3)]
    want = np.concatenate([of_groups[0][:4], of_groups[2][4:]])
    assert_exact(got, want.astype(np.float32))


VALUES = jnp.ones((256, 256), jnp.float8_e4m3fn)


@pytest.mark.parametrize(
    ("operand", "message"),
    [
        (VALUES, "x must be a ScaledArray, a QArray or a pair of values and scales, got "),
        (QArray(VALUES, jnp.ones((1, 1)), jnp.zeros((1, 1))), "a QArray with a zero_point"),
        ((VALUES, jnp.ones(256)), "values and scales must be arrays of the same rank"),
        ((VALUES, 1.0), "values and scales must be arrays of the same rank"),
        ((VALUES, jnp.float32), "values and scales must be arrays of the same rank"),
        ((VALUES[0], jnp.ones(1)), r"values must be \[..., R, K\], got shape \(256,\)"),
        ((VALUES, jnp.ones((256, 4))), r"no layout has scales float32\[256, 4\] of values float8"),
        # Blocks of 64, of 128 x 100 and of 24, as many as the layouts' own of a size.
        ((VALUES[:, :192], jnp.ones((256, 2))), r"no layout has scales float32\[256, 2\]"),
        ((VALUES[:200], jnp.ones((2, 2))), "must have its layout's size"),
        (
            (VALUES[:, :48], jnp.ones((256, 2), jnp.float8_e8m0fnu)),
            "must have its layout's size",
        ),
        (
            (VALUES, jnp.ones((256, 2), jnp.float8_e5m2)),
            r"no layout has scales float8_e5m2\[256, 2\]",
        ),
        ((VALUES.astype(jnp.int8), jnp.ones((1, 1))), r"no layout has scales float32\[1, 1\]"),
    ],
)
def test_errors(operand: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        as_scaled_array(operand, "x")


@pytest.mark.parametrize("scaling", ["tensor", "1x128", "nvfp4"])
def test_serialization_by_flax(scaling: str) -> None:
    """As docs/low_precision.md has it."""
    serialization = pytest.importorskip("flax.serialization")

    def restored(x: bw.ScaledArray, state: dict[str, jax.Array]) -> bw.ScaledArray:
        leaves = [state[str(i)] for i in range(len(state))]
        return jax.tree.unflatten(jax.tree.structure(x), leaves)

    serialization.register_serialization_state(
        bw.ScaledArray,
        lambda x: {str(i): leaf for i, leaf in enumerate(jax.tree.leaves(x))},
        restored,
        override=True,
    )
    x = jnp.asarray(normal(np.random.default_rng(0), (4, 256), "float32"))
    weights = {"w": bw.quantize(x, scaling)}
    found = serialization.from_bytes(weights, serialization.to_bytes(weights))
    assert jax.tree.structure(found) == jax.tree.structure(weights)
    for got, want in zip(jax.tree.leaves(found), jax.tree.leaves(weights), strict=True):
        assert got.dtype == want.dtype
        assert np.array_equal(np.asarray(got, np.float32), np.asarray(want, np.float32))
