"""Where the dimensions of a traced value lie in an epilogue's result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

# For every dimension of a value, the result's dimension that it lies along; None: it does not vary.
Places = tuple[int | None, ...]


def places_of(what: str, shape: tuple[int, ...], result: tuple[int, ...]) -> Places:
    """Where an operand's dimensions lie, by the rules of broadcasting."""
    first = len(result) - len(shape)
    sizes = zip(shape, result[max(first, 0) :], strict=False)
    if first < 0 or any(size not in (1, whole) for size, whole in sizes):
        raise TypeError(f"{what} of shape {shape} does not broadcast to {result}")
    return tuple(None if size == 1 else first + d for d, size in enumerate(shape))


def places_of_result(shape: tuple[int, ...]) -> Places:
    """Those of an array of the result's shape."""
    return tuple(None if size == 1 else d for d, size in enumerate(shape))


def _broadcast(eqn: Any, places: Places) -> Places | None:
    out: list[int | None] = [None] * len(eqn.params["shape"])
    for place, d in zip(places, eqn.params["broadcast_dimensions"], strict=True):
        out[d] = place
    return tuple(out)


def _reshape(eqn: Any, places: Places) -> Places | None:
    """Dimensions of size 1 come and go; nothing else may change."""
    before, after = eqn.invars[0].aval.shape, eqn.outvars[0].aval.shape
    large = [(n, p) for n, p in zip(before, places, strict=True) if n != 1]
    if [n for n, _ in large] != [n for n in after if n != 1]:
        return None
    rest = iter(p for _, p in large)
    return tuple(None if n == 1 else next(rest) for n in after)


def _transpose(eqn: Any, places: Places) -> Places | None:
    return tuple(places[d] for d in eqn.params["permutation"])


# Operations that compute nothing: the places of their result; None if they are not elementwise.
MOVES: dict[str, Callable[[Any, Places], Places | None]] = {
    "broadcast_in_dim": _broadcast,
    "reshape": _reshape,
    "squeeze": _reshape,
    "expand_dims": _reshape,
    "transpose": _transpose,
}
