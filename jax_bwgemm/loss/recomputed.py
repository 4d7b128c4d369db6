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
from jax.sharding import PartitionSpec

from jax_bwgemm import compat
from jax_bwgemm.dense.api import dot_general
from jax_bwgemm.dense.canonical import dot_labels
from jax_bwgemm.dense.contraction import DENSE
from jax_bwgemm.dense.problem import make_options, make_problem
from jax_bwgemm.dense.products import is_symbolic
from jax_bwgemm.dense.windowed import Windowed, windowed_product
from jax_bwgemm.epilogue.apply import Epilogue
from jax_bwgemm.loss.statistics import Options, capped, cotangent, merged, reduced, tangents
from jax_bwgemm.product.linear_map import Arrays, LinearMap
from jax_bwgemm.product.support import viable_implementations
from jax_bwgemm.product.windows import Window

_MATMUL = (((1,), (0,)), ((), ()))

# Columns of a block, few enough that a block of logits is small. On 132 multiprocessors, 33 tiles
# of 256 columns are whole waves for any multiple of 512 rows of x or of the weights.
WAVE_COLUMNS = 33 * 256
MOST_COLUMNS = 2 * WAVE_COLUMNS
LEAST_COLUMNS = 1024
LEAST_BLOCKS = 6


def _sharding_of_logits(x: tuple[Any, ...], weights: tuple[Any, ...]) -> PartitionSpec | None:
    """What JAX has to be told where both types divide H; of an axis twice, the rows have it."""
    if x[1] is None or weights[0] is None:
        return None
    rows, columns = (axes if isinstance(axes, tuple) else (axes,) for axes in (x[0], weights[1]))
    return PartitionSpec(x[0], tuple(a for a in columns if a not in (None, *rows)) or None)


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

    def logits(self, x: jax.Array, weights: jax.Array, block: Window | None = None) -> jax.Array:
        """[rows, H] by [H, V] or a block of its columns."""
        if block is None:
            sharding = _sharding_of_logits(compat.spec_of(x), compat.spec_of(weights))
            return dot_general(x, weights, _MATMUL, out_sharding=sharding, **self._arguments)
        return self._product(x, weights, _MATMUL, rhs=block)

    def logits_bar(
        self,
        x: jax.Array,
        weights: jax.Array,
        block: Window,
        options: Options,
        *columns: jax.Array,
        after: jax.Array | None = None,
    ) -> jax.Array:
        """What `cotangent` makes of the logits, in their type: where it pays within the kernel."""
        function = _cotangent_of(options)
        if max(x.dtype.itemsize, weights.dtype.itemsize) > 4:  # no type for an epilogue
            z = self.logits(x, weights, block)
            return function(z, *columns).astype(z.dtype)
        epilogue = Epilogue(function, "linear_softmax_cross_entropy_loss")
        return self._product(
            x, weights, _MATMUL, *columns, after=after, rhs=block, epilogue=epilogue
        )

    def x_bar(self, z_bar: jax.Array, weights: jax.Array, block: Window) -> jax.Array:
        """[rows, columns] by a block of [H, V]: [rows, H], float32."""
        return self._product(z_bar, weights, (((1,), (1,)), ((), ())), rhs=block, sums=jnp.float32)

    def weights_bar(
        self,
        x: jax.Array,
        z_bar: jax.Array,
        weights_bar: jax.Array,
        block: Window,
        *,
        after: jax.Array | None = None,
    ) -> jax.Array:
        """[rows, H] by [rows, columns], in its place in [H, V]."""
        numbers = (((0,), (0,)), ((), ()))
        return self._product(x, z_bar, numbers, weights_bar, after=after, into=block)

    def _product(
        self,
        a: jax.Array,
        b: jax.Array,
        numbers: Any,
        *operands: jax.Array,
        sums: Any = None,
        after: jax.Array | None = None,
        **windows: Any,
    ) -> jax.Array:
        if after is not None:
            operands, windows["follows"] = (*operands, after), True
        options = make_options(preferred_element_type=sums, **self._arguments)
        return windowed_product(a, b, Windowed(numbers, options, **windows), *operands)

    def viable(self, x: jax.Array, weights: jax.Array) -> Products:
        """The same without what cannot compute the logits."""
        options = make_options(**self._arguments)
        if is_symbolic("linear_softmax_cross_entropy_loss", x, weights, options):
            return dataclasses.replace(self, implementation=("xla",))
        problem = make_problem(x, weights, dot_labels(2, 2, *_MATMUL), options, promotes=False)
        types = [x.dtype.name, weights.dtype.name]
        viable = viable_implementations(DENSE, problem.spec, types, problem.dims, veto=problem.veto)
        return dataclasses.replace(self, implementation=tuple(viable))

    @property
    def _arguments(self) -> dict[str, Any]:
        return {"precision": self.precision, "implementation": self.implementation}


