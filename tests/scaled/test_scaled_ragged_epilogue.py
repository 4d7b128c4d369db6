"""`scaled_ragged_dot` with an epilogue that kernels may have: results, rules and decisions."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from numerics import assert_exact
from ragged_cases import exact_pair, expected

import jax_bwgemm as bw
from jax_bwgemm import config
from jax_bwgemm.epilogue import scaled_grouped_call
from jax_bwgemm.epilogue.linkable import linkable_kernels
from jax_bwgemm.epilogue.scaled_primitive import bw_scaled_ragged_epilogue_p
from jax_bwgemm.product.jaxprs import equations
from jax_bwgemm.rewriting import fuse

F32 = jnp.float32
SHAPE = (300, 48, 256)
SIZES = np.array([100, 0, 40, 130])
BIAS = jnp.arange(4 * 48, dtype=F32).reshape(4, 48) % 5
CUTLASS_OR_XLA = ("cutlass", "xla")


@pytest.fixture(autouse=True)
def _linked(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The primitive is bound as for an SM90, and computed by XLA."""
    monkeypatch.setattr(fuse, "link_refusal", lambda *_: None)
    with config.target("sm90"), config.linked_epilogues(True):
        yield


def pair(scaling: str = "1x128") -> tuple[Any, Any]:
    layouts = scaling, "128x128" if scaling == "1x128" else scaling
    return exact_pair("m-grouped", layouts, SHAPE, len(SIZES))


def call(a: Any, b: Any, bias: Any, sizes: Any = SIZES, **options: Any) -> Any:
    return bw.scaled_ragged_dot(
        a,
        b,
        sizes,
        implementation=CUTLASS_OR_XLA,
        epilogue=lambda z, x: (jnp.maximum(z + x, 0), (z > 0).astype(jnp.int32)),
        epilogue_group_operands=(bias,),
        **options,
    )


def bound(f: Any, *args: Any) -> list[Any]:
    found = equations(jax.make_jaxpr(f)(*args))
    return [e for e, _ in found if e.primitive is bw_scaled_ragged_epilogue_p]


def biases() -> np.ndarray:
    ends = np.cumsum(SIZES)
    rows = np.zeros((SHAPE[0], SHAPE[1]), np.float32)
    for size, end, bias in zip(SIZES, ends, np.asarray(BIAS), strict=True):
        rows[end - size : end] = bias
    return rows


@pytest.mark.parametrize("scaling", ["tensor", "row", "1x128", "mxfp8", "nvfp4"])
def test_results(scaling: str) -> None:
    a, b = pair(scaling)
    z = jnp.asarray(expected(a, b, SIZES), jnp.bfloat16).astype(F32)
    for f in (call, jax.jit(call)):
        got, positive = f(a, b, BIAS)
        assert_exact(got, jnp.maximum(z + biases(), 0).astype(jnp.bfloat16))
        assert_exact(positive, (z > 0).astype(jnp.int32))


def test_one_primitive_where_a_kernel_may_take_it() -> None:
    a, b = pair()
    (eqn,) = bound(call, a, b, BIAS)
    assert [x.axes for x in eqn.params["fused"].program.operands] == [(2, 1)]
    with config.linked_epilogues(False):
        assert not bound(call, a, b, BIAS)


def test_explained() -> None:
    text = str(bw.explain_program(lambda *args: call(*args), *pair(), BIAS))
    assert "scaled m-grouped GEMM float8_e4m3fn 1x128 x float8_e4m3fn 128x128" in text
    assert "the epilogue is" in text


def test_mapped() -> None:
    a, b = pair()
    scales = jnp.stack([a.scales, a.scales * 2])

    def of(scales: Any) -> Any:
        return call(bw.ScaledArray(a.values, scales, a.scaling), b, BIAS)[0]

    z = jnp.asarray(expected(a, b, SIZES) * 2, jnp.bfloat16).astype(F32)
    got = jax.jit(jax.vmap(of))(scales)[1]
    assert_exact(got, jnp.maximum(z + biases(), 0).astype(jnp.bfloat16))


@pytest.mark.parametrize("spec", [P(), P("x")], ids=str)
def test_on_explicit_mesh_axes(cpu_devices: list[jax.Device], spec: P) -> None:
    """Operands of groups, sharded as matrices are, and sharded group sizes."""
    a, b = pair("row")
    mesh = jax.make_mesh((2,), ("x",), axis_types=(AxisType.Explicit,), devices=cpu_devices[:2])
    want = call(a, b, BIAS)
    with jax.set_mesh(mesh):
        b, bias, sizes = jax.device_put((b, BIAS, jnp.asarray(SIZES)), NamedSharding(mesh, P("x")))
        a = jax.device_put(a, NamedSharding(mesh, spec))
        got = jax.jit(call)(a, b, bias, sizes)
        assert all(jax.typeof(x).sharding.spec == P(*spec, *[None] * (2 - len(spec))) for x in got)
    for ours, theirs in zip(got, want, strict=True):
        assert_exact(ours, theirs)


