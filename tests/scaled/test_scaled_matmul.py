"""`scaled_matmul` on XLA: exact results of every pair of layouts, transformations, errors."""

from __future__ import annotations

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numerics import SAME_OPERANDS_DB, assert_exact, decibels
from scaled_cases import SCALINGS, exact_operand, formula_product

import jax_bwgemm as bw


def pair(
    a: str, b: str, m: int = 40, n: int = 24, k: int = 300, batch: tuple[int, ...] = ()
) -> tuple[bw.ScaledArray, bw.ScaledArray]:
    rng = np.random.default_rng(0)
    return exact_operand(rng, (*batch, m, k), a), exact_operand(rng, (*batch, n, k), b)


@pytest.mark.parametrize(("a", "b"), [*itertools.product(SCALINGS, repeat=2)])
def test_every_pair_of_layouts_is_exact(a: str, b: str) -> None:
    x, y = pair(a, b, m=130, n=140)
    got = bw.scaled_matmul(x, y, preferred_element_type=jnp.float32)
    assert_exact(got, formula_product(x, y).astype(np.float32))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("types", [*itertools.product(("float8_e4m3fn", "float8_e5m2"), repeat=2)])
def test_types(dtype: str, types: tuple[str, str]) -> None:
    rng = np.random.default_rng(0)
    x = exact_operand(rng, (32, 64), "row", types[0])
    y = exact_operand(rng, (16, 64), "tensor", types[1])
    got = bw.scaled_matmul(x, y, preferred_element_type=dtype)
    assert_exact(got, formula_product(x, y).astype(jnp.dtype(dtype)))


@pytest.mark.parametrize("accumulation", ["promoted", "fast"])
@pytest.mark.parametrize("shape", [(0, 8, 16), (8, 0, 16), (8, 8, 0), (1, 1, 1)])
@pytest.mark.parametrize("scaling", ["tensor", "1x128", "128x128", "mxfp8", "mxfp4"])
def test_small_and_empty(accumulation: str, shape: tuple[int, int, int], scaling: str) -> None:
    x, y = pair(scaling, scaling, *shape)
    got = bw.scaled_matmul(x, y, accumulation=accumulation)
    assert_exact(got, formula_product(x, y).astype(jnp.bfloat16))


PAIRS = [("tensor", "tensor"), ("1x128", "128x128"), ("mxfp8", "row"), ("mxfp4", "mxfp8")]


@pytest.mark.parametrize(("a", "b"), PAIRS)
def test_normal_numbers_differ_by_f32_sums_only(a: str, b: str) -> None:
    rng = np.random.default_rng(0)
    x = bw.quantize(jnp.asarray(rng.standard_normal((64, 1000)), jnp.float32), a)
    y = bw.quantize(jnp.asarray(rng.standard_normal((48, 1000)), jnp.float32), b)
    got = bw.scaled_matmul(x, y, preferred_element_type=jnp.float32)
    assert decibels(got, formula_product(x, y)) > SAME_OPERANDS_DB


@pytest.mark.parametrize("scaling", SCALINGS)
@pytest.mark.parametrize("shared", ["a", "b", None])
def test_batches(scaling: str, shared: str | None) -> None:
    x, y = pair(scaling, scaling, batch=(2, 3))
    one_x, one_y = pair(scaling, scaling)
    x, y = (one_x if shared == "a" else x), (one_y if shared == "b" else y)
    got = bw.scaled_matmul(x, y, preferred_element_type=jnp.float32)
    assert_exact(got, formula_product(x, y).astype(np.float32))


@pytest.mark.parametrize("name", "abcdefgh")  # its hash decides about the order in a set
def test_exported_with_a_symbolic_batch_that_one_operand_has(name: str) -> None:
    (batch,) = jax.export.symbolic_shape(name)
    x, y = pair("row", "row", batch=(3,))[0], pair("row", "row")[1]
    kinds = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((batch, *leaf.shape[1:]), leaf.dtype), x)
    exported = jax.export.export(jax.jit(bw.scaled_matmul))(kinds, y)
    assert_exact(exported.call(x, y), bw.scaled_matmul(x, y))


def test_one_scale_for_each_matrix() -> None:
    x, y = pair("tensor", "tensor", batch=(3,))
    x = bw.ScaledArray(x.values, jnp.asarray([0.5, 1.0, 2.0]), "tensor")
    got = bw.scaled_matmul(x, y, preferred_element_type=jnp.float32)
    assert_exact(got, formula_product(x, y).astype(np.float32))


@pytest.mark.parametrize("scaling", SCALINGS)
def test_jit_vmap_scan_and_remat(scaling: str) -> None:
    x, y = pair(scaling, scaling)
    want = bw.scaled_matmul(x, y, preferred_element_type=jnp.float32)

    def product(x: bw.ScaledArray, y: bw.ScaledArray) -> jax.Array:
        return bw.scaled_matmul(x, y, preferred_element_type=jnp.float32)

    stack = jax.tree.map(lambda leaf: jnp.stack([leaf] * 3), y)  # the weights of three layers
    assert_exact(jax.jit(product)(x, y), want)
    assert_exact(jax.vmap(product, in_axes=(None, 0))(x, stack), np.stack([want] * 3))
    _, scanned = jax.lax.scan(lambda c, layer: (c, product(x, layer)), 0, stack)
    assert_exact(scanned, np.stack([want] * 3))
    assert_exact(jax.checkpoint(product)(x, y), want)


