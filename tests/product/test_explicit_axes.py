"""Layers under a mesh with explicit axes, JAX's default: as without a mesh, gradients included."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import jax_bwgemm as bw

ROWS, WIDTH, HIDDEN, EXPERTS = 128, 128, 256, 4
NUMBERS = (((1,), (0,)), ((), ()))
SIZES = jnp.full(EXPERTS, ROWS // EXPERTS)
ROUTES = jnp.arange(2 * ROWS).reshape(ROWS, 2) % EXPERTS
LABELS = jnp.arange(ROWS) % HIDDEN


def array(seed: int, *shape: int) -> jax.Array:
    return jax.random.normal(jax.random.key(seed), shape, jnp.float32) * shape[-2] ** -0.5


X, UP, DOWN = array(0, ROWS, WIDTH), array(1, WIDTH, HIDDEN), array(2, HIDDEN, WIDTH)
PAIR = (array(3, WIDTH, HIDDEN), array(4, WIDTH, HIDDEN))
UPS, DOWNS = array(5, EXPERTS, WIDTH, 2, HIDDEN), array(6, EXPERTS, HIDDEN, WIDTH)
ONES = array(7, EXPERTS, WIDTH, HIDDEN)

Case = tuple[Callable[..., Any], tuple[Any, ...]]
CASES: dict[str, Case] = {
    "linear": (lambda x, w: bw.linear(x, w, activation="gelu"), (X, UP)),
    # Scalars that are made within an epilogue have the mesh of the context.
    "where": (lambda x, w: bw.linear(x, w, activation="elu"), (X, UP)),
    "mlp": (lambda x, *w: bw.mlp(x, *w, activation="gelu"), (X, UP, DOWN)),
    "mlp of a pair": (lambda x, u, v, d: bw.mlp(x, (u, v), d), (X, *PAIR, DOWN)),
    "ragged_dot": (lambda x, w: bw.ragged_dot(x, w, SIZES), (X, ONES)),
    "grouped_mlp": (lambda x, *w: bw.grouped_mlp(x, *w, SIZES), (X, UPS, DOWNS)),
    "moe_mlp": (
        lambda x, *w: bw.moe_mlp(x, *w, ROUTES, jnp.full(ROUTES.shape, 0.5)),
        (X, UPS, DOWNS),
    ),
    "loss": (lambda x, w: bw.linear_softmax_cross_entropy_loss(x, LABELS, w), (X, UP)),
    "loss, recomputed": (
        lambda x, w: bw.linear_softmax_cross_entropy_loss(x, LABELS, w, logits="recomputed"),
        (X, UP),
    ),
    "blockwise ragged": (lambda x, w: bw.fp8_ragged_dot("blockwise")(x, w, SIZES), (X, ONES)),
    "nvfp4": (
        lambda x, w: bw.fp8_dot_general("nvfp4")(x, w, NUMBERS, key=jax.random.key(0)),
        (X, UP),
    ),
    "per_tensor_delayed": (
        lambda x, w: bw.fp8_dot_general("per_tensor_delayed")(
            x, w, NUMBERS, amax_history=bw.fp8_dot_general("per_tensor_delayed").new_history()
        ),
        (X, UP),
    ),
    **{
        name: (lambda x, w, name=name: bw.fp8_dot_general(name)(x, w, NUMBERS), (X, UP))
        for name in ("per_tensor", "blockwise", "blockwise_2d", "mxfp8")
    },
}


@pytest.fixture
def mesh(cpu_devices: list[jax.Device]) -> jax.sharding.Mesh:
    return jax.make_mesh((2,), ("x",), axis_types=(AxisType.Explicit,), devices=cpu_devices[:2])


def value_and_gradients(f: Callable[..., Any], operands: tuple[Any, ...]) -> Any:
    def loss(*operands: Any) -> Any:
        y = f(*operands)
        return jnp.sum(y.astype(jnp.float32) ** 2), y

    return jax.jit(jax.value_and_grad(loss, tuple(range(len(operands))), has_aux=True))(*operands)


@pytest.mark.parametrize("name", CASES)
def test_rows_over_devices(name: str, mesh: jax.sharding.Mesh) -> None:
    f, operands = CASES[name]
    (_, want), wanted = value_and_gradients(f, operands)
    specs = (P("x"), *[P()] * (len(operands) - 1))
    with jax.set_mesh(mesh):
        placed = tuple(
            jax.device_put(x, NamedSharding(mesh, s)) for x, s in zip(operands, specs, strict=True)
        )
        (_, got), gradients = value_and_gradients(f, placed)
    assert got.ndim == 0 or got.sharding.spec[0] == "x"
    for ours, theirs in zip((got, *gradients), (want, *wanted), strict=True):
        scale = float(jnp.max(jnp.abs(theirs)))
        np.testing.assert_allclose(np.asarray(ours) / scale, np.asarray(theirs) / scale, atol=1e-5)


@pytest.mark.parametrize("scaling", ["row", "mxfp8"])
def test_a_contracted_dimension_of_scaled_operands(scaling: str, mesh: jax.sharding.Mesh) -> None:
    """One operand may have it over devices; of both, nothing says how the sum is to lie."""
    x, w = array(0, ROWS, WIDTH), array(1, HIDDEN, WIDTH)
    f = jax.jit(lambda x, w: bw.scaled_matmul(bw.quantize(x, scaling), bw.quantize(w, scaling)))
    want, parts = f(x, w), P(None, "x")
    with jax.set_mesh(mesh):
        shard = lambda x, spec: jax.device_put(x, NamedSharding(mesh, spec))  # noqa: E731
        for specs in ((parts, P()), (P(), parts)):
            got = f(shard(x, specs[0]), shard(w, specs[1]))
            assert jax.typeof(got).sharding.spec == P(None, None)
            # Devices may round their parts of a sum.
            np.testing.assert_allclose(np.float32(got), np.float32(want), atol=2**-7)
        with pytest.raises(Exception, match="Contracting dimensions are sharded"):
            f(shard(x, parts), shard(w, parts))


LAYERS: dict[str, Case] = {
    "linear": (
        lambda x, w, **o: bw.linear(x, w, X[0], activation="gelu", **o),
        (X, array(8, WIDTH, WIDTH)),
    ),
    "gated_linear_unit of a pair": (
        lambda x, u, v, **o: bw.gated_linear_unit(x, (u, v), activation="silu", **o),
        (X, *PAIR),
    ),
    "gated_linear_unit": (
        lambda x, w, **o: bw.gated_linear_unit(x, w, activation="silu", **o),
        (X, array(9, WIDTH, 2, HIDDEN)),
    ),
}


@pytest.mark.parametrize("out", [P(), P("x"), P(None, "x")])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", LAYERS)
def test_contracted_dimension_over_devices(
    name: str, dtype: str, out: P, mesh: jax.sharding.Mesh
) -> None:
    """Layers whose product devices add up, as the rows of a tensor-parallel one."""
    f, operands = LAYERS[name]
    operands = tuple(x.astype(dtype) for x in operands)
    (_, want), wanted = value_and_gradients(f, operands)
    specs = (P(None, "x"), *[P("x")] * (len(operands) - 1))
    with jax.set_mesh(mesh):
        placed = [
            jax.device_put(x, NamedSharding(mesh, s)) for x, s in zip(operands, specs, strict=True)
        ]
        with pytest.raises(Exception, match="out_sharding"):
            f(*placed)
        (_, got), gradients = value_and_gradients(functools.partial(f, out_sharding=out), placed)
    assert got.sharding.spec == P(*out, *[None] * (2 - len(out)))
    for ours, theirs in zip((got, *gradients), (want, *wanted), strict=True):
        assert_close(ours, theirs, 1e-5 if dtype == "float32" else 0.02)


def assert_close(ours: jax.Array, theirs: jax.Array, tolerance: float) -> None:
    want = np.asarray(theirs, np.float32)
    error = np.linalg.norm(np.asarray(ours, np.float32) - want) / np.linalg.norm(want)
    assert error < tolerance


def test_merged_dimensions_over_devices(mesh: jax.sharding.Mesh) -> None:
    """Attention without a softmax: heads beside the features, sequences over devices."""

    @bw.accelerate
    def f(x: jax.Array, to_heads: jax.Array, from_heads: jax.Array) -> jax.Array:
        heads = jnp.einsum("bsd,dnh->bsnh", x, to_heads)
        scores = jnp.einsum("bqnh,bknh->bnqk", heads, heads)
        return jnp.einsum("bqnh,nhd->bqd", jnp.einsum("bnqk,bknh->bqnh", scores, heads), from_heads)

    shapes = ((4, 64, 64), (64, 2, 64), (2, 64, 64))
    operands = tuple(
        (array(i, *s) * s[-2] ** -0.2).astype(jnp.bfloat16) for i, s in enumerate(shapes)
    )
    _, wanted = value_and_gradients(f, operands)
    with jax.set_mesh(mesh):
        placed = tuple(
            jax.device_put(x, NamedSharding(mesh, spec))
            for x, spec in zip(operands, (P("x"), P(), P()), strict=True)
        )
        explained = bw.explain_program(f, *placed, device="sm90")
        _, gradients = value_and_gradients(f, placed)
    assert any(one.rewritten for one in explained.rewrites)
    assert not [one for one in explained.rewrites if "explicitly sharded" in one.reason]
    for ours, theirs in zip(gradients, wanted, strict=True):
        assert_close(ours, theirs, 0.02)


def test_hidden_values_of_experts_over_devices(mesh: jax.sharding.Mesh) -> None:
    f, operands = CASES["grouped_mlp"]
    _, wanted = value_and_gradients(f, operands)
    specs = (P(), P(None, None, None, "x"), P(None, "x"))
    with jax.set_mesh(mesh):
        placed = [
            jax.device_put(x, NamedSharding(mesh, s)) for x, s in zip(operands, specs, strict=True)
        ]
        _, gradients = value_and_gradients(f, tuple(placed))
    for ours, theirs, x in zip(gradients, wanted, placed, strict=True):
        assert ours.sharding.is_equivalent_to(x.sharding, x.ndim)
        scale = float(jnp.max(jnp.abs(theirs)))
        np.testing.assert_allclose(np.asarray(ours) / scale, np.asarray(theirs) / scale, atol=1e-5)


def test_contracted_dimensions_over_devices_need_an_out_sharding(mesh: jax.sharding.Mesh) -> None:
    product = bw.fp8_dot_general("per_tensor")
    with jax.set_mesh(mesh):
        x = jax.device_put(X, NamedSharding(mesh, P(None, "x")))
        w = jax.device_put(UP, NamedSharding(mesh, P("x", None)))
        with pytest.raises(Exception, match="via the `out_sharding` parameter"):
            jax.jit(lambda x, w: product(x, w, NUMBERS))(x, w)
        got = jax.jit(lambda x, w: product(x, w, NUMBERS, out_sharding=P("x", None)))(x, w)
    assert got.sharding.spec[0] == "x"
    want = product(X, UP, NUMBERS)
    np.testing.assert_allclose(np.asarray(got), np.asarray(want), atol=1e-5)


def test_quantize_where_no_block_is_divided(mesh: jax.sharding.Mesh) -> None:
    x = array(8, 2 * ROWS, 2 * WIDTH)
    want = bw.quantize(x, "128x128", transposed=True)
    with jax.set_mesh(mesh):
        rows = jax.device_put(x, NamedSharding(mesh, P("x")))
        columns = jax.device_put(x[:, :WIDTH], NamedSharding(mesh, P(None, "x")))
        got = bw.quantize(rows, "128x128", transposed=True)
        assert got[0].scales.sharding.spec[0] == "x"
        assert got[1].values.sharding.spec[1] == "x"
        with pytest.raises(NotImplementedError, match=r"dimension -1 of float32\[256,128@x\] has "):
            bw.quantize(columns, "1x128")
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))


def test_quantize_takes_any_size_that_is_not_divided(mesh: jax.sharding.Mesh) -> None:
    x = array(8, 4, 40, 100)
    want = bw.quantize(x, "128x128")
    with jax.set_mesh(mesh):
        got = bw.quantize(jax.device_put(x, NamedSharding(mesh, P("x"))), "128x128")
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))


@pytest.mark.parametrize("scaling", ["tensor", "row", "1x128", "mxfp8", "nvfp4"])
def test_quantize_of_an_inner_batch_dimension(mesh: jax.sharding.Mesh, scaling: str) -> None:
    """Random numbers are those of the array's own order."""
    x, key = array(8, 3, 4, 32, 128), jax.random.key(0)

    def quantized(x: jax.Array) -> list[jax.Array]:
        return jax.tree.leaves(bw.quantize(x, scaling, transposed=True, key=key))

    want = quantized(x)
    with jax.set_mesh(mesh):
        got = quantized(jax.device_put(x, NamedSharding(mesh, P(None, "x"))))
        assert got[0].sharding.spec[1] == "x"
    for a, b in zip(got, want, strict=True):
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))


