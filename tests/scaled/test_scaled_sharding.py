"""Scaled products on 8 CPU devices: values, and exactly the expected collectives."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from numerics import assert_exact
from scaled_cases import exact_operand, formula_product
from sharded import collectives, mesh_of

import jax_bwgemm as bw
from jax_bwgemm.product.partition import Form, sharding_rule
from jax_bwgemm.scaled.contraction import SCALED
from jax_bwgemm.scaled.ragged_contraction import SCALED_RAGGED
from jax_bwgemm.scaled.ragged_spec import ScaledRaggedSpec
from jax_bwgemm.scaled.spec import ScaledSpec

BLOCKWISE = ("1x128", "128x128")


@pytest.fixture(scope="module")
def mesh(cpu_devices: list[jax.Device]) -> jax.sharding.Mesh:
    return mesh_of(cpu_devices)


def placed(mesh: Any, x: bw.ScaledArray, spec: tuple[Any, ...]) -> bw.ScaledArray:
    """An operand with values sharded so, and scales alongside."""
    rows, k = (*spec, None, None)[:2]
    scales = {
        "tensor": (),
        "row": (rows,),
        "1x128": (k, rows),
        "128x128": (rows, k),
        "mxfp8": (rows, k),
        "mxfp4": (rows, k),
        "nvfp4": (rows, k),
    }[x.scaling]

    def put(x: jax.Array, *axes: Any) -> jax.Array:
        return jax.device_put(x, NamedSharding(mesh, P(*axes)))

    whole = None if x.global_scale is None else put(x.global_scale)
    return bw.ScaledArray(put(x.values, rows, k), put(x.scales, *scales), x.scaling, whole)


def run(mesh: Any, scalings: tuple[str, str], a_spec: Any, b_spec: Any, out: Any = None) -> Any:
    """The collectives of a product [1024, 1024] by [1024, 1024], whose values are checked."""
    rng = np.random.default_rng(0)
    a, b = (exact_operand(rng, (1024, 1024), scaling) for scaling in scalings)

    @jax.jit
    def product(a: bw.ScaledArray, b: bw.ScaledArray) -> jax.Array:
        d = bw.scaled_matmul(a, b, preferred_element_type=jnp.float32)
        if out is None:
            return d
        return jax.lax.with_sharding_constraint(d, NamedSharding(mesh, P(*out)))

    args = placed(mesh, a, a_spec), placed(mesh, b, b_spec)
    # Not by the compiled program: jax 0.10 refuses it arrays of 4-bit values.
    assert_exact(product(*args), formula_product(a, b).astype(np.float32))
    return collectives(product.lower(*args).compile())


@pytest.fixture(autouse=True)
def _bound(monkeypatch: pytest.MonkeyPatch, scaled_table: Any) -> None:
    """The primitive is bound wherever a table of kernels is known; it runs the reference here."""
    assert scaled_table


@pytest.mark.parametrize(
    "scalings", [BLOCKWISE, ("1x128", "1x128"), ("tensor", "row"), ("mxfp8",) * 2, ("nvfp4",) * 2]
)
@pytest.mark.parametrize(
    ("a_spec", "b_spec", "collectives"),
    [
        ((), (), {}),
        (("x",), (), {}),
        ((), ("x",), {}),
        (("x",), ("y",), {}),
        ((None, "x"), (None, "x"), {"all-reduce": 1}),
        (("x", "y"), (None, "y"), {"all-reduce": 1}),
        ((None, "x"), (), {"all-reduce": 1}),
    ],
)
def test_collectives(
    mesh: Any, scalings: Any, a_spec: Any, b_spec: Any, collectives: dict[str, int]
) -> None:
    assert run(mesh, scalings, a_spec, b_spec) == collectives


def test_a_sharded_result_of_a_sharded_sum_is_one_reduce_scatter(mesh: Any) -> None:
    assert run(mesh, BLOCKWISE, (None, "x"), (None, "x"), out=("x",)) == {"reduce-scatter": 1}


def test_a_block_is_not_divided(mesh: Any) -> None:
    """128 rows of B have a scale together: N = 256 is 2 blocks, not 8."""
    rng = np.random.default_rng(0)
    a, b = exact_operand(rng, (64, 256), "1x128"), exact_operand(rng, (256, 256), "128x128")
    values = jax.device_put(b.values, NamedSharding(mesh, P(("x", "y"))))
    got = jax.jit(bw.scaled_matmul)(a, bw.ScaledArray(values, b.scales, "128x128"))
    assert_exact(got, formula_product(a, b).astype(jnp.bfloat16))


def test_a_training_step_over_two_mesh_axes(mesh: Any) -> None:
    """Rows over x, columns of the weight over y: one sum over rows for dW, one over columns."""
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.standard_normal((1024, 1024)), jnp.float32)
    w = jnp.asarray(rng.standard_normal((1024, 1024)), jnp.float32)
    dot = bw.fp8_dot_general("blockwise")

    def step(x: jax.Array, w: jax.Array) -> Any:
        def loss(x: jax.Array, w: jax.Array) -> jax.Array:
            return jnp.sum(jnp.sin(dot(x, w, (((1,), (0,)), ((), ())))))

        return jax.grad(loss, (0, 1))(x, w)

    args = (
        jax.device_put(x, NamedSharding(mesh, P("x"))),
        jax.device_put(w, NamedSharding(mesh, P(None, "y"))),
    )
    compiled = jax.jit(step).lower(*args).compile()
    for got, want in zip(compiled(*args), step(x, w), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-3)
    assert collectives(compiled) == {"all-reduce": 2}


def spec_of(a: str, b: str) -> ScaledSpec:
    return ScaledSpec(a_scaling=a, b_scaling=b, accumulation="promoted")


@pytest.mark.parametrize(
    ("scalings", "devices", "rule", "sizes"),
    [
        (
            BLOCKWISE,
            4,
            "b m (k kk), b (n nn) (k kk), b k m, b n k, b -> b m (n nn)",
            {"kk": 128, "nn": 128, "reduction_factors": ("k", "kk")},
        ),
        (
            BLOCKWISE,
            3,
            "b m k, b n k, b K m, b N K, b -> b m n",
            {"reduction_factors": ("k",)},
        ),
        (
            ("tensor", "row"),
            4,
            "b m k, b n k, b, b n, b -> b m n",
            {"reduction_factors": ("k",)},
        ),
        (
            ("mxfp8", "mxfp8"),
            4,
            "b m (k kk), b n (k kk), b m k, b n k, b -> b m n",
            {"kk": 32, "reduction_factors": ("k", "kk")},
        ),
    ],
)
def test_rules(scalings: Any, devices: int, rule: str, sizes: dict[str, Any]) -> None:
    spec = spec_of(*scalings)
    shapes = {
        BLOCKWISE: [(1, 64, 512), (1, 512, 512), (1, 4, 64), (1, 4, 4)],
        ("tensor", "row"): [(1, 64, 512), (1, 512, 512), (1,), (1, 512)],
        ("mxfp8", "mxfp8"): [(1, 64, 512), (1, 512, 512), (1, 64, 16), (1, 512, 16)],
    }[scalings]
    dims = SCALED.dims(spec, *shapes, (1,))
    assert sharding_rule(SCALED, Form(spec), dims, devices) == (rule, sizes)


def test_a_short_last_block_makes_a_dimension_one() -> None:
    dims = SCALED.dims(
        spec_of(*BLOCKWISE), (1, 64, 200), (3, 300, 200), (1, 2, 64), (3, 3, 2), (1,)
    )
    assert dims.extents == {"b": 3, "m": 64, "n": 1, "k": 1}
    assert dims.batches == (1, 3, 1, 3, 1)
    assert not dims.empty


def test_a_short_last_block_of_grouped_products_makes_a_dimension_one() -> None:
    spec = ScaledRaggedSpec(a_scaling="1x128", b_scaling="128x128", accumulation="promoted")
    shapes = (1, 64, 320), (1, 4, 300, 320), (1, 4), (1,), (1, 3, 64), (1, 4, 3, 3), (1, 4)
    dims = SCALED_RAGGED.dims(spec, *shapes)
    assert dims.extents == {"b": 1, "m": 64, "n": 1, "k": 1, "e": 4, "g": 4}


@pytest.mark.skipif(
    jax.version.__version_info__ < (0, 11),
    reason="on JAX 0.10, what is quantized of an empty array varies over no axis",
)
@pytest.mark.parametrize("recipe", ["per_tensor", "blockwise", "mxfp8"])
@pytest.mark.parametrize(("rows", "k", "columns"), [(0, 64, 32), (128, 64, 0), (128, 0, 32)])
def test_gradients_of_empty_products_within_shard_map(
    mesh: Any, recipe: str, rows: int, k: int, columns: int
) -> None:
    """Their types say over which axes they vary."""
    dot, axes = bw.fp8_dot_general(recipe), mesh.axis_names

    def product(x: jax.Array, w: jax.Array) -> jax.Array:
        return lax.psum(jnp.sum(dot(x, w, (((1,), (0,)), ((), ())))), axes)

    loss = jax.shard_map(product, mesh=mesh, in_specs=(P(axes), P()), out_specs=P())
    x, w = jnp.ones((rows, k)), jnp.ones((k, columns))
    for got, like in zip(jax.grad(loss, (0, 1))(x, w), (x, w), strict=True):
        assert got.shape == like.shape
        assert not np.any(got)