@functools.cache
def _cotangent_of(options: Options) -> Callable[..., jax.Array]:
    return functools.partial(cotangent, options=options)


def _over_blocks(
    products: Products,
    weights: jax.Array,
    body: Callable[[Products, Window, Any], Any],
    carry: Any = None,
) -> Any:
    """``carry = body(products, block, carry)`` for every block of columns, one after the other.

    Where a kernel's operand begins is a constant of its call: no loop. Products that XLA computes
    keep to one block at a time in a loop alone.
    """
    vocabulary = weights.shape[1]
    if not isinstance(vocabulary, int):  # symbolic (`jax.export`)
        return body(products, Window(0, vocabulary), carry)
    columns = block_columns(vocabulary)
    if products.implementation != ("xla",) or vocabulary < 2 * columns:
        for first in range(0, vocabulary, columns):
            carry = body(products, Window(first, min(columns, vocabulary - first)), carry)
        return carry
    blocks, rest = divmod(vocabulary, columns)

    def block(i: Any, carry: Any) -> Any:
        return body(products, Window(i * columns, columns), carry)

    carry = lax.fori_loop(1, blocks, block, block(0, carry))
    return body(products, Window(blocks * columns, rest), carry) if rest else carry


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

        def block_tangents(products: Products, block: Window, carry: Any) -> Arrays:
            dz = [] if dx is None else [products.logits(dx, weights, block)]
            if dw is not None:
                dz.append(products.logits(x, dw, block))
            z = products.logits(x, weights, block)
            dots = sum(dz[1:], start=dz[0])
            parts = tangents(z, dots, labels, lse, block.first, self.options)
            if carry is None:
                return parts
            return tuple(c + p for c, p in zip(carry, parts, strict=True))

        return _over_blocks(self.products, weights, block_tangents)

    def backward(self, residuals: Arrays, cotangents: Arrays) -> Arrays:
        x, weights, labels, lse = residuals
        moves_x, moves_weights = self.moving

        def block_cotangents(products: Products, block: Window, carry: Any) -> Any:
            # One product after the other: a single block's logits are in memory.
            x_bar, weights_bar = carry
            after = weights_bar if moves_weights else x_bar
            columns = (r[:, None] for r in (labels - block.first, lse, *cotangents))
            z_bar = products.logits_bar(x, weights, block, self.options, *columns, after=after)
            if moves_x:
                part = products.x_bar(z_bar, weights, block)
                # Added now, not all parts at the end: they would all be in memory.
                x_bar = lax.optimization_barrier(part if x_bar is None else x_bar + part)
            if moves_weights:
                weights_bar = products.weights_bar(x, z_bar, weights_bar, block, after=x_bar)
            return x_bar, weights_bar

        # Every block writes its columns.
        empty = lax.empty(weights.shape, weights.dtype) if moves_weights else None
        x_bar, weights_bar = _over_blocks(self.products, weights, block_cotangents, (None, empty))
        found = [x_bar.astype(x.dtype)] if moves_x else []
        return (*found, weights_bar) if moves_weights else (*found,)


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
    products = products.viable(x, weights)

    def block_statistics(products: Products, block: Window, carry: Any) -> Any:
        z = capped(products.logits(x, weights, block), options)
        for part in reduced(z, labels, block.first, options):
            carry = part if carry is None else merged(carry, part)
        return carry

    largest, exponentials, *sums = _over_blocks(products, weights, block_statistics)
    return (jnp.log(exponentials) + largest, *sums)


@functools.partial(recomputed_statistics.defjvp, symbolic_zeros=True)
def _recomputed_jvp(
    options: Options, products: Products, primals: Any, dots: Any
) -> tuple[Arrays, Any]:
    x, weights, labels = primals
    products = products.viable(x, weights)
    outs = recomputed_statistics(x, weights, labels, options, products)
    moving = tuple(not isinstance(d, jax.custom_derivatives.SymbolicZero) for d in dots[:2])
    if not any(moving):
        return outs, tuple(map(jnp.zeros_like, outs))
    inputs = [d for d, moves in zip(dots[:2], moving, strict=True) if moves]
    residuals = (x, weights, labels, outs[0])
    return outs, _OfOperands(options, products, moving)(residuals, inputs)
