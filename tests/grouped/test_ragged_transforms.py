"""Differentiation and batching of the grouped primitives, on the CPU lowering."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any

import grouped_oracle as oracle
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P
from jax.test_util import check_grads
from numerics import CHECK_GRADS, assert_exact, normal, small_integers
from traced import count, equations

import jax_bwgemm as bw
from jax_bwgemm.grouped.batching import batch_grouped, reduce_batch
from jax_bwgemm.grouped.primitive import grouped
from jax_bwgemm.grouped.reference import grouped_reference
from jax_bwgemm.grouped.spec import GroupedSpec

pytestmark = pytest.mark.usefixtures("dense_grouped")

B, M, N, K, E, G, V = 3, 6, 4, 5, 2, 4, 2
FORMS = [("m-grouped", "n"), ("m-grouped", "k"), ("k-grouped", "n")]
# Batches of lhs, rhs, sizes, offset, and whether the result is summed over the batch.
BATCHES = [
    (1, 1, 1, 1, False),
    (B, B, B, B, False),
    (B, 1, B, 1, False),
    (1, B, 1, 1, False),
    (1, 1, B, 1, False),
    (B, 1, B, 1, True),
    (B, B, 1, B, True),
]


def problem(
    form: tuple[str, str], batches: Any, dtype: str, make: Any = small_integers
) -> tuple[GroupedSpec, tuple[Any, ...]]:
    kind, major = form
    rng = np.random.default_rng(0)
    spec = GroupedSpec(
        kind,
        major,
        E if kind == "k-grouped" else 0,
        out_dtype=dtype,
        reduce_batch=batches[4],
    )
    rhs = (M, N) if kind == "k-grouped" else (E, K, N) if major == "n" else (E, N, K)
    arrays = [
        jnp.asarray(make(rng, (batch, *shape), dtype))
        for batch, shape in zip(batches[:2], ((M, K), rhs), strict=True)
    ]
    sizes = [oracle.some_sizes(rng, M, G, "short") for _ in range(batches[2])]
    offset = jnp.arange(batches[3], dtype=jnp.int32) % 3 + 1
    return spec, (*arrays, jnp.asarray(np.stack(sizes)), offset)


@pytest.mark.parametrize("form", FORMS, ids="-".join)
@pytest.mark.parametrize("batches", BATCHES, ids=str)
def test_the_reference_equals_a_loop(form: Any, batches: Any) -> None:
    spec, operands = problem(form, batches, "bfloat16")
    want = oracle.canonical(spec, *operands).astype(jnp.bfloat16)
    assert_exact(jax.jit(grouped_reference, static_argnums=4)(*operands, spec), want)


@pytest.mark.parametrize("form", FORMS, ids="-".join)
@pytest.mark.parametrize("batches", BATCHES, ids=str)
def test_every_form_and_its_gradients_equal_a_loop(form: Any, batches: Any) -> None:
    spec, (lhs, rhs, sizes, offset) = problem(form, batches, "bfloat16")
    f = functools.partial(grouped, sizes=sizes, offset=offset, spec=spec)
    # Tangents in both directions: the derivative of a bilinear function is exact, too.
    out, vjp = jax.jit(lambda a, b: jax.vjp(f, a, b))(lhs, rhs)
    want = oracle.canonical(spec, lhs, rhs, sizes, offset)
    assert_exact(out, want.astype(jnp.bfloat16))
    rng = np.random.default_rng(1)
    ct, da, db = (small_integers(rng, x.shape, "bfloat16") for x in (out, lhs, rhs))
    left, right = jax.jit(vjp)(ct)
    # <ct, d out> is <cotangents, tangents>, exactly, as all are integers.
    for cotangent, tangent, moved in ((left, da, (da, rhs)), (right, db, (lhs, db))):
        d_out = oracle.canonical(spec, *moved, sizes, offset)
        inner = np.sum(np.asarray(cotangent, np.float64) * np.asarray(tangent, np.float64))
        assert inner == np.sum(d_out * np.asarray(ct, np.float64))


@pytest.mark.parametrize("form", FORMS, ids="-".join)
@pytest.mark.parametrize("batches", [BATCHES[0], BATCHES[2], BATCHES[5]], ids=str)
def test_check_grads_second_order_both_modes(form: Any, batches: Any) -> None:
    spec, (lhs, rhs, sizes, offset) = problem(form, batches, "float32", normal)
    f = functools.partial(grouped, sizes=sizes, offset=offset, spec=spec)
    check_grads(f, (lhs, rhs), order=2, modes=["fwd", "rev"], **CHECK_GRADS)


@pytest.mark.parametrize("form", FORMS, ids="-".join)
@pytest.mark.parametrize("batches", BATCHES, ids=str)
def test_gradient_is_two_grouped_gemms_and_nothing_else(form: Any, batches: Any) -> None:
    spec, (lhs, rhs, sizes, offset) = problem(form, batches, "bfloat16")
    out, vjp = jax.eval_shape(
        lambda a, b: jax.vjp(lambda p, q: grouped(p, q, sizes, offset, spec), a, b), lhs, rhs
    )
    backward = jax.make_jaxpr(vjp)(out).jaxpr
    assert count(backward, "bw_m_grouped", "bw_k_grouped") == 2
    assert count(backward, "transpose", "reduce_sum", "gather") == 0


def numpy_bind(lhs: Any, rhs: Any, sizes: Any, offset: Any, spec: Any) -> Any:
    assert not spec.reduce_batch  # batching has dealt with that
    out = oracle.canonical(spec, lhs, rhs, sizes, offset)
    return jnp.asarray(out.astype(np.dtype(spec.out_dtype)))


def mapped_oracle(spec: Any, operands: Any, axes: Any) -> np.ndarray:
    slices = (
        [x if v is None else np.take(x, i, v) for x, v in zip(operands, axes, strict=True)]
        for i in range(V)
    )
    return np.stack([oracle.canonical(spec, *one) for one in slices])


SUBSETS = [s for s in itertools.product([False, True], repeat=4) if any(s)]


@pytest.mark.parametrize("form", [FORMS[0], FORMS[2]], ids="-".join)
@pytest.mark.parametrize("batches", BATCHES, ids=str)
def test_batching_rule_for_every_subset_and_axis(form: Any, batches: Any) -> None:
    """The rule itself, over an oracle in numpy: nothing is compiled."""
    spec, operands = problem(form, batches, "float32")
    rng = np.random.default_rng(2)
    for subset in SUBSETS:
        positions = [
            int(rng.integers(x.ndim + 1)) if mapped else None
            for x, mapped in zip(operands, subset, strict=True)
        ]
        stacked = [
            x if v is None else jnp.stack([x, jnp.roll(x, 1, -1)], v)
            for x, v in zip(operands, positions, strict=True)
        ]
        got, at = batch_grouped(numpy_bind, stacked, positions, spec)
        want = mapped_oracle(spec, [np.asarray(x) for x in stacked], positions)
        assert_exact(np.moveaxis(np.asarray(got), at, 0), want.astype(np.float32), f"{positions}")


@pytest.mark.parametrize("form", FORMS, ids="-".join)
@pytest.mark.parametrize("batches", BATCHES[5:], ids=str)
def test_summed_batches_become_one_problem(form: Any, batches: Any) -> None:
    spec, operands = problem(form, batches, "float32")
    got = reduce_batch(numpy_bind, operands, spec)
    assert_exact(got, oracle.canonical(spec, *operands).astype(np.float32))
    assert_exact(grouped_reference(*operands, spec), np.asarray(got))


def test_a_summed_batch_is_rounded_once() -> None:
    """256 + 1 and 1: 257 alone would be rounded to 256, and 257 again."""
    spec = GroupedSpec("m-grouped", "n", out_dtype="bfloat16", reduce_batch=True)
    lhs = jnp.asarray([[[256.0, 1.0]], [[1.0, 0.0]]], jnp.bfloat16)
    rhs, sizes = jnp.ones((1, 1, 2, 1), jnp.bfloat16), jnp.ones((1, 1), jnp.int32)
    got = reduce_batch(grouped_reference, (lhs, rhs, sizes, jnp.zeros(1, jnp.int32)), spec)
    assert got.dtype == jnp.bfloat16
    np.testing.assert_array_equal(got.astype(jnp.float32), [[[258.0]]])


def test_vmap_of_every_subset_of_operands() -> None:
    rng = np.random.default_rng(0)
    shapes = ((M, K), (E, K, N), (G,), ())
    stacked = [small_integers(rng, (V, *s), "bfloat16") for s in shapes[:2]]
    stacked += [np.stack([oracle.some_sizes(rng, M, G, "short") for _ in range(V)])]
    stacked += [np.array([1, 2], np.int32)]

    def f(a: Any, b: Any, s: Any, o: Any) -> Any:
        return bw.ragged_dot(a, b, s, group_offset=o)

    @jax.jit  # one compilation for all cases
    def all_cases(*arrays: Any) -> list[Any]:
        return [
            jax.vmap(f, in_axes=tuple(0 if m else None for m in subset))(
                *(x if m else x[0] for x, m in zip(arrays, subset, strict=True))
            )
            for subset in SUBSETS
        ]

    for subset, got in zip(SUBSETS, all_cases(*map(jnp.asarray, stacked)), strict=True):
        each = [[x[i] if m else x[0] for x, m in zip(stacked, subset, strict=True)] for i in (0, 1)]
        want = np.stack([oracle.rows(*operands) for operands in each])
        assert_exact(got, want.astype(jnp.bfloat16), f"{subset}")


def masked_einsum(lhs: Any, rhs: Any, sizes: Any) -> Any:
    ends = jnp.cumsum(sizes)
    row = jnp.arange(lhs.shape[0])[:, None]
    inside = (row < ends) & (row >= ends - sizes)
    return jnp.einsum("mk,ekn,me->mn", lhs, rhs, inside.astype(lhs.dtype))


@pytest.mark.parametrize("order", ["examples within members", "members within examples"])
def test_nested_vmap_of_gradients(order: str) -> None:
    rng = np.random.default_rng(0)
    lhs = small_integers(rng, (V, M, K), "float32")
    rhs = small_integers(rng, (B, E, K, N), "float32")
    sizes = np.stack([oracle.some_sizes(rng, M, E, "short") for _ in range(V)])
    examples, members = (0, None, 0), (None, 0, None)
    axes = (examples, members) if order == "examples within members" else (members, examples)

    def gradients(f: Callable) -> Any:
        f = jax.grad(lambda a, b, s, g=f: (g(a, b, s) ** 2).sum(), (0, 1))
        for in_axes in axes:
            f = jax.vmap(f, in_axes=in_axes)
        return jax.jit(f)(lhs, rhs, sizes)

    for got, want in zip(gradients(bw.ragged_dot), gradients(masked_einsum), strict=True):
        assert_exact(got, np.asarray(want))


def test_vmap_of_a_shared_right_operand_copies_nothing() -> None:
    lhs, rhs, sizes = jnp.ones((V, M, K)), jnp.ones((E, K, N)), jnp.ones((V, E), jnp.int32)
    for in_axes in ((0, None, 0), (0, None, None), (None, None, 0)):
        args = [x if a == 0 else x[0] for x, a in zip((lhs, rhs, sizes), in_axes, strict=True)]
        args[1] = rhs
        jaxpr = jax.make_jaxpr(jax.vmap(bw.ragged_dot, in_axes=in_axes))(*args).jaxpr
        (call,) = equations(jaxpr, "bw_m_grouped")
        assert call.invars[1].aval.shape == (1, E, K, N)
        assert count(jaxpr, "transpose", "gather", "concatenate") == 0


def test_conflicting_vmaps_never_repeat_the_matrices() -> None:
    """One axis maps the matrices, the other the rows: rows are gathered, matrices are not."""
    lhs, rhs, sizes = jnp.ones((V, M, K)), jnp.ones((B, E, K, N)), jnp.ones(E, jnp.int32)
    by_member = jax.vmap(bw.ragged_dot, in_axes=(None, 0, None))
    jaxpr = jax.make_jaxpr(jax.vmap(by_member, in_axes=(0, None, None)))(lhs, rhs, sizes).jaxpr
    (call,) = equations(jaxpr, "bw_m_grouped")
    assert [x.aval.shape for x in call.invars[:2]] == [(1, V * M, K), (B, E, K, N)]


def test_checkpoint_and_scan() -> None:
    rng = np.random.default_rng(0)
    x, sizes = small_integers(rng, (M, K), "float32"), np.array([2, 3])
    ws = small_integers(rng, (3, E, K, K), "float32")

    def loss(f: Callable, wrap: Callable) -> Callable:
        @wrap
        def layer(carry: Any, w: Any) -> tuple[Any, None]:
            return jnp.clip(f(carry, w, sizes), -2, 2), None  # small: sums stay exact

        return lambda ws: jax.lax.scan(layer, x, ws)[0].sum()

    for wrap in (lambda f: f, jax.checkpoint):
        got = jax.jit(jax.value_and_grad(loss(bw.ragged_dot, wrap)))(ws)
        want = jax.jit(jax.value_and_grad(loss(masked_einsum, lambda f: f)))(ws)
        for g, w in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
            assert_exact(g, np.asarray(w))


def test_f32_result_of_bf16_operands_has_an_f32_cotangent_which_is_not_rounded() -> None:
    rng = np.random.default_rng(0)
    lhs, rhs = small_integers(rng, (M, K), "bfloat16"), small_integers(rng, (E, K, N), "bfloat16")
    sizes = np.array([2, 3])
    # Not representable in bf16: rounding the cotangent would change the gradient.
    ct = jnp.full((M, N), 1 + 2.0**-12, jnp.float32)
    _, vjp = jax.vjp(
        lambda a, b: bw.ragged_dot(a, b, sizes, preferred_element_type=jnp.float32), lhs, rhs
    )
    got = vjp(ct)
    want = oracle.rows(ct, rhs.swapaxes(1, 2), sizes), oracle.contract(lhs, ct, sizes, 0, E)
    for value, expected in zip(got, want, strict=True):
        assert_exact(value, expected.astype(jnp.bfloat16))
    backward = jax.make_jaxpr(vjp)(ct).jaxpr
    for name in ("bw_m_grouped", "bw_k_grouped"):
        (call,) = equations(backward, name)
        assert call.params["spec"].policy.implementations == ("cutlass", "xla")


def test_config_is_for_the_call_not_for_its_gradients() -> None:
    rhs, sizes = jnp.ones((E, K, N), jnp.bfloat16), jnp.ones(E, jnp.int32)
    config = bw.GroupedConfig(raster_order="m")

    def loss(a: Any) -> Any:
        return bw.ragged_dot(a, rhs, sizes, config=config).astype(jnp.float32).sum()

    jaxpr = jax.make_jaxpr(jax.grad(loss))(jnp.ones((M, K), jnp.bfloat16)).jaxpr
    specs = [eqn.params["spec"] for eqn in equations(jaxpr, "bw_m_grouped")]
    assert [spec.policy.config for spec in specs] == [config, None]


def test_devices_whose_sizes_alone_differ(cpu_devices: list[jax.Device]) -> None:
    """The result varies over the mesh and has a batch, though no operand of values does."""
    rng = np.random.default_rng(0)
    lhs, rhs = small_integers(rng, (4, 3), "float32"), small_integers(rng, (2, 3, 5), "float32")
    sizes = jnp.array([[1, 2], [4, 0], [0, 4], [2, 2]])
    mesh = jax.sharding.Mesh(np.array(cpu_devices[:2]), ("x",))
    each = jax.vmap(lambda s: bw.ragged_dot(lhs, rhs, s))
    got = jax.jit(jax.shard_map(each, mesh=mesh, in_specs=P("x"), out_specs=P("x")))(sizes)
    assert_exact(got, np.stack([bw.ragged_dot(lhs, rhs, s) for s in sizes]))