def test_quantize_of_the_last_of_three_batch_dimensions(mesh: jax.sharding.Mesh) -> None:
    """The order in which matrices are quantized is undone: of three dimensions it is no swap."""
    x = array(8, 2, 3, 4, 2, 8)
    want = bw.quantize(x, "row").values
    with jax.set_mesh(mesh):
        got = bw.quantize(jax.device_put(x, NamedSharding(mesh, P(None, None, "x"))), "row").values
    np.testing.assert_array_equal(np.asarray(got), np.asarray(want))


@pytest.mark.parametrize("logits", ["stored", "recomputed"])
@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_a_loss_of_sharded_sequences(mesh: jax.sharding.Mesh, logits: str, reduction: str) -> None:
    """Sequence parallelism: the dimension behind the batch is divided."""
    x, labels = X.reshape(2, -1, WIDTH), LABELS.reshape(2, -1)

    def loss(x: jax.Array, labels: jax.Array, w: jax.Array) -> Any:
        found, lse = bw.linear_softmax_cross_entropy_loss(
            x, labels, w, reduction=reduction, logits=logits, return_logsumexp=True
        )
        return jnp.sum(found * jnp.arange(found.size).reshape(found.shape)), (found, lse)

    step = jax.jit(jax.value_and_grad(loss, (0, 2), has_aux=True))
    want = step(x, labels, UP)
    with jax.set_mesh(mesh):
        sharding = NamedSharding(mesh, P(None, "x"))
        got = step(jax.device_put(x, sharding), jax.device_put(labels, sharding), UP)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert a.shape == b.shape
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("columns", [None, "x"])
def test_a_loss_whose_hidden_dimension_is_sharded(
    cpu_devices: list[jax.Device], columns: str | None
) -> None:
    """Of both operands; the columns may be divided too."""
    mesh = jax.make_mesh(
        (2, 2), ("x", "y"), axis_types=(AxisType.Explicit,) * 2, devices=cpu_devices[:4]
    )
    loss = lambda x, w: bw.linear_softmax_cross_entropy_loss(x, LABELS, w)  # noqa: E731
    want = jax.value_and_grad(loss, (0, 1))(X, UP)
    with jax.set_mesh(mesh):
        x = jax.device_put(X, NamedSharding(mesh, P("x", "y")))
        w = jax.device_put(UP, NamedSharding(mesh, P("y", columns)))
        got = jax.value_and_grad(loss, (0, 1))(x, w)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-4, atol=1e-5)


