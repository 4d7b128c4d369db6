"""`scaled_matmul` with an epilogue: results, rules, errors, and what `accelerate` takes along."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numerics import LINKED, assert_exact, normal
from scaled_cases import exact_operand, formula_product

import jax_bwgemm as bw
from jax_bwgemm import config
from jax_bwgemm.config import make_target
from jax_bwgemm.epilogue.linkable import linkable_kernels
from jax_bwgemm.epilogue.scaled_call import choose_scaled
from jax_bwgemm.epilogue.scaled_primitive import bw_scaled_epilogue_p
from jax_bwgemm.epilogue.tracing import trace_epilogue
from jax_bwgemm.product.jaxprs import equations
from jax_bwgemm.product.spec import Policy
from jax_bwgemm.rewriting import fuse
from jax_bwgemm.scaled.spec import ScaledSpec

M, N, K = 64, 48, 256
F32 = jnp.float32
CUTLASS_OR_XLA = ("cutlass", "xla")


@pytest.fixture(autouse=True)
def _linked(monkeypatch: pytest.MonkeyPatch, scaled_table: Any) -> Iterator[None]:
    """The primitive is bound as for an SM90, and computed by XLA."""
    del scaled_table
    monkeypatch.setattr(fuse, "link_refusal", lambda *_: None)
    with config.target("sm90"), config.linked_epilogues(True):
        yield


def pair(batch: tuple[int, ...] = (), scaling: str = "1x128") -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    return (
        exact_operand(rng, (*batch, M, K), scaling),
        exact_operand(rng, (N, K), "128x128" if scaling == "1x128" else scaling),
    )


def bias_relu(z: jax.Array, b: jax.Array) -> jax.Array:
    return jnp.maximum(z + b.astype(F32), 0)


def bias() -> jax.Array:
    return jnp.asarray(np.random.default_rng(1).integers(-8, 9, N), jnp.bfloat16)


@pytest.mark.parametrize("scaling", ["tensor", "row", "1x128", "mxfp8", "nvfp4"])
@pytest.mark.parametrize("batch", [(), (1,), (3,)])
def test_results(scaling: str, batch: tuple[int, ...]) -> None:
    a, b = pair(batch, scaling)
    got = bw.scaled_matmul(
        a,
        b,
        epilogue=lambda z, x: (bias_relu(z, x), z > 0),
        epilogue_operands=(bias(),),
        implementation=CUTLASS_OR_XLA,
    )
    z = jnp.asarray(formula_product(a, b), jnp.bfloat16).astype(F32)
    assert_exact(got[0], bias_relu(z, bias()).astype(jnp.bfloat16))
    assert_exact(got[1], z > 0)


def test_one_primitive_where_a_kernel_may_take_it() -> None:
    def call(a: Any, b: Any, x: Any) -> Any:
        return bw.scaled_matmul(a, b, epilogue=bias_relu, epilogue_operands=(x,))

    def bound(*args: Any) -> bool:
        found = equations(jax.make_jaxpr(call)(*args, bias()))
        return any(eqn.primitive is bw_scaled_epilogue_p for eqn, _ in found)

    assert bound(*pair())
    assert bound(*pair((1,)))
    assert bound(*pair((3,)))
    with config.linked_epilogues(False):
        assert not bound(*pair())


def test_explained() -> None:
    a, b = pair()
    found = bw.explain_program(
        lambda a, b, x: bw.scaled_matmul(a, b, epilogue=bias_relu, epilogue_operands=(x,)),
        a,
        b,
        bias(),
    )
    text = str(found)
    assert "scaled GEMM float8_e4m3fn 1x128 x float8_e4m3fn 128x128" in text
    assert "epilogue" in text


def test_derivative_of_operands_alone() -> None:
    a, b = pair()

    def loss(x: jax.Array) -> jax.Array:
        return jnp.sum(
            bw.scaled_matmul(
                a,
                b,
                preferred_element_type=jnp.float32,
                epilogue=lambda z, x: z * x,
                epilogue_operands=(x,),
            )
        )

    assert_exact(jax.grad(loss)(jnp.ones(N)), formula_product(a, b).sum(0).astype(np.float32))
    assert_exact(
        jax.vmap(jax.grad(loss))(jnp.ones((2, N)))[1], formula_product(a, b).sum(0).astype(F32)
    )
    with pytest.raises(TypeError, match="scaled_matmul is not differentiable"):
        jax.grad(
            lambda s: jnp.sum(
                bw.scaled_matmul(
                    bw.ScaledArray(a.values, s, a.scaling),
                    b,
                    preferred_element_type=jnp.float32,
                    epilogue=lambda z: z * 2,
                )
            )
        )(a.scales)


def test_accelerated_products_have_no_derivative_either() -> None:
    a, b = pair()
    f = bw.accelerate(
        lambda s: jnp.sum(bw.scaled_matmul(bw.ScaledArray(a.values, s, a.scaling), b).astype(F32))
    )
    with pytest.raises(TypeError, match="scaled_matmul is not differentiable"):
        jax.grad(f)(a.scales)


def test_errors() -> None:
    a, b = pair()
    with pytest.raises(TypeError, match="scaled_matmul: epilogue must be a function, got int"):
        bw.scaled_matmul(a, b, epilogue=3)
    with pytest.raises(TypeError, match="scaled_matmul: 1 epilogue_operands and no epilogue"):
        bw.scaled_matmul(a, b, epilogue_operands=(bias(),))
    with pytest.raises(bw.EpilogueError, match="cumsum"):
        bw.scaled_matmul(a, b, epilogue=lambda z: jnp.cumsum(z, 1))
    with pytest.raises(TypeError):
        bw.scaled_matmul(a, b, epilogue=bias_relu, epilogue_operands=(jnp.ones(N + 1),))


class TestAccelerated:
    """A layer of `fp8_dot_general` and what follows."""

    NUMBERS = (((2,), (0,)), ((), ()))

    @staticmethod
    def args() -> list[jax.Array]:
        rng = np.random.default_rng(2)
        shapes = ((2, 64, 128), (2, 64, 128), (128, 256), (256,), (256, 128))
        return [jnp.asarray(normal(rng, s, "bfloat16")) / 8 for s in shapes]

    def step(self, recipe: str) -> Any:
        dot = bw.fp8_dot_general(recipe, implementation=CUTLASS_OR_XLA)

        def layer(x: Any, w1: Any, b1: Any, w2: Any) -> Any:
            return dot(jax.nn.gelu(dot(x, w1, self.NUMBERS) + b1), w2, self.NUMBERS)

        def step(g: Any, *args: Any) -> Any:
            out, back = jax.vjp(layer, *args)
            return out, *back(g)

        return step

    @pytest.mark.parametrize("recipe", ["per_tensor", "blockwise"])
    def test_activation_and_gradient_are_in_the_kernels(self, recipe: str) -> None:
        step = self.step(recipe)
        jaxpr = jax.make_jaxpr(bw.accelerate(step))(*self.args())
        found = [e for e, _ in equations(jaxpr) if e.primitive is bw_scaled_epilogue_p]
        assert [len(e.outvars) for e in found] == [2, 2]
        first, second = (e.params["fused"].program for e in found)
        assert [x.axes for x in first.operands] == [(1,)]
        assert len(second.summed) == 1  # the bias's gradient
        got, want = jax.jit(bw.accelerate(step))(*self.args()), jax.jit(step)(*self.args())
        for ours, theirs in zip(got, want, strict=True):
            ours, theirs = (np.asarray(x, np.float32) for x in (ours, theirs))
            np.testing.assert_allclose(
                ours, theirs, rtol=LINKED["rtol"], atol=0.05 * np.abs(theirs).max()
            )


def test_sums_over_a_batch_are_over_all_matrices() -> None:
    """Kernels sum each matrix's rows: such an epilogue is a pass of its own."""
    a, b = pair((2,))

    def product(a: Any, b: Any) -> Any:
        f = lambda z: (z, jnp.sum(z, (0, 1)))  # noqa: E731
        return bw.scaled_matmul(a, b, implementation=CUTLASS_OR_XLA, epilogue=f)

    z, total = product(a, b)
    want = np.asarray(z, np.float32).sum((0, 1))
    assert total.shape == want.shape
    np.testing.assert_allclose(total.astype(F32), want, rtol=0.01)


