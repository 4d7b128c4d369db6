"""`grouped_mlp`: two grouped layers and the activation between them, forward and backward."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike

from jax_bwgemm import compat
from jax_bwgemm.epilogue.activations import as_activation
from jax_bwgemm.epilogue.apply import Epilogue
from jax_bwgemm.epilogue.linear import Activation
from jax_bwgemm.epilogue.program import FLOATS
from jax_bwgemm.grouped.api import ragged_dot, ragged_dot_general, ragged_dot_with_epilogue
from jax_bwgemm.grouped.validation import check_offset, check_size_values
from jax_bwgemm.grouped.with_epilogue import After, EpilogueOperands
from jax_bwgemm.product.arguments import as_array, as_flag, as_precision
from jax_bwgemm.product.implementations import as_implementations
from jax_bwgemm.product.linear_map import Arrays, LinearMap

_CALLER = "grouped_mlp"
_TIMES_TRANSPOSED = lax.RaggedDotDimensionNumbers((((1,), (2,)), ((), ())), (0,), (0,))
_OVER_ROWS = lax.RaggedDotDimensionNumbers((((0,), (0,)), ((), ())), (0,), ())


def grouped_mlp(
    rows: ArrayLike,
    up: ArrayLike,
    down: ArrayLike,
    group_sizes: ArrayLike,
    *,
    row_weights: ArrayLike | None = None,
    activation: Activation = "silu",
    recompute: bool = False,
    group_offset: ArrayLike | None = None,
    precision: Any = None,
    implementation: str | Sequence[str] | None = None,
) -> jax.Array:
    """``activation(rows @ up) @ down``, or gated, each row with its group's matrices.

    With stacked weights [E, K, 2, H] the hidden values are ``activation(rows @ gate) * (rows @
    up)``, and gate and up are one grouped product. A row's weight multiplies its hidden values.
    That equals multiplying its result, but nothing is left to do after the second product, nor, in
    the backward pass, before the first.

    ``rows``, ``up`` and ``down`` have one type: float32, bfloat16 or float16. Products and weighted
    hidden values are rounded to it; what is between is computed in float32.

    Args:
        rows: [M, K]: first those of group 0, then those of group 1, and so on.
        up: [E, K, H], or [E, K, 2, H], gate first.
        down: [E, H, N].
        group_sizes: Rows of each group, as in `ragged_dot`.
        row_weights: [M], float32, bfloat16 or float16, or None.
        activation: As in `linear`; one that is not elementwise is a pass of its own.
        recompute: Whether the backward pass computes the first product and the hidden values again.
            Only the arguments are kept for it then; else these two arrays are kept too.
        group_offset: As in `ragged_dot`.
        precision: As in `ragged_dot`.
        implementation: As in `ragged_dot`.

    Returns:
        [M, N]. Rows of no group, or of a group without matrices here, are zero.

    Raises:
        TypeError: Not arrays, types that differ, shapes that do not fit together, or an activation
            of the wrong type.
        ValueError: An unknown activation, or what `ragged_dot` raises.
        NotImplementedError: What `ragged_dot` raises.
        ExceptionGroup: Of NotImplementedError: none of several implementations can.
    """
    known = isinstance(group_sizes, np.ndarray) and group_sizes.ndim == 1
    if known and np.issubdtype(group_sizes.dtype, np.integer):
        check_size_values(_CALLER, group_sizes, np.shape(rows)[0] if np.ndim(rows) else 0)
    rows, up, down, sizes = (
        as_array(_CALLER, name, x)
        for name, x in (("rows", rows), ("up", up), ("down", down), ("group_sizes", group_sizes))
    )
    gated = up.ndim == 4
    check_layers(_CALLER, "rows", rows, up, down)
    operands = [rows, down, up]
    if row_weights is not None:
        weights = as_array(_CALLER, "row_weights", row_weights)
        check_weights(_CALLER, "row_weights", weights, rows.shape[:1])
        operands.append(weights)
    operands.append(sizes)
    if group_offset is not None:
        check_offset(_CALLER, group_offset, math.prod(sizes.shape))
        operands.append(as_array(_CALLER, "group_offset", group_offset))
    layer = _GroupedMlp(
        as_activation(_CALLER, activation, (rows.shape[0], down.shape[1]), elementwise=False),
        gated,
        row_weights is not None,
        as_flag(_CALLER, "recompute", recompute),
        as_precision(precision),
        as_implementations(implementation),
    )

    def apply(rows: jax.Array, down: jax.Array, up: jax.Array, *rest: jax.Array) -> jax.Array:
        # Inside, since an array's type cannot say that devices have parts of both gate and up.
        up = up.reshape(*up.shape[:2], math.prod(up.shape[2:]))
        return _apply(compat.match_varying(rows, down, up, *rest), layer)

    return compat.in_automatic_axes(
        apply,
        lambda: (compat.spec_of(rows)[0], compat.spec_of(down)[-1]),
        *operands,
    )


def check_layers(caller: str, name: str, rows: jax.Array, up: jax.Array, down: jax.Array) -> None:
    """Checks shapes and types of both layers' operands. name: The argument that has the rows.

    Raises:
        TypeError: Shapes that do not fit together, or types that differ.
    """
    fits = rows.ndim == 2 and down.ndim == 3 and up.ndim in (3, 4)
    gated = [2] if up.ndim == 4 else []
    if not fits or up.shape != (down.shape[0], rows.shape[1], *gated, down.shape[1]):
        raise TypeError(
            f"{caller}: {name} must be [M, K], up [E, K, H] or [E, K, 2, H] and down [E, H, N], "
            f"got {rows.shape}, {up.shape} and {down.shape}"
        )
    types = sorted({x.dtype.name for x in (rows, up, down)})
    if len(types) > 1 or rows.dtype.name not in FLOATS:
        raise TypeError(
            f"{caller}: {name}, up and down must have one type of {', '.join(FLOATS)}, got "
            f"{', '.join(types)}"
        )


def check_weights(caller: str, name: str, weights: jax.Array, shape: tuple[int, ...]) -> None:
    """Checks what weighs hidden values. name: The argument that has it.

    Raises:
        TypeError: Another shape, or a type that it is not computed with.
    """
    if weights.shape != shape or weights.dtype.name not in FLOATS:
        raise TypeError(
            f"{caller}: {name} must have the shape {shape} and a type of {', '.join(FLOATS)}, got "
            f"{weights.dtype} of shape {weights.shape}"
        )


@dataclasses.dataclass(frozen=True)
class _Parts:
    """The layer's operands by name; those of tangents may be None."""

    rows: Any
    down: Any
    up: Any
    weights: Any
    sizes: Any
    offset: Any


