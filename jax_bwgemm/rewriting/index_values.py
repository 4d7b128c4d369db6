"""Index arrays of a program that depend on none of its inputs, such as ``jnp.arange(n)``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from jax_bwgemm.compat_jaxpr import is_literal

# Larger ones are not worth the memory.
_MAX_SIZE = 2**24


def value_of(atom: Any, producers: Mapping[Any, Any]) -> np.ndarray | None:
    """The value of an integer or bool variable that iotas and literals determine; else None.

    Args:
        atom: The variable.
        producers: The equation of each variable that the jaxpr defines.
    """
    if is_literal(atom):
        return np.asarray(atom.val)
    eqn = producers.get(atom)
    if eqn is None or atom.aval.dtype.kind not in "iub":
        return None
    if not all(isinstance(n, int) for n in atom.aval.shape) or atom.aval.size > _MAX_SIZE:
        return None  # symbolic, or large
    step = _STEPS.get(eqn.primitive.name)
    if step is None:
        return None
    operands = [value_of(x, producers) for x in eqn.invars]
    if any(x is None for x in operands):
        return None
    return step(eqn, *operands).astype(atom.aval.dtype)


def _iota(eqn: Any) -> np.ndarray:
    shape, dimension = eqn.params["shape"], eqn.params["dimension"]
    lined_up = [size if d == dimension else 1 for d, size in enumerate(shape)]
    return np.broadcast_to(np.arange(shape[dimension]).reshape(lined_up), shape)


def _broadcast(eqn: Any, x: np.ndarray) -> np.ndarray:
    shape, dimensions = eqn.params["shape"], eqn.params["broadcast_dimensions"]
    lined_up = [1] * len(shape)
    for size, d in zip(x.shape, dimensions, strict=True):
        lined_up[d] = size
    return np.broadcast_to(x.reshape(lined_up), shape)


def _reshape(eqn: Any, x: np.ndarray) -> np.ndarray:
    return x.reshape(eqn.outvars[0].aval.shape)


_STEPS: dict[str, Any] = {
    "iota": _iota,
    "broadcast_in_dim": _broadcast,
    "reshape": _reshape,
    "squeeze": _reshape,
    "expand_dims": _reshape,
    "convert_element_type": lambda eqn, x: x,
    "add": lambda eqn, x, y: x + y,
    "lt": lambda eqn, x, y: x < y,
    "select_n": lambda eqn, which, *cases: np.choose(which.astype(np.int8), cases),
}
