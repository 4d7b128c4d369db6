"""Operands of block-scaled formats as SM100's kernels read them."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from jax_bwgemm.scaled.layouts import FLOAT4

TILE_ROWS, TILE_K_SCALES = 128, 4
TILE_BYTES = TILE_ROWS * TILE_K_SCALES


def packed(values: jax.Array) -> jax.Array:
    """4-bit values in pairs, the first in the low half; others as they are.

    Args:
        values: [..., K], K even if they have 4 bits.

    Returns:
        [..., K / 2], uint8.
    """
    if values.dtype not in FLOAT4:
        return values
    return lax.bitcast_convert_type(values.reshape(*values.shape[:-1], -1, 2), jnp.uint8)


def in_tiles(scales: jax.Array) -> jax.Array:
    """Scales in tiles of 128 rows and 4 along K, a band of rows after the other.

    A tile is what one ``tcgen05.cp.32x128b.warpx4`` moves to tensor memory: the byte of row r and
    scale k is at ``(r % 32) * 16 + (r // 32) * 4 + k`` (PTX ISA, "Scale factor A/B layout"; cuBLAS
    documentation, "1D block scaling factors layout"). Bytes past the last row and scale are zeros.

    Args:
        scales: [B, R, S], of an 8-bit type: S along K.

    Returns:
        [B, ceil(R / 128), ceil(S / 4), 512], uint8.
    """
    bytes_ = lax.bitcast_convert_type(scales, jnp.uint8)
    batch, rows, count = bytes_.shape
    bytes_ = jnp.pad(bytes_, ((0, 0), (0, -rows % TILE_ROWS), (0, -count % TILE_K_SCALES)))
    split = bytes_.reshape(batch, -(-rows // TILE_ROWS), 4, 32, -(-count // TILE_K_SCALES), 4)
    return split.transpose(0, 1, 4, 3, 2, 5).reshape(batch, split.shape[1], -1, TILE_BYTES)
