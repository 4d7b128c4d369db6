"""What autotuning tries for a grouped product: kernels by predicted time, then tile orders."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from jax_bwgemm.config import Target
from jax_bwgemm.dense.costs import ceil_div
from jax_bwgemm.dense.search_space import other_orders
from jax_bwgemm.grouped import heuristics
from jax_bwgemm.grouped.selection import select_by_heuristic
from jax_bwgemm.grouped.spec import M_GROUPED
from jax_bwgemm.grouped.tuned import dims_of, spec_of
from jax_bwgemm.product.kernels import Kernel
from jax_bwgemm.tuning.keys import GroupedKey, shares_of
from jax_bwgemm.tuning.records import Choice

# Heights of the bands that are tried.
SWIZZLES = (1, 2, 4, 8, 12, 16, 32)
# No kernel predicted to take this many times as long as the best is tried. The model only ranks.
MAX_PREDICTED_RATIO = 4.0


def kernels_to_try(
    key: GroupedKey, table: Sequence[Kernel], target: Target, limit: int
) -> list[Choice]:
    """The heuristic's choice, then the kernels with the best predicted times.

    Args:
        key: The problem.
        table: The kernels of this build.
        target: The GPU.
        limit: How many to return at most.

    Raises:
        ValueError: No kernel can run the problem.
    """
    spec, dims = spec_of(key), dims_of(key)
    selected = select_by_heuristic(spec, key.in_dtype, dims, target, table)
    if isinstance(selected, str):
        raise ValueError(f"{key}: {selected}")
    usable, _ = heuristics.rank(table, spec, key.in_dtype, dims, target)
    longest = MAX_PREDICTED_RATIO * usable[0].cycles
    return [
        Choice(c.kernel, selected.raster_order, heuristics.swizzle_of(c.kernel, dims))
        for c in usable[:limit]
        if c.cycles <= longest
    ]


def orders_to_try(choice: Choice, key: GroupedKey, known: Sequence[Choice]) -> list[Choice]:
    """Other tile orders of a kernel, without those that give the CTAs the same tiles.

    Along N, tiles come group after group, in bands of so many rows of tiles; along M, all groups'
    tiles of a column come first, and there are no bands. A k-grouped product has bands only.
    """
    most = _most_row_tiles(choice.kernel, key)

    def order(c: Choice) -> object:
        if c.raster_order == "m" and key.kind == M_GROUPED:
            return "m"
        return min(c.swizzle, most)

    same = [c for c in known if c.kernel == choice.kernel]
    others = [dataclasses.replace(choice, raster_order="n", swizzle=s) for s in SWIZZLES]
    others.append(dataclasses.replace(choice, raster_order="m", swizzle=1))
    return other_orders(others, same, order)


def _most_row_tiles(kernel: Kernel, key: GroupedKey) -> int:
    """Rows of tiles that one matrix of the result, or one group, has at most."""
    rows, _ = heuristics.tile_extents(kernel)
    if key.kind != M_GROUPED:
        return ceil_div(key.k, rows)
    shares = shares_of(key)
    largest = key.m if shares is None else round(max(shares) * key.m)
    return max(1, ceil_div(largest, rows))
