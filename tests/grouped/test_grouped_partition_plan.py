"""The sharding decisions, as a table; what they compile to is in test_grouped_sharding.py."""

from __future__ import annotations

from typing import Any

import pytest

from jax_bwgemm.grouped.contraction import GROUPED
from jax_bwgemm.grouped.spec import GroupedDims, GroupedSpec
from jax_bwgemm.product.partition import Form, plan, sharding_rule

MESH = {"x": 4, "y": 2}
X, Y = ("x",), ("y",)
ROWS, CONTRACT = GroupedSpec(), GroupedSpec("k-grouped", experts=8)
DIMS = GroupedDims(m=16, n=32, k=64, experts=8, groups=8)
MANY_ROWS = GroupedDims(m=2**20, n=32, k=64, experts=8, groups=8)
BATCHED = GroupedDims(16, 32, 64, 8, 8, 4, a_batch=4, b_batch=1, sizes_batch=4)


def decide(spec: Any, lhs: dict, rhs: dict, out: dict, dims: Any = DIMS) -> Any:
    return plan(GROUPED, spec, dims, MESH, lhs, rhs, out)


def test_columns_of_rows_are_local() -> None:
    got = decide(ROWS, {}, {"n": X}, {})
    assert got.operands == (((), (), ()), ((), (), (), X), ((), ()), ((),))
    assert got.out == ((), (), X)
    assert (got.reduce_axes, got.axes["m"], got.axes["e"]) == ((), (), ())


def test_the_other_major_has_its_dimensions_in_its_order() -> None:
    got = decide(GroupedSpec(b_major="k"), {}, {"n": X, "k": Y}, {})
    assert got.operands[:2] == (((), (), Y), ((), (), X, Y))
    assert got.reduce_axes == Y


def test_ragged_rows_are_local() -> None:
    got = decide(ROWS, {"m": X}, {}, {})
    assert got.operands[:2] == (((), X, ()), ((), (), (), ()))
    assert (got.out, got.axes["m"], got.reduce_axes) == (((), X, ()), X, ())


def test_k_reduces() -> None:
    got = decide(ROWS, {"k": X}, {"k": X}, {})
    assert got.operands[:2] == (((), (), X), ((), (), X, ()))
    assert got.reduce_axes == X


def test_experts_reduce_and_shift_the_offset() -> None:
    got = decide(ROWS, {}, {"e": X}, {})
    assert got.operands[:2] == (((), (), ()), ((), X, (), ()))
    assert (got.axes["e"], got.reduce_axes, got.out) == (X, X, ((), (), ()))


def test_tokens_and_experts_over_the_same_axis_bring_the_tokens_to_the_experts() -> None:
    """And scatter the sum: the smaller of both ways to meet."""
    got = decide(ROWS, {"m": X}, {"e": X}, {"m": X})
    assert got.operands[:2] == (((), (), ()), ((), X, (), ()))
    assert (got.axes["e"], got.axes["m"]) == (X, ())
    assert (got.scatter, got.reduce_axes, got.out) == (((1, X),), (), ((), X, ()))


def test_or_the_experts_to_the_tokens_when_there_are_many() -> None:
    got = decide(ROWS, {"m": X}, {"e": X}, {"m": X}, MANY_ROWS)
    assert got.operands[:2] == (((), X, ()), ((), (), (), ()))
    assert (got.axes["e"], got.axes["m"], got.reduce_axes) == ((), X, ())


def test_tokens_and_experts_over_different_axes() -> None:
    got = decide(ROWS, {"m": X}, {"e": Y}, {})
    assert got.operands[:2] == (((), X, ()), ((), Y, (), ()))
    assert (got.axes["m"], got.axes["e"], got.reduce_axes) == (X, Y, Y)


def test_contracted_rows_are_partial_sums() -> None:
    got = decide(CONTRACT, {"m": X}, {"m": X}, {})
    assert got.operands[:2] == (((), X, ()), ((), X, ()))
    assert (got.axes["m"], got.reduce_axes, got.out) == (X, X, ((), (), (), ()))


