"""What autotuning tries for a problem: kernels and splits by predicted time, then tile orders."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence

from jax_bwgemm.config import Target
from jax_bwgemm.dense import costs, heuristics
from jax_bwgemm.dense.selection import select_by_heuristic
from jax_bwgemm.dense.tile_schedule import tile_order
from jax_bwgemm.dense.tuned import dims_of, spec_of
from jax_bwgemm.dense.work_schedule import work_order
from jax_bwgemm.product.dtypes import narrowest_bytes
from jax_bwgemm.product.kernels import Kernel
from jax_bwgemm.tuning.keys import DenseKey, types_of
from jax_bwgemm.tuning.records import Choice

# Tile orders tried for the fastest kernels. Which of them differ depends on kernel and problem.
ORDERS = tuple((raster, swizzle) for swizzle in (1, 8, 16, 4, 2) for raster in ("n", "m"))
# No kernel predicted to take this many times as long as the best is tried.
MAX_PREDICTED_RATIO = 2.0
# Orders of more tiles than this are told apart by their names: listing the tiles takes seconds.
MOST_LISTED = 2**18


def kernels_to_try(
    key: DenseKey, table: Sequence[Kernel], target: Target, limit: int
) -> list[Choice]:
    """The heuristic's choice, then the kernels and splits with the best predicted times.

    Args:
        key: The problem.
        table: The kernels of this build.
        target: The GPU.
        limit: How many to return at most.

    Raises:
        ValueError: No kernel can run the problem.
    """
    selected = select_by_heuristic(spec_of(key), types_of(key), dims_of(key), target, table)
    if isinstance(selected, str):
        raise ValueError(f"{key}: {selected}")
    first = Choice(
        selected.kernel,
        selected.raster_order,
        selected.swizzle,
        selected.splits,
        selected.decomposition,
    )
    usable, _ = heuristics.rank(table, spec_of(key), types_of(key), dims_of(key), target)
    spec, in_bytes = spec_of(key), narrowest_bytes(types_of(key))
    predicted = []
    for whole in usable:
        if whole.kernel.stream_k:
            predicted += _decompositions(whole.kernel, key, table, target)
        tiles = whole.tiles_m * whole.tiles_n * key.batch
        for splits in heuristics.possible_splits(
            spec, whole.kernel, dims_of(key), in_bytes, tiles, target.sm_count
        ):
            if splits > 1 or not whole.kernel.stream_k:
                predicted.append(costs.evaluate(whole.kernel, dims_of(key), target, splits))
    predicted.sort(key=lambda c: (c.cycles, c.kernel.name, c.splits))
    choices = [first]
    seen = {(first.kernel.name, first.splits, first.decomposition)}
    for candidate in predicted:
        if len(choices) == limit or candidate.cycles > MAX_PREDICTED_RATIO * predicted[0].cycles:
            break
        name, splits, mode = candidate.kernel.name, candidate.splits, candidate.decomposition
        # Splits near each other take about as long: only neighbours of the best are tried.
        if (name, splits, mode) in seen or sum(c.kernel.name == name for c in choices) >= 3:
            continue
        seen.add((name, splits, mode))
        raster, swizzle = heuristics.tile_order(candidate, dims_of(key), in_bytes)
        choices.append(Choice(candidate.kernel, raster, swizzle, splits, mode))
    return choices


def _decompositions(
    kernel: Kernel, key: DenseKey, table: Sequence[Kernel], target: Target
) -> list[costs.Candidate]:
    """The ways of dividing a problem that differ; whole tiles only if no other kernel has them."""
    others = {k.name for k in table}
    has_sibling = kernel.name.removesuffix("_streamk") in others
    if not are_listed(kernel, key.m, key.n, key.batch):  # so many waves leave nothing to divide
        return [] if has_sibling else [costs.evaluate(kernel, dims_of(key), target, 1)]
    run = kernel, key.m, key.n, key.k, key.batch, target.sm_count
    found: list[costs.Candidate] = []
    seen: list[object] = []
    for mode in ("heuristic", "stream_k"):
        plan = work_order(*run, decomposition=mode).plan
        if not (has_sibling and plan.kind == "data_parallel") and plan not in seen:
            seen.append(plan)
            found.append(costs.evaluate(kernel, dims_of(key), target, 1, mode))
    return found


def orders_to_try(
    choice: Choice, key: DenseKey, target: Target, known: Sequence[Choice]
) -> list[Choice]:
    """Other tile orders of a kernel, without those that give the CTAs the same tiles."""
    if choice.kernel.cluster_k:  # has only one tile order
        return []

    def order(c: Choice) -> object:
        if not are_listed(c.kernel, key.m, key.n, key.batch):
            return c.raster_order, c.swizzle
        run = target.sm_count, c.raster_order, c.swizzle, c.splits
        if c.kernel.stream_k:
            return work_order(c.kernel, key.m, key.n, key.k, key.batch, *run, c.decomposition).units
        return tile_order(c.kernel, key.m, key.n, key.batch, *run).tiles

    def how(c: Choice) -> object:
        return c.kernel, c.splits, c.decomposition

    same = [c for c in known if how(c) == how(choice)]
    others = [dataclasses.replace(choice, raster_order=r, swizzle=s) for r, s in ORDERS]
    return other_orders(others, same, order)


def are_listed(kernel: Kernel, m: int, n: int, batch: int) -> bool:
    """Whether a product has few enough tiles to compare their orders."""
    rows, columns = (n, m) if kernel.swap_ab else (m, n)
    tiles = costs.ceil_div(rows, kernel.tile_m) * costs.ceil_div(columns, kernel.tile_n) * batch
    return tiles <= MOST_LISTED


def other_orders(
    others: Iterable[Choice], known: Iterable[Choice], order: Callable[[Choice], object]
) -> list[Choice]:
    """Those of `others` whose order no known one has, and no other before it.

    Args:
        others: What might be tried.
        known: What is tried anyway.
        order: A choice's order of tiles, as far as it differs.
    """
    seen, found = [order(c) for c in known], []
    for other in others:
        if (tiles := order(other)) not in seen:
            seen.append(tiles)
            found.append(other)
    return found