def test_a_configuration_with_an_epilogue() -> None:
    """Whoever asks for a kernel gets it, whatever that costs; or a pass, and why."""
    a, b = pair()

    def call(a: Any, b: Any, x: jax.Array, **options: Any) -> Any:
        options |= {"epilogue": bias_relu, "epilogue_operands": (x,)}
        return bw.scaled_matmul(a, b, implementation=CUTLASS_OR_XLA, **options)

    found = equations(jax.make_jaxpr(call)(a, b, bias()))
    (eqn,) = [e for e, _ in found if e.primitive is bw_scaled_epilogue_p]
    fused = eqn.params["fused"]
    types = [x.aval for x in fused.factors(eqn.invars)[0]]

    def choice(**config: Any) -> Any:
        spec = fused.spec.with_policy(config=bw.TuningConfig(**config))
        return dataclasses.replace(fused, spec=spec).choose("cutlass", "cuda", types)

    assert "computes all of K at once, not in 2 parts" in choice(splits=2)
    if linkable_kernels():
        chosen = choice(raster_order="m", swizzle=2).selection
        assert (chosen.raster_order, chosen.swizzle) == ("m", 2)
        assert re.search("tile_m is .* not 8.*, with an epilogue", choice(tile_m=8))


@pytest.mark.skipif(not linkable_kernels(), reason="no kernels were built that link epilogues")
@pytest.mark.parametrize("batch", [1, 2])
def test_grouped_kernels_have_an_epilogue_of_one_product_alone(batch: int) -> None:
    """SM100's of scales of blocks compute one as one group: a batch has more matrices."""
    policy = Policy(implementations=("cutlass",), target=make_target("sm100"))
    scalings = {"a_scaling": "1x128", "b_scaling": "128x128", "accumulation": "promoted"}
    shapes = (((256, 256), "float8_e4m3fn"), ((128, 256), "float8_e4m3fn"))
    shapes += (((2, 256), "float32"), ((1, 2), "float32"), ((), "float32"))
    factors = [jax.ShapeDtypeStruct((batch, *s), jnp.dtype(t)) for s, t in shapes]
    program = trace_epilogue(lambda z: z + 1, (256, 128), ()).program
    spec = ScaledSpec(**scalings, policy=policy)
    found = choose_scaled("cutlass", "cuda", spec, program, ("bfloat16",), factors)
    assert str(found).endswith("with scales of 1x128 and 128x128 has an epilogue") == (batch > 1)
