"""Arrays that belong to a mesh change nothing about what is fused."""

from __future__ import annotations

import contextlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from jaxprs import assert_defined_once
from numerics import LINKED, normal

import jax_bwgemm as bw
from jax_bwgemm.epilogue.primitive import bw_gemm_epilogue_p
from jax_bwgemm.product.implementations import DEFAULT_IMPLEMENTATIONS
from jax_bwgemm.product.jaxprs import equations
from jax_bwgemm.rewriting.rewrite import rewrite

M, K, N = 128, 192, 256
F32 = jnp.float32
pytestmark = pytest.mark.usefixtures("everything_links")


def operands() -> tuple[dict[str, jax.Array], jax.Array]:
    rng = np.random.default_rng(0)
    shapes = {"w": (K, N), "b": (N,), "v": (N, K), "c": (K,)}
    found = {
        name: jnp.asarray(normal(rng, s, "bfloat16")) * jnp.bfloat16(0.1)
        for name, s in shapes.items()
    }
    return found, jnp.asarray(normal(rng, (M, K), "bfloat16"))


def loss(p: dict[str, jax.Array], x: jax.Array) -> jax.Array:
    y = jax.nn.gelu(x @ p["w"] + p["b"]) @ p["v"] + p["c"]
    return jnp.mean(y.astype(F32) ** 2)


def primitives(f: Any, *args: Any) -> list[str]:
    """Of the rewritten program: products and transposes."""
    assert_defined_once(rewrite(jax.make_jaxpr(f)(*args), DEFAULT_IMPLEMENTATIONS)[0])
    jaxpr = jax.make_jaxpr(bw.accelerate(f))(*args)
    names = [e.primitive.name for e, _ in equations(jaxpr)]
    return sorted(n for n in names if n.startswith("bw_gemm") or n == "transpose")


def assert_close(got: Any, want: Any) -> None:
    """Gradients are compared by their largest value."""
    for ours, theirs in zip(*map(jax.tree.leaves, (got, want)), strict=True):
        scale = max(float(jnp.max(jnp.abs(theirs.astype(F32)))), 1e-6)
        ours, theirs = (np.asarray(x.astype(F32)) / scale for x in (ours, theirs))
        np.testing.assert_allclose(ours, theirs, rtol=4 * LINKED["rtol"], atol=4 * LINKED["atol"])


@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("how", ["sharding", "set_mesh", "shard_map", "shard_map and set_mesh"])
def test_a_step_is_fused_as_without_a_mesh(
    how: str, devices: int, cpu_devices: list[jax.Device]
) -> None:
    params, x = operands()
    step = jax.value_and_grad(loss)
    want = primitives(step, params, x)
    assert want.count(bw_gemm_epilogue_p.name) == 3
    expected = jax.jit(step)(params, x)
    mesh = jax.make_mesh(
        (devices,), ("d",), axis_types=(AxisType.Auto,), devices=cpu_devices[:devices]
    )
    f: Any = step
    if "shard_map" in how:

        def part(p: Any, x: Any) -> Any:
            return jax.tree.map(lambda g: jax.lax.pmean(g, "d"), step(p, x))

        specs = (P(), P("d"))
        f = jax.shard_map(part, mesh=mesh, in_specs=specs, out_specs=P(), check_vma=False)
    elif how == "sharding":
        place = NamedSharding(mesh, P())
        params, x = jax.device_put((params, x), place)
    within = jax.set_mesh(mesh) if "set_mesh" in how else contextlib.nullcontext()
    with within:
        assert primitives(f, params, x) == want
        assert_close(jax.jit(bw.accelerate(f))(params, x), expected)


@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("rows", ["sharded", "replicated"])
def test_a_step_on_explicit_axes(rows: str, devices: int, cpu_devices: list[jax.Device]) -> None:
    """Gradients' types say what their operands' do. The weights' contract sharded rows: no less."""
    params, x = operands()
    step = jax.value_and_grad(loss)
    expected = jax.jit(step)(params, x)
    mesh = jax.make_mesh(
        (devices,), ("d",), axis_types=(AxisType.Explicit,), devices=cpu_devices[:devices]
    )
    with jax.set_mesh(mesh):
        params = jax.device_put(params, NamedSharding(mesh, P()))
        x = jax.device_put(x, NamedSharding(mesh, P("d" if rows == "sharded" else None)))
        assert primitives(step, params, x).count(bw_gemm_epilogue_p.name) == 3
        got = jax.jit(bw.accelerate(step))(params, x)
        types = jax.tree.map(jax.typeof, jax.jit(step)(params, x))
    assert jax.tree.map(jax.typeof, got) == types
    assert_close(got, expected)


def test_arrays_from_outside_of_explicit_axes(cpu_devices: list[jax.Device]) -> None:
    """Scalars within the model name the mesh, its arrays none."""
    params, x = operands()
    step = jax.value_and_grad(loss)
    expected = jax.jit(step)(params, x)
    mesh = jax.make_mesh((2,), ("d",), axis_types=(AxisType.Explicit,), devices=cpu_devices[:2])
    with jax.set_mesh(mesh):
        assert primitives(step, params, x).count(bw_gemm_epilogue_p.name) >= 2
        assert_close(jax.jit(bw.accelerate(step))(params, x), expected)


@pytest.mark.parametrize("kind", ["explicit axes", "partly manual"])
def test_types_that_name_a_mesh_pass_jax_checks(kind: str, cpu_devices: list[jax.Device]) -> None:
    """`jax_enable_checks` compares the types of a function's variables with its arguments'."""
    params, x = operands()
    f: Any = lambda x, w: jax.nn.gelu(x @ w)  # noqa: E731
    if kind == "explicit axes":
        mesh = jax.make_mesh((2,), ("d",), axis_types=(AxisType.Explicit,), devices=cpu_devices[:2])
        x = jax.device_put(x, NamedSharding(mesh, P("d")))
        w = jax.device_put(params["w"], NamedSharding(mesh, P()))
    else:
        mesh = jax.make_mesh(
            (2, 2), ("d", "e"), axis_types=(AxisType.Auto,) * 2, devices=cpu_devices[:4]
        )
        f, w = (
            jax.shard_map(f, mesh=mesh, in_specs=(P("d"), P()), out_specs=P("d"), axis_names={"d"}),
            params["w"],
        )
    with jax.enable_checks(True), jax.set_mesh(mesh):
        got, want = jax.jit(bw.accelerate(f))(x, w), jax.jit(f)(x, w)
    assert_close(got, want)
