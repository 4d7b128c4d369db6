"""Layers exported with a symbolic number of rows: XLA's, as a kernel is chosen by its sizes."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from numerics import normal

import jax_bwgemm as bw

ROWS, K, N, E = 7, 128, 32, 3
NUMBERS = (((1,), (0,)), ((), ()))
RNG = np.random.default_rng(0)
X, W, UPS, DOWNS = (
    jnp.asarray(normal(RNG, shape, "bfloat16"))
    for shape in ((ROWS, K), (K, N), (E, K, N), (E, N, K))
)

FUNCTIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "loss": lambda x: bw.linear_softmax_cross_entropy_loss(
        x, jnp.zeros(x.shape[:1], jnp.int32), W, logits="recomputed"
    ),
    "moe_mlp": lambda x: bw.moe_mlp(
        x, UPS, DOWNS, jnp.ones((x.shape[0], 1), jnp.int32), jnp.ones((x.shape[0], 1))
    ),
    "tiles": lambda x: bw.dequantize(bw.quantize(x, "128x128")),
    "blockwise": lambda x: bw.fp8_dot_general("blockwise")(x, W, NUMBERS),
    **{
        f"{name} experts": lambda x, name=name: bw.fp8_ragged_dot(name)(
            x, UPS, jnp.array([3, 0, 2])
        )
        for name in ("per_tensor", "blockwise", "mxfp8")
    },
    "mxfp8": lambda x: bw.fp8_dot_general("mxfp8")(x, W, NUMBERS),
    "nvfp4 weights": lambda x: bw.fp8_dot_general("nvfp4")(W, x, (((0,), (1,)), ((), ()))),
    **{
        f"{name} squares": lambda x, name=name: bw.dequantize(
            bw.quantize(x, name, square_blocks=True)
        )
        for name in ("mxfp8", "nvfp4")
    },
}
NO_GRADIENT = {"tiles", "nvfp4 weights", "mxfp8 squares", "nvfp4 squares"}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_rows(name: str) -> None:
    layer = FUNCTIONS[name]
    f = jax.grad(lambda x: jnp.sum(layer(x).astype(jnp.float32) ** 2))
    if name in NO_GRADIENT:
        f = layer
    (rows,) = jax.export.symbolic_shape("rows")
    exported = jax.export.export(jax.jit(f), disabled_checks=bw.DISABLE_EXPORT_CHECKS)(
        jax.ShapeDtypeStruct((rows, K), X.dtype)
    )
    got, want = (np.asarray(y, np.float32) for y in (exported.call(X), jax.jit(f)(X)))
    np.testing.assert_allclose(got, want, atol=0.02 * np.abs(want).max())


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("arch", ["sm90", "sm100"])
def test_exported_for_a_gpu(name: str, arch: str) -> None:
    (rows,) = jax.export.symbolic_shape("rows")
    export = jax.export.export(
        jax.jit(FUNCTIONS[name]), platforms=("cuda",), disabled_checks=bw.DISABLE_EXPORT_CHECKS
    )
    x = jax.ShapeDtypeStruct((rows, K), X.dtype)
    with bw.config.target(arch):
        assert export(x).out_avals
        found = bw.explain_program(FUNCTIONS[name], x)
    assert {one.implementation for one, _ in found.products} <= {"xla"}


def test_scaled_products_explained() -> None:
    (rows,) = jax.export.symbolic_shape("rows")
    scaled = jax.eval_shape(
        lambda x: bw.quantize(x, "1x128"), jax.ShapeDtypeStruct((rows, K), X.dtype)
    )
    sizes, w = jnp.array([3, 0, 2]), bw.quantize(jnp.swapaxes(UPS, 1, 2), "128x128")
    dense = functools.partial(bw.explain_scaled_matmul, scaled, bw.quantize(W.T, "128x128"))
    grouped = functools.partial(bw.explain_scaled_ragged_dot, scaled, w, sizes)
    for explain in (dense, grouped):
        found = explain(device="sm90")
        assert (found.implementation, found.reason) == ("xla", "a kernel is selected by sizes")
        with pytest.raises(NotImplementedError, match="a kernel is selected by sizes"):
            explain(device="sm90", implementation="cutlass")


@pytest.mark.parametrize("numbers", [None, NUMBERS])
def test_explained(numbers: Any) -> None:
    (rows,) = jax.export.symbolic_shape("rows")
    x = jax.ShapeDtypeStruct((rows, K), X.dtype)
    found = bw.explain(x, W, numbers, device="sm90")
    assert str(found).splitlines() == [
        f"{'matmul' if numbers is None else 'dot_general'} of symbolic shapes (rows, 128) and "
        "(128, 32)",
        "  implementation  xla",
        "  why             a kernel is selected by sizes",
        "  not cutlass: a kernel is selected by sizes",
    ]
    assert found.flops == 2 * rows * K * N
    named = bw.explain(x, W, numbers, implementation="xla")
    assert (named.reason, named.rejected) == ("asked for", ())
    with pytest.raises(NotImplementedError, match="a kernel is selected by sizes"):
        bw.explain(x, W, numbers, implementation="emulator")


@pytest.mark.parametrize("scalings", [("row", "row"), ("128x128", "128x128"), ("nvfp4", "nvfp4")])
@pytest.mark.parametrize("rows", [3, 300])
def test_groups_of_scaled_rows(scalings: tuple[str, str], rows: int) -> None:
    """Fewer rows than a block has, and more than two; sizes that sum to more than there are."""
    of_a, of_b = scalings

    def products(x: jax.Array, y: jax.Array, sizes: jax.Array) -> tuple[jax.Array, jax.Array]:
        a, b = bw.quantize(x, of_a), bw.quantize(UPS.mT, of_b)
        columns = bw.quantize(x.T, of_a), bw.quantize(y.T, of_b)
        return bw.scaled_ragged_dot(a, b, sizes), bw.scaled_ragged_dot(*columns, sizes)

    (symbolic,) = jax.export.symbolic_shape("rows")
    shapes = [jax.ShapeDtypeStruct((symbolic, size), X.dtype) for size in (K, N)]
    sizes = jnp.array([rows // 2, 0, rows])
    exported = jax.export.export(jax.jit(products), disabled_checks=bw.DISABLE_EXPORT_CHECKS)(
        *shapes, sizes
    )
    x, y = (jnp.asarray(normal(RNG, (rows, size), "bfloat16")) for size in (K, N))
    for got, want in zip(exported.call(x, y, sizes), jax.jit(products)(x, y, sizes), strict=True):
        got, want = (np.asarray(v, np.float32) for v in (got, want))
        np.testing.assert_allclose(got, want, atol=0.01 * np.abs(want).max())


NUMBERS_OF_ROWS = jax.lax.RaggedDotDimensionNumbers((((0,), (0,)), ((), ())), (0,), ())


@pytest.mark.parametrize(
    ("name", "call"),
    [
        (
            "ragged_dot_general",
            lambda w, sizes: bw.ragged_dot_general(X, X, sizes, NUMBERS_OF_ROWS),
        ),
        (
            "scaled_ragged_dot",
            lambda w, sizes: bw.scaled_ragged_dot(
                bw.quantize(X, "row"), bw.quantize(w.mT, "row"), sizes
            ),
        ),
        (
            "scaled_ragged_dot",
            lambda w, sizes: bw.scaled_ragged_dot(
                bw.quantize(X, "row"), bw.quantize(w.mT, "row"), jnp.array([3]), group_offset=0
            ),
        ),
        ("fp8_ragged_dot", lambda w, sizes: bw.fp8_ragged_dot()(X, w, sizes)),
    ],
)
def test_groups_are_counted_while_tracing(name: str, call: Any) -> None:
    (groups,) = jax.export.symbolic_shape("groups")
    args = [
        jax.ShapeDtypeStruct((groups, K, N), X.dtype),
        jax.ShapeDtypeStruct((groups,), jnp.int32),
    ]
    message = f"{name} requires the number of groups to be static, got groups"
    with pytest.raises(TypeError, match=message):
        jax.export.export(jax.jit(call))(*args)


@pytest.mark.parametrize("name", ["matmul", "ragged_dot"])
def test_a_symbolic_mapped_dimension(name: str) -> None:
    """It becomes the batch; explanations say so too."""
    shapes = {"matmul": ((ROWS, K), (K, N)), "ragged_dot": ((ROWS, K), (E, K, N), (E,))}[name]
    f = jax.vmap(getattr(bw, name))
    (b,) = jax.export.symbolic_shape("b")
    dtypes = jnp.bfloat16, jnp.bfloat16, jnp.int32
    types = [jax.ShapeDtypeStruct((b, *s), t) for s, t in zip(shapes, dtypes, strict=False)]
    exported = jax.export.export(jax.jit(f), disabled_checks=bw.DISABLE_EXPORT_CHECKS)(*types)
    args = [jnp.stack([x] * 2) for x in (X, W if name == "matmul" else UPS, jnp.array([3, 0, 2]))]
    np.testing.assert_array_equal(exported.call(*args[: len(types)]), f(*args[: len(types)]))
    assert "a kernel is selected by sizes" in str(bw.explain_program(f, *types, device="sm90"))
