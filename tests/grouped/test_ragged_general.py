"""ragged_dot_general: any dimension numbers in all three modes, and how few elements they copy."""

from __future__ import annotations

import math
from typing import Any

import grouped_oracle as oracle
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax
from numerics import assert_exact, small_integers

import jax_bwgemm as bw
from jax_bwgemm.grouped.canonical import plan_ragged
from jax_bwgemm.grouped.validation import Mode, as_ragged_numbers

pytestmark = pytest.mark.usefixtures("dense_grouped")

ROWS, E = 6, 3
seeds = st.integers(0, 2**16)
extents = st.sampled_from((1, 2, 3))


def shuffled(draw: st.DrawFn, sizes: list[int]) -> tuple[tuple[int, ...], list[int]]:
    """A shape with these dimensions in some order, and where each of them went."""
    order = draw(st.permutations(range(len(sizes))))
    return tuple(sizes[i] for i in order), [order.index(i) for i in range(len(sizes))]


@st.composite
def problems(draw: st.DrawFn, mode: str) -> tuple[Any, ...]:
    """(lhs shape, rhs shape, numbers, shape of the group sizes but for the groups)."""
    batch = [draw(extents) for _ in range(draw(st.integers(0, 1)))]
    free = [draw(extents) for _ in range(draw(st.integers(0, 2)))]
    summed = [draw(extents) for _ in range(draw(st.integers(0, 2)))]
    n = [draw(extents) for _ in range(draw(st.integers(0, 1)))]
    ragged_in = {"rows": free, "contract": summed, "batch": batch}[mode]
    at = draw(st.integers(0, len(ragged_in)))
    ragged_in.insert(at, ROWS)
    lhs, lhs_at = shuffled(draw, batch + free + summed)
    group = [E] if mode == "rows" else []
    rhs, rhs_at = shuffled(draw, batch + group + summed + n)
    b, s = len(batch), len(summed)
    lhs_summed, rhs_summed = lhs_at[len(lhs) - s :], rhs_at[b + len(group) :][:s]
    ragged = {"rows": b, "contract": len(lhs) - s, "batch": 0}[mode] + at
    numbers = lax.RaggedDotDimensionNumbers(
        ((lhs_summed, rhs_summed), (lhs_at[:b], rhs_at[:b])),
        [lhs_at[ragged]],
        [rhs_at[b]] if group else [],
    )
    contract = lhs_summed[:at]
    outside = [d for d in range(lhs_at[ragged]) if d in lhs_at[b : len(lhs) - s]]
    dims = {"rows": [*lhs_at[:b], *outside], "contract": [*lhs_at[:b], *contract]}
    prefix = tuple(lhs[d] for d in dims.get(mode, lhs_at[:at]))
    return lhs, rhs, numbers, prefix if draw(st.booleans()) else ()


def operands(problem: Any, seed: int) -> tuple[Any, Any, Any]:
    lhs, rhs, _, prefix = problem
    rng = np.random.default_rng(seed)
    sizes = [oracle.some_sizes(rng, ROWS, E, "short") for _ in range(math.prod(prefix))]
    sizes = np.stack(sizes).reshape(*prefix, E)
    return small_integers(rng, lhs, "bfloat16"), small_integers(rng, rhs, "bfloat16"), sizes


@settings(max_examples=16)
@given(problems("rows"), seeds)
def test_non_contracting_equals_lax(problem: Any, seed: int) -> None:
    lhs, rhs, sizes = operands(problem, seed)
    numbers = problem[2]
    (group,) = numbers.rhs_group_dimensions
    known = np.expand_dims(np.arange(E) > 0, [d for d in range(rhs.ndim) if d != group])

    @jax.jit  # one compilation for all four
    def both(a: Any, b: Any, s: Any) -> Any:
        # Matrices 1 and 2 alone: those of groups 1 and 2. Other rows are zero.
        some = jnp.take(b, jnp.array([1, 2]), group)
        ours = bw.ragged_dot_general(a, b, s, numbers)
        ours = ours, bw.ragged_dot_general(a, some, s, numbers, group_offset=1)
        laxs = (lax.ragged_dot_general(a, x, s, numbers) for x in (b, jnp.where(known, b, 0)))
        return ours, tuple(laxs)

    for got, want in zip(*both(lhs, rhs, jnp.asarray(sizes)), strict=True):
        assert_exact(got, want, f"{problem}")


@settings(max_examples=16)
@given(problems("contract"), seeds)
def test_contracting_equals_lax(problem: Any, seed: int) -> None:
    lhs, rhs, sizes = operands(problem, seed)
    numbers = problem[2]

    @jax.jit
    def all_and_part(a: Any, b: Any, s: Any) -> Any:
        ours = bw.ragged_dot_general(a, b, s, numbers)
        part = bw.ragged_dot_general(a, b, s, numbers, group_offset=2, num_groups=2)
        return ours, part, lax.ragged_dot_general(a, b, s, numbers)

    got, part, want = all_and_part(lhs, rhs, jnp.asarray(sizes))
    assert_exact(got, want, f"{problem}")
    want = np.concatenate([want[2:], np.zeros_like(want[:1])])  # there is no group 3
    assert_exact(part, want, f"{problem}")


@settings(max_examples=6)
@given(problems("batch"), seeds)
def test_batch_equals_lax(problem: Any, seed: int) -> None:
    lhs, rhs, sizes = operands(problem, seed)
    got = bw.ragged_dot_general(lhs, rhs, sizes, problem[2])
    assert_exact(got, lax.ragged_dot_general(lhs, rhs, sizes, problem[2]), f"{problem}")


