"""Arguments of public functions: checked, and of the types that everything else takes."""

from __future__ import annotations

import contextlib
from collections.abc import Hashable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from jax_bwgemm import compat
from jax_bwgemm.product.dtypes import as_element_type


def as_array(function: str, name: str, x: Any) -> jax.Array:
    """Converts an operand as jax.numpy does: arrays and scalars, not lists.

    Raises:
        TypeError: Not an array, NumPy's of a type that JAX lacks, or a number that no type holds.
    """
    if isinstance(x, jax.Array):
        return x
    if hasattr(x, "__jax_array__"):
        x = x.__jax_array__()
    if not isinstance(x, (jax.Array, np.ndarray, np.generic, bool, int, float, complex)):
        raise TypeError(f"{function} requires arrays, got {name} of type {type(x).__name__}")
    try:
        return jnp.asarray(x)
    except (TypeError, OverflowError) as error:  # JAX's message names no argument
        dtype = getattr(x, "dtype", "too large a number")
        raise TypeError(
            f"{function} requires arrays of JAX's types, got {name}: {dtype}"
        ) from error


def is_hashable(x: Any) -> bool:
    """Whether an argument can be static."""
    try:
        hash(x)
    except TypeError:
        return False
    return True


def as_key(function: str, key: Any) -> jax.Array | None:
    """Checks an argument `key`.

    Raises:
        TypeError: Neither None nor one key of `jax.random`.
    """
    if key is None:
        return None
    key = as_array(function, "key", key)
    typed = jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
    if key.ndim != (0 if typed else 1) or not (typed or key.dtype == jnp.uint32):
        raise TypeError(
            f"{function}: key must be one key of jax.random, got {key.dtype} of shape {key.shape}"
        )
    return key


def as_dtype(function: str, name: str, given: Any) -> np.dtype:
    """An argument that is a type or names one.

    Raises:
        TypeError: It does not. None is no type, though NumPy takes it for float64.
    """
    if given is not None:
        with contextlib.suppress(TypeError, ValueError):
            return np.dtype(given)
    raise TypeError(f"{function}: {name} must be a type, got {given!r}")


def as_preferred_type(given: Any) -> np.dtype | None:
    """An argument ``preferred_element_type``, in JAX's mode of 32 or 64 bits.

    Raises:
        TypeError: Neither None nor a type of numbers.
    """
    if given is None:
        return None
    with contextlib.suppress(TypeError, ValueError):
        found = as_element_type(given)
        if jnp.issubdtype(found, np.number) or found == np.bool_:
            return found
    raise TypeError(f"preferred_element_type must be a type of numbers, got {given!r}")


def as_out_sharding(given: Any) -> NamedSharding | PartitionSpec | None:
    """An argument ``out_sharding``.

    Raises:
        TypeError: It is no sharding.
    """
    if given is not None and not isinstance(given, NamedSharding | PartitionSpec):
        raise TypeError(
            "out_sharding must be None, a NamedSharding or a PartitionSpec, got "
            f"{type(given).__name__}"
        )
    return given


def as_precision(given: Any) -> Hashable:
    """An argument ``precision`` as `compat.canonical_precision` has it, a list as a tuple.

    Raises:
        ValueError: None of what JAX accepts.
    """
    found = compat.canonical_precision(given)
    return tuple(found) if isinstance(found, list) else found


def as_flag(function: str, name: str, given: Any) -> bool:
    """An argument that is True or False.

    Raises:
        TypeError: It is neither: a string would count as True.
    """
    if not isinstance(given, (bool, np.bool_)):
        raise TypeError(f"{function}: {name} must be True or False, got {given!r}")
    return bool(given)


def as_operands(function: str, name: str, given: Any) -> tuple[jax.Array, ...]:
    """An epilogue's operands. Python's numbers are float32 or int32, whatever JAX's mode.

    Raises:
        TypeError: Not a sequence of arrays, or a number that int32 does not hold.
    """
    if not isinstance(given, Sequence) or isinstance(given, str):
        raise TypeError(f"{function} requires {name} to be a sequence of arrays, got {given!r}")
    return tuple(as_array(function, name, _as_32_bits(function, name, x)) for x in given)


def _as_32_bits(function: str, name: str, x: Any) -> Any:
    if isinstance(x, int) and not isinstance(x, bool):
        if not -(2**31) <= x < 2**31:
            raise TypeError(f"{function} requires {name} that int32 holds, got {x}")
        return np.int32(x)
    return np.float32(x) if isinstance(x, float) and not isinstance(x, np.generic) else x