@dataclasses.dataclass(frozen=True)
class _GroupedMlp:
    """What is static about both layers. Operands: rows, down, up, weights, sizes, offset."""

    activation: Callable[[jax.Array], jax.Array] | None
    gated: bool
    weighted: bool
    recompute: bool
    precision: Any
    implementations: tuple[str, ...]

    def parts(self, operands: Sequence[Any]) -> _Parts:
        rows, down, up, *rest = operands
        weights = rest.pop(0) if self.weighted else None
        return _Parts(rows, down, up, weights, rest[0], rest[1] if len(rest) > 1 else None)

    def arguments(self, p: _Parts) -> dict[str, Any]:
        """What all grouped products are called with."""
        return {
            "precision": self.precision,
            "group_offset": p.offset,
            "implementation": self.implementations,
        }

    def product(self, lhs: jax.Array, rhs: jax.Array, p: _Parts, numbers: Any = None) -> jax.Array:
        """A grouped product with the groups of p: of rows, or with `numbers`."""
        rest = self.arguments(p)
        if numbers is None:
            return ragged_dot(lhs, rhs, p.sizes, **rest)
        if numbers is _OVER_ROWS:
            rest["num_groups"] = p.down.shape[0]
        return ragged_dot_general(lhs, rhs, p.sizes, numbers, **rest)

    def combine(self, *wide: jax.Array) -> jax.Array:
        """Weighted hidden values of the first product, which may be in two parts, and weights."""
        products = list(wide[: -1 if self.weighted else None])
        if self.gated and len(products) == 1:
            products = jnp.split(products[0], 2, axis=-1)
        gate, *ups = products
        hidden = gate if self.activation is None else self.activation(gate)
        hidden = hidden * ups[0] if ups else hidden
        return hidden * wide[-1] if self.weighted else hidden

    def wide(self, products: Sequence[jax.Array], weights: jax.Array | None) -> Arrays:
        """What `combine` takes, in float32."""
        of_rows = () if weights is None else (weights[:, None],)
        return tuple(x.astype(jnp.float32) for x in (*products, *of_rows))

    def hidden(self, operands: Sequence[jax.Array], *, keeps_product: bool) -> Arrays:
        """The weighted hidden values and, if kept, the product that they are made of.

        Where product and what follows it are one kernel, that of gate and up is in two parts.
        """
        p = self.parts(operands)
        of_rows = () if p.weights is None else (p.weights[:, None],)
        after = After(
            Epilogue(_after_first(self, keeps_product), _CALLER),
            EpilogueOperands(of_rows),
            gated=self.gated,
            only_linked=True,
        )
        rest = self.arguments(p)
        linked = ragged_dot_with_epilogue(p.rows, p.up, p.sizes, None, after, **rest)
        if linked is not None:
            return tuple(linked)
        product = self.product(p.rows, p.up, p)
        hidden = self.combine(*self.wide((product,), p.weights)).astype(product.dtype)
        return (hidden, product) if keeps_product else (hidden,)

    def before_hidden(
        self, y_bar: jax.Array, p: _Parts, products: Arrays, weighs: bool
    ) -> tuple[jax.Array, jax.Array | None]:
        """Cotangents of the first product and, if wanted, of the rows' weights, from the result's.

        Where that pays, the hidden values' cotangent is a product whose kernel computes both.
        """
        of_rows = () if p.weights is None else (p.weights[:, None],)
        by_xla = _after_gradient(self, weighs)
        # Gate and up in one array could only be read by halves.
        if len(products) == 1 + self.gated:
            after = After(
                Epilogue(_terms_after_gradient(self, weighs), _CALLER),
                EpilogueOperands((*products, *of_rows)),
                only_linked=True,
                halves=self.gated,
                sums=weighs,
                by_xla=by_xla,
            )
            rest = self.arguments(p)
            numbers = _TIMES_TRANSPOSED
            linked = ragged_dot_with_epilogue(y_bar, p.down, p.sizes, numbers, after, **rest)
            if linked is not None:
                return linked[0], linked[1] if weighs else None
        hidden_bar = self.product(y_bar, p.down, p, _TIMES_TRANSPOSED)
        found = by_xla(hidden_bar, *products, *of_rows)
        return found[0], found[1] if weighs else None

    def output(self, operands: Sequence[jax.Array], hidden: jax.Array) -> jax.Array:
        p = self.parts(operands)
        return self.product(hidden, p.down, p)


