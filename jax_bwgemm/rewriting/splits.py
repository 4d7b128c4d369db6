"""A product whose result is split along its columns (queries, keys, values): one for each part.

If something other than a pass of XLA's reads the parts, they go to memory in any case. Splitting
the right operand, the weights, then moves fewer bytes than splitting the result, provided that
there are more rows than K. A bias in between is split too.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
from jax import lax

from jax_bwgemm import compat
from jax_bwgemm.compat_jaxpr import is_literal
from jax_bwgemm.rewriting.inlining import placed, trace_in_place
from jax_bwgemm.rewriting.uses import Uses

# Columns of a part are whole tiles.
_COLUMNS = 128
# Bytes that could be moved in the time of a further launch and its first loads.
_LAUNCH_BYTES = 16e6
_BETWEEN = ("add", "sub", "mul", "convert_element_type", "reshape")
_SMALL = ("broadcast_in_dim", "reshape", "convert_element_type")


@dataclasses.dataclass(frozen=True)
class _Chain:
    """From a product to the split of its result.

    Attributes:
        product: The product.
        between: Operations, in order. Each reads the one before it, and what is the same for all
            rows.
        split: The split.
    """

    product: Any
    between: list[Any]
    split: Any


def split_products(eqns: Sequence[Any], uses: Mapping[Any, Uses]) -> list[Any]:
    """Equations in which such products are one for each part; the same list where there are none.

    Args:
        eqns: Of a jaxpr, in order.
        uses: What reads each variable.
    """
    producers = {v: e for e in eqns for v in e.outvars}
    found = []
    for eqn in eqns if jax.device_count() == 1 else ():  # the weights may be sharded
        if eqn.primitive.name == "split":
            chain = _chain(eqn, producers, uses)
            if chain is not None and _pays(chain, uses):
                found.append(chain)
    if not found:
        return list(eqns)
    gone = {id(e) for c in found for e in (c.product, *c.between)}
    at = {id(c.split): c for c in found}
    new: list[Any] = []
    for eqn in eqns:
        if id(eqn) in at:
            new += _parts(at[id(eqn)])
        elif id(eqn) not in gone:
            new.append(eqn)
    return new


def _chain(split: Any, producers: Mapping[Any, Any], uses: Mapping[Any, Uses]) -> _Chain | None:
    (atom,) = split.invars
    if is_literal(atom) or split.params["axis"] != atom.aval.ndim - 1:
        return None
    between: list[Any] = []
    while True:
        eqn = producers.get(atom)
        if eqn is None or eqn.effects or uses.get(atom, Uses()).count != 1:
            return None
        if atom.aval.shape[-1:] != split.invars[0].aval.shape[-1:]:  # a reshape of the columns
            return None
        if eqn.primitive.name == "dot_general":
            return _Chain(eqn, between[::-1], split) if _splits(eqn) else None
        if eqn.primitive.name not in _BETWEEN:
            return None
        large = [x for x in eqn.invars if not _is_small(x, producers)]
        if len(large) != 1:
            return None
        between.append(eqn)
        (atom,) = large


def _is_small(atom: Any, producers: Mapping[Any, Any]) -> bool:
    """Whether all rows are the same: a scalar or a row, or one of these repeated."""
    while not _is_row(atom.aval.shape):
        eqn = producers.get(atom)
        if eqn is None or eqn.primitive.name not in _SMALL or len(eqn.invars) != 1:
            return False
        (source,) = eqn.invars
        if eqn.primitive.name == "broadcast_in_dim":
            at = zip(source.aval.shape, eqn.params["broadcast_dimensions"], strict=True)
            return all(size == 1 or dim == atom.aval.ndim - 1 for size, dim in at)
        if source.aval.shape[-1:] != atom.aval.shape[-1:]:
            return False
        atom = source
    return True


def _is_row(shape: tuple[int, ...]) -> bool:
    return all(size == 1 for size in shape[:-1])


def _splits(eqn: Any) -> bool:
    """Whether the result's last dimension is the right operand's, of 16-bit types."""
    (_, contracted), (_, batch) = eqn.params["dimension_numbers"]
    lhs, rhs = (x.aval for x in eqn.invars)
    free = rhs.ndim - len(contracted) - len(batch)
    types = {lhs.dtype.name, rhs.dtype.name, eqn.outvars[0].aval.dtype.name}
    shapes = all(isinstance(n, int) for n in (*lhs.shape, *rhs.shape))
    explicit = any(compat.explicit_sharding(x) is not None for x in (lhs, rhs))
    plain = eqn.params["out_sharding"] is None and not batch and not explicit
    return shapes and plain and free == 1 and types in ({"bfloat16"}, {"float16"})


def _pays(chain: _Chain, uses: Mapping[Any, Uses]) -> bool:
    out, rhs = chain.product.outvars[0].aval, chain.product.invars[1].aval
    sizes = [v.aval.shape[-1] for v in chain.split.outvars]
    if any(size % _COLUMNS for size in sizes):
        return False
    after = [uses.get(v, Uses()) for v in chain.split.outvars]
    # A part that a pass reads is split by that pass.
    copied = sum(v.aval.size for v, u in zip(chain.split.outvars, after, strict=True)
                 if u.stored and not u.fused)  # fmt: skip
    moved = 2 * copied * out.dtype.itemsize
    spent = 2 * math.prod(rhs.shape) * rhs.dtype.itemsize
    return moved > spent + _LAUNCH_BYTES * (len(sizes) - 1)


def _parts(chain: _Chain) -> list[Any]:
    """Equations in the split's place."""
    product, split = chain.product, chain.split
    inside = {product.outvars[0], *(e.outvars[0] for e in chain.between)}
    read = [x for e in chain.between for x in e.invars if not is_literal(x)]
    atoms = [*product.invars, *dict.fromkeys(x for x in read if x not in inside)]
    jaxpr = trace_in_place(functools.partial(_compute, chain, atoms), product, atoms)
    return placed(jaxpr, atoms, split.outvars, product.source_info)


