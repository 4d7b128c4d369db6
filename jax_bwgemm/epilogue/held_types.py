"""64-bit values in epilogues, which compute in 32 bits: Python's numbers in JAX's 64-bit mode."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from jax_bwgemm.epilogue.places import MOVES

# Types that hold 64-bit values.
HELD = {"int64": "int32", "uint64": "uint32", "float64": "float32"}


def type_name(x: Any) -> str:
    """Name of an array's type; some of JAX's, as those of random keys, are no NumPy types."""
    return str(getattr(getattr(x, "dtype", None), "name", "no array"))


def held(x: Any) -> str:
    """Name of the type that values of an array's type have in a program."""
    return HELD.get(type_name(x), type_name(x))


def same_in_32_bits(name: str, read: Sequence[str], dtype: str) -> bool:
    """Whether an operation does to values held in 32 bits what it does to those of 64.

    Integers of 64 bits are held only if they fit. A float64 is rounded to float32 before anything
    is computed with it, so that it may be rounded at once.

    Args:
        name: The primitive's.
        read: Types of its operands, as JAX has them.
        dtype: That of its result.
    """
    if name in MOVES or name == "select_n":
        return True
    if name == "iota":
        return dtype != "float64"
    if name in ("eq", "ne", "lt", "le", "gt", "ge"):
        return "float64" not in read
    if name != "convert_element_type":
        return False
    if read[0] == "float64":
        return dtype in ("float64", "float32")
    if dtype in ("int64", "uint64"):
        signed = ("int8", "int16", "int32", "int64") if dtype == "int64" else ("uint32", "uint64")
        return read[0] in ("bool", "uint8", "uint16", *signed)
    return True


def narrowed(array: np.ndarray) -> np.ndarray:
    """A constant of 64 bits in 32 that hold it."""
    narrow = HELD.get(array.dtype.name)
    if narrow is None or (narrow != "float32" and not (array == array.astype(narrow)).all()):
        return array
    with np.errstate(over="ignore"):  # infinity is what XLA's conversion gives, too
        return array.astype(narrow)
