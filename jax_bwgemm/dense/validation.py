"""Checks of dense products: dimension numbers and shapes, error types and messages. Pure."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

DimensionNumbers = tuple[
    tuple[tuple[int, ...], tuple[int, ...]], tuple[tuple[int, ...], tuple[int, ...]]
]


def as_dimension_numbers(
    dimension_numbers: Any,
    lhs_shape: Sequence[int],
    rhs_shape: Sequence[int],
    function: str = "dot_general",
) -> DimensionNumbers:
    """Normalises ``((lhs_contract, rhs_contract), (lhs_batch, rhs_batch))`` to tuples of ints.

    As in `jax.lax.dot_general`, each is an integer or a sequence of integers. None contracts the
    last dimension of lhs with the first of rhs, for operands of rank 1 or 2.

    Raises:
        TypeError: Any other structure.
        ValueError: None, and the shapes are not of such a product.
    """
    if dimension_numbers is None:
        return _simple_dimension_numbers(tuple(lhs_shape), tuple(rhs_shape), function)
    try:
        (lhs_contract, rhs_contract), (lhs_batch, rhs_batch) = dimension_numbers
        groups = [_indices(dims) for dims in (lhs_contract, rhs_contract, lhs_batch, rhs_batch)]
    except (TypeError, ValueError):
        raise TypeError(
            f"{function} dimension_numbers must be ((lhs_contracting, rhs_contracting), "
            f"(lhs_batch, rhs_batch)) with ints or sequences of ints, got {dimension_numbers!r}"
        ) from None
    return ((groups[0], groups[1]), (groups[2], groups[3]))


def _simple_dimension_numbers(
    lhs_shape: tuple[int, ...], rhs_shape: tuple[int, ...], function: str
) -> DimensionNumbers:
    ranks = len(lhs_shape), len(rhs_shape)
    if not set(ranks) <= {1, 2} or lhs_shape[-1] != rhs_shape[0]:
        raise ValueError(
            f"{function} dimension_numbers=None is for products of matrices and vectors without "
            f"batch dimensions, got shapes {lhs_shape} and {rhs_shape}"
        )
    return (((ranks[0] - 1,), (0,)), ((), ()))


def _indices(dims: Any) -> tuple[int, ...]:
    """One integer or several, as what Python accepts as an index: no floats, no strings."""
    try:
        return (operator.index(dims),)
    except TypeError:
        return tuple(operator.index(d) for d in dims)


def check_dot_general(
    lhs_shape: Sequence[int],
    rhs_shape: Sequence[int],
    dimension_numbers: DimensionNumbers,
    function: str = "dot_general",
) -> None:
    """Checks dimension numbers against shapes.

    Raises:
        TypeError: Out of range, repeated or unpaired dimensions, or sizes that differ.
    """
    contract, batch = dimension_numbers
    shapes = (tuple(lhs_shape), tuple(rhs_shape))
    for side, shape, contracting, batched in zip(
        ("lhs", "rhs"), shapes, contract, batch, strict=True
    ):
        for kind, dims in (("contracting", contracting), ("batch", batched)):
            if any(not 0 <= d < len(shape) for d in dims):
                raise TypeError(
                    f"{function} {side} {kind} dimensions {dims} are out of range for shape {shape}"
                )
        if len({*contracting, *batched}) != len(contracting) + len(batched):
            raise TypeError(
                f"{function} {side} dimensions must be distinct, got contracting {contracting} "
                f"and batch {batched}"
            )
    for kind, (left, right) in (("contracting", contract), ("batch", batch)):
        if len(left) != len(right):
            raise TypeError(
                f"{function} requires equal numbers of lhs and rhs {kind} dimensions, got "
                f"{left} and {right}"
            )
        left_sizes = tuple(shapes[0][d] for d in left)
        right_sizes = tuple(shapes[1][d] for d in right)
        if left_sizes != right_sizes:
            raise TypeError(
                f"{function} requires {kind} dimensions of equal sizes, got {left_sizes} of lhs "
                f"{shapes[0]} and {right_sizes} of rhs {shapes[1]}"
            )


def check_matmul(a_shape: Sequence[int], b_shape: Sequence[int]) -> tuple[int, ...]:
    """Checks the shapes of ``matmul`` and returns the broadcast batch shape.

    Raises:
        ValueError: A scalar operand, or batch dimensions that do not broadcast.
        TypeError: Different contracted sizes.
    """
    a_shape, b_shape = tuple(a_shape), tuple(b_shape)
    for name, shape in (("a", a_shape), ("b", b_shape)):
        if not shape:
            raise ValueError(f"matmul requires operands of rank 1 or more, got {name} of rank 0")
    inner = b_shape[-2] if len(b_shape) > 1 else b_shape[0]
    if a_shape[-1] != inner:
        raise TypeError(
            f"matmul contracts the last dimension of a {a_shape} with dimension "
            f"{max(len(b_shape) - 2, 0)} of b {b_shape}: {a_shape[-1]} and {inner} differ"
        )
    try:
        return np.broadcast_shapes(a_shape[:-2], b_shape[:-2])
    except ValueError:
        raise ValueError(
            f"matmul batch dimensions {a_shape[:-2]} of a {a_shape} and {b_shape[:-2]} of b "
            f"{b_shape} do not broadcast"
        ) from None