def test_partial_sums_scatter_where_the_result_is_sharded() -> None:
    """Data parallel tokens, fully sharded weights."""
    got = decide(CONTRACT, {"m": X}, {"m": X}, {"k": X})
    assert (got.axes["m"], got.reduce_axes, got.scatter) == (X, (), ((2, X),))
    assert got.out == ((), (), X, ())


def test_experts_of_the_gradient_are_local() -> None:
    got = decide(CONTRACT, {}, {}, {"e": X})
    assert got.operands[:2] == (((), (), ()), ((), (), ()))
    assert (got.axes["e"], got.reduce_axes, got.out) == (X, (), ((), X, (), ()))


def test_experts_of_the_gradient_with_tokens_over_the_same_axis() -> None:
    few = decide(CONTRACT, {"m": X}, {"m": X}, {"e": X})
    assert (few.axes["m"], few.axes["e"], few.reduce_axes) == ((), X, ())
    many = decide(CONTRACT, {"m": X}, {"m": X}, {"e": X}, MANY_ROWS)
    assert (many.axes["m"], many.axes["e"], many.scatter) == (X, (), ((1, X),))


def test_columns_of_either_side_of_a_gradient() -> None:
    got = decide(CONTRACT, {"k": X}, {"n": Y}, {})
    assert got.out == ((), (), X, Y)
    assert got.reduce_axes == ()


def test_batch_leaves_shared_operands_whole() -> None:
    got = decide(ROWS, {"b": X}, {}, {"b": X}, BATCHED)
    assert got.operands == ((X, (), ()), ((), (), (), ()), (X, ()), ((),))
    assert got.out == (X, (), ())


def test_summed_batch_reduces() -> None:
    spec = GroupedSpec("k-grouped", experts=8, reduce_batch=True)
    dims = GroupedDims(16, 32, 64, 8, 8, 4, a_batch=4, b_batch=4, sizes_batch=4)
    got = decide(spec, {"b": X}, {"b": X}, {}, dims)
    assert got.operands == ((X, (), ()), (X, (), ()), (X, ()), ((),))
    assert (got.reduce_axes, got.out) == (X, ((), (), (), ()))


def test_uneven_sizes_are_not_sharded() -> None:
    dims = GroupedDims(m=6, n=10, k=64, experts=6, groups=6)
    got = decide(ROWS, {"m": (*Y, *X)}, {"e": X, "n": X}, {}, dims)
    assert got.operands[:2] == (((), Y, ()), ((), (), (), ()))  # 6 = 2 * 3


def test_axes_are_used_once() -> None:
    got = decide(ROWS, {"m": X}, {"n": X}, {"n": X})
    assert got.out == ((), (), X)
    assert got.operands[0] == ((), (), ())


@pytest.mark.parametrize(
    ("spec", "shapes", "rule", "reduced"),
    [
        (ROWS, ((2, 3, 4), (2, 8, 4, 5), (2, 8), (2,)), "b m k, b e k n, b g, b -> b m n", "ke"),
        (
            GroupedSpec(b_major="k"),
            ((2, 3, 4), (1, 8, 5, 4), (2, 8), (1,)),
            "b m k, q e n k, b g, t -> b m n",
            "ke",
        ),
        (
            CONTRACT,
            ((1, 3, 4), (2, 3, 5), (1, 8), (1,)),
            "p m k, b m n, s g, t -> b e k n",
            "m",
        ),
        (
            GroupedSpec("k-grouped", experts=8, reduce_batch=True),
            ((1, 3, 4), (2, 3, 5), (1, 8), (1,)),
            "p m k, b m n, s g, t -> r e k n",
            "mb",
        ),
    ],
)
def test_shardy_rule(spec: Any, shapes: Any, rule: str, reduced: str) -> None:
    factors = {"reduction_factors": tuple(reduced), "need_replication_factors": ("g",)}
    dims = GROUPED.dims(spec, *shapes)
    assert sharding_rule(GROUPED, Form(spec), dims) == (rule, factors)
