"""The statistics of logits that are never stored: computed a block of columns at a time, again when
differentiated.

The columns are divided, not the rows: then a block's gradient of the weights is final and is
written once, and only the gradient of x, which is small, is summed over the blocks.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jax_bwgemm import compat
from jax_bwgemm.dense.api import dot_general, dot_general_with_epilogue
from jax_bwgemm.epilogue.apply import Epilogue
from jax_bwgemm.loss.statistics import Options, capped, cotangent, merged, reduced, tangents
from jax_bwgemm.product.linear_map import Arrays, LinearMap

_MATMUL = (((1,), (0,)), ((), ()))

# Columns of a block: few enough that a block of logits is small. 33 tiles of 256 columns are whole
# waves on 132 multiprocessors for any multiple of 512 rows, of x and of the weights alike.
WAVE_COLUMNS = 33 * 256
MOST_COLUMNS = 2 * WAVE_COLUMNS
LEAST_COLUMNS = 1024
LEAST_BLOCKS = 6


def block_columns(vocabulary: int) -> int:
    """Columns of every block but the last, which may have fewer."""
    columns = -(-vocabulary // LEAST_BLOCKS)
    step = WAVE_COLUMNS if 2 * columns > WAVE_COLUMNS else 256
    columns = -(-columns // step) * step
    return min(vocabulary, max(LEAST_COLUMNS, min(MOST_COLUMNS, columns)))


@dataclasses.dataclass(frozen=True)
class Products:
    """The products of a block.

    Attributes:
        precision: As in `jax_bwgemm.dot_general`.
        implementation: Names, in order.
    """

    precision: Any
    implementation: tuple[str, ...]

    def dot_general(self, a: jax.Array, b: jax.Array, numbers: Any, **arguments: Any) -> jax.Array:
        return dot_general(a, b, numbers, **self._arguments, **arguments)

    def logits(self, x: jax.Array, weights: jax.Array) -> jax.Array:
        """[rows, H] by [H, columns]."""
        return self.dot_general(x, weights, _MATMUL)

    def logits_bar(
        self, x: jax.Array, weights: jax.Array, options: Options, *columns: jax.Array
    ) -> jax.Array:
        """What `cotangent` makes of the logits, in their type: where it pays within the kernel."""
        function = _cotangent_of(options)
        if jnp.dtype(x.dtype).itemsize > 4:  # no type for an epilogue
            z = self.logits(x, weights)
            return function(z, *columns).astype(z.dtype)
        epilogue = Epilogue(function, "linear_softmax_cross_entropy_loss")
        return dot_general_with_epilogue(x, weights, _MATMUL, epilogue, columns, **self._arguments)

    def x_bar(self, z_bar: jax.Array, weights: jax.Array) -> jax.Array:
        """[rows, columns] by [H, columns]: [rows, H], float32."""
        return self.dot_general(
            z_bar, weights, (((1,), (1,)), ((), ())), preferred_element_type=jnp.float32
        )

    def weights_bar(self, x: jax.Array, z_bar: jax.Array) -> jax.Array:
        """[rows, H] by [rows, columns]: [H, columns]."""
        return self.dot_general(x, z_bar, (((0,), (0,)), ((), ())))

    @property
    def _arguments(self) -> dict[str, Any]:
        return {"precision": self.precision, "implementation": self.implementation}


@functools.cache
def _cotangent_of(options: Options) -> Callable[..., jax.Array]:
    return functools.partial(cotangent, options=options)


def _over_blocks(
    vocabulary: int, body: Callable[[Any, Any, int], Any], carry: Any, *like: jax.Array
) -> Any:
    """``carry = body(first column, carry, columns)`` for every block."""
    columns = block_columns(vocabulary)
    blocks, rest = divmod(vocabulary, columns)
    carry = jax.tree.map(lambda c: compat.match_varying(c, *like)[0], carry)
    carry = lax.fori_loop(0, blocks, lambda i, c: body(i * columns, c, columns), carry)
    return body(blocks * columns, carry, rest) if rest else carry


def _columns(weights: jax.Array, first: Any, columns: int) -> jax.Array:
    return lax.dynamic_slice_in_dim(weights, first, columns, 1)


@dataclasses.dataclass(frozen=True)
class _OfOperands(LinearMap):
    """From d(x), d(weights) or both to the statistics' tangents.

    Residuals: x, weights, labels, lse. ``moving`` says which of the two inputs there are.
    """

    options: Options
    products: Products
    moving: tuple[bool, bool]

    def forward(self, residuals: Arrays, inputs: Arrays) -> Arrays:
        x, weights, labels, lse = residuals
        given = iter(inputs)
        dx, dw = (next(given) if moves else None for moves in self.moving)

        def block(first: Any, carry: Arrays, columns: int) -> Arrays:
            w = _columns(weights, first, columns)
            dz = [] if dx is None else [self.products.logits(dx, w)]
            if dw is not None:
                dz.append(self.products.logits(x, _columns(dw, first, columns)))
            z = self.products.logits(x, w)
            parts = tangents(z, sum(dz[1:], start=dz[0]), labels, lse, first, self.options)
            return tuple(c + p for c, p in zip(carry, parts, strict=True))

        zeros = jnp.zeros(x.shape[0], jnp.float32)
        carry = (zeros,) * (3 if self.options.total else 2)
        return _over_blocks(weights.shape[1], block, carry, x, weights, labels, *inputs)

    def backward(self, residuals: Arrays, cotangents: Arrays) -> Arrays:
        x, weights, labels, lse = residuals

        def block(first: Any, carry: Any, columns: int) -> Any:
            x_bar, weights_bar = carry
            w = _columns(weights, first, columns)
            columns_of_rows = (r[:, None] for r in (labels - first, lse, *cotangents))
            z_bar = self.products.logits_bar(x, w, self.options, *columns_of_rows)
            if x_bar is not None:
                x_bar += self.products.x_bar(z_bar, w)
            if weights_bar is not None:
                part = self.products.weights_bar(x, z_bar).astype(weights.dtype)
                weights_bar = lax.dynamic_update_slice_in_dim(weights_bar, part, first, 1)
            return x_bar, weights_bar

        x_bar = jnp.zeros(x.shape, jnp.float32) if self.moving[0] else None
        # Every block writes its columns.
        weights_bar = lax.empty(weights.shape, weights.dtype) if self.moving[1] else None
        x_bar, weights_bar = _over_blocks(
            weights.shape[1], block, (x_bar, weights_bar), x, weights, labels, *cotangents
        )
        found = [] if x_bar is None else [x_bar.astype(x.dtype)]
        return (*found,) if weights_bar is None else (*found, weights_bar)


@functools.partial(jax.custom_jvp, nondiff_argnums=(3, 4))
def recomputed_statistics(
    x: jax.Array, weights: jax.Array, labels: jax.Array, options: Options, products: Products
) -> Arrays:
    """The statistics of the logits ``x @ weights``, of which a block at a time is in memory.

    Args:
        x: [rows, H].
        weights: [H, V].
        labels: [rows], int32.
        options: What is static about the statistics.
        products: How products are computed.

    Returns:
        lse, picked and, if asked for, total: each [rows], float32.
    """

    def block(first: Any, carry: Any, columns: int) -> Any:
        z = capped(products.logits(x, _columns(weights, first, columns)), options)
        for part in reduced(z, labels, first, options):
            carry = merged(carry, part)
        return carry

    zeros = jnp.zeros(x.shape[0], jnp.float32)
    carry = (jnp.full_like(zeros, -jnp.inf), zeros, zeros, *((zeros,) if options.total else ()))
    largest, exponentials, *sums = _over_blocks(weights.shape[1], block, carry, x, weights, labels)
    return (jnp.log(exponentials) + largest, *sums)


@functools.partial(recomputed_statistics.defjvp, symbolic_zeros=True)
def _recomputed_jvp(
    options: Options, products: Products, primals: Any, dots: Any
) -> tuple[Arrays, Any]:
    x, weights, labels = primals
    outs = recomputed_statistics(x, weights, labels, options, products)
    moving = tuple(not isinstance(d, jax.custom_derivatives.SymbolicZero) for d in dots[:2])
    if not any(moving):
        return outs, tuple(map(jnp.zeros_like, outs))
    inputs = [d for d, moves in zip(dots[:2], moving, strict=True) if moves]
    residuals = (x, weights, labels, outs[0])
    return outs, _OfOperands(options, products, moving)(residuals, inputs)
