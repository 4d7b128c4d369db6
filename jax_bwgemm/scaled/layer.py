"""A product of matrices and its gradients in low precision: each operand is quantized once."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax_bwgemm.scaled import rounding
from jax_bwgemm.scaled.api import scaled_matmul
from jax_bwgemm.scaled.quantization import quantize, quantize_with_amax
from jax_bwgemm.scaled.recipes import Recipe
from jax_bwgemm.scaled.scaled_array import ScaledArray

# A quantized operand [rows, K] and its transposed copy [K, rows].
Copies = tuple[ScaledArray, ScaledArray]


@dataclasses.dataclass(frozen=True)
class Layer:
    """What is static about a product of x, [M, K] or [K, M], and w, [N, K] or [K, N].

    Attributes:
        recipe: Layouts, types, rounding.
        implementations: Names to try, in order, for quantization and products.
        out_dtype: Name of the result's type.
        lhs_dtype: That of x and its gradient.
        rhs_dtype: That of w and its gradient.
        lhs_transposed: Whether x is [K, M].
        rhs_transposed: Whether w is [K, N].
    """

    recipe: Recipe
    implementations: tuple[str, ...]
    out_dtype: str
    lhs_dtype: str
    rhs_dtype: str
    lhs_transposed: bool = False
    rhs_transposed: bool = False

    def copies(self, x: jax.Array, scaling: str, dtype: str, transposed: bool) -> Copies:
        """Both copies of an operand: one pass over x, in whichever order it is stored."""
        made = quantize(
            x,
            scaling,
            dtype=dtype,
            power_of_two=self.recipe.power_of_two,
            transposed=True,
            implementation=self.implementations,
        )
        return made[::-1] if transposed else made

    def one_copy(self, x: jax.Array, scaling: str, transposed: bool) -> ScaledArray:
        """What the forward product alone needs."""
        if transposed:
            return self.copies(x, scaling, self.recipe.dtype, True)[0]
        return quantize(
            x,
            scaling,
            dtype=self.recipe.dtype,
            power_of_two=self.recipe.power_of_two,
            implementation=self.implementations,
        )

    def lhs(self, x: jax.Array) -> Copies:
        """Both copies of x."""
        return self.copies(x, self.recipe.lhs, self.recipe.dtype, self.lhs_transposed)

    def rhs(self, w: jax.Array) -> Copies:
        """Both copies of w."""
        return self.copies(w, self.recipe.rhs, self.recipe.dtype, self.rhs_transposed)

    def gradient(self, g: jax.Array) -> Copies:
        """Both copies of the cotangent [M, N]."""
        return self.copies(g, self.recipe.gradient, self.recipe.gradient_dtype, False)

    def forward(self, a: ScaledArray, b: ScaledArray) -> jax.Array:
        """[M, N]."""
        return self._product(a, b, self.out_dtype, self.recipe.forward_accumulation)

    def backward(self, x: ScaledArray, w: ScaledArray, g: Copies) -> tuple[jax.Array, jax.Array]:
        """Gradients of x and w, stored as they are.

        Args:
            x: [K, M].
            w: [K, N].
            g: [M, N] and [N, M].
        """
        x_bar = self._product(g[0], w, self.lhs_dtype, "promoted")
        if self.lhs_transposed:
            x_bar = x_bar.T
        if self.rhs_transposed and g[1].dtype == x.dtype:
            return x_bar, self._product(x, g[1], self.rhs_dtype, "promoted")
        # Kernels have the gradient's type, where it is another, on the left.
        w_bar = self._product(g[1], x, self.rhs_dtype, "promoted")
        return x_bar, w_bar.T if self.rhs_transposed else w_bar

    def _product(self, a: ScaledArray, b: ScaledArray, dtype: str, accumulation: str) -> jax.Array:
        return scaled_matmul(
            a,
            b,
            preferred_element_type=dtype,
            accumulation=accumulation,
            implementation=self.implementations,
        )


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def multiply(layer: Layer, x: jax.Array, w: jax.Array) -> jax.Array:
    """[M, N]. Scales are found from the operands themselves."""
    a = layer.one_copy(x, layer.recipe.lhs, layer.lhs_transposed)
    b = layer.one_copy(w, layer.recipe.rhs, layer.rhs_transposed)
    return layer.forward(a, b)


def _forward(layer: Layer, x: jax.Array, w: jax.Array) -> tuple[jax.Array, Any]:
    a, b = layer.lhs(x), layer.rhs(w)
    return layer.forward(a[0], b[0]), (a[1], b[1])


def _backward(layer: Layer, residuals: Any, cotangent: jax.Array) -> tuple[jax.Array, jax.Array]:
    return layer.backward(*residuals, layer.gradient(cotangent))


multiply.defvjp(_forward, _backward)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def multiply_delayed(layer: Layer, x: jax.Array, w: jax.Array, history: jax.Array) -> jax.Array:
    """[M, N]. Scales are found from the largest magnitudes of earlier steps.

    Args:
        layer: What is static.
        x: [M, K] or [K, M].
        w: [N, K] or [K, N].
        history: [3, steps]: of x, w and the cotangent, the latest first. Its "gradient" is the next
            history.
    """
    return _delayed_forward(layer, x, w, history)[0]


def _delayed(
    layer: Layer, x: jax.Array, history: jax.Array, dtype: str, transposed: bool
) -> tuple[Copies, jax.Array]:
    amax = jnp.max(history)
    scale = rounding.scale_of(amax, np.dtype(dtype), layer.recipe.power_of_two, 0.0)
    made, amax = quantize_with_amax(
        x, scale, dtype=dtype, transposed=True, implementation=layer.implementations
    )
    return (made[::-1] if transposed else made), amax


def _delayed_forward(
    layer: Layer, x: jax.Array, w: jax.Array, history: jax.Array
) -> tuple[jax.Array, Any]:
    dtype = layer.recipe.dtype
    a, x_amax = _delayed(layer, x, history[0], dtype, layer.lhs_transposed)
    b, w_amax = _delayed(layer, w, history[1], dtype, layer.rhs_transposed)
    return layer.forward(a[0], b[0]), (a[1], b[1], history, x_amax, w_amax)


def _delayed_backward(
    layer: Layer, residuals: Any, cotangent: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    x, w, history, *amax = residuals
    g, g_amax = _delayed(layer, cotangent, history[2], layer.recipe.gradient_dtype, False)
    latest = jnp.stack([*amax, g_amax])
    # An overflow of one step must not spoil the next ones.
    latest = jnp.where(jnp.isfinite(latest), latest, 0)[:, None]
    return *layer.backward(x, w, g), jnp.concatenate([latest, history[:, :-1]], 1)


multiply_delayed.defvjp(_delayed_forward, _delayed_backward)
