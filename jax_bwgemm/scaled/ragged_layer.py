"""A grouped product and its gradients in low precision: each operand is quantized once."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp

from jax_bwgemm.scaled.layer import Copies, Layer, delayed_copies, next_history
from jax_bwgemm.scaled.ragged import scaled_ragged_dot
from jax_bwgemm.scaled.scaled_array import ScaledArray


@dataclasses.dataclass(frozen=True)
class RaggedLayer(Layer):
    """What is static about a product of rows x [M, K] in groups and matrices w [E, K, N].

    The first copy of w is [E, N, K], the second one [E, K, N].
    """

    rhs_transposed: bool = True

    def matrices(self, w: jax.Array) -> Copies:
        """Both copies of w; where a tensor has one scale, each matrix has its own."""
        return jax.vmap(self.rhs)(w) if self.recipe.rhs == "tensor" else self.rhs(w)

    def rows(self, x: jax.Array) -> ScaledArray:
        """What the forward product alone needs of x."""
        return self._quantized(x, self.recipe.lhs, self.recipe.dtype)

    def ragged_forward(
        self, a: ScaledArray, b: ScaledArray, sizes: jax.Array, offset: jax.Array
    ) -> jax.Array:
        """[M, N]."""
        accumulation = self.recipe.forward_accumulation
        return self._ragged(a, b, sizes, offset, self.out_dtype, accumulation)

    def ragged_backward(
        self, x: ScaledArray, w: ScaledArray, g: Copies, sizes: jax.Array, offset: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """Gradients of x and w.

        Args:
            x: [K, M].
            w: [E, K, N].
            g: [M, N] and [N, M].
            sizes: Of the groups.
            offset: Group of the first matrix.
        """
        accumulation = self.recipe.gradient_accumulation
        x_bar = self._ragged(g[0], w, sizes, offset, self.lhs_dtype, accumulation)
        w_bar = self._ragged(
            x, g[1], sizes, offset, self.rhs_dtype, accumulation, num_groups=w.shape[0]
        )
        return x_bar, w_bar

    def _ragged(
        self,
        a: ScaledArray,
        b: ScaledArray,
        sizes: jax.Array,
        offset: jax.Array,
        dtype: str,
        accumulation: str,
        **options: Any,
    ) -> jax.Array:
        return scaled_ragged_dot(
            a,
            b,
            sizes,
            preferred_element_type=dtype,
            accumulation=accumulation,
            group_offset=offset,
            implementation=self.implementations,
            **options,
        )


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def multiply_ragged(
    layer: RaggedLayer, x: jax.Array, w: jax.Array, sizes: jax.Array, offset: jax.Array
) -> jax.Array:
    """[M, N]. Scales are found from the operands themselves."""
    a = layer.rows(x)  # no gradient: one copy is enough
    return layer.ragged_forward(a, layer.matrices(w)[0], sizes, offset)


def _forward(
    layer: RaggedLayer, x: jax.Array, w: jax.Array, sizes: jax.Array, offset: jax.Array
) -> tuple[jax.Array, Any]:
    a, b = layer.lhs(x, None), layer.matrices(w)
    return layer.ragged_forward(a[0], b[0], sizes, offset), (a[1], b[1], sizes, offset)


def _backward(
    layer: RaggedLayer, residuals: Any, cotangent: jax.Array
) -> tuple[jax.Array, jax.Array, None, None]:
    x, w, sizes, offset = residuals
    g = layer.gradient(cotangent, None)
    return *layer.ragged_backward(x, w, g, sizes, offset), None, None


multiply_ragged.defvjp(_forward, _backward)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def multiply_ragged_delayed(
    layer: RaggedLayer,
    x: jax.Array,
    w: jax.Array,
    sizes: jax.Array,
    offset: jax.Array,
    history: jax.Array,
) -> jax.Array:
    """[M, N]. Scales, one for all matrices, are found from the largest magnitudes of earlier steps.

    Args:
        layer: What is static.
        x: [M, K].
        w: [E, K, N].
        sizes: Of the groups.
        offset: Group of the first matrix.
        history: As of `layer.multiply_delayed`.
    """
    return _delayed_forward(layer, x, w, sizes, offset, history)[0]


def _delayed_forward(
    layer: RaggedLayer,
    x: jax.Array,
    w: jax.Array,
    sizes: jax.Array,
    offset: jax.Array,
    history: jax.Array,
) -> tuple[jax.Array, Any]:
    dtype = layer.recipe.dtype
    a, x_amax = delayed_copies(layer, x, history[0], dtype, False)
    b, w_amax = delayed_copies(layer, w, history[1], dtype, layer.rhs_transposed)
    out = layer.ragged_forward(a[0], b[0], sizes, offset)
    return out, (a[1], b[1], sizes, offset, history, x_amax, w_amax)


def _delayed_backward(
    layer: RaggedLayer, residuals: Any, cotangent: jax.Array
) -> tuple[jax.Array, jax.Array, None, None, jax.Array]:
    x, w, sizes, offset, history, *amax = residuals
    dtype = layer.recipe.gradient_dtype
    g, g_amax = delayed_copies(layer, cotangent, history[2], dtype, False)
    gradients = layer.ragged_backward(x, w, g, sizes, offset)
    return *gradients, None, None, next_history(history, jnp.stack([*amax, g_amax]))


multiply_ragged_delayed.defvjp(_delayed_forward, _delayed_backward)
