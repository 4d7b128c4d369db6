"""Group sizes for measuring grouped products."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from jax_bwgemm.tuning.keys import GroupedKey, ScaledGroupedKey, shares_of

# Draws of group sizes that calls go through, whatever the number of copies of A and B.
DRAWS = 7


def groups_of_call(key: GroupedKey | ScaledGroupedKey) -> list[tuple[jax.Array, jax.Array]]:
    """Group sizes and the offset of the first matrix, for calls in turn."""
    return [(jnp.asarray(sizes), jnp.asarray(offset)) for sizes, offset in draw_groups(key, DRAWS)]


def draw_groups(
    key: GroupedKey | ScaledGroupedKey, count: int
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Group sizes and the offset of the first matrix, as a router might give them.

    Sizes that are expected come in random order; where nothing is known the rows are cut at random
    places. Where there are fewer matrices than groups, as on one device of several, it is any of
    these devices.

    Args:
        key: The problem.
        count: How many draws.

    Returns:
        Sizes [batch, groups] and offset [1], int32, of each draw. They are the same every time.
    """
    rng = np.random.default_rng(0)
    shares = shares_of(key)
    places = max(1, key.groups // key.experts)
    draws = []
    for _ in range(count):
        rows = [_sizes(rng, key, shares) for _ in range(key.batch)]
        offset = key.experts * int(rng.integers(places))
        draws.append((np.stack(rows).astype(np.int32), np.full(1, offset, np.int32)))
    return draws


def _sizes(
    rng: np.random.Generator, key: GroupedKey | ScaledGroupedKey, shares: Sequence[float] | None
) -> np.ndarray:
    if shares is None:
        cuts = np.sort(rng.integers(0, key.m + 1, key.groups - 1))
        return np.diff(cuts, prepend=0, append=key.m)
    # Rounded so that what is lost in one is in the next: the sum stays that of the shares.
    ends = np.rint(np.cumsum(shares) * key.m)
    return rng.permutation(np.diff(np.minimum(ends, key.m), prepend=0))
