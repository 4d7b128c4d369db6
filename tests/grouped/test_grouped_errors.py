"""Bad input to grouped GEMMs: every raise, with its documented type and its full message."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from errors import check_error
from jax import lax

import jax_bwgemm as bw

# numpy arrays: importing this file must not touch a device.
X, W = np.ones((16, 8), jnp.bfloat16), np.ones((2, 8, 8), jnp.bfloat16)
S = np.array([4, 4], np.int32)
ROWS, CONTRACT, BATCH = (
    lax.RaggedDotDimensionNumbers(*numbers)
    for numbers in (
        ((((1,), (1,)), ((), ())), (0,), (0,)),
        ((((0,), (0,)), ((), ())), (0,), ()),
        ((((1,), (1,)), ((0,), (0,))), (0,), ()),
    )
)


def zeros(*shape: int, dtype: Any = jnp.bfloat16) -> np.ndarray:
    return np.zeros(shape, dtype)


def dot(*args: Any, **kwargs: Any) -> Any:
    return lambda: bw.ragged_dot(*args, **kwargs)


def general(lhs: Any, rhs: Any, sizes: Any, numbers: Any, **kwargs: Any) -> Any:
    return lambda: bw.ragged_dot_general(lhs, rhs, sizes, numbers, **kwargs)


def numbers(contract: Any, batch: Any, ragged: Any, group: Any) -> Any:
    return lax.RaggedDotDimensionNumbers((contract, batch), ragged, group)


CASES = [
    # -- operands
    (dot([1.0], W, S), TypeError, "ragged_dot requires arrays, got lhs of type list"),
    (dot(X, None, S), TypeError, "ragged_dot requires arrays, got rhs of type NoneType"),
    (dot(X, W, [4, 4]), TypeError, "ragged_dot requires arrays, got group_sizes of type list"),
    (
        dot(X, X, S),
        TypeError,
        "ragged_dot requires lhs of rank 2 and rhs of rank 3, got shapes (16, 8) and (16, 8)",
    ),
    (
        dot(X, zeros(2, 4, 8), S),
        TypeError,
        "ragged_dot contracts dimension 1 of lhs (16, 8) with dimension 1 of rhs (2, 4, 8): 8 and "
        "4 differ",
    ),
    *(
        (
            dot(X, W, S, preferred_element_type=given),
            TypeError,
            f"preferred_element_type must be a type of numbers, got {given!r}",
        )
        for given in ([1], (1,), "x", {})
    ),
    *(
        (
            dot(X, W, S, out_sharding=given),
            TypeError,
            "out_sharding must be None, a NamedSharding or a PartitionSpec, got "
            f"{type(given).__name__}",
        )
        for given in ([1], {}, X)
    ),
    # -- group sizes
    (
        dot(X, W, np.ones(2, np.float32)),
        TypeError,
        "ragged_dot requires group_sizes of an integer type, got float32",
    ),
    (
        dot(X, W, np.int32(4)),
        TypeError,
        "ragged_dot requires group_sizes of shape (G,), got ()",
    ),
    (
        dot(X, W, np.ones((1, 2), np.int32)),
        TypeError,
        "ragged_dot requires group_sizes of shape (G,), got (1, 2)",
    ),
    (
        general(X, W, np.ones((3, 2), np.int32), ROWS),
        TypeError,
        "ragged_dot_general requires group_sizes of shape (G,), got (3, 2)",
    ),
    (
        general(
            zeros(3, 16, 8),
            zeros(3, 16, 8),
            np.ones((2, 4), np.int32),
            numbers(((1,), (1,)), ((0,), (0,)), (1,), ()),
        ),
        TypeError,
        "ragged_dot_general requires group_sizes of shape (G,) or (3, G), got (2, 4)",
    ),
    (
        dot(X, W, np.ones(3, np.int32)),
        TypeError,
        "ragged_dot requires one matrix for each group, got 2 matrices and 3 group_sizes "
        "(fewer matrices need a group_offset)",
    ),
    (
        dot(X, W, np.array([4, -1])),
        ValueError,
        "ragged_dot group_sizes must not be negative, got -1",
    ),
    (
        dot(X, W, np.array([9, 8], np.int8)),
        ValueError,
        "ragged_dot group_sizes sum to 17, but there are 16 ragged rows",
    ),
    (
        dot(X, W, np.array([2**63, 2**63], np.uint64)),
        ValueError,
        f"ragged_dot group_sizes sum to {2**64}, but there are 16 ragged rows",
    ),
    (
        general(
            zeros(2, 16, 8),
            zeros(2, 16, 8),
            np.array([[4, 4], [8, 9]]),
            numbers(((1,), (1,)), ((0,), (0,)), (1,), ()),
        ),
        ValueError,
        "ragged_dot_general group_sizes sum to 17, but there are 16 ragged rows",
    ),
    (
        general(
            zeros(2, 16, 8),
            zeros(2, 16, 8),
            np.array([[4, 4], [2**63, 2**63]], np.uint64),
            numbers(((1,), (1,)), ((0,), (0,)), (1,), ()),
        ),
        ValueError,
        f"ragged_dot_general group_sizes sum to {2**64}, but there are 16 ragged rows",
    ),
    # -- group offset
    (
        dot(X, W, S, group_offset="first"),
        TypeError,
        "ragged_dot requires arrays, got group_offset of type str",
    ),
    (
        dot(X, W, S, group_offset=1.0),
        TypeError,
        "ragged_dot requires group_offset to be an integer scalar, got float32 of shape ()",
    ),
    (
        dot(X, W, S, group_offset=np.ones(1, np.int32)),
        TypeError,
        "ragged_dot requires group_offset to be an integer scalar, got int32 of shape (1,)",
    ),
    (
        dot(X, W, S, group_offset=3),
        ValueError,
        "ragged_dot group_offset must be between 0 and the number of groups, 2, got 3",
    ),
    (
        dot(X, W, S, group_offset=-1),
        ValueError,
        "ragged_dot group_offset must be between 0 and the number of groups, 2, got -1",
    ),
    (
        general(X, X, S, BATCH, group_offset=0),
        ValueError,
        "ragged_dot_general group_offset has no meaning when the lhs ragged dimension is batch",
    ),
    # -- the number of groups of the result
    (
        general(X, W, S, ROWS, num_groups=2),
        ValueError,
        "ragged_dot_general num_groups has no meaning when the lhs ragged dimension is "
        "non-contracting",
    ),
    (
        general(X, X, S, CONTRACT, num_groups=2.0),
        TypeError,
        "ragged_dot_general num_groups must be an integer or None, got 2.0",
    ),
    (
        general(X, X, S, CONTRACT, num_groups=-2),
        ValueError,
        "ragged_dot_general num_groups must not be negative, got -2",
    ),
    (
        general(X, X, S, CONTRACT, num_groups=2**31),
        ValueError,
        "ragged_dot_general num_groups must be below 2**31, got 2147483648",
    ),
    (
        dot(X, W, S, group_offset=2**40),
        ValueError,
        "ragged_dot group_offset must be between 0 and the number of groups, 2, got 1099511627776",
    ),
    (
        dot(X, W, S, representative_group_sizes=[[1], [2, 3]]),
        TypeError,
        "ragged_dot requires representative_group_sizes to be a sequence of integers, got "
        "[[1], [2, 3]]",
    ),
    # -- representative sizes
    (
        dot(X, W, S, representative_group_sizes=[8]),
        ValueError,
        "ragged_dot requires one of representative_group_sizes for each group, got 1 for 2",
    ),
    (
        dot(X, W, S, representative_group_sizes=[0.5, 0.5]),
        TypeError,
        "ragged_dot requires representative_group_sizes to be a sequence of integers, got "
        "[0.5, 0.5]",
    ),
    (
        dot(X, W, S, representative_group_sizes=[9, -1]),
        ValueError,
        "ragged_dot representative_group_sizes must not be negative, got -1",
    ),
    (
        dot(X, W, S, representative_group_sizes=[2**63 - 1, 1]),
        ValueError,
        f"ragged_dot representative_group_sizes sum to {2**63}, but there are 16 ragged rows",
    ),
    (
        dot(X, W, S, representative_group_sizes=[9, 8]),
        ValueError,
        "ragged_dot representative_group_sizes sum to 17, but there are 16 ragged rows",
    ),
    # -- dimension numbers
    (
        general(X, W, S, (((1,), (1,)), ((), ()))),
        TypeError,
        "ragged_dot_general ragged_dot_dimension_numbers must be a "
        "jax.lax.RaggedDotDimensionNumbers, got (((1,), (1,)), ((), ()))",
    ),
    (
        general(X, W, S, numbers(((1,), (1,)), ((), ()), (0.0,), (0,))),
        TypeError,
        "ragged_dot_general requires ragged and group dimensions that are integers, got (0.0,) and "
        "(0,)",
    ),
    (
        general(X, W, S, numbers(((1.0,), (1,)), ((), ()), (0,), (0,))),
        TypeError,
        "dot_general dimension_numbers must be ((lhs_contracting, rhs_contracting), (lhs_batch, "
        "rhs_batch)) with ints or sequences of ints, got (((1.0,), (1,)), ((), ()))",
    ),
    (
        general(X, W, S, numbers(((1,), (1,)), ((), ()), (0, 1), (0,))),
        TypeError,
        "ragged_dot_general requires one lhs ragged dimension and at most one rhs group dimension, "
        "got (0, 1) and (0,)",
    ),
    (
        general(X, W, S, numbers(((1,), (3,)), ((), ()), (0,), (0,))),
        TypeError,
        "dot_general rhs contracting dimensions (3,) are out of range for shape (2, 8, 8)",
    ),
    (
        general(X, W, S, numbers(((1,), (1,)), ((), ()), (2,), (0,))),
        TypeError,
        "ragged_dot_general lhs ragged dimension 2 is out of range for shape (16, 8)",
    ),
    (
        general(X, W, S, numbers(((1,), (1,)), ((), ()), (0,), ())),
        TypeError,
        "ragged_dot_general requires one rhs group dimension when the lhs ragged dimension is "
        "non-contracting, got None",
    ),
    (
        general(X, X, S, numbers(((0,), (0,)), ((), ()), (0,), (1,))),
        TypeError,
        "ragged_dot_general requires no rhs group dimension when the lhs ragged dimension is "
        "contracting, got 1",
    ),
    (
        general(X, W, S, numbers(((1,), (1,)), ((), ()), (0,), (3,))),
        TypeError,
        "ragged_dot_general rhs group dimension 3 is out of range for shape (2, 8, 8)",
    ),
    (
        general(X, W, S, numbers(((1,), (1,)), ((), ()), (0,), (1,))),
        TypeError,
        "ragged_dot_general rhs group dimension 1 must be neither contracting (1,) nor batch ()",
    ),
    (
        general(X[None], W[:1], S, numbers(((2,), (1,)), ((0,), (0,)), (1,), (0,))),
        TypeError,
        "ragged_dot_general rhs group dimension 0 must be neither contracting (1,) nor batch (0,)",
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[2][:60])
def test_error(case: Any) -> None:
    check_error(case)
