"""Sharded grouped GEMMs on 8 CPU devices: values, and the collectives in the compiled HLO."""

from __future__ import annotations

import functools
import logging
import re
from collections.abc import Callable
from typing import Any

import grouped_oracle as oracle
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

M, N, K, E = 16, 16, 8, 8
SIZES = np.array([3, 0, 5, 1, 0, 0, 2, 4], np.int32)  # one row is of no group
AUTO = (AxisType.Auto, AxisType.Auto)


@pytest.fixture(scope="module")
def mesh(cpu_devices: list[jax.Device]) -> jax.sharding.Mesh:
    return mesh_of(cpu_devices)


def values(shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    return small_integers(np.random.default_rng(seed), shape, "bfloat16")


LHS, RHS = values((M, K)), values((E, K, N), 1)


def place(mesh: Any, x: Any, spec: Any) -> jax.Array:
    return jax.device_put(x, NamedSharding(mesh, P(*spec)))


def loss(a: Any, b: Any, sizes: Any, **kwargs: Any) -> Any:
    # The cotangent is the sign of the result: gradients are small integers, exact in bf16 in any
    # order of summation, and sharded as the result is.
    out = bw.ragged_dot(a, b, sizes, **kwargs)
    return jnp.sum((jax.lax.stop_gradient(jnp.sign(out)) * out).astype(jnp.float32))


gradients = jax.grad(loss, (0, 1))


def expected_out(lhs: Any = LHS, rhs: Any = RHS, sizes: Any = SIZES) -> np.ndarray:
    return oracle.rows(lhs, rhs, sizes).astype(jnp.bfloat16)


def expected_gradients(lhs: Any = LHS, rhs: Any = RHS, sizes: Any = SIZES) -> list[np.ndarray]:
    ct = np.sign(oracle.rows(lhs, rhs, sizes))
    pair = oracle.rows(ct, rhs.swapaxes(1, 2), sizes), oracle.contract(lhs, ct, sizes, 0, len(rhs))
    return [x.astype(jnp.bfloat16) for x in pair]


FORWARD = {
    # name: (lhs spec, rhs spec, collectives)
    "nothing": ((), (), {}),
    "rows": (("x",), (), {}),
    "rows over both axes": ((("x", "y"),), (), {}),
    "columns": ((), (None, None, "x"), {}),
    "rows and columns": (("x",), (None, None, "y"), {}),
    "contracted": ((None, "x"), (None, "x"), {"all-reduce": 1}),
    "experts": ((), ("x",), {"all-reduce": 1}),
    "experts over both axes": ((), (("x", "y"),), {"all-reduce": 1}),
    "rows and experts": (("x",), ("y",), {"all-reduce": 1}),
    "rows and experts over the same axis": (("x",), ("x",), {"all-gather": 1, "reduce-scatter": 1}),
}


@pytest.mark.parametrize("name", FORWARD)
def test_forward(mesh: Any, name: str) -> None:
    lhs_spec, rhs_spec, expected = FORWARD[name]
    args = place(mesh, LHS, lhs_spec), place(mesh, RHS, rhs_spec), place(mesh, SIZES, ())
    out, found = compile_and_run(lambda a, b, s: bw.ragged_dot(a, b, s), *args)
    assert_exact(out, expected_out())
    assert found == expected


BACKWARD = {
    # Collectives of both gradients, which are sharded as the operands are.
    "rows": (("x",), (), {"all-reduce": 1}),
    "columns": ((), (None, None, "x"), {"all-reduce": 1}),
    # Forward for the signs, and the gradient of the rows; that of the experts is local.
    "experts": ((), ("x",), {"all-reduce": 2}),
    "rows and fully sharded weights": (
        ("x",),
        (None, "x"),
        {"all-gather": 1, "reduce-scatter": 1},
    ),
}


@pytest.mark.parametrize("name", BACKWARD)
def test_gradients(mesh: Any, name: str) -> None:
    lhs_spec, rhs_spec, expected = BACKWARD[name]
    args = place(mesh, LHS, lhs_spec), place(mesh, RHS, rhs_spec), place(mesh, SIZES, ())
    shardings = tuple(x.sharding for x in args[:2])
    out, found = compile_and_run(lambda a, b, s: gradients(a, b, s), *args, out_shardings=shardings)
    for got, want in zip(out, expected_gradients(), strict=True):
        assert_exact(got, want)
    assert found == expected


def test_group_offset_and_experts_of_a_part(mesh: Any) -> None:
    """Four of the eight groups' matrices, sharded: each device's offset starts at the user's."""
    args = place(mesh, LHS, ()), place(mesh, RHS[:4], ("x",)), place(mesh, SIZES, ())
    out, _ = compile_and_run(
        lambda a, b, s, o: bw.ragged_dot(a, b, s, group_offset=o), *args, np.int32(2)
    )
    assert_exact(out, oracle.rows(LHS, RHS[:4], SIZES, 2).astype(jnp.bfloat16))


@pytest.mark.parametrize("offset", [-3, E + 3])
def test_an_offset_is_clamped_before_it_is_divided(mesh: Any, offset: int) -> None:
    """Each device adds the number of its first matrix to what the offset is on one device."""
    args = place(mesh, LHS, ()), place(mesh, RHS, ("x",)), place(mesh, SIZES, ())
    f = lambda a, b, s, o: bw.ragged_dot(a, b, s, group_offset=o)  # noqa: E731
    out, _ = compile_and_run(f, *args, jnp.int32(offset))
    assert_exact(out, expected_out() * (offset < 0))


def test_batch_is_local(mesh: Any) -> None:
    lhs, sizes = values((4, M, K)), np.stack([SIZES, SIZES[::-1], SIZES * 0, SIZES])
    args = place(mesh, lhs, ("x",)), place(mesh, RHS, (None, None, "y")), place(mesh, sizes, ("x",))
    mapped = jax.vmap(bw.ragged_dot, in_axes=(0, None, 0))
    out, found = compile_and_run(lambda a, b, s: mapped(a, b, s), *args)
    for one, a, s in zip(out, lhs, sizes, strict=True):
        assert_exact(one, expected_out(a, RHS, s))
    assert found == {}
    assert out.sharding.is_equivalent_to(NamedSharding(mesh, P("x", None, "y")), 3)


def test_gradient_of_shared_matrices_over_a_sharded_batch(mesh: Any) -> None:
    lhs, sizes = values((4, M, K)), np.stack([SIZES, SIZES[::-1], SIZES * 0, SIZES])
    args = place(mesh, lhs, ("x",)), place(mesh, RHS, ()), place(mesh, sizes, ("x",))

    def total(a: Any, b: Any, s: Any) -> Any:
        return jax.vmap(loss, in_axes=(0, None, 0))(a, b, s).sum()

    out, found = compile_and_run(lambda *a: jax.grad(total, 1)(*a), *args)
    each = [expected_gradients(a, RHS, s)[1] for a, s in zip(lhs, sizes, strict=True)]
    assert_exact(out, np.sum(np.stack(each).astype(np.float32), 0).astype(jnp.bfloat16))
    assert found == {"all-reduce": 1}


@pytest.mark.parametrize("check_vma", [True, False])
def test_expert_parallel_by_hand(mesh: Any, check_vma: bool) -> None:
    """What users write: an offset for each device, and a sum."""

    @functools.partial(
        jax.shard_map,
        mesh=mesh,
        in_specs=(P(), P("x"), P()),
        out_specs=P(),
        check_vma=check_vma,
    )
    def layer(a: Any, b: Any, s: Any) -> Any:
        first = jax.lax.axis_index("x") * b.shape[0]
        return jax.lax.psum(bw.ragged_dot(a, b, s, group_offset=first), "x")

    def total(a: Any, b: Any, s: Any) -> Any:
        out = layer(a, b, s)
        return jnp.sum((jax.lax.stop_gradient(jnp.sign(out)) * out).astype(jnp.float32))

    args = place(mesh, LHS, ()), place(mesh, RHS, ("x",)), place(mesh, SIZES, ())
    out, found = compile_and_run(lambda *a: jax.value_and_grad(total, (0, 1))(*a)[1], *args)
    for got, want in zip(out, expected_gradients(), strict=True):
        assert_exact(got, want)
    if check_vma:  # without it, psum does not know that its cotangent is the same everywhere
        assert found == {"all-reduce": 2}


@pytest.mark.parametrize("check_vma", [True, False])
def test_shard_map_over_the_batch(mesh: Any, check_vma: bool) -> None:
    lhs = values((4, M, K))

    @functools.partial(
        jax.shard_map,
        mesh=mesh,
        in_specs=(P("x"), P(), P()),
        out_specs=(P("x"), P()),
        check_vma=check_vma,
    )
    def both(a: Any, b: Any, s: Any) -> Any:
        d_lhs, d_rhs = gradients(a[0], b, s)
        # With check_vma the gradient of the replicated operand is already summed.
        return d_lhs[None], d_rhs if check_vma else jax.lax.psum(d_rhs, "x")

    args = place(mesh, lhs, ("x",)), place(mesh, RHS, ()), place(mesh, SIZES, ())
    (d_lhs, d_rhs), found = compile_and_run(both, *args)
    each = [expected_gradients(a) for a in lhs]
    assert_exact(d_lhs, np.stack([pair[0] for pair in each]))
    total = np.sum(np.stack([pair[1] for pair in each]).astype(np.float32), 0)
    assert_exact(d_rhs, total.astype(jnp.bfloat16))
    assert found == {"all-reduce": 1}


def partly_manual(mesh: Any, implementation: Any = None) -> Callable:
    return jax.jit(
        jax.shard_map(
            lambda a, b, s: bw.ragged_dot(a[0], b, s, implementation=implementation)[None],
            mesh=mesh,
            in_specs=(P("x"), P(), P()),
            out_specs=P("x"),
            axis_names={"x"},
        )
    )


def test_partly_manual_shard_map_is_left_to_xla(
    mesh: Any, caplog: pytest.LogCaptureFixture
) -> None:
    log_once.cache_clear()
    args = place(mesh, values((4, M, K)), ("x",)), place(mesh, RHS, (None, None, "y"))
    sizes = place(mesh, SIZES, ())
    with caplog.at_level(logging.INFO, "jax_bwgemm"):
        out, _ = compile_and_run(partly_manual(mesh), *args, sizes)
    for one, a in zip(out, values((4, M, K)), strict=True):
        assert_exact(one, expected_out(a))
    assert "not cutlass (mesh axes ('y',) are automatic inside shard_map)" in caplog.text
    with pytest.raises(NotImplementedError) as caught:
        partly_manual(mesh, "cutlass").lower(*args, sizes)
    assert str(caught.value).endswith(": mesh axes ('y',) are automatic inside shard_map")


def test_pmap(cpu_devices: list[jax.Device]) -> None:
    lhs = values((8, M, K))
    mapped = jax.pmap(
        lambda a, b, s: jax.lax.psum(gradients(a, b, s)[1], "i"),
        axis_name="i",
        in_axes=(0, None, None),
        devices=cpu_devices,
    )
    total = sum(expected_gradients(a)[1].astype(np.float32) for a in lhs)
    for row in mapped(lhs, RHS, SIZES):
        assert_exact(row, total.astype(jnp.bfloat16))


EXPLICIT = {
    "rows": (("x",), (), {"all-reduce": 1}),
    "experts": ((), ("x",), {"all-reduce": 2}),
    "rows and columns": (("x",), (None, None, "y"), {"all-reduce": 2}),
}


@pytest.mark.parametrize("name", EXPLICIT)
def test_explicit_mesh_axes(cpu_devices: list[jax.Device], name: str) -> None:
    lhs_spec, rhs_spec, expected = EXPLICIT[name]
    mesh = mesh_of(cpu_devices, AxisType.Explicit)
    with jax.set_mesh(mesh):
        args = place(mesh, LHS, lhs_spec), place(mesh, RHS, rhs_spec), place(mesh, SIZES, ())
        out, found = compile_and_run(lambda *a: gradients(*a), *args)
        forward = jax.eval_shape(bw.ragged_dot, *args)
    for got, want, operand in zip(out, expected_gradients(), args, strict=False):
        assert_exact(got, want)
        assert jax.typeof(got).sharding.spec == jax.typeof(operand).sharding.spec
    assert found == expected
    entry = lhs_spec[0] if lhs_spec else None
    columns = rhs_spec[2] if len(rhs_spec) == 3 else None
    assert forward.sharding.spec == P(entry, columns)


@pytest.mark.parametrize("shape", [(E,), (E, 1), (E, N)])
@pytest.mark.parametrize("sizes_spec", [(), ("x",)])
@pytest.mark.parametrize(
    ("lhs_spec", "rhs_spec"), [((), ("x",)), (("x",), ("x",)), (("x",), ("y",)), (("y",), ())]
)
def test_epilogue_on_explicit_mesh_axes(
    cpu_devices: list[jax.Device],
    lhs_spec: Any,
    rhs_spec: Any,
    sizes_spec: Any,
    shape: tuple[int, ...],
) -> None:
    """Its operands of groups and the group sizes may be sharded, as matrices are or otherwise."""
    mesh = mesh_of(cpu_devices, AxisType.Explicit)
    bias = values(shape, 2)

    def f(a: Any, b: Any, sizes: Any, bias: Any) -> Any:
        return bw.ragged_dot(
            a, b, sizes, epilogue=lambda z, v: z + v, epilogue_group_operands=(bias,)
        )

    def total(bias: Any, *args: Any) -> Any:
        return jnp.sum(f(*args, bias).astype(jnp.float32))

    with jax.set_mesh(mesh):
        args = (
            place(mesh, LHS, lhs_spec),
            place(mesh, RHS, rhs_spec),
            place(mesh, SIZES, sizes_spec),
        )
        placed = place(mesh, bias, rhs_spec)
        out, gradient = jax.jit(f)(*args, placed), jax.jit(jax.grad(total))(placed, *args)
        plain = jax.eval_shape(bw.ragged_dot, *args)
        assert jax.typeof(out).sharding.spec == plain.sharding.spec
        assert jax.typeof(gradient).sharding.spec == jax.typeof(placed).sharding.spec
    rows = np.broadcast_to(np.asarray(bias, np.float32).reshape(E, -1), (E, N)).repeat(SIZES, 0)
    want = expected_out().astype(np.float32)
    want[: len(rows)] += rows
    assert_exact(out, want.astype(jnp.bfloat16))
    columns = 1 if shape == (E, N) else N
    counts = SIZES.reshape(E, *[1] * (len(shape) - 1)) * columns
    assert_exact(gradient, np.broadcast_to(counts, shape).astype(jnp.bfloat16))


@pytest.mark.parametrize(
    ("out_spec", "expected"), [((), {"all-reduce": 1}), (("x",), {"reduce-scatter": 1})]
)
def test_out_sharding(cpu_devices: list[jax.Device], out_spec: Any, expected: Any) -> None:
    """The contracted dimension sharded in both operands: only the user knows what they want."""
    mesh = mesh_of(cpu_devices, AxisType.Explicit)
    with jax.set_mesh(mesh):
        args = place(mesh, LHS, (None, "x")), place(mesh, RHS, (None, "x")), place(mesh, SIZES, ())
        f = functools.partial(bw.ragged_dot, out_sharding=P(*out_spec))
        out, found = compile_and_run(lambda *a: f(*a), *args)
        assert jax.typeof(out).sharding.spec == P(*out_spec, *[None] * (2 - len(out_spec)))
        pullback = jax.jit(lambda a, b, s: jax.vjp(lambda x, y: f(x, y, s), a, b)[1](f(a, b, s)))
        back = pullback(*args)
    assert_exact(out, expected_out())
    assert found == expected
    for gradient, operand in zip(back, args, strict=False):
        assert jax.typeof(gradient).sharding.spec == jax.typeof(operand).sharding.spec


def test_out_sharding_of_a_batch_that_would_merge(cpu_devices: list[jax.Device]) -> None:
    """Heads and rows of the result merge in the kernel: replicated there, sharded afterwards."""
    numbers = jax.lax.RaggedDotDimensionNumbers((((2,), (1,)), ((), ())), (0,), (0,))
    lhs = values((M, 2, K))
    with jax.set_mesh(mesh_of(cpu_devices, AxisType.Explicit)):
        f = functools.partial(bw.ragged_dot_general, ragged_dot_dimension_numbers=numbers)
        out = jax.jit(functools.partial(f, out_sharding=P("x", "y")))(lhs, RHS, SIZES)
        assert jax.typeof(out).sharding.spec == P("x", "y", None)
    assert_exact(out, np.stack([expected_out(lhs[:, i]) for i in range(2)], 1))


def test_out_sharding_beside_a_dimension_of_one(cpu_devices: list[jax.Device]) -> None:
    """With one head nothing merges: the sum is scattered where it is computed."""
    numbers = jax.lax.RaggedDotDimensionNumbers((((2,), (1,)), ((), ())), (0,), (0,))
    mesh = mesh_of(cpu_devices, AxisType.Explicit)
    with jax.set_mesh(mesh):
        args = place(mesh, LHS[:, None], (None, None, "x")), place(mesh, RHS, (None, "x"))
        f = functools.partial(
            bw.ragged_dot_general, ragged_dot_dimension_numbers=numbers, out_sharding=P("x")
        )
        out, found = compile_and_run(lambda *a: f(*a), *args, place(mesh, SIZES, ()))
        assert jax.typeof(out).sharding.spec == P("x", None, None)
    assert_exact(out, expected_out()[:, None])
    assert found == {"reduce-scatter": 1}


def test_the_loop_of_xla_is_partitioned_too(mesh: Any) -> None:
    """Types without kernels: the same rules, so the loop never sees a sharded array."""
    lhs, rhs = LHS.astype(np.float32), RHS.astype(np.float32)
    args = place(mesh, lhs, ("x",)), place(mesh, rhs, ("y",)), place(mesh, SIZES, ())
    out, found = compile_and_run(lambda a, b, s: bw.ragged_dot(a, b, s), *args)
    assert_exact(out, oracle.rows(lhs, rhs, SIZES).astype(np.float32))
    assert found == {"all-reduce": 1}


def test_kernels_of_one_device_are_selected_for_its_part(cpu_devices: list[jax.Device]) -> None:
    """Lowered for CUDA under shard_map: one call, of the local sizes."""
    mesh = jax.make_mesh((8,), ("x",), axis_types=AUTO[:1], devices=cpu_devices)
    f = jax.shard_map(
        lambda a, b, s: bw.ragged_dot(a, b, s, group_offset=jax.lax.axis_index("x")),
        mesh=mesh,
        in_specs=(P(), P("x"), P()),
        out_specs=P("x"),
    )
    with bw.config.target("sm90"):
        traced = jax.jit(f).trace(LHS, RHS, SIZES)
        text = traced.lower(lowering_platforms=("cuda",)).as_text()
    (call,) = re.findall(r"custom_call @bwgemm\.product\.v2\(.*", text)
    assert f"tensor<1x{M}x{K}xbf16>, tensor<1x1x{K}x{N}xbf16>, tensor<1x{E}xi32>" in call
