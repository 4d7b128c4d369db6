"""Activations by name."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jax_bwgemm.epilogue.tracing import EpilogueError, trace_epilogue


def _squared_relu(x: jax.Array) -> jax.Array:
    return jnp.square(jax.nn.relu(x))


ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "relu": jax.nn.relu,
    "squared_relu": _squared_relu,
    "gelu": jax.nn.gelu,
    "gelu_exact": functools.partial(jax.nn.gelu, approximate=False),
    "silu": jax.nn.silu,
    "swish": jax.nn.silu,
    "sigmoid": jax.nn.sigmoid,
    "tanh": jnp.tanh,
    "softplus": jax.nn.softplus,
    "elu": jax.nn.elu,
    "leaky_relu": jax.nn.leaky_relu,
}


def as_activation(
    caller: str, activation: Any, shape: tuple[int, ...], *, elementwise: bool = True
) -> Callable[[jax.Array], jax.Array] | None:
    """The function that an ``activation=`` argument means.

    Args:
        caller: Name for messages.
        activation: The argument.
        shape: Of what the function gets.
        elementwise: Whether it has to be an epilogue.

    Raises:
        TypeError: None of None, a name and a function; or a function that returns something else
            than one array of that shape.
        ValueError: An unknown name.
        EpilogueError: A function that has to be elementwise and is not.
    """
    if activation is None:
        return None
    if callable(activation):
        if all(isinstance(size, int) for size in shape):
            _check(caller, activation, shape, elementwise)
        return activation
    if not isinstance(activation, str):
        raise TypeError(
            f"{caller}: activation must be None, a name or a function, got {activation!r}"
        )
    if activation not in ACTIVATIONS:
        listed = ", ".join(repr(name) for name in ACTIVATIONS)
        raise ValueError(f"{caller}: unknown activation {activation!r}; names are {listed}")
    return ACTIVATIONS[activation]


@functools.lru_cache(maxsize=256)
def _check(
    caller: str, function: Callable[..., Any], shape: tuple[int, ...], elementwise: bool
) -> None:
    """Raises what `as_activation` does for a function."""
    if elementwise:
        try:
            tree = trace_epilogue(function, shape, ()).tree
        except EpilogueError as error:
            raise EpilogueError(f"{caller}: activation: {error}") from None
        one = jax.tree_util.treedef_is_leaf(tree)
    else:
        tree = jax.eval_shape(function, jax.ShapeDtypeStruct(shape, jnp.float32))
        one = getattr(tree, "shape", None) == shape
    if not one:
        raise TypeError(f"{caller}: activation must return one array of its argument's shape")
