"""Scatter-adds of one element a row as selects, which XLA computes within the passes around them.

The gradient of ``logits[row, label]`` is such a scatter-add. XLA runs it as a kernel of its own, so
that the rest of the loss's gradient, before and after it, goes through memory twice, in f32.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jax_bwgemm import compat
from jax_bwgemm.rewriting.index_values import value_of
from jax_bwgemm.rewriting.inlining import inlined, trace_for
from jax_bwgemm.rewriting.uses import Uses

SCATTER = "scatter-add"


def as_select(eqn: Any, uses: Uses, producers: Mapping[Any, Any]) -> list[Any] | None:
    """The equations that compute a scatter-add without a scatter; None where it should stay.

    The values are the same bit for bit. It stays where several updates may meet in an element, or
    where its result goes to memory: there a scatter may change an array in place.

    Args:
        eqn: An equation of a scatter-add.
        uses: What reads its result.
        producers: The equation of each variable that the jaxpr defines.
    """
    if not uses.fused or uses.stored:
        return None
    if any(compat.explicit_sharding(x.aval) for x in eqn.invars):
        return None
    rows = _rows(eqn, producers)
    if rows is None:
        return None
    traced = trace_for(_select(eqn, *rows), eqn)
    if traced.outvars[0].aval != eqn.outvars[0].aval:
        return None
    return inlined(traced, eqn)


def _rows(eqn: Any, producers: Mapping[Any, Any]) -> tuple[int, int, dict[int, int]] | None:
    """How each row of the operand has one update; None if rows may have several.

    Returns:
        The operand's dimension along which the update's place is chosen, that place's position in
        an index, and for each operand dimension of rows the dimension of the indices.
    """
    operand, indices = eqn.invars[0].aval, eqn.invars[1].aval
    numbers = eqn.params["dimension_numbers"]
    rows = dict(
        zip(numbers.operand_batching_dims, numbers.scatter_indices_batching_dims, strict=True)
    )
    clips = eqn.params["mode"] == lax.GatherScatterMode.CLIP
    places = []
    for position, d in enumerate(numbers.scatter_dims_to_operand_dims):
        if clips and _window(eqn, d) == operand.shape[d] > 1:
            continue  # clipped to 0
        along = _counts_along(eqn, position, operand.shape[d], rows.values(), producers)
        if along is None or _window(eqn, d) != 1:
            places.append((d, position))
        else:
            rows[d] = along
    if len(places) != 1 or not rows or _window(eqn, places[0][0]) != 1:
        return None
    # One index a row, and each row whole.
    if any(indices.shape[d] != 1 for d in range(indices.ndim - 1) if d not in rows.values()):
        return None
    whole = (d for d in range(operand.ndim) if d not in rows and d != places[0][0])
    if any(_window(eqn, d) != operand.shape[d] for d in whole):
        return None
    return *places[0], rows


def _window(eqn: Any, dimension: int) -> int:
    """Size of an update along a dimension of the operand."""
    numbers, operand = eqn.params["dimension_numbers"], eqn.invars[0].aval
    absent = (*numbers.inserted_window_dims, *numbers.operand_batching_dims)
    if dimension in absent:
        return 1
    windows = [d for d in range(operand.ndim) if d not in absent]
    return eqn.invars[2].aval.shape[numbers.update_window_dims[windows.index(dimension)]]


def _counts_along(
    eqn: Any, position: int, size: int, taken: Sequence[int], producers: Mapping[Any, Any]
) -> int | None:
    """The dimension of the indices along which one part of each index is 0, 1, ... size - 1."""
    part = _part(eqn.invars[1], position, producers)
    if part is None:
        return None
    value = value_of(part, producers)
    if value is None:
        return None
    for d, found in enumerate(value.shape[:-1]):
        counted = np.arange(size).reshape([-1 if e == d else 1 for e in range(value.ndim)])
        if (
            found == size
            and d not in taken
            and np.array_equal(value, np.broadcast_to(counted, value.shape))
        ):
            return d
    return None


def _part(indices: Any, position: int, producers: Mapping[Any, Any]) -> Any:
    """The variable, [..., 1], of one part of each index; None if it has no variable of its own."""
    if indices.aval.shape[-1] == 1:
        return indices
    eqn = producers.get(indices)
    if eqn is None or eqn.primitive.name != "concatenate":
        return None
    if any(x.aval.shape[-1] != 1 for x in eqn.invars):
        return None
    return eqn.invars[position]


def _select(
    eqn: Any, dimension: int, position: int, rows: Mapping[int, int]
) -> Callable[..., jax.Array]:
    """The scatter-add as a function of its operands."""
    numbers, mode = eqn.params["dimension_numbers"], eqn.params["mode"]

    def call(operand: jax.Array, indices: jax.Array, updates: jax.Array) -> jax.Array:
        place, size = indices[..., position], operand.shape[dimension]
        if np.iinfo(place.dtype).max < size - 1:
            place = place.astype(np.int32)
        if mode == lax.GatherScatterMode.CLIP:
            place = jnp.clip(place, 0, size - 1)
        chosen = lax.broadcasted_iota(place.dtype, operand.shape, dimension)
        wanted = _lined_up(place, [rows.get(d) for d in range(operand.ndim)])
        # In the updates, dimensions of the indices are those that are not the window's, in order.
        windows = [d for d in range(operand.ndim) if _is_window(numbers, d)]
        free = [d for d in range(updates.ndim) if d not in numbers.update_window_dims]
        places = {d: free[along] for d, along in rows.items()}
        places |= dict(zip(windows, numbers.update_window_dims, strict=True))
        added = operand + _lined_up(updates, [places.get(d) for d in range(operand.ndim)])
        return jnp.where(chosen == wanted, added, operand)

    return call


def _is_window(numbers: Any, dimension: int) -> bool:
    return dimension not in (*numbers.inserted_window_dims, *numbers.operand_batching_dims)


def _lined_up(x: jax.Array, dimensions: Sequence[int | None]) -> jax.Array:
    """x with its dimensions in this order, 1 for None; those that are not named have size 1."""
    named = [d for d in dimensions if d is not None]
    x = x.transpose(*named, *(d for d in range(x.ndim) if d not in named))
    sizes = iter(x.shape)
    return x.reshape([1 if d is None else next(sizes) for d in dimensions])
