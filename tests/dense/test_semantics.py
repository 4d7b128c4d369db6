"""Values, shapes and types equal those of jnp.matmul and lax.dot_general, exactly, on the CPU.

Small-integer inputs make every order of summation exact. Sizes are few and small, so that cases
share compilations; 0 and 1 are among them.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax
from numerics import assert_exact, small_integers

import jax_bwgemm as bw

SIZES = (0, 1, 2, 3, 8)
# (lhs, rhs, preferred): kernels' own pairs first, then those that only XLA has.
TYPES = [
    ("bfloat16", "bfloat16", None),
    ("bfloat16", "bfloat16", "float32"),
    ("float16", "float16", None),
    ("float16", "float16", "float32"),
    ("bfloat16", "bfloat16", "bfloat16"),
    ("float32", "float32", None),
    ("bfloat16", "float32", None),
    ("float16", "bfloat16", None),
    ("int8", "int8", "int32"),
    ("int32", "float16", None),
]
types = st.sampled_from(TYPES[:5] * 3 + TYPES[5:])
sizes = st.sampled_from(SIZES)
seeds = st.integers(0, 2**16)


@st.composite
def matmul_shapes(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shapes of rank 1 to 5 whose batches broadcast."""
    m, n, k = draw(sizes), draw(sizes), draw(sizes)
    batch = draw(st.lists(st.sampled_from((1, 2, 3)), max_size=3))
    broadcast = st.lists(st.booleans(), min_size=len(batch), max_size=len(batch))

    def own(masks: list[bool], start: int) -> tuple[int, ...]:
        sized = zip(batch, masks, strict=True)
        return tuple(1 if ones else size for size, ones in sized)[start:]

    starts = st.integers(0, len(batch))
    a_batch, b_batch = own(draw(broadcast), draw(starts)), own(draw(broadcast), draw(starts))
    a_shape = (k,) if not a_batch and draw(st.booleans()) else (*a_batch, m, k)
    b_shape = (k,) if not b_batch and draw(st.booleans()) else (*b_batch, k, n)
    return a_shape, b_shape


@st.composite
def dot_generals(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...], Any]:
    """Shapes of rank 0 to 5 with any dimension numbers."""
    n_batch = draw(st.integers(0, 2))
    n_contract = draw(st.integers(0, 2))
    shared = [draw(sizes) for _ in range(n_batch + n_contract)]

    def operand() -> tuple[tuple[int, ...], list[int]]:
        free = [draw(sizes) for _ in range(draw(st.integers(0, min(2, 5 - len(shared)))))]
        dims = [*shared, *free]
        order = draw(st.permutations(range(len(dims))))
        return tuple(dims[i] for i in order), [order.index(i) for i in range(len(shared))]

    (lhs, lhs_at), (rhs, rhs_at) = operand(), operand()
    contract = (tuple(lhs_at[n_batch:]), tuple(rhs_at[n_batch:]))
    return lhs, rhs, (contract, (tuple(lhs_at[:n_batch]), tuple(rhs_at[:n_batch])))


def operands(seed: int, a: tuple[int, ...], b: tuple[int, ...], dtypes: Any) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    return small_integers(rng, a, dtypes[0]), small_integers(rng, b, dtypes[1])


def of_both(ours: Any, theirs: Any, *args: Any) -> Any:
    """Of one program: to compile it is what an example costs."""
    return jax.jit(lambda *args: (ours(*args), theirs(*args)))(*args)


@settings(max_examples=200)
@given(matmul_shapes(), types, seeds)
def test_matmul_equals_jnp(shapes: Any, dtypes: Any, seed: int) -> None:
    a, b = operands(seed, *shapes, dtypes)
    options = {"preferred_element_type": dtypes[2]}
    both = (functools.partial(f, **options) for f in (bw.matmul, jnp.matmul))
    assert_exact(*of_both(*both, a, b), f"{shapes} {dtypes}")


