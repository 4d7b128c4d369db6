"""Sharding on 8 CPU devices: values, and exactly the expected collectives in the compiled HLO."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from numerics import assert_exact, small_integers
from sharded import compile_and_run, mesh_of

import jax_bwgemm as bw
from jax_bwgemm.product.implementations import log_once

M, N, K = 16, 32, 16


@pytest.fixture(scope="module")
def mesh(cpu_devices: list[jax.Device]) -> jax.sharding.Mesh:
    return mesh_of(cpu_devices)


def place(mesh: Any, shape: tuple[int, ...], spec: Any, seed: int = 0) -> jax.Array:
    values = small_integers(np.random.default_rng(seed), shape, "bfloat16")
    return jax.device_put(values, NamedSharding(mesh, P(*spec)))


CASES = {
    # name: (lhs spec, rhs spec, collectives)
    "nothing": ((), (), {}),
    "m": (("x",), (), {}),
    "m over both axes": ((("x", "y"),), (), {}),
    "n": ((), (None, "x"), {}),
    "m and n": (("x",), (None, "y"), {}),
    "k": ((None, "x"), ("x",), {"all-reduce": 1}),
    "k over both axes": ((None, ("x", "y")), (("x", "y"),), {"all-reduce": 1}),
    "k of lhs only": ((None, "x"), (), {"all-reduce": 1}),
    "m and k": (("x", "y"), ("y",), {"all-reduce": 1}),
    "m and k of rhs over the same axis": (("x",), ("x",), {"all-gather": 1}),
}


@pytest.mark.parametrize("name", CASES)
def test_matmul(mesh: Any, name: str) -> None:
    lhs_spec, rhs_spec, expected = CASES[name]
    a, b = place(mesh, (M, K), lhs_spec), place(mesh, (K, N), rhs_spec, 1)
    out, found = compile_and_run(lambda x, y: bw.matmul(x, y), a, b)
    assert_exact(out, jnp.matmul(np.asarray(a), np.asarray(b)))
    assert found == expected


@pytest.mark.parametrize("out_spec", [("x",), (None, "x"), ("y", "x")])
def test_k_sharded_with_a_sharded_result_is_one_reduce_scatter(mesh: Any, out_spec: Any) -> None:
    a, b = place(mesh, (M, K), (None, "x")), place(mesh, (K, N), ("x",), 1)

    def f(x: Any, y: Any) -> Any:
        return jax.lax.with_sharding_constraint(bw.matmul(x, y), NamedSharding(mesh, P(*out_spec)))

    out, found = compile_and_run(f, a, b)
    assert_exact(out, jnp.matmul(np.asarray(a), np.asarray(b)))
    assert found == {"reduce-scatter": 1}


@pytest.mark.parametrize("majors", ["kn", "kk", "mn", "mk"])
def test_storage_orders(mesh: Any, majors: str) -> None:
    """K sharded in every storage order: the rule follows the major flags."""
    a_k, b_k = 1 if majors[0] == "k" else 0, 0 if majors[1] == "n" else 1
    a = place(mesh, (M, K) if a_k else (K, M), (None, "x") if a_k else ("x",))
    b = place(mesh, (N, K) if b_k else (K, N), (None, "x") if b_k else ("x",), 1)
    numbers = (((a_k,), (b_k,)), ((), ()))
    out, found = compile_and_run(lambda x, y: bw.dot_general(x, y, numbers), a, b)
    assert_exact(out, jax.lax.dot_general(np.asarray(a), np.asarray(b), numbers))
    assert found == {"all-reduce": 1}


def loss(matmul: Callable, *args: Any) -> Any:
    # The cotangent is the sign of the result: gradients are small integers, exact in bf16 in any
    # order of summation, and sharded as the result is.
    out = matmul(*args)
    return jnp.sum((jax.lax.stop_gradient(jnp.sign(out)) * out).astype(jnp.float32))


ACTIVATIONS = {
    # (x spec, w spec): collectives of the gradients of x and w
    "data": (("x",), (), {"all-reduce": 1}),
    "data over both axes": ((("x", "y"),), (), {"all-reduce": 1}),
    "sequence": ((None, "x"), (), {"all-reduce": 1}),
    "data and sequence": (("x", "y"), (), {"all-reduce": 1}),
    "columns": ((), (None, "x"), {"all-reduce": 1}),
    "data and columns": (("x",), (None, "y"), {"all-reduce": 2}),
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_gradients_of_a_layer(mesh: Any, name: str) -> None:
    x_spec, w_spec, expected = ACTIVATIONS[name]
    x, w = place(mesh, (8, M, K), x_spec), place(mesh, (K, N), w_spec, 1)

    def gradients(matmul: Callable) -> Callable:
        return lambda *args: jax.grad(functools.partial(loss, matmul), argnums=(0, 1))(*args)

    out, found = compile_and_run(lambda *args: gradients(bw.matmul)(*args), x, w)
    for got, want in zip(out, gradients(jnp.matmul)(np.asarray(x), np.asarray(w)), strict=True):
        assert_exact(got, want)
    assert found == expected
    assert out[0].sharding.is_equivalent_to(x.sharding, 3)


def test_batch_of_matrices_is_local_forward_and_backward(mesh: Any) -> None:
    a, b = place(mesh, (8, M, K), ("x",)), place(mesh, (8, K, N), ("x",), 1)
    out, found = compile_and_run(
        lambda *args: jax.value_and_grad(functools.partial(loss, bw.matmul), (0, 1))(*args), a, b
    )
    want = jax.value_and_grad(functools.partial(loss, jnp.matmul), (0, 1))(
        np.asarray(a), np.asarray(b)
    )
    for got, expected in zip(jax.tree.leaves(out), jax.tree.leaves(want), strict=True):
        assert_exact(got, expected)
    assert found == {"all-reduce": 1}  # of the scalar loss


def test_weights_that_a_product_of_jax_reads_too_are_gathered_once(mesh: Any) -> None:
    x, w = place(mesh, (M, K), ("x",)), place(mesh, (K, N), ("x",), 1)
    _, found = compile_and_run(lambda x, w: (jnp.matmul(x, w), bw.matmul(2 * x, w)), x, w)
    assert found == {"all-gather": 1}


def test_vmap_over_a_sharded_axis(mesh: Any) -> None:
    x, w = place(mesh, (8, M, K), ("x",)), place(mesh, (K, N), (None, "y"), 1)
    mapped = jax.vmap(bw.matmul, in_axes=(0, None), spmd_axis_name="x")
    out, found = compile_and_run(lambda *args: mapped(*args), x, w)
    assert_exact(out, jnp.matmul(np.asarray(x), np.asarray(w)))
    assert found == {}
    assert out.sharding.is_equivalent_to(NamedSharding(mesh, P("x", None, "y")), 3)


def test_uneven_dimension_is_gathered(mesh: Any) -> None:
    """K=6 is not a multiple of 4: no device may multiply padding."""
    a, b = place(mesh, (M, 6), ()), place(mesh, (6, N), (), 1)

    def f(x: Any, y: Any) -> Any:
        x = jax.lax.with_sharding_constraint(x * 1, NamedSharding(mesh, P(None, "x")))
        y = jax.lax.with_sharding_constraint(y * 1, NamedSharding(mesh, P("x")))
        return bw.matmul(x, y)

    out, _ = compile_and_run(f, a, b)
    assert_exact(out, jnp.matmul(np.asarray(a), np.asarray(b)))


@pytest.mark.parametrize("check_vma", [True, False])
def test_shard_map(mesh: Any, check_vma: bool) -> None:
    x, w = place(mesh, (8, M, K), ("x",)), place(mesh, (K, N), (), 1)

    @functools.partial(
        jax.shard_map,
        mesh=mesh,
        in_specs=(P("x"), P()),
        out_specs=(P("x"), P()),
        check_vma=check_vma,
    )
    def gradients(x: Any, w: Any) -> Any:
        gx, gw = jax.grad(functools.partial(loss, bw.matmul), argnums=(0, 1))(x, w)
        # With check_vma the gradient of the replicated operand is already summed.
        return gx, gw if check_vma else jax.lax.psum(gw, "x")

    out, found = compile_and_run(gradients, x, w)
    want = jax.grad(functools.partial(loss, jnp.matmul), (0, 1))(np.asarray(x), np.asarray(w))
    for got, expected in zip(out, want, strict=True):
        assert_exact(got, expected)
    assert found == {"all-reduce": 1}


def test_gradient_of_a_replicated_operand_through_shard_map(mesh: Any) -> None:
    x, w = place(mesh, (8, M, K), ("x",)), place(mesh, (K, N), (), 1)

    @functools.partial(
        jax.shard_map, mesh=mesh, in_specs=(P("x"), P()), out_specs=P(), check_vma=True
    )
    def total(x: Any, w: Any) -> Any:
        return jax.lax.psum(loss(bw.matmul, x, w), "x")

    out, _ = compile_and_run(jax.grad(total, argnums=(0, 1)), x, w)
    want = jax.grad(functools.partial(loss, jnp.matmul), (0, 1))(np.asarray(x), np.asarray(w))
    for got, expected in zip(out, want, strict=True):
        assert_exact(got, expected)


def partly_manual(mesh: Any, implementation: Any = None) -> Callable:
    return jax.jit(
        jax.shard_map(
            lambda x, w: bw.matmul(x, w, implementation=implementation),
            mesh=mesh,
            in_specs=(P("x"), P()),
            out_specs=P("x"),
            axis_names={"x"},
        )
    )


def test_partly_manual_shard_map_is_left_to_xla(
    mesh: Any, caplog: pytest.LogCaptureFixture
) -> None:
    log_once.cache_clear()
    x, w = place(mesh, (8, M, K), ("x",)), place(mesh, (K, N), (None, "y"), 1)
    with caplog.at_level(logging.INFO, "jax_bwgemm"):
        out, found = compile_and_run(partly_manual(mesh), x, w)
    assert_exact(out, jnp.matmul(np.asarray(x), np.asarray(w)))
    assert found == {}
    assert "not cutlass (mesh axes ('y',) are automatic inside shard_map)" in caplog.text


def test_partly_manual_shard_map_refuses_kernels_only(mesh: Any) -> None:
    x, w = place(mesh, (8, M, K), ("x",)), place(mesh, (K, N), (None, "y"), 1)
    with pytest.raises(NotImplementedError) as caught:
        partly_manual(mesh, "cutlass").lower(x, w)
    assert str(caught.value) == (
        "implementation='cutlass' cannot run GEMM bfloat16 x bfloat16 -> bfloat16, majors kn, "
        "M=16 N=32 K=16 batch=2 (B shared): mesh axes ('y',) are automatic inside shard_map"
    )


def test_automatic_axes_of_size_one_do_not_matter(cpu_devices: list[jax.Device]) -> None:
    auto = (AxisType.Auto,) * 2
    mesh = jax.make_mesh((8, 1), ("x", "y"), axis_types=auto, devices=cpu_devices)
    x, w = place(mesh, (8, M, K), ("x",)), place(mesh, (K, N), (), 1)
    with bw.config.target("sm90"):
        traced = partly_manual(mesh, "cutlass").trace(x, w)
        text = traced.lower(lowering_platforms=("cuda",)).as_text()
    assert text.count("@bwgemm.product.v2") == 1


def test_pmap(cpu_devices: list[jax.Device]) -> None:
    rng = np.random.default_rng(0)
    x, w = small_integers(rng, (8, M, K), "bfloat16"), small_integers(rng, (K, N), "bfloat16")

    def gradient(matmul: Callable) -> Callable:
        return lambda x, w: jax.grad(functools.partial(loss, matmul), argnums=1)(x, w)

    mapped = jax.pmap(
        lambda x, w: jax.lax.psum(gradient(bw.matmul)(x, w), "i"),
        axis_name="i",
        in_axes=(0, None),
        devices=cpu_devices,
    )
    for row in mapped(x, w):
        assert_exact(row, gradient(jnp.matmul)(x, w))


EXPLICIT = {
    "data": (("x",), (), {"all-reduce": 1}),
    "sequence": ((None, "x"), (), {"all-reduce": 1}),
    "data and columns": (("x",), (None, "y"), {"all-reduce": 2}),
}


@pytest.mark.parametrize("name", EXPLICIT)
def test_explicit_mesh_axes(cpu_devices: list[jax.Device], name: str) -> None:
    x_spec, w_spec, expected = EXPLICIT[name]
    mesh = mesh_of(cpu_devices, AxisType.Explicit)
    with jax.set_mesh(mesh):
        x, w = place(mesh, (8, M, K), x_spec), place(mesh, (K, N), w_spec, 1)
        out, found = compile_and_run(
            lambda *args: jax.grad(functools.partial(loss, bw.matmul), (0, 1))(*args), x, w
        )
        forward = jax.jit(lambda *args: bw.matmul(*args))(x, w)
        assert jax.typeof(forward).sharding == jax.typeof(jnp.matmul(x, w)).sharding
    want = jax.grad(functools.partial(loss, jnp.matmul), (0, 1))(np.asarray(x), np.asarray(w))
    for got, gradient, operand in zip(out, want, (x, w), strict=True):
        assert_exact(got, gradient)
        assert jax.typeof(got).sharding.spec == jax.typeof(operand).sharding.spec
    assert found == expected


@pytest.mark.parametrize(
    ("out_spec", "expected"),
    [(("x", None, None), {"all-reduce": 1}), (("x", "y", None), {"reduce-scatter": 1})],
)
def test_out_sharding(cpu_devices: list[jax.Device], out_spec: Any, expected: Any) -> None:
    mesh = mesh_of(cpu_devices, AxisType.Explicit)
    with jax.set_mesh(mesh):
        x, w = place(mesh, (8, M, K), ("x", None, "y")), place(mesh, (K, N), ("y",), 1)
        out, found = compile_and_run(lambda x, w: bw.matmul(x, w, out_sharding=P(*out_spec)), x, w)
        assert jax.typeof(out).sharding.spec == P(*out_spec)
    assert_exact(out, jnp.matmul(np.asarray(x), np.asarray(w)))
    assert found == expected


def test_explicitly_sharded_dimensions_that_would_merge_go_to_xla(
    cpu_devices: list[jax.Device],
) -> None:
    mesh = mesh_of(cpu_devices, AxisType.Explicit)
    with jax.set_mesh(mesh):
        x, w = place(mesh, (8, 2, M, K), ("x", None, "y")), place(mesh, (K, N), (), 1)
        jaxpr = jax.make_jaxpr(bw.matmul)(x, w)
        assert "bw_gemm" not in str(jaxpr)
        assert_exact(bw.matmul(x, w), jnp.matmul(np.asarray(x), np.asarray(w)))
        inner = jax.vmap(bw.matmul, in_axes=(1, None))(x, w)
    want = jax.vmap(jnp.matmul, in_axes=(1, None))(np.asarray(x), np.asarray(w))
    assert_exact(inner, want)
