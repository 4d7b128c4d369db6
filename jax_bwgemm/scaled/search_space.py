"""What autotuning tries for scaled products: kernels and splits by predicted time, then orders."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from jax_bwgemm.config import Target
from jax_bwgemm.dense.search_space import MAX_PREDICTED_RATIO, ORDERS, are_listed, other_orders
from jax_bwgemm.dense.tile_schedule import tile_order
from jax_bwgemm.grouped.search_space import SWIZZLES
from jax_bwgemm.product.kernels import Kernel
from jax_bwgemm.scaled import ragged_selection, selection
from jax_bwgemm.scaled.costs import as_dense
from jax_bwgemm.scaled.ragged_spec import ScaledRaggedDims, ScaledRaggedSpec
from jax_bwgemm.scaled.spec import ScaledDims, ScaledSpec
from jax_bwgemm.tuning.records import Choice


def kernels_to_try(
    spec: ScaledSpec, dims: ScaledDims, table: Sequence[Kernel], target: Target, limit: int
) -> list[Choice]:
    """The heuristic's choice, then the kernels and splits with the best predicted times.

    Args:
        spec: The product.
        dims: Its sizes.
        table: The kernels of this build.
        target: The GPU.
        limit: How many to return at most.

    Raises:
        ValueError: No kernel can run the product.
    """
    fitting = selection.kernels_for(table, spec, dims, target)
    if isinstance(fitting, str):
        raise ValueError(f"{dims.describe(spec)}: {fitting}")
    ranked = selection.ranked(fitting, dims, target)
    longest = MAX_PREDICTED_RATIO * ranked[0][1].cycles
    choices = []
    for kernel, predicted in ranked[:limit]:
        if predicted.cycles <= longest:
            raster, swizzle = selection.order_of(kernel, predicted, dims)
            choices.append(Choice(kernel, raster, swizzle, predicted.splits))
    return choices


def orders_to_try(
    choice: Choice, dims: ScaledDims, target: Target, known: Sequence[Choice]
) -> list[Choice]:
    """Other tile orders of a kernel, without those that give the CTAs the same tiles."""
    if choice.kernel.contraction != "scaled":  # a grouped kernel with one group
        return []
    kernel = as_dense(choice.kernel)

    def order(c: Choice) -> object:
        if not are_listed(kernel, dims.m, dims.n, dims.batch):
            return c.raster_order, c.swizzle
        run = target.sm_count, c.raster_order, c.swizzle, c.splits
        return tile_order(kernel, dims.m, dims.n, dims.batch, *run).tiles

    same = [c for c in known if (c.kernel, c.splits) == (choice.kernel, choice.splits)]
    others = [dataclasses.replace(choice, raster_order=r, swizzle=s) for r, s in ORDERS]
    return other_orders(others, same, order)


def grouped_kernels_to_try(
    spec: ScaledRaggedSpec,
    dims: ScaledRaggedDims,
    table: Sequence[Kernel],
    target: Target,
    limit: int,
) -> list[Choice]:
    """As `kernels_to_try`: the chosen kernel of a grouped product, then the others that fit."""
    fitting = ragged_selection.kernels_for(table, spec, dims, target)
    if isinstance(fitting, str):
        raise ValueError(f"{dims.describe(spec)}: {fitting}")
    first = ragged_selection.by_rule(fitting, spec, dims, target)
    others = [k for k in fitting if k is not first.kernel]
    return [Choice(k, first.raster_order, first.swizzle) for k in (first.kernel, *others)][:limit]


def grouped_orders_to_try(choice: Choice, known: Sequence[Choice]) -> list[Choice]:
    """Other bands of a grouped kernel."""
    same = [c for c in known if c.kernel == choice.kernel]
    others = [dataclasses.replace(choice, swizzle=s) for s in SWIZZLES]
    return other_orders(others, same, lambda c: c.swizzle)