def numbers_of(contract: Any, batch: Any, ragged: int, group: int | None) -> Any:
    return lax.RaggedDotDimensionNumbers(
        (contract, batch), [ragged], [] if group is None else [group]
    )


# (numbers, lhs shape, rhs shape, elements copied, B's major)
PLANS = {
    "ragged_dot": (numbers_of(([1], [1]), ([], []), 0, 0), (8, 4), (3, 4, 5), 0, "n"),
    "matrices transposed": (numbers_of(([1], [2]), ([], []), 0, 0), (8, 4), (3, 5, 4), 0, "k"),
    "lhs transposed": (numbers_of(([0], [1]), ([], []), 1, 0), (4, 8), (3, 4, 5), 32, "n"),
    "groups inside": (numbers_of(([1], [0]), ([], []), 0, 1), (8, 4), (4, 3, 5), 60, "n"),
    "groups of one": (numbers_of(([1], [0]), ([], []), 0, 1), (8, 4), (4, 1, 5), 0, "n"),
    "heads": (numbers_of(([1, 2], [1, 2]), ([], []), 0, 0), (8, 2, 4), (3, 2, 4, 5), 0, "n"),
    "batch": (numbers_of(([2], [2]), ([0], [1]), 1, 0), (2, 8, 4), (3, 2, 4, 5), 120, "n"),
    "batch outside": (numbers_of(([2], [2]), ([0], [0]), 1, 1), (2, 8, 4), (2, 3, 4, 5), 0, "n"),
    "weights' gradient": (numbers_of(([0], [0]), ([], []), 0, None), (8, 4), (8, 5), 0, "n"),
    "contracted inside": (numbers_of(([1], [0]), ([], []), 1, None), (4, 8), (8, 5), 32, "n"),
}


@pytest.mark.parametrize("name", PLANS)
def test_elements_copied(name: str) -> None:
    numbers, lhs, rhs, copied, major = PLANS[name]
    dot, ragged, group = as_ragged_numbers(numbers)
    mode = Mode.CONTRACT if group is None else Mode.ROWS
    plan = plan_ragged(mode, lhs, rhs, dot, ragged, group, 3)
    assert plan.lhs.copied + plan.rhs.copied + plan.out.copied == copied
    assert plan.b_major == major
    assert len(plan.lhs.shape) == 4


def test_the_order_of_several_contracted_dimensions_is_chosen_to_copy_the_least() -> None:
    """Listed one way, lying another: the larger operand is not transposed."""
    numbers = numbers_of(([2, 1], [2, 1]), ([], []), 0, 0)
    dot, ragged, group = as_ragged_numbers(numbers)
    plan = plan_ragged(Mode.ROWS, (8, 2, 4), (3, 2, 4, 5), dot, ragged, group, 3)
    assert plan.lhs.copied + plan.rhs.copied == 0
    numbers = numbers_of(([0, 2, 1], [0, 2, 1]), ([], []), 0, None)
    dot, ragged, group = as_ragged_numbers(numbers)
    plan = plan_ragged(Mode.CONTRACT, (8, 2, 4, 3), (8, 2, 4, 5), dot, ragged, group, 3)
    assert plan.lhs.copied + plan.rhs.copied == 0


def test_dimensions_inside_of_the_ragged_one_multiply_the_sizes() -> None:
    """Rows that stand for two: sizes on the device are clamped before they are multiplied."""
    lhs, rhs = jnp.ones((6, 2, 3)), jnp.ones((3, 3, 4)) * jnp.arange(1, 4)[:, None, None]
    numbers = numbers_of(([2], [1]), ([], []), 0, 0)
    out = bw.ragged_dot_general(lhs, rhs, jnp.array([2, -1, 2**31 - 1]), numbers)
    assert_exact(out[:, 1, 0], np.array([3, 3, 9, 9, 9, 9], np.float32))


def test_jvp_of_ragged_dot_general_closes() -> None:
    """With batch and outer dimensions: the primitive's own batching and summing, differentiated."""
    rng = np.random.default_rng(0)
    lhs, rhs = (
        small_integers(rng, (2, 3, 4, 5), "float32"),
        small_integers(rng, (2, 3, 5, 2), "float32"),
    )
    sizes = np.stack([oracle.some_sizes(rng, 4, 3, "short") for _ in range(6)]).reshape(2, 3, 3)
    numbers = numbers_of(([3], [2]), ([0], [0]), 2, 1)

    def second(f: Any) -> Any:
        def loss(a: Any, b: Any) -> Any:
            return jnp.sum(f(a, b, sizes, numbers) ** 2)

        return jax.jit(lambda a, b: jax.jvp(jax.grad(loss, (0, 1)), (a, b), (b_like(a), b)))(
            lhs, rhs
        )

    def b_like(a: Any) -> Any:
        return jnp.flip(a, 0)

    ours = second(bw.ragged_dot_general)

    def by_hand(a: Any, b: Any, s: Any, _: Any) -> Any:
        ends = jnp.cumsum(s, -1)[:, :, None]
        row = jnp.arange(4)[:, None]
        mask = (row < ends) & (row >= ends - s[:, :, None])
        return jnp.einsum("bxmk,bekn,bxme->bxmn", a, b, mask * 1.0)

    for got, want in zip(jax.tree.leaves(ours), jax.tree.leaves(second(by_hand)), strict=True):
        assert_exact(got, np.asarray(want))
