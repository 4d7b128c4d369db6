"""The public loss: the last linear layer of a language model and its softmax cross-entropy."""

from __future__ import annotations

import dataclasses
import math
import numbers
from collections.abc import Hashable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec
from jax.typing import ArrayLike

from jax_bwgemm import compat
from jax_bwgemm.loss.recomputed import Products, recomputed_statistics
from jax_bwgemm.loss.statistics import Options, row_statistics
from jax_bwgemm.product.arguments import as_array, as_flag, as_precision, is_hashable
from jax_bwgemm.product.implementations import as_implementations
from jax_bwgemm.product.shardings import sharded_first

REDUCTIONS = ("sum", "mean", "none")
LOGITS = ("stored", "recomputed")
_NAME = "linear_softmax_cross_entropy_loss"
_LARGEST = float(np.finfo(np.float32).max)


def linear_softmax_cross_entropy_loss(
    x: ArrayLike,
    labels: ArrayLike,
    weights: ArrayLike,
    *,
    reduction: str = "sum",
    ignore_index: int | None = None,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    logit_softcap: float | None = None,
    logits: str = "stored",
    return_logsumexp: bool = False,
    axis_name: Any = None,
    precision: Any = None,
    implementation: str | Sequence[str] | None = None,
) -> Any:
    """Softmax cross-entropy of the logits ``x @ weights`` against integer labels.

    With z = x @ weights (soft-capped: c * tanh(z / c)), lse = log(sum(exp(z))) and smoothing e, a
    row's loss is ``lse - (1 - e) * z[label] - e * mean(z) + z_loss * lse**2``. Statistics and
    losses are float32; logits have the operands' type, and so do their cotangents, so that all
    three products are 16-bit ones.

    Args:
        x: [..., H], the last hidden layer.
        labels: [...], of an integer type. A row whose label is neither in [0, V) nor
            ``ignore_index`` has a loss of NaN, and no gradient.
        weights: [H, V].
        reduction: ``"sum"``, ``"mean"`` over the rows that are not ignored (0 if all are), or
            ``"none"``: a loss for each row.
        ignore_index: Rows with this label have a loss of 0 and no gradient. (Their logits must be
            finite, too: else gradients are NaN.)
        label_smoothing: e in [0, 1]: the label's share is 1 - e, all columns share e.
        z_loss: Weight of the square of lse, which keeps logits from drifting.
        logit_softcap: c > 0, or None for logits as they are.
        logits: ``"stored"`` keeps the logits, in the operands' type, for the backward pass.
            ``"recomputed"`` never has more than a block of their columns in memory and computes
            them again in the backward pass, a fourth product. Columns that are sharded need
            ``jax.shard_map`` and ``axis_name`` then: else every block is gathered. A symbolic V
            (`jax.export`) is one block: all logits are in memory, but not between the passes.
        return_logsumexp: Whether lse, [...], is returned too.
        axis_name: Inside `jax.shard_map`: the mesh axis (or axes) over which the columns of
            ``weights`` are sharded; labels count the columns of all. Outside leave it None:
            sharded arrays need nothing here.
        precision: As in `jax_bwgemm.dot_general`.
        implementation: As in `jax_bwgemm.dot_general`.

    Returns:
        The loss, float32: a scalar, or [...] for ``reduction="none"``. With ``return_logsumexp``
        a pair of it and lse. Where types have shardings, rows are sharded as x's are.

    Raises:
        TypeError: Not arrays, labels that are not integers, operands that are not floating point,
            or shapes that do not fit together.
        ValueError: An unknown word or a number out of range.
        NameError: No mesh axis ``axis_name``.
        NotImplementedError: The named implementation cannot run a product, or recomputed logits
            of weights whose type says that their columns are sharded.
        ExceptionGroup: Of NotImplementedError: none of several implementations can.
    """
    x, weights = as_array(_NAME, "x", x), as_array(_NAME, "weights", weights)
    labels = as_array(_NAME, "labels", labels)
    _check_arrays(x, labels, weights)
    _check_word("reduction", reduction, REDUCTIONS)
    _check_word("logits", logits, LOGITS)
    _check_number("label_smoothing", label_smoothing, 0, 1)
    _check_number("z_loss", z_loss, 0, _LARGEST)
    if logit_softcap is not None:
        _check_number("logit_softcap", logit_softcap, float(np.finfo(np.float32).tiny), _LARGEST)
    if ignore_index is not None:
        if isinstance(ignore_index, bool) or not isinstance(ignore_index, numbers.Integral):
            raise TypeError(f"{_NAME}: ignore_index must be an int or None, got {ignore_index!r}")
        ignore_index = int(ignore_index)
    products = Products(as_precision(precision), as_implementations(implementation))
    options = Options(
        None if logit_softcap is None else float(logit_softcap), total=label_smoothing > 0
    )
    call = _Call(
        reduction,
        ignore_index,
        float(label_smoothing),
        float(z_loss),
        logits,
        as_flag(_NAME, "return_logsumexp", return_logsumexp),
        _as_axis_name(axis_name),
        options,
        products,
    )
    return _compiled(x, labels, weights, call)


