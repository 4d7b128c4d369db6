"""Blocks of the hidden values of two layers, so that a block of them at a time is in memory.

A block consists of pieces from all over the dimension: where devices have equal parts of it, each
has its part of every block.
"""

from __future__ import annotations

import dataclasses
import math

import jax
import jax.numpy as jnp
from jax import lax

from jax_bwgemm import compat

# The longest piece, in elements: whole lines of memory.
MOST_OF_PIECE = 128


@dataclasses.dataclass(frozen=True)
class HiddenBlocks:
    """How a dimension of H is divided.

    Attributes:
        count: Of blocks. 1: the dimension is not divided.
        piece: Elements that lie side by side; H is a multiple of count * piece.
    """

    count: int
    piece: int

    @staticmethod
    def of(hidden: int, count: int) -> HiddenBlocks:
        """So many blocks of a dimension, which is a multiple of their number."""
        if count == 1:
            return HiddenBlocks(1, 1)
        # Every device that may have a part of the dimension has whole pieces of each block.
        devices = jax.device_count() if compat.may_be_partitioned() else 1
        block = hidden // count
        return HiddenBlocks(count, math.gcd(block // math.gcd(block, devices), MOST_OF_PIECE))

    def block(self, x: jax.Array, axis: int, i: int) -> jax.Array:
        """Block i of a dimension of an array."""
        if self.count == 1:
            return x
        shape = x.shape[:axis], x.shape[axis + 1 :]
        pieces = lax.index_in_dim(self._divided(x, axis), i, axis + 1, keepdims=False)
        return pieces.reshape(*shape[0], x.shape[axis] // self.count, *shape[1])

    def written(
        self, whole: jax.Array | None, block: jax.Array | None, axis: int, i: int
    ) -> jax.Array | None:
        """The array with block i in its place. whole: with those before, None for the first."""
        if self.count == 1 or block is None:
            return block
        before, behind = block.shape[:axis], block.shape[axis + 1 :]
        if whole is None:
            whole = lax.empty((*before, block.shape[axis] * self.count, *behind), block.dtype)
        pieces = block.reshape(*before, block.shape[axis] // self.piece, self.piece, *behind)
        divided = lax.dynamic_update_index_in_dim(self._divided(whole, axis), pieces, i, axis + 1)
        return divided.reshape(whole.shape)

    def added(self, total: jax.Array | None, part: jax.Array | None) -> jax.Array | None:
        """The sum of the blocks' parts, in at least float32. total: None for the first block."""
        if total is None or part is None:
            return part
        wide = part.dtype if part.dtype.itemsize > 4 else jnp.float32
        return total.astype(wide) + part.astype(wide)

    def _divided(self, x: jax.Array, axis: int) -> jax.Array:
        form = x.shape[axis] // (self.count * self.piece), self.count, self.piece
        return x.reshape(*x.shape[:axis], *form, *x.shape[axis + 1 :])