def test_the_layout_is_part_of_the_type() -> None:
    x, y = pair("row", "1x128")
    assert jax.tree.structure(x) != jax.tree.structure(y)
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(x)]
    assert paths == [".values", ".scales"]


@pytest.mark.parametrize("axis", ["m", "n", "k"])
@pytest.mark.parametrize("scaling", ["tensor", "1x128", "128x128"])
def test_sharded_operands(axis: str, scaling: str, cpu_devices: list[jax.Device]) -> None:
    mesh = jax.sharding.Mesh(cpu_devices[:2], "x")
    x, y = pair(scaling, scaling, m=256, n=256, k=512)
    want = bw.scaled_matmul(x, y, preferred_element_type=jnp.float32)
    spec = {
        "m": (jax.P("x"), jax.P()),
        "n": (jax.P(), jax.P("x")),
        "k": (jax.P(None, "x"), jax.P(None, "x")),
    }[axis]

    def placed(operand: bw.ScaledArray, spec: jax.P) -> bw.ScaledArray:
        values = jax.device_put(operand.values, jax.NamedSharding(mesh, spec))
        scales = jax.device_put(operand.scales, jax.NamedSharding(mesh, jax.P()))
        return bw.ScaledArray(values, scales, operand.scaling)

    got = jax.jit(lambda p, q: bw.scaled_matmul(p, q, preferred_element_type=jnp.float32))(
        placed(x, spec[0]), placed(y, spec[1])
    )
    assert_exact(got, want)


def broken(x: bw.ScaledArray) -> bw.ScaledArray:
    """What only a transformation of the pytree can make: scales of another shape."""
    return jax.tree.map(lambda leaf: leaf[:-1] if leaf.ndim == 1 else leaf, x)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (
            lambda x, y: bw.scaled_matmul(x.values, y),
            TypeError,
            "a must be a ScaledArray, a QArray or a pair of values and scales, got ",
        ),
        (
            lambda x, y: bw.scaled_matmul(x, broken(y)),
            TypeError,
            r"scaled_matmul b: scales of scaling 'row' .* must have shape \(24,\), got \(23,\)",
        ),
        (
            lambda x, y: bw.scaled_matmul(x, y, accumulation="slow"),
            ValueError,
            "accumulation must be 'promoted' or 'fast', got 'slow'",
        ),
        (
            lambda x, y: bw.scaled_matmul(x, y, preferred_element_type=jnp.float64),
            TypeError,
            "must be bfloat16, float16 or float32, got float64",
        ),
        (
            lambda x, y: bw.scaled_matmul(x, pair("row", "row", k=301)[1]),
            TypeError,
            "300 and 301 differ",
        ),
        (
            lambda x, y: bw.scaled_matmul(
                pair("row", "row", batch=(2,))[0], pair("row", "row", batch=(3,))[1]
            ),
            TypeError,
            "must be equal, or one of the two must have none",
        ),
        (
            lambda x, y: bw.scaled_matmul(x, y, implementation="cutlass"),
            NotImplementedError,
            "implementation='cutlass' cannot run scaled GEMM float8_e4m3fn row x float8_e4m3fn row",
        ),
        (
            lambda x, y: bw.scaled_matmul(x, y, implementation="cublas"),
            ValueError,
            "unknown implementation 'cublas'",
        ),
        (
            lambda x, y: jax.grad(
                lambda s: jnp.sum(
                    bw.scaled_matmul(
                        bw.ScaledArray(x.values, s, "row"), y, preferred_element_type=jnp.float32
                    )
                )
            )(x.scales),
            TypeError,
            "scaled_matmul is not differentiable",
        ),
    ],
)
def test_errors(change: Any, error: type[Exception], message: str) -> None:
    x, y = pair("row", "row")
    with pytest.raises(error, match=message):
        change(x, y)


@pytest.mark.parametrize("layouts", [("1x128", "128x128"), ("row", "row"), ("1x128", "1x128")])
def test_scales_whose_product_is_no_float32_number(layouts: tuple[str, str]) -> None:
    """The sum times one scale is."""
    a, b = (bw.quantize(jnp.full((2, 256), 1e-18), scaling) for scaling in layouts)
    got = bw.scaled_matmul(a, b, preferred_element_type=jnp.float32)
    np.testing.assert_allclose(got, np.full((2, 2), 256e-36), rtol=1e-5)
    sizes = np.array([2])
    grouped = bw.scaled_ragged_dot(
        a, jax.tree.map(lambda x: x[None], b), sizes, preferred_element_type=jnp.float32
    )
    np.testing.assert_allclose(grouped, got, rtol=1e-5)
