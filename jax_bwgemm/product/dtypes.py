"""Types of products as lax has them: by lax's own rule, which never promotes implicitly."""

from __future__ import annotations

import functools
from collections.abc import Hashable

import jax
import numpy as np
from jax import lax
from jax.typing import DTypeLike


def as_element_type(preferred_element_type: DTypeLike) -> np.dtype:
    """An argument of that name in JAX's mode of 32 or 64 bits.

    Raises:
        TypeError: Not a type, or one whose elements are not numbers.
    """
    if jax.dtypes.issubdtype(preferred_element_type, jax.dtypes.extended):
        raise TypeError(
            f"preferred_element_type must be a type of numbers, got {preferred_element_type}"
        )
    return jax.dtypes.canonicalize_dtype(preferred_element_type)


@functools.lru_cache(maxsize=256)
def dot_dtype(
    lhs: np.dtype,
    rhs: np.dtype,
    preferred_element_type: np.dtype | None = None,
    precision: Hashable = None,
) -> np.dtype:
    """Type of the result of `jax.lax.dot_general`, which also says what it does not multiply.

    Raises:
        TypeError: Types that cannot be multiplied, or not into the preferred one.
    """
    dot = functools.partial(
        lax.dot_general,
        dimension_numbers=(((), ()), ((), ())),
        precision=precision,
        preferred_element_type=preferred_element_type,
    )
    scalars = (jax.ShapeDtypeStruct((), dtype) for dtype in (lhs, rhs))
    return np.dtype(jax.eval_shape(dot, *scalars).dtype)


def operand_types(a: str, b: str) -> str:
    """The types of A and B in one word or three: ``"bfloat16"``, ``"float32 x bfloat16"``."""
    return a if a == b else f"{a} x {b}"


def types_of_operands(types: str) -> tuple[str, str]:
    """A's and B's type from what `operand_types` made of them."""
    a, _, b = types.partition(" x ")
    return a, b or a


def narrowest_bytes(types: str) -> int:
    """Bytes of an element of the narrower operand: its rows are the least aligned."""
    return min(np.dtype(dtype).itemsize for dtype in types_of_operands(types))


def product_dtype(lhs: np.dtype, rhs: np.dtype, out: np.dtype) -> np.dtype:
    """The type to ask XLA for where the result is rounded to ``out``.

    XLA's result type may not be narrower than its operands' (f32 x bf16 -> bf16 in gradients).
    """
    own = dot_dtype(lhs, rhs)
    return own if own.itemsize > out.itemsize else out