def _compute(chain: _Chain, atoms: list[Any], *xs: jax.Array) -> list[jax.Array]:
    """All parts. Shapes are those of the whole, but for the last dimension."""
    product, columns = chain.product, chain.split.invars[0].aval.shape[-1]
    lhs, rhs, *rows = xs
    (_, contracted), _ = product.params["dimension_numbers"]
    (free,) = set(range(rhs.ndim)) - set(contracted)
    first, given = 0, []
    for size in (v.aval.shape[-1] for v in chain.split.outvars):
        last = first + size
        # Ahead of the products, so that kernels can take along what reads them.
        weights = lax.slice_in_dim(rhs, first, last, axis=free)
        own = (_columns(x, first, last) if x.shape[-1:] == (columns,) else x for x in rows)
        given.append((weights, dict(zip(atoms[2:], own, strict=True))))
        first = last
    return [_part(chain, lhs, weights, known) for weights, known in given]


def _columns(x: jax.Array, first: int, last: int) -> jax.Array:
    """Some columns of an array whose rows are all the same."""
    ahead = (0,) * (x.ndim - 1)
    row = lax.slice(x, (*ahead, first), (*(1 for _ in ahead), last)).reshape(last - first)
    return lax.broadcast_in_dim(row, (*x.shape[:-1], last - first), (x.ndim - 1,))


def _part(
    chain: _Chain, lhs: jax.Array, weights: jax.Array, known: dict[Any, jax.Array]
) -> jax.Array:
    """One part; `known`: what operations read besides the product."""
    product = chain.product
    value = product.primitive.bind(lhs, weights, **product.params)
    last = product.outvars[0]
    for eqn in chain.between:
        read = [x.val if is_literal(x) else value if x is last else known[x] for x in eqn.invars]
        if eqn.primitive.name == "reshape":
            value = value.reshape((*eqn.outvars[0].aval.shape[:-1], value.shape[-1]))
        else:
            value = eqn.primitive.bind(*read, **eqn.params)
        last = eqn.outvars[0]
    return value
