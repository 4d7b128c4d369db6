"""What scaled operands have no derivative of: an error wherever one is asked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import jax


def of_product(*args: Any, **params: Any) -> NoReturn:
    """The rule of differentiation of a product.

    Raises:
        TypeError: Always.
    """
    del args, params
    raise _of_values("scaled_matmul", "fp8_dot_general")


def of_grouped_product(*args: Any, **params: Any) -> NoReturn:
    """As `of_product`, of a grouped one."""
    del args, params
    raise _of_values("scaled_ragged_dot", "fp8_ragged_dot")


def _of_values(function: str, instead: str) -> TypeError:
    return TypeError(
        f"{function} is not differentiable: the derivatives of its values would be unscaled 8-bit "
        f"numbers. Use {instead}"
    )


def of_quantization(*args: Any, **params: Any) -> NoReturn:
    """The rule of differentiation of a quantization.

    Raises:
        TypeError: Always.
    """
    del args, params
    raise TypeError(
        "quantize is not differentiable: use fp8_dot_general or fp8_ragged_dot, which are, once "
        "(their gradients are products of quantized operands), or apply jax.lax.stop_gradient to "
        "its argument"
    )


def without(rule: Callable[..., NoReturn], function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of arrays, computed by XLA, that has a primitive's rule."""
    found = jax.custom_jvp(function)
    found.defjvp(rule)
    return found