@dataclasses.dataclass(frozen=True)
class _Call:
    """What is static about a call. Arguments of `linear_softmax_cross_entropy_loss`, and theirs."""

    reduction: str
    ignore_index: int | None
    label_smoothing: float
    z_loss: float
    logits: str
    return_logsumexp: bool
    axis_name: Any
    options: Options
    products: Products


def _loss(x: jax.Array, labels: jax.Array, weights: jax.Array, call: _Call) -> Any:
    """The loss of arguments that were checked."""
    dims = x.ndim - 1
    order = sharded_first(x, dims)
    if order == tuple(range(dims)):
        return _loss_of_rows(x, labels, weights, call)
    labels = _sharded_as_rows(labels, x).transpose(order)
    found = _loss_of_rows(x.transpose(*order, dims), labels, weights, call)
    back = np.argsort(order)
    return jax.tree.map(lambda rows: rows.transpose(back) if rows.ndim else rows, found)


def _loss_of_rows(x: jax.Array, labels: jax.Array, weights: jax.Array, call: _Call) -> Any:
    """The same, of dimensions in an order that a reshape joins."""
    options, products, axis_name = call.options, call.products, call.axis_name
    shape, labels = x.shape[:-1], _sharded_as_rows(labels, x).reshape(-1)
    columns = weights.shape[1]
    vocabulary = columns * (1 if axis_name is None else _devices(axis_name))
    # Compared in their own type: int32 may not hold a label that is not a column.
    kept = None if call.ignore_index is None else ~_equal(labels, call.ignore_index)
    labels = labels if labels.dtype.itemsize >= 4 else labels.astype(jnp.int32)
    valid = (labels >= 0) & (labels < vocabulary)
    labels = jnp.where(valid, labels, -1).astype(jnp.int32)
    local = labels if axis_name is None else labels - lax.axis_index(axis_name) * columns
    rows = x.reshape(math.prod(shape), x.shape[-1])
    rows, weights, local = compat.match_varying(rows, weights, local)
    if call.logits == "recomputed":
        _check_whole_columns(weights)
    if call.logits == "stored":
        found = row_statistics(products.logits(rows, weights), local, options)
    else:
        found = compat.in_automatic_axes(
            lambda *operands: recomputed_statistics(*operands, options, products),
            lambda: compat.spec_of(rows)[:1],
            *(rows, weights, local),
        )
    lse, picked, *total = found if axis_name is None else _over_devices(found, axis_name)

    losses = lse - (1 - call.label_smoothing) * picked
    if total:
        losses -= call.label_smoothing / vocabulary * total[0]
    if call.z_loss:
        losses += call.z_loss * jnp.square(lse)
    # No NaN for ignored rows, not even for a moment: jax_debug_nans would stop at it.
    losses = jnp.where(valid if kept is None else valid | ~kept, losses, jnp.nan)
    count: Any = labels.size or 1
    if kept is not None:
        losses = jnp.where(kept, losses, 0)
        count = jnp.maximum(jnp.sum(kept), 1).astype(losses.dtype)
    if call.reduction == "none":
        loss = losses.reshape(shape)
    else:
        loss = jnp.sum(losses) / count if call.reduction == "mean" else jnp.sum(losses)
    return (loss, lse.reshape(shape)) if call.return_logsumexp else loss