def test_derivative_of_operands_alone() -> None:
    a, b = pair()

    def loss(bias: Any, scales: Any = a.scales) -> Any:
        x = bw.ScaledArray(a.values, scales, a.scaling)
        return jnp.sum(call(x, b, bias, preferred_element_type=F32)[0])

    z = expected(a, b, SIZES)
    active = (z + biases() > 0) + 0.5 * (z + biases() == 0)
    ends = np.cumsum(SIZES)
    want = [active[e - s : e].sum(0) for s, e in zip(SIZES, ends, strict=True)]
    assert_exact(jax.grad(loss)(BIAS), np.stack(want).astype(np.float32))
    for f in (loss, bw.accelerate(loss)):
        with pytest.raises(TypeError, match="scaled_ragged_dot is not differentiable"):
            jax.grad(f, 1)(BIAS, a.scales)


def test_accelerated_products_have_no_derivative_either() -> None:
    a, b = pair()

    def loss(scales: Any) -> Any:
        x = bw.ScaledArray(a.values, scales, a.scaling)
        return jnp.sum(bw.scaled_ragged_dot(x, b, SIZES).astype(F32))

    with pytest.raises(TypeError, match="scaled_ragged_dot is not differentiable"):
        jax.grad(bw.accelerate(loss))(a.scales)


def test_why_kernels_leave_an_epilogue_to_xla(monkeypatch: pytest.MonkeyPatch) -> None:
    (eqn,) = bound(call, *pair(), BIAS)
    fused = eqn.params["fused"]
    types = [x.aval for x in fused.factors(eqn.invars)[0]]

    def reason(factors: Any = types, **changes: Any) -> str:
        found = dataclasses.replace(fused, **changes).choose("cutlass", "cuda", factors)
        assert isinstance(found, str)
        return found

    summed = dataclasses.replace(fused.program, summed=(0,))
    assert reason(program=summed) == "grouped kernels of scaled operands sum nothing"
    whole = {"result_types": ("float32", "int32")}
    assert reason(**whole) == "no result is of the product's type bfloat16"
    batch = [jax.ShapeDtypeStruct((2, *x.shape[1:]), x.dtype) for x in types]
    assert reason(batch) == "the product is a batch"
    wide = {"spec": dataclasses.replace(fused.spec, out_dtype="float32")}
    assert reason(**wide, **whole).endswith("float8_e4m3fn x float8_e4m3fn, with an epilogue")
    if linkable_kernels():
        assert not isinstance(fused.choose("cutlass", "cuda", types), str)
        monkeypatch.setattr(scaled_grouped_call, "pass_cycles", lambda *_: -1.0)
        assert "without it and a pass over the result are predicted to take" in reason()
        # Whoever asks for a kernel gets it, whatever that costs.
        asked = fused.spec.with_policy(config=bw.GroupedConfig(raster_order="m"))
        found = dataclasses.replace(fused, spec=asked).choose("cutlass", "cuda", types)
        assert not isinstance(found, str)
        assert found.selection.raster_order == "m"
        other = fused.spec.with_policy(config=bw.GroupedConfig(tile_m=8))
        assert re.search("tile_m is .* not 8.*, with an epilogue", reason(spec=other))


def test_sums_are_passes_of_their_own() -> None:
    a, b = pair()

    def summed(a: Any, b: Any) -> Any:
        return bw.scaled_ragged_dot(
            a, b, SIZES, epilogue=lambda z: (z, jnp.sum(z, 0)), implementation=CUTLASS_OR_XLA
        )

    assert not bound(summed, a, b)
    z = np.asarray(jnp.asarray(expected(a, b, SIZES), jnp.bfloat16), np.float32)
    np.testing.assert_allclose(np.asarray(summed(a, b)[1], np.float32), z.sum(0), rtol=0.01)


class TestAccelerated:
    """A layer of experts with `fp8_ragged_dot`, and what follows its products."""

    @pytest.mark.parametrize("recipe", ["per_tensor", "blockwise"])
    def test_activation_gradient_and_weights_of_rows(self, recipe: str) -> None:
        dot = bw.fp8_ragged_dot(recipe, implementation=CUTLASS_OR_XLA)
        sizes = jnp.asarray(SIZES)

        def layer(x: Any, w1: Any, w2: Any, weights: Any) -> Any:
            return dot(jax.nn.gelu(dot(x, w1, sizes)), w2, sizes) * weights[:, None]

        def step(g: Any, *args: Any) -> Any:
            out, back = jax.vjp(layer, *args)
            return out, *back(g)

        rng = np.random.default_rng(2)
        shapes = ((300, 128), (300, 128), (4, 128, 256), (4, 256, 128), (300,))
        args = [jnp.asarray(rng.standard_normal(s) / 8, jnp.bfloat16) for s in shapes]
        found = bound(bw.accelerate(step), *args)
        assert [len(e.outvars) for e in found] == [2, 2, 1]
        got, want = jax.jit(bw.accelerate(step))(*args), jax.jit(step)(*args)
        for ours, theirs in zip(got, want, strict=True):
            ours, theirs = (np.asarray(x, np.float32) for x in (ours, theirs))
            assert np.linalg.norm(ours - theirs) < 0.06 * np.linalg.norm(theirs)
