"""What is between the two layers of `mlp`, and its derivatives, as epilogues of their products.

One function for each form, so that programs with the same layers are compiled once.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jax_bwgemm.product.linear_map import Arrays

Elementwise = Callable[[jax.Array], jax.Array] | None


def add(product: jax.Array, other: jax.Array) -> jax.Array:
    """The sum, in float32."""
    return product + jnp.broadcast_to(other.astype(jnp.float32), product.shape)


def biased(products: Arrays, biases: Arrays) -> Arrays:
    """The products in float32, with their biases if there are any."""
    wide = [x.astype(jnp.float32) for x in products]
    return tuple(add(x, b) for x, b in zip(wide, biases, strict=True)) if biases else tuple(wide)


def combine(activation: Elementwise, gate: jax.Array, *ups: jax.Array) -> jax.Array:
    """The hidden values of one or two products, all float32."""
    # Activations may return integers or bools, which have no slope.
    hidden = gate if activation is None else activation(gate).astype(jnp.float32)
    return hidden * ups[0] if ups else hidden


@functools.lru_cache(maxsize=256)
def hidden_values(activation: Elementwise, biases: int) -> Callable[..., jax.Array]:
    """Hidden values from a product, the other one if there is one, and their biases."""

    def epilogue(product: jax.Array, *operands: jax.Array) -> jax.Array:
        others = len(operands) - biases
        wide = biased((product, *operands[:others]), operands[others:])
        return combine(activation, *wide)

    return epilogue


@functools.lru_cache(maxsize=256)
def values_and_slope(activation: Elementwise) -> Callable[..., Any]:
    """Hidden values from a product and its bias, and the activation's slope there.

    Both share most of their operations, and the slope is all that the gradient needs.
    """
    assert activation is not None, "its slope is 1"

    def epilogue(product: jax.Array, *biases: jax.Array) -> Any:
        (wide,) = biased((product,), biases)
        return jax.jvp(functools.partial(combine, activation), (wide,), (jnp.ones_like(wide),))

    return epilogue


@functools.lru_cache(maxsize=256)
def gradients(activation: Elementwise, ups: int, biases: int, summed: bool) -> Callable[..., Any]:
    """Gradients of the products from that of the hidden values, which is the accumulator.

    The other arguments are what `mlp` keeps: of one product the slope, if there is an activation;
    of two the products and their biases.

    summed: Whether those of the biases follow, their sums over rows.
    """

    def epilogue(hidden_bar: jax.Array, *kept: jax.Array) -> Any:
        if ups == 1:
            bars = [hidden_bar * slope.astype(jnp.float32) for slope in kept] or [hidden_bar]
        else:
            wide = biased(kept[:ups], kept[ups : ups + biases])
            bars = jax.vjp(functools.partial(combine, activation), *wide)[1](hidden_bar)
        rows = tuple(range(hidden_bar.ndim - 1))
        return (*bars, *(jnp.sum(b, rows) for b in bars)) if summed else tuple(bars)

    return epilogue
