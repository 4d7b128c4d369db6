"""Values and scales in the order in which SM100's kernels read them."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax_bwgemm.scaled.mma_operands import in_ragged_tiles, in_tiles, packed


@pytest.mark.parametrize("shape", [(1, 1, 1), (2, 130, 5), (1, 128, 4), (3, 257, 9)])
def test_tiles_of_scales(shape: tuple[int, int, int]) -> None:
    """Every byte is at its place by the formula of cuBLAS's documentation."""
    rng = np.random.default_rng(0)
    codes = rng.integers(1, 127, shape).astype(np.uint8)
    scales = jnp.asarray(codes).view(jnp.float8_e4m3fn)
    got = np.asarray(in_tiles(scales))
    batch, rows, count = shape
    padded = -(-count // 4)
    assert got.shape == (batch, -(-rows // 128), padded, 512)
    flat, found = got.reshape(batch, -1), np.zeros(shape, np.uint8)
    for row in range(rows):
        for k in range(count):
            tile = row // 128 * padded + k // 4
            place = tile * 512 + row % 32 * 16 + row % 128 // 32 * 4 + k % 4
            found[:, row, k] = flat[:, place]
    np.testing.assert_array_equal(found, codes)
    assert np.count_nonzero(got) == codes.size  # what pads tiles is zero


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize(
    ("sizes", "offset", "experts"),
    [
        ((300,), 0, 1),
        ((5, 0, 139, -3, 1, 128, 10**6), 0, 7),
        ((5, 0, 139, 27, 1, 128), 2, 3),
        ((0, 0, 10), 1, 2),
        ((150, 150), 5, 2),
        ((40, 260), 1, 2),  # a matrix without a group, behind one of several bands
        ((0, 300), 1, 4),
    ],
)
def test_ragged_rows_have_bands_of_their_own(
    batch: int, sizes: tuple[int, ...], offset: int, experts: int
) -> None:
    rows, count = 300, 5
    rng = np.random.default_rng(0)
    codes = rng.integers(1, 127, (batch, rows, count)).astype(np.uint8)
    scales = jnp.asarray(codes).view(jnp.float8_e4m3fn)
    many = jnp.array([sizes, sizes[::-1]][:batch], jnp.int32)
    offsets = jnp.full(batch, offset, jnp.int32)
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        got = np.asarray(in_ragged_tiles(scales, many, offsets, experts))
    assert got.shape == (batch, -(-rows // 128) + experts - 1, 2, 512)
    for element, of_groups in zip(range(batch), np.asarray(many), strict=True):
        ends = np.minimum(np.cumsum(np.maximum(of_groups.astype(np.int64), 0)), rows)
        starts = np.concatenate([[0], ends[:-1]])
        bands: set[int] = set()
        groups = list(zip(starts[offset:], ends[offset:], strict=True))[:experts]
        for e, (start, end) in enumerate(groups):
            used = set()
            for row in range(start, end):
                band, at = start // 128 + e + (row - start) // 128, (row - start) % 128
                place = at % 32 * 16 + at // 32 * 4
                found = [got[element, band, k // 4, place + k % 4] for k in range(count)]
                assert found == list(codes[element, row])
                used.add(band)
            assert not used & bands
            bands |= used


@pytest.mark.parametrize("shared", ["scales", "sizes", "offset"])
def test_a_batch_may_share_rows_sizes_or_an_offset(shared: str) -> None:
    codes = np.random.default_rng(0).integers(1, 127, (2, 300, 4)).astype(np.uint8)
    given = {
        "scales": jnp.asarray(codes).view(jnp.float8_e4m3fn),
        "sizes": jnp.array([[100, 20, 180], [7, 290, 3]], jnp.int32),
        "offset": jnp.array([0, 1], jnp.int32),
    }
    given[shared] = given[shared][:1]
    tiles = jax.jit(in_ragged_tiles, static_argnums=3)
    got = tiles(*given.values(), 2)
    for i in range(2):
        one = (x[i % len(x) :][:1] for x in given.values())
        np.testing.assert_array_equal(got[i : i + 1], tiles(*one, 2))


def test_pairs_of_4_bits() -> None:
    values = jnp.asarray([[0.5, -1, 6, 0, -0.5, 2]], jnp.float4_e2m1fn)
    # Sign, two bits of exponent, one of mantissa: 0.5 is 1, 1 is 2, 2 is 4, 6 is 7.
    assert packed(values).tolist() == [[0x1 | 0xA << 4, 0x7, 0x9 | 0x4 << 4]]
    wide = values.astype(jnp.float8_e4m3fn)
    assert packed(wide) is wide
