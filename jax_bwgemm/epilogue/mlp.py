"""`mlp`: two layers with what is between them, forward and backward, in the products' kernels."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike

from jax_bwgemm import compat
from jax_bwgemm.dense.api import dot_general, dot_general_with_epilogue
from jax_bwgemm.epilogue.activations import as_activation
from jax_bwgemm.epilogue.apply import Epilogue
from jax_bwgemm.epilogue.gated_layer import gated_product
from jax_bwgemm.epilogue.hidden_blocks import HiddenBlocks
from jax_bwgemm.epilogue.hidden_values import (
    add,
    biased,
    combine,
    gradients,
    hidden_values,
    values_and_slope,
)
from jax_bwgemm.epilogue.linear import Activation
from jax_bwgemm.product.arguments import as_array, as_precision
from jax_bwgemm.product.implementations import as_implementations
from jax_bwgemm.product.linear_map import Arrays, LinearMap

_CALLER = "mlp"


def mlp(
    x: ArrayLike,
    up: ArrayLike | tuple[ArrayLike, ArrayLike],
    down: ArrayLike,
    *,
    up_bias: ArrayLike | tuple[ArrayLike, ArrayLike] | None = None,
    down_bias: ArrayLike | None = None,
    activation: Activation = "gelu",
    recompute: bool | int = False,
    precision: Any = None,
    implementation: str | Sequence[str] | None = None,
) -> jax.Array:
    """``activation(x @ up + up_bias) @ down + down_bias``, or gated.

    With a pair of weights (gate, up) the hidden values are ``activation(x @ gate) * (x @ up)``, as
    in `gated_linear_unit`. The activation's derivative is an epilogue of the product before it in
    the backward pass, the gradient of the hidden values: docs/epilogues.md.

    All arrays have one floating-point type. Products, hidden values and slopes are rounded to it;
    what is between is computed in float32. A slope above 65504 (a logarithm's) overflows float16.

    Args:
        x: [..., K].
        up: [K, H], or a pair of these, gate first.
        down: [H, N].
        up_bias: [H], a pair of these for a pair of weights, or None.
        down_bias: [N], or None.
        activation: As in `linear`.
        recompute: What the backward pass computes again. False: nothing. The arguments are kept
            for it, and arrays of [..., H]: the hidden values and the activation's slope or, with a
            pair of weights, the hidden values and both products of x. True: these arrays; only the
            arguments are kept. A number above 1: the same, in so many blocks of the hidden values,
            of which one at a time is in memory. The number divides H. x's gradient is then the sum,
            in float32, of the blocks' products.
        precision: As in `matmul`.
        implementation: As in `matmul`.

    Returns:
        [..., N].

    Raises:
        TypeError: Not arrays, types that differ, shapes that do not fit together, or an activation
            of the wrong type.
        ValueError: An unknown activation, blocks that do not divide H, or what `matmul` raises.
        EpilogueError: The activation is not elementwise.
        NotImplementedError: What `matmul` raises.
        ExceptionGroup: Of NotImplementedError: none of several implementations can.
    """
    gated = isinstance(up, tuple | list)
    x, down = as_array(_CALLER, "x", x), as_array(_CALLER, "down", down)
    ups, up_biases = _parts("up", up, gated), _parts("up_bias", up_bias, gated)
    if x.ndim < 1 or down.ndim != 2 or any(w.shape != (x.shape[-1], down.shape[0]) for w in ups):
        shapes = ", ".join(str(w.shape) for w in (*ups, down))
        raise TypeError(
            f"{_CALLER}: x must be [..., K], up [K, H] or a pair of these and down [H, N], "
            f"got {x.shape}, {shapes}"
        )
    down_biases = () if down_bias is None else (as_array(_CALLER, "down_bias", down_bias),)
    for name, biases, size in (("up_bias", up_biases, 0), ("down_bias", down_biases, 1)):
        for b in biases:
            if b.shape != (down.shape[size],):
                raise TypeError(
                    f"{_CALLER}: {name} must have the shape {(down.shape[size],)}, got {b.shape}"
                )
    operands = (x, down, *ups, *up_biases, *down_biases)
    types = sorted({operand.dtype.name for operand in operands})
    if len(types) > 1 or not jnp.issubdtype(x.dtype, jnp.floating):
        raise TypeError(
            f"{_CALLER}: arrays must have one floating-point type, got {', '.join(types)}"
        )
    layer = _Mlp(
        as_activation(_CALLER, activation, (*x.shape[:-1], down.shape[0])),
        len(ups),
        len(up_biases),
        len(down_biases),
        _blocks(recompute, down.shape[0]),
        as_precision(precision),
        as_implementations(implementation),
    )
    return compat.in_automatic_axes(
        lambda *operands: _apply(compat.match_varying(*operands), layer),
        lambda: (*compat.spec_of(operands[0])[:-1], compat.spec_of(operands[1])[-1]),
        *operands,
    )


def _blocks(recompute: Any, hidden: int) -> int:
    """How many blocks the backward pass computes again; 0: it finds all that it needs."""
    if not isinstance(recompute, int | np.integer | np.bool_):
        raise TypeError(
            f"{_CALLER}: recompute must be a bool or a number of blocks, got {recompute!r}"
        )
    blocks = int(recompute)
    divided = isinstance(hidden, int) and hidden >= blocks and hidden % max(blocks, 1) == 0
    if blocks < 0 or (blocks > 1 and not divided):
        raise ValueError(
            f"{_CALLER}: recompute is a number of blocks that divides the hidden values, "
            f"got {blocks} of {hidden}"
        )
    return blocks


def _parts(name: str, given: Any, gated: bool) -> tuple[jax.Array, ...]:
    """An argument that is a pair if the weights are."""
    if given is None and name != "up":
        return ()
    if gated != isinstance(given, tuple | list) or (gated and len(given) != 2):
        form = "a pair of arrays" if gated else "an array"
        if name != "up":
            form += ", as up is"
        raise TypeError(f"{_CALLER}: {name} must be {form}")
    return tuple(as_array(_CALLER, name, x) for x in (given if gated else (given,)))


@dataclasses.dataclass(frozen=True)
class _Mlp:
    """What is static about the two layers; their operands are x, down, ups, biases.

    recompute: Blocks of hidden values that the backward pass computes again; 0: it keeps them all.
    """

    activation: Callable[[jax.Array], jax.Array] | None
    ups: int
    up_biases: int
    down_biases: int
    recompute: int
    precision: Any
    implementations: tuple[str, ...]

    def parts(self, operands: Arrays) -> tuple[jax.Array, jax.Array, Arrays, Arrays, Arrays]:
        """x, down, ups, biases of ups, biases of down."""
        x, down, *rest = operands
        first, second = self.ups, self.ups + self.up_biases
        return x, down, tuple(rest[:first]), tuple(rest[first:second]), tuple(rest[second:])

    def product(
        self,
        lhs: jax.Array,
        rhs: jax.Array,
        contract: tuple[Any, Any],
        epilogue: Callable[..., Any] | None = None,
        operands: Sequence[jax.Array] = (),
    ) -> Any:
        """A product that contracts these dimensions, and an epilogue if there is one."""
        numbers = (contract, ((), ()))
        rest = {"precision": self.precision, "implementation": self.implementations}
        if epilogue is None:
            return dot_general(lhs, rhs, numbers, **rest)
        after = Epilogue(epilogue, _CALLER)
        return dot_general_with_epilogue(lhs, rhs, numbers, after, operands, **rest)

    def times(self, x: jax.Array, w: jax.Array, *after: Any) -> Any:
        """[..., K] by [K, N]."""
        return self.product(x, w, ((x.ndim - 1,), (0,)), *after)

    def times_transposed(self, y: jax.Array, w: jax.Array, *after: Any) -> Any:
        """[..., N] by [K, N]: [..., K]."""
        return self.product(y, w, ((y.ndim - 1,), (1,)), *after)

    def over_rows(self, x: jax.Array, y: jax.Array) -> jax.Array:
        """[..., K] and [..., N]: [K, N]."""
        rows = tuple(range(x.ndim - 1))
        return self.product(x, y, (rows, rows))

    def hidden(self, operands: Arrays) -> tuple[jax.Array, ...]:
        """The hidden values, and what `gradients` needs of them: a slope, or both products."""
        x, _, ups, biases, _ = self.parts(operands)
        if len(ups) == 1 and self.activation is None:
            return (self.hidden_alone(operands),)
        if len(ups) == 1:
            return self.times(x, ups[0], values_and_slope(self.activation), biases)
        return self.of_both(operands, keeps_products=True)

    def of_both(self, operands: Arrays, *, keeps_products: bool) -> Any:
        """The hidden values of a pair of weights, alone or with both products."""
        x, _, ups, biases, _ = self.parts(operands)
        epilogue = Epilogue(hidden_values(self.activation, self.up_biases), _CALLER)
        return gated_product(
            x,
            ups,
            epilogue,
            biases,
            keeps_products=keeps_products,
            precision=self.precision,
            implementation=self.implementations,
        )

    def hidden_alone(self, operands: Arrays) -> jax.Array:
        """The hidden values, where no derivative is wanted."""
        x, _, ups, biases, _ = self.parts(operands)
        if len(ups) == 1:
            return self.times(x, ups[0], hidden_values(self.activation, self.up_biases), biases)
        return self.of_both(operands, keeps_products=False)

    def output(self, operands: Arrays, hidden: jax.Array) -> jax.Array:
        _, down, _, _, biases = self.parts(operands)
        return self.times(hidden, down, add, biases) if biases else self.times(hidden, down)


@dataclasses.dataclass(frozen=True)
class _OfOperands(LinearMap):
    """From the operands' tangents to the result's. Residuals: operands and, if kept, hidden values.

    ``moving`` says of which operands there are tangents.
    """

    layer: _Mlp
    moving: tuple[bool, ...]

    def _values(self, residuals: Arrays) -> tuple[Arrays, jax.Array, Arrays]:
        """Operands, hidden values, what `gradients` needs of them."""
        operands = residuals[: len(self.moving)]
        hidden, *kept = residuals[len(self.moving) :] or self.layer.hidden(operands)
        return operands, hidden, tuple(kept)

    def forward(self, residuals: Arrays, inputs: Arrays) -> Arrays:
        layer = self.layer
        operands, hidden, kept = self._values(residuals)
        x, down, ups, biases, _ = layer.parts(operands)
        given = iter(inputs)
        tangents = tuple(next(given) if moves else None for moves in self.moving)
        dx, ddown, dups, dbiases, ddown_biases = layer.parts(tangents)
        dproducts = []
        for i, up in enumerate(ups):
            parts = [] if dx is None else [layer.times(dx, up)]
            parts += [] if dups[i] is None else [layer.times(x, dups[i])]
            if dbiases and dbiases[i] is not None:
                parts.append(jnp.broadcast_to(dbiases[i], hidden.shape))
            total = sum((p.astype(jnp.float32) for p in parts), start=jnp.zeros((), jnp.float32))
            dproducts.append(jnp.broadcast_to(total, hidden.shape))
        if layer.ups == 1:
            (dhidden,) = dproducts
            for slope in kept:
                dhidden *= slope.astype(jnp.float32)
        else:
            function = functools.partial(combine, layer.activation)
            _, dhidden = jax.jvp(function, biased(kept, biases), tuple(dproducts))
        parts = [layer.times(dhidden.astype(hidden.dtype), down)]
        parts += [] if ddown is None else [layer.times(hidden, ddown)]
        parts += [jnp.broadcast_to(b, parts[0].shape) for b in ddown_biases if b is not None]
        total = sum((p.astype(jnp.float32) for p in parts), start=jnp.zeros((), jnp.float32))
        return (total.astype(hidden.dtype),)

    def backward(self, residuals: Arrays, cotangents: Arrays) -> Arrays:
        layer, (y_bar,) = self.layer, cotangents
        wants = layer.parts(self.moving)
        if layer.recompute:
            bars = self._recomputed(residuals, y_bar)
        else:
            bars = self._bars(*self._values(residuals), y_bar)
        down_biases = (_sum_of_rows(y_bar) if w else None for w in wants[4])
        return tuple(bar for bar in (*bars, *down_biases) if bar is not None)

    def _recomputed(self, residuals: Arrays, y_bar: jax.Array) -> list[jax.Array | None]:
        """The same as `_bars`, of a block of the hidden values after the other."""
        layer = self.layer
        blocks = HiddenBlocks.of(residuals[1].shape[0], layer.recompute)
        # Of down the hidden values are the first dimension, of ups and their biases the last.
        axes = (None, 0, *(1,) * layer.ups, *(0,) * layer.up_biases)
        bars: list[jax.Array | None] = [None] * len(axes)
        for i in range(blocks.count):
            # Then, and not before.
            residuals, y_bar, bars = lax.optimization_barrier((residuals, y_bar, bars))
            divided = zip(residuals[: len(axes)], axes, strict=True)
            operands = (
                *(x if axis is None else blocks.block(x, axis, i) for x, axis in divided),
                *residuals[len(axes) :],
            )
            parts = self._bars(*self._values(operands), y_bar)
            bars = [
                blocks.added(bar, part) if axis is None else blocks.written(bar, part, axis, i)
                for bar, part, axis in zip(bars, parts, axes, strict=True)
            ]
        return [bars[0] if bars[0] is None else bars[0].astype(residuals[0].dtype), *bars[1:]]

    def _bars(
        self, operands: Arrays, hidden: jax.Array, kept: Arrays, y_bar: jax.Array
    ) -> list[jax.Array | None]:
        """Cotangents of x, down, ups and their biases; None: not wanted."""
        layer = self.layer
        x, down, ups, biases, _ = layer.parts(operands)
        wants = layer.parts(self.moving)
        summed = any(wants[3]) and y_bar.ndim > 1  # a single row is its own sum
        after = gradients(layer.activation, layer.ups, layer.up_biases, summed)
        needed = kept if layer.ups == 1 else (*kept, *biases)
        bars = layer.times_transposed(y_bar, down, after, needed)
        sums = bars[layer.ups if summed else 0 :]
        x_bar = layer.times_transposed(bars[0], ups[0]) if wants[0] else None
        if wants[0] and layer.ups > 1:
            x_bar = layer.times_transposed(bars[1], ups[1], add, (x_bar,))
        return [
            x_bar,
            layer.over_rows(hidden, y_bar) if wants[1] else None,
            *(layer.over_rows(x, bars[i]) if w else None for i, w in enumerate(wants[2])),
            *(sums[i] if w else None for i, w in enumerate(wants[3])),
        ]


@functools.partial(jax.custom_jvp, nondiff_argnums=(1,))
def _apply(operands: Arrays, layer: _Mlp) -> jax.Array:
    return layer.output(operands, layer.hidden_alone(operands))


@functools.partial(_apply.defjvp, symbolic_zeros=True)
def _apply_jvp(layer: _Mlp, primals: Any, dots: Any) -> tuple[jax.Array, jax.Array]:
    ((operands,), (tangents,)) = primals, dots
    values = () if layer.recompute else layer.hidden(operands)
    out = layer.output(operands, values[0] if values else layer.hidden_alone(operands))
    moving = tuple(not isinstance(t, jax.custom_derivatives.SymbolicZero) for t in tangents)
    if not any(moving):
        return out, jnp.zeros_like(out)
    inputs = [t for t, moves in zip(tangents, moving, strict=True) if moves]
    return out, _OfOperands(layer, moving)((*operands, *values), inputs)[0]


def _sum_of_rows(x: jax.Array) -> jax.Array:
    """[..., N]: [N], summed in float32."""
    return jnp.sum(x.astype(jnp.float32), tuple(range(x.ndim - 1))).astype(x.dtype)