@functools.lru_cache(maxsize=256)
def _after_first(layer: _GroupedMlp, keeps_product: bool) -> Callable[..., Arrays]:
    """What follows the first product; the same function for the same layer."""

    def after(*given: jax.Array) -> Arrays:
        wide = [x.astype(jnp.float32) for x in given]
        products = wide[: 2 if layer.gated else 1] if keeps_product else []
        return (layer.combine(*wide), *products)

    return after


@functools.lru_cache(maxsize=256)
def _after_gradient(layer: _GroupedMlp, weighs: bool) -> Callable[..., list[jax.Array]]:
    """From the hidden values' cotangent, `_GroupedMlp.before_hidden`'s; the same for the same."""

    def after(hidden_bar: jax.Array, *given: jax.Array) -> list[jax.Array]:
        wide = [x.astype(jnp.float32) for x in given]
        bars = jax.vjp(layer.combine, *wide)[1](hidden_bar.astype(jnp.float32))
        products = bars[: -1 if layer.weighted else None]
        product_bar = jnp.concatenate(products, axis=-1).astype(hidden_bar.dtype)
        return [product_bar, *([bars[-1][:, 0]] if weighs else [])]

    return after


@functools.lru_cache(maxsize=256)
def _terms_after_gradient(layer: _GroupedMlp, weighs: bool) -> Callable[..., Arrays]:
    """The same, value by value: products' parts one by one, and what weights' cotangents sum."""

    def after(hidden_bar: jax.Array, *given: jax.Array) -> Arrays:
        wide = [x.astype(jnp.float32) for x in given]
        products, of_rows = wide[: 1 + layer.gated], wide[1 + layer.gated :]
        bars = jax.vjp(lambda *xs: layer.combine(*xs, *of_rows), *products)[1](hidden_bar)
        if not weighs:
            return bars
        unweighted = dataclasses.replace(layer, weighted=False)
        return (*bars, hidden_bar * unweighted.combine(*products))

    return after


