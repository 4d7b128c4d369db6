"""Checks of the public functions' arguments: error types and messages. Pure but for types."""

from __future__ import annotations

import enum
import operator
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax_bwgemm.dense.validation import DimensionNumbers, as_dimension_numbers, check_dot_general
from jax_bwgemm.product.arguments import as_array


class Mode(enum.Enum):
    """What the ragged dimension of lhs is in the dot product."""

    ROWS = "non-contracting"
    CONTRACT = "contracting"
    BATCH = "batch"


def as_ragged_numbers(numbers: Any) -> tuple[DimensionNumbers, int, int | None]:
    """Normalises `jax.lax.RaggedDotDimensionNumbers`.

    Returns:
        Dimension numbers of the dot product, the ragged dimension of lhs, the group dimension of
        rhs if there is one.

    Raises:
        TypeError: Another type, or not exactly one ragged and at most one group dimension.
    """
    if not isinstance(numbers, jax.lax.RaggedDotDimensionNumbers):
        raise TypeError(
            "ragged_dot_general ragged_dot_dimension_numbers must be a "
            f"jax.lax.RaggedDotDimensionNumbers, got {numbers!r}"
        )
    try:
        ragged, group = (
            tuple(map(operator.index, dims))
            for dims in (numbers.lhs_ragged_dimensions, numbers.rhs_group_dimensions)
        )
    except TypeError:
        raise TypeError(
            "ragged_dot_general requires ragged and group dimensions that are integers, got "
            f"{numbers.lhs_ragged_dimensions!r} and {numbers.rhs_group_dimensions!r}"
        ) from None
    if len(ragged) != 1 or len(group) > 1:
        raise TypeError(
            "ragged_dot_general requires one lhs ragged dimension and at most one rhs group "
            f"dimension, got {ragged} and {group}"
        )
    dot = as_dimension_numbers(numbers.dot_dimension_numbers, (), ())
    return dot, ragged[0], group[0] if group else None


def check_ragged(
    lhs_shape: Sequence[int],
    rhs_shape: Sequence[int],
    numbers: DimensionNumbers,
    ragged: int,
    group: int | None,
) -> Mode:
    """Checks dimension numbers against the operands' shapes, and says what is ragged.

    Raises:
        TypeError: Out of range, repeated or unpaired dimensions, sizes that differ, or a group
            dimension where there must be none.
    """
    check_dot_general(lhs_shape, rhs_shape, numbers)
    (lhs_contract, rhs_contract), (lhs_batch, rhs_batch) = numbers
    if not 0 <= ragged < len(lhs_shape):
        raise TypeError(
            f"ragged_dot_general lhs ragged dimension {ragged} is out of range for shape "
            f"{tuple(lhs_shape)}"
        )
    mode = Mode.ROWS
    if ragged in lhs_contract:
        mode = Mode.CONTRACT
    elif ragged in lhs_batch:
        mode = Mode.BATCH
    if (group is not None) != (mode is Mode.ROWS):
        count = "one rhs group dimension" if mode is Mode.ROWS else "no rhs group dimension"
        raise TypeError(
            f"ragged_dot_general requires {count} when the lhs ragged dimension is {mode.value}, "
            f"got {group}"
        )
    if group is None:
        return mode
    if not 0 <= group < len(rhs_shape):
        raise TypeError(
            f"ragged_dot_general rhs group dimension {group} is out of range for shape "
            f"{tuple(rhs_shape)}"
        )
    if group in rhs_contract or group in rhs_batch:
        raise TypeError(
            f"ragged_dot_general rhs group dimension {group} must be neither contracting "
            f"{rhs_contract} nor batch {rhs_batch}"
        )
    return mode


