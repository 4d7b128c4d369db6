"""Activations by name."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jax_bwgemm import compat_jaxpr
from jax_bwgemm.epilogue.tracing import PASS_IT, EpilogueError, trace_epilogue
from jax_bwgemm.product.arguments import is_hashable


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
        EpilogueError: A function that has to be elementwise and is not, or that reads an array
            that is traced outside of it.
    """
    if activation is None:
        return None
    if callable(activation):
        if not is_hashable(activation):
            raise TypeError(f"{caller}: activation must be hashable, got {activation!r}")
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
            traced = trace_epilogue(function, shape, (), name=f"{caller}: activation")
        except EpilogueError as error:
            alone = "an activation is a function of its argument alone; see matmul(epilogue=)"
            text = str(error).replace(PASS_IT, alone)
            raise EpilogueError(f"{caller}: activation: {text}") from None
        one = jax.tree_util.treedef_is_leaf(traced.tree) and not traced.program.summed
    else:
        returned, dtype = _returned(caller, function, jax.ShapeDtypeStruct(shape, jnp.float32))
        one = returned == shape
        if one and jnp.issubdtype(dtype, jnp.complexfloating):
            raise TypeError(f"{caller}: activation must return real numbers, got {dtype}")
    if not one:
        raise TypeError(f"{caller}: activation must return one array of its argument's shape")


def _returned(
    caller: str, function: Callable[..., Any], argument: jax.ShapeDtypeStruct
) -> tuple[Any, Any]:
    """Shape and type of what a function of one array returns; None of what is no array.

    Raises:
        EpilogueError: It reads an array of a program that is traced around it.
    """
    found: list[tuple[Any, Any]] = []

    # JAX would refuse what is no array without naming the argument.
    def run(z: jax.Array) -> list[Any]:
        value = function(z)
        found.append((getattr(value, "shape", None), getattr(value, "dtype", None)))
        return [] if any(x is None for x in found[0]) else [value]

    info = compat_jaxpr.call_info(f"{caller}: activation", function, (argument,), {}, range(1))
    _, read = compat_jaxpr.trace(run, [compat_jaxpr.type_of(argument)], info)
    if any(isinstance(x, jax.core.Tracer) for x in read):
        raise EpilogueError(
            f"{caller}: activation reads an array of the program around it: pass a function of its "
            "argument alone"
        )
    return found[0]
