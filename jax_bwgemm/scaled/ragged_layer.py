"""A grouped product and its gradients in low precision: each operand is quantized once."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp

from jax_bwgemm import compat
from jax_bwgemm.grouped.groups import as_int32, count_until, group_bounds
from jax_bwgemm.scaled.hadamard import SIDE
from jax_bwgemm.scaled.layer import Copies, Layer, delayed_copies, mapped_with, next_history
from jax_bwgemm.scaled.ragged import within_derivative
from jax_bwgemm.scaled.scaled_array import ScaledArray


@dataclasses.dataclass(frozen=True)
class RaggedLayer(Layer):
    """What is static about a product of rows x [M, K] in groups and matrices w [E, K, N].

    The first copy of w is [E, N, K], the second one [E, K, N].
    """

    rhs_transposed: bool = True

    def row_copies(self, x: jax.Array, sizes: jax.Array, key: jax.Array | None) -> Copies:
        """Both copies of x [M, K], the second one with `contracted` columns."""
        r = self.recipe
        if not r.hadamard:
            return self.lhs(x, key)
        return self.rows(x), self._rotated(contracted(x, sizes), r.lhs, r.dtype, None, key)

    def gradient_copies(self, g: jax.Array, sizes: jax.Array, key: jax.Array | None) -> Copies:
        """Both copies of the cotangent [M, N], the second one with `contracted` columns."""
        r = self.recipe
        if not r.hadamard:
            return self.gradient(g, key)
        keys = self._gradient_keys(key)
        return (
            self._quantized(g, r.gradient, r.gradient_dtype, key=keys[0]),
            self._rotated(contracted(g, sizes), r.gradient, r.gradient_dtype, keys[1], key),
        )

    def matrices(self, w: jax.Array) -> Copies:
        """Both copies of w; where a tensor has one scale, each matrix has its own."""
        return _of_each(self, w) if self.recipe.rhs == "tensor" else self.rhs(w)

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
            x: [K, M'], M' being M or, of rotated operands, the rows that `contracted` returns.
            w: [E, K, N].
            g: [M, N] and [N, M'].
            sizes: Of the groups.
            offset: Group of the first matrix.
        """
        accumulation = self.recipe.gradient_accumulation
        x_bar = self._ragged(g[0], w, sizes, offset, self.lhs_dtype, accumulation)
        if self.recipe.hadamard:
            sizes = contracted_sizes(sizes, g[0].shape[0])
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
        num_groups: int | None = None,
    ) -> jax.Array:
        return within_derivative(
            a,
            b,
            sizes,
            preferred_element_type=dtype,
            accumulation=accumulation,
            group_offset=offset,
            num_groups=num_groups,
            implementation=self.implementations,
        )


@functools.partial(jax.jit, static_argnums=0, inline=compat.INLINE)
def _of_each(layer: RaggedLayer, w: jax.Array) -> Copies:
    """Both copies of w, each matrix with its own scale."""
    return jax.vmap(layer.rhs)(w)


def contracted_sizes(sizes: jax.Array, rows: int) -> jax.Array:
    """Sizes of groups in multiples of SIDE rows, which a rotation mixes."""
    starts, ends = group_bounds(as_int32(sizes), rows)
    return -(-(ends - starts) // SIDE) * SIDE


def contracted(x: jax.Array, sizes: jax.Array) -> jax.Array:
    """Rows in groups of `contracted_sizes`: a copy of x in which zeros fill the groups up.

    It has as many rows as any sizes need, and whole 16 bytes of 4-bit values.
    """
    rows, groups = x.shape[0], sizes.shape[0]
    if rows == 0:  # a zero to take
        x = jnp.zeros((1, *x.shape[1:]), x.dtype)
    places = jnp.arange(-(-(rows + groups * (SIDE - 1)) // 32) * 32, dtype=jnp.int32)
    if groups == 0:
        return compat.zeros_like_varying((places.size, *x.shape[1:]), x.dtype, x)
    starts, ends = group_bounds(as_int32(sizes), rows)
    filled = contracted_sizes(sizes, rows)
    filled_ends = jnp.cumsum(filled)
    group = count_until(filled_ends, places)
    inside = jnp.minimum(group, groups - 1)
    within = places - (filled_ends - filled)[inside]
    exists = (group < groups) & (within < (ends - starts)[inside])
    taken = jnp.take(x, starts[inside] + within, axis=0, mode="clip")
    return jnp.where(exists[:, None], taken, 0)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def multiply_ragged(
    layer: RaggedLayer,
    x: jax.Array,
    w: jax.Array,
    sizes: jax.Array,
    offset: jax.Array,
    key: jax.Array | None,
) -> jax.Array:
    """[M, N]. Scales are found from the operands themselves; the key is for gradients."""
    a = layer.rows(x)  # no gradient: one copy is enough
    return mapped_with(key, layer.ragged_forward(a, layer.matrices(w)[0], sizes, offset))


def _forward(
    layer: RaggedLayer,
    x: jax.Array,
    w: jax.Array,
    sizes: jax.Array,
    offset: jax.Array,
    key: jax.Array | None,
) -> tuple[jax.Array, Any]:
    layer.check_key(key)
    a, b = layer.row_copies(x, sizes, key), layer.matrices(w)
    out = mapped_with(key, layer.ragged_forward(a[0], b[0], sizes, offset))
    return out, (a[1], b[1], sizes, offset, key)


def _backward(
    layer: RaggedLayer, residuals: Any, cotangent: jax.Array
) -> tuple[jax.Array, jax.Array, None, None, None]:
    x, w, sizes, offset, key = residuals
    g = layer.gradient_copies(cotangent, sizes, key)
    return *layer.ragged_backward(x, w, g, sizes, offset), None, None, None


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