def check_ragged_dot(
    lhs_shape: Sequence[int], rhs_shape: Sequence[int], function: str = "ragged_dot"
) -> None:
    """Checks the operands of ``ragged_dot`` and its like.

    Raises:
        TypeError: Not [M, K] and [E, K, N].
    """
    lhs_shape, rhs_shape = tuple(lhs_shape), tuple(rhs_shape)
    if len(lhs_shape) != 2 or len(rhs_shape) != 3:
        raise TypeError(
            f"{function} requires lhs of rank 2 and rhs of rank 3, got shapes {lhs_shape} and "
            f"{rhs_shape}"
        )
    if lhs_shape[1] != rhs_shape[1]:
        raise TypeError(
            f"{function} contracts dimension 1 of lhs {lhs_shape} with dimension 1 of rhs "
            f"{rhs_shape}: {lhs_shape[1]} and {rhs_shape[1]} differ"
        )


def sizes_prefix(
    mode: Mode, lhs_shape: Sequence[int], numbers: DimensionNumbers, ragged: int
) -> tuple[int, ...]:
    """Sizes of the dimensions that may have group sizes of their own.

    These are the batch dimensions and those of the ragged dimension's kind before it.
    """
    (contract, _), (batch, _) = numbers
    if mode is Mode.BATCH:
        dims = batch[: batch.index(ragged)]
    elif mode is Mode.CONTRACT:
        dims = (*batch, *contract[: contract.index(ragged)])
    else:
        dims = (*batch, *(d for d in range(ragged) if d not in contract and d not in batch))
    return tuple(lhs_shape[d] for d in dims)


def check_meaning(function: str, mode: Mode, given: Mapping[str, Any]) -> None:
    """Refuses arguments that the mode has no use for.

    Raises:
        ValueError: ``num_groups`` outside of mode contract, an offset or configuration in mode
            batch.
    """
    useless = {Mode.ROWS: ("num_groups",), Mode.CONTRACT: ()}.get(mode, tuple(given))
    for name in useless:
        if given[name] is not None:
            raise ValueError(
                f"{function} {name} has no meaning when the lhs ragged dimension is {mode.value}"
            )


def as_experts(
    function: str, num_groups: int | None, groups: int, *, name: str = "num_groups"
) -> int:
    """Normalises ``num_groups`` to the number of groups of the result.

    Raises:
        TypeError: Not an integer.
        ValueError: Negative, or more than int32 counts.
    """
    if num_groups is None:
        return groups
    if isinstance(num_groups, bool) or not isinstance(num_groups, int | np.integer):
        raise TypeError(f"{function} {name} must be an integer or None, got {num_groups!r}")
    if num_groups < 0:
        raise ValueError(f"{function} {name} must not be negative, got {num_groups}")
    if num_groups >= 2**31:
        raise ValueError(f"{function} {name} must be below 2**31, got {num_groups}")
    return int(num_groups)


def check_sizes(
    function: str,
    shape: Sequence[int],
    dtype: Any,
    prefix: tuple[int, ...],
    experts: int | None,
    *,
    has_offset: bool,
) -> None:
    """Checks type and shape of group sizes.

    Args:
        function: Name for messages.
        shape: Shape of the group sizes.
        dtype: Their type.
        prefix: Sizes of the dimensions that may have group sizes of their own.
        experts: Matrices of rhs; None where rhs has none.
        has_offset: Whether a group_offset is given, which allows fewer matrices than groups.

    Raises:
        TypeError: Not integers, another shape than ``[G]`` or ``[*prefix, G]``, or G is not the
            number of matrices.
    """
    shape = tuple(shape)
    if not jnp.issubdtype(dtype, jnp.integer):
        raise TypeError(f"{function} requires group_sizes of an integer type, got {dtype}")
    if len(shape) != 1 and (not shape or shape[:-1] != prefix):
        wanted = "(G,)" if not prefix else f"(G,) or ({', '.join(map(str, prefix))}, G)"
        raise TypeError(f"{function} requires group_sizes of shape {wanted}, got {shape}")
    if experts is not None and not has_offset and shape[-1] != experts:
        raise TypeError(
            f"{function} requires one matrix for each group, got {experts} matrices and "
            f"{shape[-1]} group_sizes (fewer matrices need a group_offset)"
        )


