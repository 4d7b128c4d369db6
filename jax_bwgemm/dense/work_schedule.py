"""Which CTA computes which part of which tile in a stream-K launch: `stream_k` with tiles."""

from __future__ import annotations

import dataclasses
import heapq

from jax_bwgemm.dense import stream_k
from jax_bwgemm.dense.costs import ceil_div
from jax_bwgemm.dense.occupancy import concurrent_ctas
from jax_bwgemm.dense.tile_schedule import (
    Span,
    Tile,
    TileOrder,
    band_order,
    tile_order,
)
from jax_bwgemm.product.kernels import Kernel


@dataclasses.dataclass(frozen=True)
class Part:
    """A tile from ``begin`` to ``end`` along K, in units of the kernel's ``tile_k``."""

    tile: Tile
    begin: int
    end: int


@dataclasses.dataclass(frozen=True)
class WorkOrder:
    """What a stream-K launch computes, unit by unit.

    Attributes:
        plan: How the work is divided.
        order: The order of tiles that the plan's indices mean. Its grid is `grid`.
        units: The parts of every unit, in its order. CTA ``i`` of a static launch takes units
            i, i + CTAs, i + 2 CTAs, ...; in a dynamic one clusters take the next units in order.
    """

    plan: stream_k.Plan
    order: TileOrder
    units: tuple[tuple[Part, ...], ...]

    @property
    def grid(self) -> tuple[int, int, int]:
        """CTAs launched, along x, y and z."""
        return self.order.grid

    def assignment(self) -> tuple[tuple[Part, ...], ...]:
        """The parts of every CTA, in its order.

        Raises:
            ValueError: The order is dynamic.
        """
        if self.order.dynamic:
            raise ValueError("a dynamic scheduler assigns units at run time; see simulate")
        ctas = self.order.ctas
        return tuple(sum(self.units[cta::ctas], ()) for cta in range(ctas))


def work_order(
    kernel: Kernel,
    m: int,
    n: int,
    k: int,
    batch: int,
    sm_count: int,
    raster_order: str = "heuristic",
    swizzle: int = 1,
    splits: int = 1,
    decomposition: str = "heuristic",
) -> WorkOrder:
    """The units of one launch of a stream-K kernel.

    Args:
        kernel: The kernel.
        m: Rows of D.
        n: Columns of D.
        k: Contracted size.
        batch: Number of products.
        sm_count: Multiprocessors of the GPU.
        raster_order: ``"heuristic"``, ``"m"`` or ``"n"``.
        swizzle: 1, 2, 4, 8 or 16.
        splits: Parts that K is split into, inside of the kernel.
        decomposition: ``"heuristic"``, ``"data_parallel"``, ``"split_k"`` or ``"stream_k"``.
    """
    cm, cn = kernel.cluster_m, kernel.cluster_n
    dynamic = kernel.arch != "sm90"
    number = band_order if dynamic else tile_order
    order = number(kernel, m, n, batch, sm_count, raster_order, swizzle)
    # As many CTAs as fit, however few tiles there are. SM100 has no groups of odd sizes to mind.
    ctas = sm_count if dynamic else concurrent_ctas(sm_count, cm * cn)
    minor = cm if order.raster_order == "n" else cn
    ctas = ctas // minor * minor
    blocks_m, blocks_n = reversed(order.blocks) if kernel.swap_ab else order.blocks
    rows = blocks_n // cn if order.raster_order == "n" else blocks_m // cm
    plan = stream_k.plan(
        len(order.tiles), ctas, cm * cn, ceil_div(k, kernel.tile_k), rows, sm_count, splits,
        decomposition,
    )  # fmt: skip
    if not dynamic:
        if plan.splits > 1:
            ctas = plan.units  # a part waits for the one before it, which has to be running
        grid = (cm, ctas // cm, 1) if order.raster_order == "n" else (ctas // cn, cn, 1)
    elif plan.kind == "stream_k":
        grid = (plan.shared_units // cn, cn, ceil_div(plan.units, plan.shared_units))
    else:
        # Without shared tiles, clusters run over the grid, all parts of a batch element in turn.
        return _by_grid(tile_order(kernel, m, n, batch, sm_count, "m"), plan)
    units = tuple(
        tuple(Part(order.tiles[tile], begin, end) for tile, begin, end in plan.pieces(unit))
        for unit in range(plan.units)
    )
    return WorkOrder(plan, dataclasses.replace(order, grid=grid, dynamic=dynamic), units)


def _by_grid(order: TileOrder, whole: stream_k.Plan) -> WorkOrder:
    per_layer = order.grid[0] * order.grid[1]
    layers = order.grid[2]
    plan = dataclasses.replace(whole, tiles=len(order.tiles))
    units = []
    for layer in range(layers):
        tiles = order.tiles[layer * per_layer : (layer + 1) * per_layer]
        for part in range(plan.splits):
            _, begin, end = plan.pieces(part * plan.tiles)[0]
            units += [(Part(tile, begin, end),) for tile in tiles]
    grid = (*order.grid[:2], layers * plan.splits)
    return WorkOrder(plan, dataclasses.replace(order, grid=grid), tuple(units))


def simulate(work: WorkOrder, sm_count: int) -> list[Span]:
    """Runs a stream-K launch on identical multiprocessors; a whole tile takes 1.

    Nobody waits for anybody: what adding the parts costs is not in it.
    """
    cluster = work.order.cluster[0] * work.order.cluster[1]
    spans = []

    def run(worker: int, now: float, parts: tuple[Part, ...]) -> float:
        for part in parts:
            end = now + (part.end - part.begin) / work.plan.steps
            spans.append(Span(worker, now, end, part.tile, (part.begin, part.end)))
            now = end
        return now

    if not work.order.dynamic:
        for cta, parts in enumerate(work.assignment()):
            run(cta, 0.0, parts)
        return spans
    free = [(0.0, worker) for worker in range(max(1, sm_count // cluster))]
    heapq.heapify(free)
    for first in range(0, len(work.units), cluster):
        now, worker = heapq.heappop(free)
        ends = [
            run(worker * cluster + i, now, parts)
            for i, parts in enumerate(work.units[first : first + cluster])
        ]
        heapq.heappush(free, (max(ends), worker))
    return spans
