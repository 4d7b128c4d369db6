"""What a softmax cross-entropy needs of a row of logits, and the derivative of it.

Of the logits z of a row, after soft-capping: lse = log(sum(exp(z))), picked = z[label] (0 where
the label is not a column) and, if asked for, total = sum(z). All are float32. The derivatives:
d(lse) = sum(softmax(z) dz), d(picked) = dz[label], d(total) = sum(dz).
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jax_bwgemm.product.linear_map import Arrays, LinearMap

# Elements that XLA reduces to one by a single kernel of blocks of threads; for more it adds a pass.
MOST_REDUCED = 16384


@dataclasses.dataclass(frozen=True)
class Options:
    """What is static about the statistics.

    Attributes:
        softcap: c of c * tanh(z / c), or None.
        total: Whether the sum of a row is wanted.
    """

    softcap: float | None = None
    total: bool = False


def capped(logits: jax.Array, options: Options) -> jax.Array:
    """Logits in float32, soft-capped."""
    z = logits.astype(jnp.float32)
    return z if options.softcap is None else options.softcap * jnp.tanh(z / options.softcap)


def is_label(labels: jax.Array, first: Any, columns: int) -> jax.Array:
    """Which of the columns from ``first`` on is the row's label: [rows, columns], of bool."""
    positions = lax.broadcasted_iota(jnp.int32, (labels.shape[0], columns), 1)
    return positions == (labels - first)[:, None]


def merged(a: Arrays, b: Arrays) -> Arrays:
    """Statistics of the columns of both: largest, sum(exp(z - largest)), and plain sums.

    Of no columns: -inf, and zeros. One exponential, since one of the two factors is 1.
    """
    (a_largest, a_exponentials, *a_sums), (b_largest, b_exponentials, *b_sums) = a, b
    same, first = a_largest == b_largest, a_largest >= b_largest  # same: infinities too
    factor = jnp.exp(-jnp.abs(jnp.where(same, 0, a_largest - b_largest)))
    exponentials = a_exponentials * jnp.where(first, 1, factor)
    exponentials += b_exponentials * jnp.where(first, factor, 1)
    sums = (x + y for x, y in zip(a_sums, b_sums, strict=True))
    return (jnp.maximum(a_largest, b_largest), exponentials, *sums)


def reduced(z: jax.Array, labels: jax.Array, first: Any, options: Options) -> list[Arrays]:
    """What `merged` merges, of the capped logits of the columns from ``first`` on: of each part of
    at most `MOST_REDUCED` columns, if equal parts of them can be had.
    """
    columns = z.shape[1]
    parts = -(-columns // MOST_REDUCED)
    if not isinstance(columns, int) or columns % parts:
        parts = 1
    picked = jnp.where(is_label(labels, first, columns), z, 0)
    z, picked = (x.reshape(x.shape[0], parts, columns // parts) for x in (z, picked))
    largest = jnp.max(z, -1)
    finite = jnp.where(jnp.isfinite(largest), largest, 0)
    found = [largest, jnp.sum(jnp.exp(z - finite[..., None]), -1), jnp.sum(picked, -1)]
    if options.total:
        found.append(jnp.sum(z, -1))
    return [tuple(x[:, part] for x in found) for part in range(parts)]


def slopes(z: jax.Array, options: Options) -> jax.Array | None:
    """Derivative of the capped logits with respect to the logits; None where it is one."""
    return None if options.softcap is None else 1 - jnp.square(z / options.softcap)


def tangents(
    logits: jax.Array,
    dz: jax.Array,
    labels: jax.Array,
    lse: jax.Array,
    first: Any,
    options: Options,
) -> Arrays:
    """What these columns add to the statistics' tangents, each [rows]."""
    z, dz = capped(logits, options), dz.astype(jnp.float32)
    slope = slopes(z, options)
    if slope is not None:
        dz = slope * dz
    softmax = jnp.exp(z - lse[:, None])
    parts = [
        jnp.sum(softmax * dz, -1),
        jnp.sum(jnp.where(is_label(labels, first, z.shape[1]), dz, 0), -1),
    ]
    return (*parts, jnp.sum(dz, -1)) if options.total else tuple(parts)


def cotangent(
    logits: jax.Array,
    label: jax.Array,
    lse: jax.Array,
    *cotangents: jax.Array,
    options: Options,
) -> jax.Array:
    """The cotangent of logits, in float32: the transpose of `tangents`. Elementwise.

    Args:
        logits: [rows, columns].
        label: [rows, 1], int32: the row's label, as a number of these columns.
        lse: [rows, 1].
        *cotangents: Of the statistics, each [rows, 1].
        options: What is static.
    """
    z = capped(logits, options)
    lse_bar, picked_bar, *total_bar = cotangents
    z_bar = lse_bar * jnp.exp(z - lse)
    position = lax.broadcasted_iota(jnp.int32, z.shape, 1)
    z_bar += jnp.where(position == label, picked_bar, 0)
    if options.total:
        z_bar += total_bar[0]
    slope = slopes(z, options)
    return z_bar if slope is None else slope * z_bar


@dataclasses.dataclass(frozen=True)
class _OfLogits(LinearMap):
    """From d(logits) to the statistics' tangents. Residuals: logits, labels, lse."""

    options: Options

    def forward(self, residuals: Arrays, inputs: Arrays) -> Arrays:
        logits, labels, lse = residuals
        return tangents(logits, inputs[0], labels, lse, 0, self.options)

    def backward(self, residuals: Arrays, cotangents: Arrays) -> Arrays:
        logits, labels, lse = residuals
        columns = (x[:, None] for x in (labels, lse, *cotangents))
        return (cotangent(logits, *columns, options=self.options).astype(logits.dtype),)


@functools.partial(jax.custom_jvp, nondiff_argnums=(2,))
def row_statistics(logits: jax.Array, labels: jax.Array, options: Options) -> Arrays:
    """The statistics of stored logits.

    Args:
        logits: [rows, V], of any floating-point type.
        labels: [rows], int32.
        options: What is static.

    Returns:
        lse, picked and, if asked for, total: each [rows], float32.
    """
    z = capped(logits, options)
    largest = lax.stop_gradient(jnp.max(z, -1, keepdims=True))
    largest = jnp.where(jnp.isfinite(largest), largest, 0)
    lse = jnp.log(jnp.sum(jnp.exp(z - largest), -1)) + largest[:, 0]
    picked = jnp.sum(jnp.where(is_label(labels, 0, z.shape[1]), z, 0), -1)
    return (lse, picked, jnp.sum(z, -1)) if options.total else (lse, picked)


@row_statistics.defjvp
def _row_statistics_jvp(
    options: Options, primals: tuple[Any, Any], dots: tuple[Any, Any]
) -> tuple[Arrays, Arrays]:
    logits, labels = primals
    outs = row_statistics(logits, labels, options)
    return outs, _OfLogits(options)((logits, labels, outs[0]), (dots[0],))
