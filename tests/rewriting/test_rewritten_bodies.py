"""Products are found in every body that JAX's higher-order functions make; values stay.

Operands are signed permutations, so results are equal bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from accelerated import SIZE, counts, has_all_majors, square
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

import jax_bwgemm as bw


@jax.custom_vjp
def with_vjp(x: jax.Array) -> jax.Array:
    return x @ x


with_vjp.defvjp(lambda x: (x @ x, x), lambda x, ct: (jnp.tanh(ct @ x),))


@jax.custom_vjp
def with_optimized_vjp(x: jax.Array) -> jax.Array:
    return x @ x


with_optimized_vjp.defvjp(
    lambda x: (x @ x, x), lambda x, ct: (jnp.tanh(ct @ x),), optimize_remat=True
)


@jax.custom_jvp
def with_jvp(x: jax.Array) -> jax.Array:
    return jnp.sin(x)


# A product that only the rule has.
with_jvp.defjvp(lambda primals, tangents: (with_jvp(*primals), tangents[0] @ primals[0]))

BODIES = {
    "top": lambda x: x @ x,
    "jit": jax.jit(lambda x: x @ x),
    "einsum": lambda x: jnp.einsum("ij,kj->ik", x, x),
    "scan": lambda x: lax.scan(lambda c, y: (c @ y, c.sum()), x, jnp.stack([x, x]))[0],
    "fori": lambda x: lax.fori_loop(0, 3, lambda _, c: c @ x, x),
    "while": lambda x: lax.while_loop(lambda c: (c[1] @ x)[0, 0] < -1e9, lambda c: c, (0, x))[1],
    "cond": lambda x: lax.cond(x[0, 0] > 0, lambda y: y @ y, lambda y: y, x),
    "switch": lambda x: lax.switch(1, [jnp.sin, jnp.cos, lambda y: y @ y], x),
    "checkpoint": jax.checkpoint(lambda x: x @ x),
    "custom_vjp": with_vjp,
    "nested": lambda x: lax.scan(
        lambda c, _: (jax.checkpoint(jax.jit(lambda y: y @ x))(c), None), x, length=2
    )[0],
    "vmap": lambda x: jax.vmap(lambda y: y @ x)(jnp.stack([x, x])),
    "traced": lambda x: jax.jit(lambda y: y @ y).trace(x)(x),
    "ragged": lambda x: lax.ragged_dot(x, jnp.stack([x, x]), jnp.array([3, SIZE - 3])),
}


@pytest.mark.parametrize("name", BODIES)
def test_a_product_in_a_body(name: str) -> None:
    f, x = BODIES[name], square()
    assert counts(f, x)[0] == 0
    if name == "einsum" and not has_all_majors():
        pytest.skip("this build lacks kernels of a storage order")
    assert counts(bw.accelerate(f), x) == (1, 0)
    want = jax.jit(f)(x)
    np.testing.assert_array_equal(jax.jit(bw.accelerate(f))(x), want)
    np.testing.assert_array_equal(bw.accelerate(jax.jit(f))(x), want)


def test_a_linear_solve() -> None:
    """Its matrix is a rotation of signed units, so that one step solves it exactly."""
    x = square()

    def product(v: jax.Array) -> jax.Array:
        return jnp.dot(x, v.astype(x.dtype), preferred_element_type=jnp.float32)

    def f(b: jax.Array) -> jax.Array:
        def solve(_: Any, b: jax.Array) -> jax.Array:
            return jnp.dot(x.T, b.astype(x.dtype), preferred_element_type=jnp.float32)

        return lax.custom_linear_solve(product, b, solve, transpose_solve=lambda _, b: product(b))

    b = x.astype(jnp.float32)
    want = jax.jit(f)(b)
    explained = bw.explain_program(bw.accelerate(f), b, device="sm90")
    assert {one.place for one in explained.rewrites} >= {"linear solve 0", "linear solve 2"}
    assert counts(bw.accelerate(f), b)[0] > 0
    np.testing.assert_array_equal(jax.jit(bw.accelerate(f))(b), want)
    np.testing.assert_array_equal(
        jax.jit(jax.grad(loss(bw.accelerate(f))))(b), jax.grad(loss(f))(b)
    )


def loss(f: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    return lambda x: jnp.sum(f(x).astype(jnp.float32))


@pytest.mark.parametrize(
    "name",
    ["jit", "scan", "cond", "checkpoint", "custom_vjp", "nested", "ragged", "vmap", "traced"],
)
def test_gradients_inside_and_outside(name: str) -> None:
    f, x = BODIES[name], square()
    want = jax.jit(jax.value_and_grad(loss(f)))(x)
    inside = bw.accelerate(jax.value_and_grad(loss(f)))
    outside = jax.value_and_grad(loss(bw.accelerate(f)))
    for step in (inside, outside):
        got = jax.jit(step)(x)
        jax.tree.map(np.testing.assert_array_equal, got, want)
        if has_all_majors():
            calls, _ = counts(step, x)
            assert calls > 0


def test_rules_of_custom_derivatives_are_rewritten_and_kept() -> None:
    x = square()
    got = jax.jit(jax.grad(loss(bw.accelerate(with_vjp))))(x)
    np.testing.assert_array_equal(got, jax.jit(jax.grad(loss(with_vjp)))(x))
    # One product forward, and the rule's.
    assert counts(jax.value_and_grad(loss(bw.accelerate(with_vjp))), x) == (2, 0)
    step = jax.value_and_grad(loss(with_optimized_vjp))
    assert counts(bw.accelerate(step), x) == (2, 0)
    jax.tree.map(np.testing.assert_array_equal, jax.jit(bw.accelerate(step))(x), jax.jit(step)(x))

    def tangent(f: Callable) -> Callable:
        return lambda x: jax.jvp(f, (x,), (x,))[1]

    assert counts(bw.accelerate(with_jvp), x) == (0, 0)
    assert counts(tangent(bw.accelerate(with_jvp)), x) == (1, 0)
    want = jax.jit(tangent(with_jvp))(x)
    np.testing.assert_array_equal(jax.jit(tangent(bw.accelerate(with_jvp)))(x), want)


def test_symbolic_zeros_reach_the_rules() -> None:
    seen = []

    @jax.custom_vjp
    def f(x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
        return x @ y, y

    def forward(x: Any, y: Any) -> Any:
        seen.append((x.perturbed, y.perturbed))
        return f(x.value, y.value), (x.value, y.value)

    def backward(operands: Any, ct: Any) -> Any:
        seen.append(type(ct[1]).__name__)
        return ct[0] @ operands[1], None

    f.defvjp(forward, backward, symbolic_zeros=True)
    x = square()
    got = jax.grad(lambda x: jnp.sum(bw.accelerate(f)(x, square())[0].astype(jnp.float32)))(x)
    assert seen == [(True, False), "SymbolicZero"]
    want = jax.grad(lambda x: jnp.sum(f(x, square())[0].astype(jnp.float32)))(x)
    np.testing.assert_array_equal(got, want)


def test_jvp_vmap_and_second_order() -> None:
    f, x = BODIES["nested"], square()
    got = jax.jvp(bw.accelerate(f), (x,), (x,))
    jax.tree.map(np.testing.assert_array_equal, got, jax.jvp(f, (x,), (x,)))
    xs = jnp.stack([x, 2 * x])
    got = jax.jit(jax.vmap(bw.accelerate(f)))(xs)
    np.testing.assert_array_equal(got, jax.jit(jax.vmap(f))(xs))

    def curvature(f: Callable) -> Callable:
        return jax.grad(lambda x: jnp.vdot(jax.grad(loss(f))(x), x).astype(jnp.float32))

    cube = BODIES["fori"]
    got = jax.jit(curvature(bw.accelerate(lambda x: x @ x @ x)))(x)
    np.testing.assert_array_equal(got, jax.jit(curvature(lambda x: x @ x @ x))(x))
    assert counts(bw.accelerate(bw.accelerate(cube)), x) == (1, 0)


def test_shard_map_and_pmap(cpu_devices: list[jax.Device]) -> None:
    mesh = Mesh(cpu_devices[:2], ("d",))
    x = square()
    rows = P("d")

    def f(x: jax.Array, w: jax.Array) -> jax.Array:
        def local(x: jax.Array, w: jax.Array) -> jax.Array:
            return lax.psum(jnp.sum(x @ w).astype(jnp.float32), "d")

        return jax.shard_map(local, mesh=mesh, in_specs=(rows, P()), out_specs=P())(x, w)

    got, want = jax.jit(bw.accelerate(f))(x, x), jax.jit(f)(x, x)
    np.testing.assert_array_equal(got, want)
    for transform in (lambda f: bw.accelerate(jax.grad(f)), lambda f: jax.grad(bw.accelerate(f))):
        np.testing.assert_array_equal(jax.jit(transform(f))(x, x), jax.jit(jax.grad(f))(x, x))
    rewrites = bw.explain_program(bw.accelerate(f), x, x, device="sm90").rewrites
    assert [(one.rewritten, one.place) for one in rewrites] == [(True, "shard_map")]
    mapped = jax.pmap(lambda x: x @ x, devices=cpu_devices[:2])
    xs = jnp.stack([x, 2 * x])
    np.testing.assert_array_equal(bw.accelerate(mapped)(xs), mapped(xs))


def test_checkpoint_policies_see_names() -> None:
    def f(x: jax.Array) -> jax.Array:
        return jnp.sin(checkpoint_name(x @ x, "product"))

    policy = jax.checkpoint_policies.save_only_these_names("product")
    kept = jax.checkpoint(f, policy=policy)
    again = jax.checkpoint(f)
    x = square()
    if not has_all_majors():
        pytest.skip("this build lacks kernels of a storage order")
    saved, recomputed = (
        counts(jax.value_and_grad(loss(bw.accelerate(g))), x)[0] for g in (kept, again)
    )
    assert (saved, recomputed) == (3, 4)
    np.testing.assert_array_equal(
        jax.jit(jax.grad(loss(bw.accelerate(kept))))(x), jax.jit(jax.grad(loss(kept)))(x)
    )