def test_gradients_of_rows_and_of_operands_of_groups(mesh: jax.sharding.Mesh) -> None:
    """Eagerly: what gradients keep does not cross programs."""

    def f(x: jax.Array, factors: jax.Array) -> jax.Array:
        y = bw.ragged_dot(
            x, ONES, SIZES, epilogue=lambda z, f: z * f, epilogue_group_operands=(factors,)
        )
        return jnp.sum(y**2)

    factors = array(8, EXPERTS, HIDDEN)
    want = jax.grad(f, (0, 1))(X, factors)
    with jax.set_mesh(mesh):
        got = jax.grad(f, (0, 1))(jax.device_put(X, NamedSharding(mesh, P("x"))), factors)
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("sharded", ["lhs", "rhs"])
def test_gradients_of_experts_are_sharded_as_their_operand(
    mesh: jax.sharding.Mesh, sharded: str
) -> None:
    """Contracted groups: rows of the result are those of a, its columns those of b."""
    with jax.set_mesh(mesh):
        place = lambda x: jax.device_put(x, NamedSharding(mesh, P("x")))  # noqa: E731
        a, b = jnp.ones((8, 32)), jnp.ones((16, 32))
        a, b = (place(a), b) if sharded == "lhs" else (a, place(b))
        operands = (bw.quantize(x, "row") for x in (a, b))
        out = bw.scaled_ragged_dot(*operands, jnp.array([12, 20]))
    assert out.sharding.spec == (P(None, "x", None) if sharded == "lhs" else P(None, None, "x"))