@dataclasses.dataclass(frozen=True)
class _OfOperands(LinearMap):
    """From the operands' tangents to the result's.

    Residuals: operands and, if kept, hidden values and product. ``moving`` says of which operands
    there are tangents.
    """

    layer: _GroupedMlp
    moving: tuple[bool, ...]

    def _values(self, residuals: Arrays) -> tuple[Arrays, jax.Array, Arrays]:
        """Operands, hidden values, the product or its parts."""
        operands, kept = residuals[: len(self.moving)], residuals[len(self.moving) :]
        hidden, *products = kept or self.layer.hidden(operands, keeps_product=True)
        return operands, hidden, tuple(products)

    def forward(self, residuals: Arrays, inputs: Arrays) -> Arrays:
        layer = self.layer
        operands, hidden, products = self._values(residuals)
        p = layer.parts(operands)
        given = iter(inputs)
        d = layer.parts([next(given) if moves else None for moves in self.moving])
        results = [] if d.down is None else [layer.product(hidden, d.down, p)]
        if not (d.rows is d.up is d.weights is None):
            parts = [] if d.rows is None else [layer.product(d.rows, p.up, p)]
            parts += [] if d.up is None else [layer.product(p.rows, d.up, p)]
            wide = layer.wide(products, p.weights)
            tangents = [jnp.zeros_like(x) for x in wide]
            if parts:
                tangents[: len(products)] = jnp.split(_total(parts), len(products), axis=-1)
            if d.weights is not None:
                tangents[-1] = d.weights.astype(jnp.float32)[:, None]
            _, dhidden = jax.jvp(layer.combine, wide, tuple(tangents))
            results.append(layer.product(dhidden.astype(hidden.dtype), p.down, p))
        return (_total(results).astype(hidden.dtype),)

    def backward(self, residuals: Arrays, cotangents: Arrays) -> Arrays:
        layer = self.layer
        if layer.recompute:  # then, and not before
            residuals, cotangents = lax.optimization_barrier((residuals, cotangents))
        (y_bar,) = cotangents
        operands, hidden, products = self._values(residuals)
        p = layer.parts(operands)
        wants = layer.parts(self.moving)
        found: list[jax.Array | None] = [None] * len(operands)
        if wants.down:
            found[1] = layer.product(hidden, y_bar, p, _OVER_ROWS)
        if wants.rows or wants.up or wants.weights:
            product_bar, weights_bar = layer.before_hidden(y_bar, p, products, bool(wants.weights))
            if wants.rows:
                found[0] = layer.product(product_bar, p.up, p, _TIMES_TRANSPOSED)
            if wants.up:
                found[2] = layer.product(p.rows, product_bar, p, _OVER_ROWS)
            if wants.weights:
                found[3] = weights_bar.astype(p.weights.dtype)
        return tuple(x for x in found if x is not None)


@functools.partial(jax.custom_jvp, nondiff_argnums=(1,))
def _apply(operands: Arrays, layer: _GroupedMlp) -> jax.Array:
    (hidden,) = layer.hidden(operands, keeps_product=False)
    return layer.output(operands, hidden)


@functools.partial(_apply.defjvp, symbolic_zeros=True)
def _apply_jvp(layer: _GroupedMlp, primals: Any, dots: Any) -> tuple[jax.Array, jax.Array]:
    ((operands,), (tangents,)) = primals, dots
    values = layer.hidden(operands, keeps_product=True)
    out = layer.output(operands, values[0])
    # Of integers there is none, which is not always a symbolic zero.
    moving = tuple(
        jnp.issubdtype(x.dtype, jnp.floating)
        and not isinstance(t, jax.custom_derivatives.SymbolicZero)
        for x, t in zip(operands, tangents, strict=True)
    )
    if not any(moving):
        return out, jnp.zeros_like(out)
    inputs = [t for t, moves in zip(tangents, moving, strict=True) if moves]
    residuals = operands if layer.recompute else (*operands, *values)
    return out, _OfOperands(layer, moving)(residuals, inputs)[0]


def _total(parts: Sequence[jax.Array]) -> jax.Array:
    """The sum, in float32."""
    wide = [x.astype(jnp.float32) for x in parts]
    return sum(wide[1:], start=wide[0])