_compiled = compat.compiled_outside(_loss, 3)


def _sharded_as_rows(labels: jax.Array, x: jax.Array) -> jax.Array:
    """Labels whose type has the sharding of x's rows: then statistics and cotangents have it."""
    if compat.spec_of(labels) == compat.spec_of(x)[:-1]:
        return labels
    return jax.sharding.reshard(labels, PartitionSpec(*compat.spec_of(x)[:-1]))


def _as_axis_name(axis_name: Any) -> Hashable:
    """The argument, names as a tuple. Numbers would be positions to JAX."""
    names = tuple(axis_name) if isinstance(axis_name, tuple | list) else (axis_name,)
    if any(isinstance(name, int) or not is_hashable(name) for name in names):
        raise TypeError(
            f"{_NAME}: axis_name must be the name of a mesh axis, or names, got {axis_name!r}"
        )
    if len(set(names)) < len(names):  # XLA would end the process
        raise ValueError(f"{_NAME}: axis_name has a name twice, got {axis_name!r}")
    return names if isinstance(axis_name, tuple | list) else axis_name


def _devices(axis_name: Any) -> int:
    try:
        return lax.axis_size(axis_name)
    except NameError as error:
        raise NameError(
            f"{_NAME}: axis_name={axis_name!r} is no mesh axis of a jax.shard_map around it"
        ) from error


def _equal(labels: jax.Array, index: int) -> jax.Array:
    """Which labels are an integer that their type may not have."""
    range_ = jnp.iinfo(labels.dtype)
    inside = range_.min <= index <= range_.max
    return labels == index if inside else jnp.zeros(labels.shape, bool)


def _over_devices(found: tuple[jax.Array, ...], axis_name: Any) -> tuple[jax.Array, ...]:
    """Statistics of whole rows from those of each device's columns."""
    lse, *sums = found
    largest = lax.stop_gradient(lax.pmax(lax.stop_gradient(lse), axis_name))
    largest = jnp.where(jnp.isfinite(largest), largest, 0)  # infinity less itself is NaN
    lse = jnp.log(lax.psum(jnp.exp(lse - largest), axis_name)) + largest
    return (lse, *(lax.psum(part, axis_name) for part in sums))


def _check_arrays(x: jax.Array, labels: jax.Array, weights: jax.Array) -> None:
    for name, operand in (("x", x), ("weights", weights)):
        if not jnp.issubdtype(operand.dtype, jnp.floating):
            raise TypeError(f"{_NAME}: {name} must be floating point, got {operand.dtype}")
    if not jnp.issubdtype(labels.dtype, jnp.integer):
        raise TypeError(f"{_NAME}: labels must be integers, got {labels.dtype}")
    if x.ndim < 1 or weights.ndim != 2 or x.shape[-1] != weights.shape[0]:
        raise TypeError(
            f"{_NAME}: x must be [..., H] and weights [H, V], got {x.shape} and {weights.shape}"
        )
    if labels.shape != x.shape[:-1]:
        raise TypeError(
            f"{_NAME}: labels must have the shape {x.shape[:-1]} of x's rows, got {labels.shape}"
        )
    if weights.shape[1] == 0:
        raise TypeError(f"{_NAME}: weights must have at least one column, got {weights.shape}")


def _check_whole_columns(weights: jax.Array) -> None:
    sharding = compat.explicit_sharding(jax.typeof(weights))
    if sharding is not None and tuple(sharding.spec)[1] is not None:
        raise NotImplementedError(
            f"{_NAME}: logits='recomputed' takes blocks of columns, and those of weights are "
            f"sharded {sharding.spec}: use jax.shard_map and axis_name, or logits='stored'"
        )


def _check_word(name: str, value: Any, words: tuple[str, ...]) -> None:
    if not isinstance(value, str) or value not in words:
        listed = ", ".join(repr(word) for word in words)
        raise ValueError(f"{_NAME}: {name} must be one of {listed}, got {value!r}")


def _check_number(name: str, value: Any, low: float, high: float) -> None:
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"{_NAME}: {name} must be a number, got {value!r}")
    if not (low <= value <= high and math.isfinite(value)):
        raise ValueError(f"{_NAME}: {name}={value} is out of range: {low:g} to {high:g}, finite")