def test_one_number_of_each_group_beside_sharded_columns(mesh: jax.sharding.Mesh) -> None:
    with jax.set_mesh(mesh):
        columns = jax.device_put(jnp.ones((2, 3, 6)), NamedSharding(mesh, P(None, None, "x")))
        out = bw.ragged_dot(
            jnp.ones((4, 3)),
            columns,
            jnp.array([1, 3]),
            epilogue=lambda z, bias: z + bias,
            epilogue_group_operands=(jnp.array([10.0, 20.0]),),
        )
    assert out.sharding.spec == P(None, "x")
    np.testing.assert_array_equal(out, np.outer([13, 23, 23, 23], np.ones(6)))


@pytest.mark.parametrize(
    "scalings",
    [("row", "row"), ("1x128", "128x128"), ("mxfp4", "mxfp8"), ("nvfp4", "nvfp4")],
    ids="-".join,
)
def test_products_of_scaled_operands(mesh: jax.sharding.Mesh, scalings: tuple[str, str]) -> None:
    """Rows over devices, or columns; experts' rows or columns; the rows of a contraction."""
    of_a, of_b = scalings
    x, w, ws = array(0, 256, 128), array(1, 256, 128), array(2, EXPERTS, 256, 128)
    sizes = jnp.full(EXPERTS, 64)
    a, b, bs = bw.quantize(x, of_a), bw.quantize(w, of_b), bw.quantize(ws, of_b)
    a_t, b_t = bw.quantize(x.T, of_a), bw.quantize(w.T, of_b)
    want = (
        bw.scaled_matmul(a, b),
        bw.scaled_ragged_dot(a, bs, sizes),
        bw.scaled_ragged_dot(a_t, b_t, sizes),
        bw.dequantize(b),
    )
    with jax.set_mesh(mesh):

        def placed(x: jax.Array, *spec: Any) -> jax.Array:
            return jax.device_put(x, NamedSharding(mesh, P(*spec)))

        rows, columns = bw.quantize(placed(x, "x"), of_a), bw.quantize(placed(w, "x"), of_b)
        experts = bw.quantize(placed(ws, None, "x"), of_b)
        whole = bw.quantize(placed(x), of_a)
        got = (
            bw.scaled_matmul(rows, bw.quantize(placed(w), of_b)),
            bw.scaled_ragged_dot(whole, experts, sizes),
            bw.scaled_ragged_dot(
                bw.quantize(placed(x.T), of_a), bw.quantize(placed(w.T), of_b), sizes
            ),
            bw.dequantize(columns),
        )
        assert got[0].sharding.spec[0] == "x"
        assert got[1].sharding.spec[1] == "x"
        assert got[3].sharding.spec[0] == "x"
        assert jax.jit(bw.scaled_matmul)(whole, columns).sharding.spec[1] == "x"
    for ours, theirs in zip(got, want, strict=True):
        np.testing.assert_array_equal(np.asarray(ours, np.float32), np.asarray(theirs, np.float32))
