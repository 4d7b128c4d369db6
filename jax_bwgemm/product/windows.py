"""Columns of larger arrays as operands and results of a product: kernels read and write them there.

XLA copies a slice before a custom call reads it, and a result before it becomes part of an array.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import jax
from jax import lax

# Alignment of a row's beginning that kernels' loads and stores need.
ALIGNMENT_BYTES = 16


@dataclasses.dataclass(frozen=True)
class Window:
    """Columns ``[first, first + size)`` of an array's last dimension. A kernel's are constants."""

    first: int | jax.Array
    size: int

    def of(self, x: jax.Array) -> jax.Array:
        """A copy of these columns."""
        return lax.dynamic_slice_in_dim(x, self.first, self.size, axis=-1)

    def written(self, x: jax.Array, columns: jax.Array) -> jax.Array:
        """The array with others in their place."""
        return lax.dynamic_update_slice_in_dim(x, columns.astype(x.dtype), self.first, -1)


@dataclasses.dataclass(frozen=True)
class Within:
    """A window and the array, of rank 2, that it belongs to."""

    whole: jax.Array
    window: Window

    @property
    def aligned(self) -> bool:
        """Whether every row of the window begins where a kernel can begin."""
        itemsize = self.whole.dtype.itemsize
        offsets = self.window.first * itemsize, self.whole.shape[-1] * itemsize
        return all(offset % ALIGNMENT_BYTES == 0 for offset in offsets)

    def word(self, role: str) -> str:
        """As a kernel's call says it: ``windows`` in cc/call/product_ffi.h."""
        return f"{role}:{self.window.first}:{self.window.size}"


@dataclasses.dataclass(frozen=True)
class Windows:
    """Those of one product.

    Attributes:
        operands: By role, ``"a"`` or ``"b"``. The operand itself is a copy of the window.
        into: Where the result belongs: the product's value is then this whole array, with it.
        after: An array that has to be there before a kernel begins, which it does not read.
    """

    operands: Mapping[str, Within]
    into: Within | None = None
    after: jax.Array | None = None

    def ordered(self, operands: Sequence[jax.Array]) -> tuple[jax.Array, ...]:
        """The operands of a product that XLA computes, there once `after` is."""
        if self.after is None:
            return tuple(operands)
        first, _ = lax.optimization_barrier((operands[0], self.after))
        return (first, *operands[1:])

    def written(self, d: jax.Array) -> jax.Array:
        """The product's value, of a result that was computed apart."""
        if self.into is None:
            return d
        rows = self.into.whole.shape[0]
        return self.into.window.written(self.into.whole, d.reshape(rows, self.into.window.size))


NONE = Windows({})