@settings(max_examples=200)
@given(dot_generals(), types, seeds)
def test_dot_general_equals_lax(problem: Any, dtypes: Any, seed: int) -> None:
    lhs_shape, rhs_shape, numbers = problem
    lhs, rhs = operands(seed, lhs_shape, rhs_shape, dtypes)
    options = {"dimension_numbers": numbers, "preferred_element_type": dtypes[2]}
    both = (functools.partial(f, **options) for f in (bw.dot_general, lax.dot_general))
    assert_exact(*of_both(*both, lhs, rhs), f"{lhs_shape} {rhs_shape} {numbers} {dtypes}")


@settings(max_examples=60)
@given(matmul_shapes(), st.sampled_from(TYPES[:4]), seeds)
def test_gradients_equal_jnps(shapes: Any, dtypes: Any, seed: int) -> None:
    a, b = operands(seed, *shapes, dtypes)
    ct = small_integers(np.random.default_rng(seed), np.matmul(a, b).shape, "float32")

    def gradients(matmul: Any) -> Any:
        def of(a: Any, b: Any) -> Any:
            out, vjp = jax.vjp(lambda x, y: matmul(x, y, preferred_element_type=dtypes[2]), a, b)
            return vjp(jnp.asarray(ct, out.dtype))

        return of

    both = of_both(gradients(bw.matmul), gradients(jnp.matmul), a, b)
    for got, want in zip(*both, strict=True):
        assert_exact(got, want, f"{shapes} {dtypes}")


@pytest.mark.parametrize("precision", ["highest", lax.Precision.HIGH, "bfloat16", None])
def test_every_precision_is_accepted_by_the_kernels(precision: Any) -> None:
    x = jnp.ones((16, 16), jnp.bfloat16)
    jaxpr = jax.make_jaxpr(lambda a: bw.matmul(a, a, precision=precision))(x)
    assert "bw_gemm" in str(jaxpr)
    assert_exact(bw.matmul(x, x, precision=precision), jnp.matmul(x, x, precision=precision))


@pytest.mark.parametrize(
    "numbers", [((1, 0), ((), ())), ((np.int32(1), 0), ((), ())), (([1], (0,)), ([], ())), None]
)
def test_dimension_numbers_as_lax_takes_them(numbers: Any) -> None:
    rng = np.random.default_rng(0)
    a, b = small_integers(rng, (3, 4), "bfloat16"), small_integers(rng, (4, 5), "bfloat16")
    assert_exact(bw.dot_general(a, b, numbers), jax.lax.dot_general(a, b, numbers))


def test_weak_types_follow_jnp() -> None:
    x = jnp.ones((2, 2), jnp.bfloat16)
    weak = jax.numpy.full((2, 2), 2.0)  # f32
    weak = lax.convert_element_type(weak, jnp.bfloat16) * 1.0
    for a, b in [(x, x), (weak, x), (weak, weak)]:
        got, want = jax.typeof(bw.matmul(a, b)), jax.typeof(jnp.matmul(a, b))
        assert (got.dtype, got.weak_type) == (want.dtype, want.weak_type)


def test_flax_layers_take_dot_general() -> None:
    linen, nnx = pytest.importorskip("flax.linen"), pytest.importorskip("flax.nnx")
    x = small_integers(np.random.default_rng(0), (4, 6, 16), "bfloat16")
    for dot_general in (bw.dot_general, lax.dot_general):
        layer = linen.Dense(8, dtype=jnp.bfloat16, dot_general=dot_general)
        params = layer.init(jax.random.key(0), x)
        dense = layer.apply(params, x)
        linear = nnx.Linear(16, 8, dtype=jnp.bfloat16, rngs=nnx.Rngs(0), dot_general=dot_general)
        both = (dense, linear(x))
        if dot_general is bw.dot_general:
            ours = both
            assert "bw_gemm" in str(jax.make_jaxpr(layer.apply)(params, x))
    for got, want in zip(ours, both, strict=True):
        assert_exact(got, want)


def test_einsum_takes_dot_general() -> None:
    rng = np.random.default_rng(0)
    a, b = small_integers(rng, (2, 4, 8), "bfloat16"), small_integers(rng, (8, 4), "bfloat16")
    got = jnp.einsum("bmk,km->b", a, b, _dot_general=bw.dot_general)
    assert_exact(got, jnp.einsum("bmk,km->b", a, b))
