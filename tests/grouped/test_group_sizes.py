"""Arithmetic on group sizes: where groups begin and end, and which matrix a row has."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

import jax_bwgemm as bw
from jax_bwgemm.grouped import groups
from jax_bwgemm.grouped.validation import as_representative

LARGEST = 2**31 - 1


def int32(*values: int) -> jnp.ndarray:
    return jnp.array(values, jnp.int32)


@pytest.mark.parametrize(
    ("sizes", "ends"),
    [
        ([2, 0, 3], [2, 2, 5]),
        ([-4, 3, -(2**31)], [0, 3, 3]),
        ([4, 9, 1], [4, 6, 6]),
        ([LARGEST, LARGEST, LARGEST], [6, 6, 6]),
    ],
)
def test_bounds(sizes: list[int], ends: list[int]) -> None:
    got = groups.group_bounds(int32(*sizes), 6)
    np.testing.assert_array_equal(got, [[0, *ends[:-1]], ends])


@pytest.mark.parametrize(
    ("offset", "bounds"),
    [
        (0, [(0, 2), (2, 2), (2, 5), (5, 5)]),  # no fourth group: an empty one behind the last
        (1, [(2, 2), (2, 5), (5, 5), (5, 5)]),
        (9, [(5, 5)] * 4),
        (-1, [(0, 2), (2, 2), (2, 5), (5, 5)]),
    ],
)
def test_bounds_of_matrices(offset: int, bounds: list[tuple[int, int]]) -> None:
    of_groups = groups.group_bounds(int32(2, 0, 3), 6)
    got = groups.expert_bounds(*of_groups, jnp.int32(offset), 4)
    np.testing.assert_array_equal(np.stack(got, 1), bounds)


def test_sizes_within_a_window() -> None:
    got = [groups.local_sizes(int32(3, 2, 9), 8, jnp.int32(first), 4) for first in (0, 4)]
    np.testing.assert_array_equal(got, [[3, 1, 0], [0, 1, 3]])


@pytest.mark.parametrize(
    ("offset", "values"),
    [
        (0, [10, 10, 20, 0]),
        (1, [0, 0, 10, 0]),  # no matrix for the first group
        (-3, [10, 10, 20, 0]),
    ],
)
def test_a_row_has_its_groups_value_and_a_row_of_no_group_zero(
    offset: int, values: list[int]
) -> None:
    """There are more matrices than groups, and the last row is in no group."""
    of_matrices = jnp.array([10, 20, 30, 40]), jnp.array([[10, 1], [20, 2], [30, 3], [40, 4]])
    one, two = groups.rows_of_groups(of_matrices, int32(2, 1), jnp.int32(offset), 4)
    np.testing.assert_array_equal(one, np.array(values)[:, None])
    np.testing.assert_array_equal(two, np.outer(values, [10, 1]) // 10)


def test_a_row_whose_group_has_no_matrix_has_zero() -> None:
    (got,) = groups.rows_of_groups((jnp.array([10]),), int32(2, 1), jnp.int32(0), 4)
    np.testing.assert_array_equal(got[:, 0], [10, 10, 0, 0])
    (got,) = groups.rows_of_groups((jnp.zeros((0, 5)),), int32(2, 1), jnp.int32(0), 4)
    np.testing.assert_array_equal(got, np.zeros((4, 5)))
    assert groups.rows_of_groups((), int32(2, 1), jnp.int32(0), 4) == []


@pytest.mark.parametrize("shape", [(2,), (2, 1), (2, 5)])
def test_an_epilogues_operands_of_groups_have_the_offset(shape: tuple[int, ...]) -> None:
    """The matrices are those of the last two groups; the first row has none."""
    lhs, rhs = jnp.ones((4, 3)), jnp.ones((2, 3, 5))
    bias = jnp.broadcast_to(jnp.array([10.0, 20.0]).reshape(2, *[1] * (len(shape) - 1)), shape)
    out = bw.ragged_dot(
        lhs,
        rhs,
        int32(1, 2, 1),
        group_offset=1,
        epilogue=lambda z, bias: z + bias,
        epilogue_group_operands=(bias,),
    )
    np.testing.assert_array_equal(out, np.outer([0, 13, 13, 23], np.ones(5)))


def test_an_offset_behind_the_last_group_leaves_nothing() -> None:
    lhs, rhs = jnp.ones((4, 3)), jnp.ones((2, 3, 5))
    np.testing.assert_array_equal(bw.ragged_dot(lhs, rhs, int32(2, 2), group_offset=2), 0)


def test_shares_are_of_all_rows() -> None:
    """Also where the sizes that are expected leave rows out."""
    assert as_representative("f", [4, 2], 2, 16) == (0.25, 0.125)
    assert as_representative("f", np.array([0]), 1, 0) == (0.0,)
