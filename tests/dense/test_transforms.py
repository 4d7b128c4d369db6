"""Differentiation and batching of the primitive, on the CPU lowering.

Structure is checked in f32, in which finite differences mean something, by pretending that f32
kernels exist; the rules do not look at the type.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads
from numerics import CHECK_GRADS, assert_exact, normal, small_integers
from traced import count, equations

import jax_bwgemm as bw
from jax_bwgemm.dense.primitive import gemm
from jax_bwgemm.dense.reference import gemm_reference
from jax_bwgemm.dense.spec import GemmSpec

B, M, N, K, V = 3, 4, 5, 6, 2
MAJORS = ["kn", "kk", "mn", "mk"]
# (batch of lhs, batch of rhs, summed over the batch)
BATCHES = [(1, 1, False), (B, B, False), (B, 1, False), (1, B, False), (B, B, True), (0, 1, False)]


def shapes(majors: str, lhs_batch: int, rhs_batch: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    lhs = (lhs_batch, M, K) if majors[0] == "k" else (lhs_batch, K, M)
    rhs = (rhs_batch, K, N) if majors[1] == "n" else (rhs_batch, N, K)
    return lhs, rhs


def problem(
    majors: str, batches: Any, dtype: str, make: Any = small_integers
) -> tuple[GemmSpec, Any, Any]:
    lhs_batch, rhs_batch, reduce_batch = batches
    rng = np.random.default_rng(0)
    spec = GemmSpec(*majors, out_dtype=dtype, reduce_batch=reduce_batch)
    return spec, *(jnp.asarray(make(rng, s, dtype)) for s in shapes(majors, lhs_batch, rhs_batch))


@pytest.mark.parametrize("majors", MAJORS)
@pytest.mark.parametrize("batches", BATCHES)
def test_every_form_equals_the_reference(majors: str, batches: Any) -> None:
    spec, lhs, rhs = problem(majors, batches, "bfloat16")
    assert_exact(gemm(lhs, rhs, spec), gemm_reference(lhs, rhs, spec))
    # The reference itself, against numpy.
    a = np.asarray(lhs, np.float32) if majors[0] == "k" else np.swapaxes(lhs, 1, 2)
    b = np.asarray(rhs, np.float32) if majors[1] == "n" else np.swapaxes(rhs, 1, 2)
    want = np.matmul(np.asarray(a, np.float32), np.asarray(b, np.float32))
    want = want.sum(0, keepdims=True) if spec.reduce_batch else want
    assert_exact(gemm_reference(lhs, rhs, spec), want.astype(lhs.dtype))


@pytest.mark.usefixtures("wide_kernels")
@pytest.mark.parametrize("majors", MAJORS)
@pytest.mark.parametrize("batches", BATCHES[:5])
def test_check_grads_second_order_both_modes(majors: str, batches: Any) -> None:
    spec, lhs, rhs = problem(majors, batches, "float32", normal)
    f = functools.partial(gemm, spec=spec)
    check_grads(f, (lhs, rhs), order=2, modes=["fwd", "rev"], **CHECK_GRADS)


@pytest.mark.parametrize("majors", MAJORS)
@pytest.mark.parametrize("batches", BATCHES)
def test_gradient_of_every_form_is_the_primitive(majors: str, batches: Any) -> None:
    spec, lhs, rhs = problem(majors, batches, "bfloat16")
    out, vjp = jax.vjp(lambda a, b: gemm(a, b, spec), lhs, rhs)
    ct = jnp.asarray(small_integers(np.random.default_rng(1), out.shape, "bfloat16"))
    _, reference_vjp = jax.vjp(lambda a, b: gemm_reference(a, b, spec), lhs, rhs)
    for got, want in zip(vjp(ct), reference_vjp(ct), strict=True):
        assert_exact(got, want)
    # Two GEMMs and nothing else: no transpose, no sum, in either storage order.
    backward = jax.make_jaxpr(vjp)(ct)
    assert count(backward.jaxpr, "bw_gemm") == 2
    assert count(backward.jaxpr, "transpose") == count(backward.jaxpr, "reduce_sum") == 0


VMAP_CASES = [
    axes for axes in itertools.product([None, 0, 1, 2, 3], repeat=2) if axes != (None, None)
]


def _with_axis(x: Any, axis: int | None) -> Any:
    return x if axis is None else jnp.stack([x, 2 * x], axis)


@pytest.mark.parametrize("majors", MAJORS)
@pytest.mark.parametrize("batches", BATCHES)
def test_vmap_of_every_subset_and_axis(majors: str, batches: Any) -> None:
    spec, lhs, rhs = problem(majors, batches, "bfloat16")

    @functools.partial(jax.jit, static_argnums=0)  # one compilation for all cases
    def all_cases(f: Callable) -> list[Any]:
        return [
            jax.vmap(functools.partial(f, spec=spec), in_axes=axes)(
                _with_axis(lhs, axes[0]), _with_axis(rhs, axes[1])
            )
            for axes in VMAP_CASES
        ]

    for axes, got, want in zip(VMAP_CASES, all_cases(gemm), all_cases(gemm_reference), strict=True):
        assert_exact(got, want, f"{axes}")


@pytest.mark.parametrize("out_axes", [0, 1, 2, -1])
def test_vmap_out_axes(out_axes: int) -> None:
    spec, lhs, rhs = problem("kn", (B, B, False), "bfloat16")
    stacked = _with_axis(lhs, 1)
    maps = [
        jax.vmap(functools.partial(f, spec=spec), in_axes=(1, None), out_axes=out_axes)
        for f in (gemm, gemm_reference)
    ]
    assert_exact(maps[0](stacked, rhs), maps[1](stacked, rhs))


def test_nested_vmap_with_axis_names() -> None:
    rng = np.random.default_rng(0)
    a = small_integers(rng, (2, 3, M, K), "bfloat16")
    b = small_integers(rng, (3, K, N), "bfloat16")

    def nested(matmul: Callable) -> Any:
        inner = jax.vmap(matmul, in_axes=(0, 0), axis_name="inner", spmd_axis_name="x")
        return jax.vmap(inner, in_axes=(0, None), axis_name="outer")(a, b)

    assert_exact(nested(bw.matmul), nested(jnp.matmul))


def test_vmap_of_shared_operand_copies_nothing() -> None:
    x, w = jnp.ones((V, M, K), jnp.bfloat16), jnp.ones((K, N), jnp.bfloat16)
    jaxpr = jax.make_jaxpr(jax.vmap(bw.matmul, in_axes=(0, None)))(x, w)
    assert count(jaxpr.jaxpr, "transpose") == count(jaxpr.jaxpr, "broadcast_in_dim") == 0


@pytest.mark.usefixtures("wide_kernels")
def test_jvp_of_vmap_of_grad() -> None:
    rng = np.random.default_rng(0)
    x, w = (jnp.asarray(normal(rng, s, "float32")) for s in ((V, M, K), (K, N)))

    def loss(matmul: Callable) -> Callable:
        return lambda a, b: jnp.sum(jnp.tanh(matmul(a, b)))

    def outer(matmul: Callable) -> Any:
        per_example = jax.vmap(jax.grad(loss(matmul), argnums=(0, 1)), in_axes=(0, None))
        return jax.jvp(per_example, (x, w), (2 * x, w + 1))

    for got, want in zip(
        jax.tree.leaves(outer(bw.matmul)), jax.tree.leaves(outer(jnp.matmul)), strict=True
    ):
        np.testing.assert_allclose(got, want, **CHECK_GRADS)


def test_checkpoint_and_scan() -> None:
    rng = np.random.default_rng(0)
    x = small_integers(rng, (M, K), "bfloat16")
    ws = small_integers(rng, (3, K, K), "bfloat16")

    def loss(matmul: Callable, wrap: Callable) -> Callable:
        @wrap
        def layer(carry: Any, w: Any) -> tuple[Any, None]:
            # Kept small, so that every sum stays exact.
            return jnp.clip(matmul(carry, w), -2, 2), None

        return lambda ws: jax.lax.scan(layer, x, ws)[0].astype(jnp.float32).sum()

    policy = jax.checkpoint_policies.nothing_saveable
    for wrap in (lambda f: f, jax.checkpoint, functools.partial(jax.checkpoint, policy=policy)):
        got = jax.jit(jax.value_and_grad(loss(bw.matmul, wrap)))(ws)
        want = jax.jit(jax.value_and_grad(loss(jnp.matmul, lambda f: f)))(ws)
        for g, w in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
            assert_exact(g, w)


@pytest.mark.parametrize(("dtype", "kernels"), [("bfloat16", 2), ("float16", 0)])
def test_f32_result_has_an_f32_cotangent(dtype: str, kernels: int) -> None:
    """Kernels multiply it with bf16; with f16 XLA does."""
    rng = np.random.default_rng(0)
    a, b = small_integers(rng, (M, K), dtype), small_integers(rng, (K, N), dtype)
    # Not representable in 16 bits: rounding the cotangent would change the gradient.
    ct = jnp.full((M, N), 1 + 2.0**-12, jnp.float32)

    def vjp(matmul: Callable) -> Any:
        return jax.vjp(lambda x, y: matmul(x, y, preferred_element_type=jnp.float32), a, b)[1]

    for got, want in zip(vjp(bw.matmul)(ct), vjp(jnp.matmul)(ct), strict=True):
        assert_exact(got, want)
    backward = jax.make_jaxpr(vjp(bw.matmul))(ct)
    assert count(backward.jaxpr, "bw_gemm") == kernels
    assert count(backward.jaxpr, "dot_general") == 2 - kernels


def test_config_is_for_the_call_not_for_its_gradients() -> None:
    x = jnp.ones((16, 16), jnp.bfloat16)

    def loss(a: Any) -> Any:
        return bw.matmul(a, x, config=bw.TuningConfig(swizzle=4)).astype(jnp.float32).sum()

    gemms = equations(jax.make_jaxpr(jax.grad(loss))(x).jaxpr, "bw_gemm")
    configs = [eqn.params["spec"].policy.config for eqn in gemms]
    assert configs == [bw.TuningConfig(swizzle=4), None]
