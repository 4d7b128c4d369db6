"""Operands of block-scaled formats as SM100's kernels read them."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from jax_bwgemm.grouped.groups import count_until, expert_bounds, group_bounds
from jax_bwgemm.product.spec import common_batch
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
    return lax.bitcast_convert_type(
        values.reshape(*values.shape[:-1], values.shape[-1] // 2, 2), jnp.uint8
    )


def in_tiles(scales: jax.Array) -> jax.Array:
    """Scales in tiles of 128 rows and 4 along K, a band of rows after the other.

    A tile is what one ``tcgen05.cp.32x128b.warpx4`` moves to tensor memory: the byte of row r and
    scale k is at ``(r % 32) * 16 + (r // 32) * 4 + k`` (PTX ISA, "Scale factor A/B layout"; cuBLAS
    documentation, "1D block scaling factors layout"). Bytes past the last row and scale are zeros.

    Args:
        scales: [..., R, S], of an 8-bit type: S along K.

    Returns:
        [..., ceil(R / 128), ceil(S / 4), 512], uint8.
    """
    bytes_ = lax.bitcast_convert_type(scales, jnp.uint8)
    *batch, rows, count = bytes_.shape
    edges = [(0, 0)] * len(batch) + [(0, -rows % TILE_ROWS), (0, -count % TILE_K_SCALES)]
    bands, tiles = -(-rows // TILE_ROWS), -(-count // TILE_K_SCALES)
    split = jnp.pad(bytes_, edges).reshape(*batch, bands, 4, 32, tiles, 4)
    # [..., band, quarter, row, tile, scale]: to band, tile, row, quarter, scale.
    order = [*range(len(batch)), *(len(batch) + i for i in (0, 3, 2, 1, 4))]
    return split.transpose(order).reshape(*batch, bands, tiles, TILE_BYTES)


def in_ragged_tiles(
    scales: jax.Array, sizes: jax.Array, offset: jax.Array, experts: int
) -> jax.Array:
    """Scales of rows in groups, in tiles: every group has bands of its own.

    A tile has 128 rows, and groups begin anywhere. So row r of matrix e's group, which begins at
    row ``first``, goes to band ``first // 128 + e + (r - first) // 128``: groups follow each other,
    and no two share a band. What a band has beyond its group are some other row's scales.

    Args:
        scales: [B or 1, M, S], of an 8-bit type.
        sizes: Of the groups, [B or 1, G], int32.
        offset: Group of the first matrix, [B or 1], int32.
        experts: Matrices, E.

    Returns:
        [B or 1, ceil(M / 128) + E - 1, ceil(S / 4), 512], uint8.
    """
    rows = scales.shape[1]
    bands = jnp.arange(-(-rows // TILE_ROWS) + experts - 1, dtype=jnp.int32)

    def rows_of_bands(sizes: jax.Array, offset: jax.Array) -> jax.Array:
        starts, _ = expert_bounds(*group_bounds(sizes, rows), offset, experts)
        first_bands = starts // TILE_ROWS + jnp.arange(experts, dtype=jnp.int32)
        expert = jnp.maximum(count_until(first_bands, bands) - 1, 0)
        first = starts[expert] + (bands - first_bands[expert]) * TILE_ROWS
        index = first[:, None] + jnp.arange(TILE_ROWS, dtype=jnp.int32)[None]
        return jnp.clip(index, 0, rows - 1).reshape(-1)

    bytes_ = lax.bitcast_convert_type(scales, jnp.uint8)
    batch = common_batch((sizes.shape[0], offset.shape[0]))
    sizes = jnp.broadcast_to(sizes, (batch, *sizes.shape[1:]))
    index = jax.vmap(rows_of_bands)(sizes, jnp.broadcast_to(offset, (batch,)))
    if batch == 1:
        return in_tiles(jnp.take(bytes_, index[0], axis=1, mode="clip"))
    bytes_ = jnp.broadcast_to(bytes_, (batch, *bytes_.shape[1:]))
    take = jax.vmap(lambda x, i: jnp.take(x, i, axis=0, mode="clip"))
    return in_tiles(take(bytes_, index))
