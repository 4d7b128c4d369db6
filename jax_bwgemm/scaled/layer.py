"""A product of matrices and its gradients in low precision: each operand is quantized once."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jax_bwgemm.compat_jaxpr import varying_axes
from jax_bwgemm.scaled import rounding
from jax_bwgemm.scaled.api import within_derivative
from jax_bwgemm.scaled.hadamard import rotated, rotation
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
        lhs_dtype: Name of the type of x and of its gradient.
        rhs_dtype: Name of the type of w and of its gradient.
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

    def check_key(self, key: jax.Array | None) -> None:
        """Raises TypeError where gradients need a key and there is none."""
        if key is None and self.recipe.needs_key:
            raise TypeError(f"gradients of {self.recipe} depend on random numbers: pass key=")

    def lhs(self, x: jax.Array, key: jax.Array | None) -> Copies:
        """Both copies of x."""
        r = self.recipe
        if r.hadamard:
            return self._with_rotated(x, self.lhs_transposed, r.lhs, r.dtype, (None, None), key)
        return self._copies(x, self.lhs_transposed, r.lhs, r.dtype)

    def rhs(self, w: jax.Array) -> Copies:
        """Both copies of w."""
        r = self.recipe
        square = {"square_blocks": True} if r.square_rhs else {}
        return self._copies(w, self.rhs_transposed, r.rhs, r.dtype, **square)

    def gradient(self, g: jax.Array, key: jax.Array | None) -> Copies:
        """Both copies of the cotangent [M, N]."""
        r, keys = self.recipe, self._gradient_keys(key)
        if r.hadamard:
            return self._with_rotated(g, False, r.gradient, r.gradient_dtype, keys, key)
        return self._copies(g, False, r.gradient, r.gradient_dtype, key=keys[0])

    def forward_operands(self, x: jax.Array, w: jax.Array) -> Copies:
        """What the forward product alone needs: x [M, K], w [N, K]."""
        r = self.recipe
        square = {"square_blocks": True} if r.square_rhs else {}

        def one(x: jax.Array, transposed: bool, scaling: str, **options: Any) -> ScaledArray:
            if transposed:
                return self._copies(x, True, scaling, r.dtype, **options)[0]
            return self._quantized(x, scaling, r.dtype, **options)

        return one(x, self.lhs_transposed, r.lhs), one(w, self.rhs_transposed, r.rhs, **square)

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
        accumulation = self.recipe.gradient_accumulation
        x_bar = self._product(g[0], w, self.lhs_dtype, accumulation)
        if self.lhs_transposed:
            x_bar = x_bar.T
        pair = (x, g[1]) if self.rhs_transposed else (g[1], x)
        return x_bar, self._product(*pair, self.rhs_dtype, accumulation)

    def _quantized(self, x: jax.Array, scaling: str, dtype: str, **options: Any) -> Any:
        return quantize(
            x,
            scaling,
            dtype=dtype,
            power_of_two=self.recipe.power_of_two,
            implementation=self.implementations,
            **options,
        )

    def _copies(
        self, x: jax.Array, transposed: bool, scaling: str, dtype: str, **options: Any
    ) -> Copies:
        """Both copies of an operand: one pass over x, in whichever order it is stored."""
        made = self._quantized(x, scaling, dtype, transposed=True, **options)
        return made[::-1] if transposed else made

    def _with_rotated(
        self,
        x: jax.Array,
        transposed: bool,
        scaling: str,
        dtype: str,
        keys: Sequence[jax.Array | None],
        key: jax.Array | None,
    ) -> Copies:
        """A copy, and a transposed one that is rotated along what dW contracts."""
        x = x.T if transposed else x
        first = self._quantized(x, scaling, dtype, key=keys[0])
        return first, self._rotated(x, scaling, dtype, keys[1], key)

    def _rotated(
        self,
        x: jax.Array,
        scaling: str,
        dtype: str,
        rounding_key: jax.Array | None,
        key: jax.Array | None,
    ) -> ScaledArray:
        assert key is not None  # `check_key` has seen to it
        matrix = rotation(jax.random.fold_in(key, 0))
        return self._quantized(rotated(x.T, matrix), scaling, dtype, key=rounding_key)

    def _gradient_keys(self, key: jax.Array | None) -> tuple[jax.Array | None, ...]:
        """By which both copies of the cotangent are rounded."""
        if not self.recipe.stochastic_gradient:
            return None, None
        assert key is not None  # `check_key` has seen to it
        return tuple(jax.random.split(jax.random.fold_in(key, 1)))

    def _product(self, a: ScaledArray, b: ScaledArray, dtype: str, accumulation: str) -> jax.Array:
        return within_derivative(
            a,
            b,
            preferred_element_type=dtype,
            accumulation=accumulation,
            implementation=self.implementations,
        )


def mapped_with(key: jax.Array | None, out: jax.Array) -> jax.Array:
    """A result that vmap maps where it maps the key, on which gradients alone depend.

    JAX would give every element's gradient the sum of the elements' cotangents.
    """
    return out if key is None else _mapped_with(key, out)


@jax.custom_batching.custom_vmap
def _mapped_with(key: jax.Array, out: jax.Array) -> jax.Array:
    del key
    return out


@_mapped_with.def_vmap
def _mapped_with_batched(
    size: int, mapped: Sequence[bool], key: jax.Array, out: jax.Array
) -> tuple[jax.Array, bool]:
    if not mapped[1]:
        out = jnp.broadcast_to(out, (size, *out.shape))
    return _mapped_with(key, out), True


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def multiply(layer: Layer, x: jax.Array, w: jax.Array, key: jax.Array | None) -> jax.Array:
    """[M, N]. Scales are found from the operands themselves; the key is for gradients."""
    return mapped_with(key, layer.forward(*layer.forward_operands(x, w)))


def _forward(
    layer: Layer, x: jax.Array, w: jax.Array, key: jax.Array | None
) -> tuple[jax.Array, Any]:
    layer.check_key(key)
    a, b = layer.lhs(x, key), layer.rhs(w)
    return mapped_with(key, layer.forward(a[0], b[0])), (a[1], b[1], key)


def _backward(
    layer: Layer, residuals: Any, cotangent: jax.Array
) -> tuple[jax.Array, jax.Array, None]:
    x, w, key = residuals
    return *layer.backward(x, w, layer.gradient(cotangent, key)), None


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


def delayed_copies(
    layer: Layer, x: jax.Array, history: jax.Array, dtype: str, transposed: bool
) -> tuple[Copies, jax.Array]:
    """Both copies of an operand, with a scale from its history, and its largest magnitude."""
    amax = jnp.max(history)
    scale = rounding.scale_of(amax, np.dtype(dtype), layer.recipe.power_of_two, 0.0)
    made, amax = quantize_with_amax(
        x, scale, dtype=dtype, transposed=True, implementation=layer.implementations
    )
    return (made[::-1] if transposed else made), amax


def next_history(history: jax.Array, latest: jax.Array) -> jax.Array:
    """The history after a step with these largest magnitudes, [3].

    Devices of shard_map and elements of vmap that share a history get the largest magnitudes of
    all of them.
    """
    # An overflow in one step must not spoil the scales of later ones.
    latest = jnp.where(jnp.isfinite(latest), latest, 0)[:, None]
    shared = varying_axes(jax.typeof(latest)) - varying_axes(jax.typeof(history))
    latest = lax.pmax(latest, tuple(sorted(shared))) if shared else latest
    return jnp.concatenate([_of_all_sharing(history, latest), history[:, :-1]], 1)


@jax.custom_batching.custom_vmap
def _of_all_sharing(history: jax.Array, latest: jax.Array) -> jax.Array:
    """The largest magnitudes, of all elements of a vmap that does not map the history.

    JAX adds up what such a derivative is mapped over: this leaves nothing to add.
    """
    del history
    return latest


@_of_all_sharing.def_vmap
def _of_all_sharing_batched(
    size: int, mapped: Sequence[bool], history: jax.Array, latest: jax.Array
) -> tuple[jax.Array, bool]:
    own, found = mapped
    if not found:
        latest = jnp.broadcast_to(latest, (size, *latest.shape))
    if not own:
        latest = latest.max(0, initial=0)
    return _of_all_sharing(history, latest), own


def _delayed_forward(
    layer: Layer, x: jax.Array, w: jax.Array, history: jax.Array
) -> tuple[jax.Array, Any]:
    dtype = layer.recipe.dtype
    a, x_amax = delayed_copies(layer, x, history[0], dtype, layer.lhs_transposed)
    b, w_amax = delayed_copies(layer, w, history[1], dtype, layer.rhs_transposed)
    return layer.forward(a[0], b[0]), (a[1], b[1], history, x_amax, w_amax)


def _delayed_backward(
    layer: Layer, residuals: Any, cotangent: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    x, w, history, *amax = residuals
    g, g_amax = delayed_copies(layer, cotangent, history[2], layer.recipe.gradient_dtype, False)
    return *layer.backward(x, w, g), next_history(history, jnp.stack([*amax, g_amax]))


multiply_delayed.defvjp(_delayed_forward, _delayed_backward)
