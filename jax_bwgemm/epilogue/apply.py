"""An epilogue after a product: checked, then computed by XLA in one pass over the result."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jax_bwgemm.epilogue.program import FLOATS
from jax_bwgemm.epilogue.tracing import TracedEpilogue, trace_epilogue
from jax_bwgemm.product.arguments import is_hashable


@dataclasses.dataclass(frozen=True)
class Epilogue:
    """A function of a product's result and of operands, and the function that has it.

    Attributes:
        function: ``f(accumulator, *operands)``: a pytree of arrays of the accumulator's shape.
        caller: Name of the public function, for messages.
    """

    function: Callable[..., Any]
    caller: str

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise TypeError(
                f"{self.caller}: epilogue must be a function, got {type(self.function).__name__}"
            )
        if not is_hashable(self.function):
            raise TypeError(f"{self.caller}: epilogue must be hashable, got {self.function!r}")


def check_epilogue(
    epilogue: Epilogue, dtype: Any, shape: tuple[int, ...], operands: Sequence[jax.Array]
) -> TracedEpilogue:
    """Traces an epilogue of a product of that type and shape.

    Raises:
        TypeError: The product is not of a floating-point type of at most 32 bits, or an operand
            does not fit.
        EpilogueError: The function is not elementwise.
    """
    if dtype.name not in FLOATS:
        raise TypeError(
            f"{epilogue.caller}: an epilogue takes products of {', '.join(FLOATS)}, "
            f"got {dtype.name}"
        )
    name = f"{epilogue.caller}: epilogue"
    return trace_epilogue(epilogue.function, shape, operands, name=name)


def apply_epilogue(epilogue: Epilogue, product: jax.Array, operands: Sequence[jax.Array]) -> Any:
    """What an epilogue returns, floating-point results rounded to the product's type.

    It sees the product, which was rounded to its type, as float32.

    Args:
        epilogue: The function.
        product: The product.
        operands: Arrays that broadcast to the product's shape.

    Raises:
        TypeError, EpilogueError: As `check_epilogue`.
    """
    check_epilogue(epilogue, product.dtype, product.shape, operands)
    return rounded_results(epilogue.function, product, *operands)


def rounded_results(function: Callable[..., Any], product: jax.Array, *operands: jax.Array) -> Any:
    """The results of an epilogue, floating-point ones rounded to the product's type."""

    def rounded(x: jax.Array) -> jax.Array:
        return x.astype(product.dtype) if jnp.issubdtype(x.dtype, jnp.floating) else x

    return jax.tree.map(rounded, function(product.astype(jnp.float32), *operands))


@functools.lru_cache(maxsize=256)
def flat_results(function: Callable[..., Any]) -> Callable[..., list[jax.Array]]:
    """An epilogue's rounded results as a list; the same function for the same one."""

    def flat(product: jax.Array, *operands: jax.Array) -> list[jax.Array]:
        return jax.tree.leaves(rounded_results(function, product, *operands))

    return flat
