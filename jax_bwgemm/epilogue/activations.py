"""Activations by name."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp


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


def as_activation(caller: str, activation: Any) -> Callable[[jax.Array], jax.Array] | None:
    """The function that an ``activation=`` argument means.

    Raises:
        TypeError: None of None, a name and a function.
        ValueError: An unknown name.
    """
    if activation is None or callable(activation):
        return activation
    if not isinstance(activation, str):
        raise TypeError(
            f"{caller}: activation must be None, a name or a function, got {activation!r}"
        )
    if activation not in ACTIVATIONS:
        listed = ", ".join(repr(name) for name in ACTIVATIONS)
        raise ValueError(f"{caller}: unknown activation {activation!r}; names are {listed}")
    return ACTIVATIONS[activation]