def check_static_groups(function: str, sizes: Sequence[Any], experts: Any) -> None:
    """Checks that groups can be counted while tracing.

    Args:
        function: Name for messages.
        sizes: Shape of the group sizes.
        experts: Matrices of rhs; None where rhs has none.

    Raises:
        TypeError: The number of groups or of matrices is symbolic (`jax.export`).
    """
    counts = [*sizes[-1:], *([] if experts is None else [experts])]
    for count in counts:
        if not isinstance(count, int):
            raise TypeError(f"{function} requires the number of groups to be static, got {count}")


def check_size_values(function: str, sizes: np.ndarray, rows: int) -> None:
    """Checks group sizes that are known while tracing: numpy arrays.

    Sizes on a device are not waited for: negative ones count as 0 there, and groups end at the
    last row.

    Raises:
        ValueError: A negative size, or a sum larger than the number of rows.
    """
    if sizes.size == 0:
        return
    if (smallest := sizes.min()) < 0:
        raise ValueError(f"{function} group_sizes must not be negative, got {smallest}")
    largest = sizes.astype(object).sum(axis=-1).max() if sizes.ndim > 1 else sum(map(int, sizes))
    if largest > rows:
        raise ValueError(
            f"{function} group_sizes sum to {largest}, but there are {rows} ragged rows"
        )


def check_offset(function: str, offset: Any, groups: int) -> None:
    """Checks a group_offset.

    Args:
        function: Name for messages.
        offset: As given: an array, or a number that is known while tracing.
        groups: Number of groups.

    Raises:
        TypeError: Not an integer scalar.
        ValueError: Known and not between 0 and the number of groups.
    """
    if isinstance(offset, int) and not isinstance(offset, bool):
        array = np.zeros((), np.int32)  # whatever its value, which is checked below
    else:
        array = as_array(function, "group_offset", offset)
    if not jnp.issubdtype(array.dtype, jnp.integer) or array.shape != ():
        raise TypeError(
            f"{function} requires group_offset to be an integer scalar, got {array.dtype} of "
            f"shape {array.shape}"
        )
    if not isinstance(offset, jax.Array) and not 0 <= int(offset) <= groups:
        raise ValueError(
            f"{function} group_offset must be between 0 and the number of groups, {groups}, got "
            f"{int(offset)}"
        )


def as_representative(
    function: str, sizes: Any, groups: int, rows: int
) -> tuple[float, ...] | None:
    """Normalises ``representative_group_sizes`` to each group's share of the rows.

    Raises:
        TypeError: Not a sequence of integers known while tracing.
        ValueError: Not one size per group, a negative one, or a sum larger than the rows.
    """
    if sizes is None:
        return None
    name = "representative_group_sizes"
    if isinstance(sizes, jax.core.Tracer):
        raise TypeError(f"{function} requires {name} to be known while tracing, got {sizes}")
    try:
        values = np.asarray(sizes)
    except ValueError:  # rows of several lengths
        values = np.zeros(0, object)[:, None]
    if values.ndim != 1 or not (np.issubdtype(values.dtype, np.integer) or values.size == 0):
        raise TypeError(f"{function} requires {name} to be a sequence of integers, got {sizes!r}")
    if len(values) != groups:
        raise ValueError(
            f"{function} requires one of {name} for each group, got {len(values)} for {groups}"
        )
    if values.size and values.min() < 0:
        raise ValueError(f"{function} {name} must not be negative, got {values.min()}")
    if (total := sum(map(int, values))) > rows:
        raise ValueError(f"{function} {name} sum to {total}, but there are {rows} ragged rows")
    return tuple(int(value) / max(rows, 1) for value in values)
