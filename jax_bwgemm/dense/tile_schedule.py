"""Which CTA computes which tile, in pure Python: a mirror of the kernels' tile schedulers.

- SM90 kernels are *static persistent*. There are as many CTAs as the GPU holds at once. CTA i takes
  tiles i, i + CTAs, i + 2 CTAs, ... of one order, which runs in bands.
- SM100 kernels are *dynamic*. The grid has a cluster for every cluster-sized block of tiles, and a
  running cluster takes over the next waiting one (cluster launch control). The order is known;
  which cluster computes what is decided at run time.
- Stream-K kernels take units of work instead of tiles, in the same two ways: see work_schedule.
- Cluster-K kernels (SM90) have a CTA for every tile and part of K.

On a GPU, SM90 kernels renumber a launch's clusters, so that those of one GPC, which is only known
at run time (cc/sm90/gpc.h), take tiles that are neighbours along the band. The tiles of CTA ``i``
here are therefore those of another CTA there. Which tiles run together, and when, is the same.

Everything is counted as the MMA sees it. With ``swap_ab`` that is the transposed problem; `Tile`
says where the tile lies in D.
"""

from __future__ import annotations

import dataclasses
import heapq
from collections.abc import Iterator, Sequence

from jax_bwgemm.dense import cluster_k
from jax_bwgemm.dense.costs import ceil_div, round_up
from jax_bwgemm.dense.occupancy import concurrent_ctas
from jax_bwgemm.product.kernels import Kernel

# Largest grid.y; a raster order chosen freely avoids exceeding it.
MAX_GRID_Y = 2**16 - 1  # kMostGridY of cc/dense/limits.h


@dataclasses.dataclass(frozen=True)
class Tile:
    """One CTA's tile (one half of a 2-CTA tile). Units are CTA tiles.

    Attributes:
        row: Position along M of D.
        column: Position along N of D.
        batch: Batch index; the part of K when K is split.
    """

    row: int
    column: int
    batch: int


@dataclasses.dataclass(frozen=True)
class TileOrder:
    """The order of a launch's tiles.

    Attributes:
        grid: CTAs launched, along x, y and z.
        cluster: CTAs of a cluster along x and y.
        rows: CTA tiles along M of D that touch the matrix.
        columns: CTA tiles along N of D that touch the matrix.
        tile_rows: Rows of D in a CTA tile.
        tile_columns: Columns of D in a CTA tile.
        raster_order: ``"m"`` or ``"n"``, of the MMA's dimensions: the one that runs faster.
        swizzle: Height of the bands that is in effect, in clusters.
        tiles: Tiles in order, those outside of the matrix included, which fill up clusters (and
            the whole bands of SM100's stream-K kernels): they cost time but store nothing. CTA
            ``i`` of a static launch computes tiles i, i + CTAs, i + 2 CTAs, ...
        dynamic: Whether clusters take their tiles at run time.
    """

    grid: tuple[int, int, int]
    cluster: tuple[int, int]
    rows: int
    columns: int
    tile_rows: int
    tile_columns: int
    raster_order: str
    swizzle: int
    tiles: tuple[Tile, ...]
    dynamic: bool

    @property
    def blocks(self) -> tuple[int, int]:
        """CTA tiles along M and N of D, those outside of the matrix included."""
        return 1 + max(t.row for t in self.tiles), 1 + max(t.column for t in self.tiles)

    @property
    def ctas(self) -> int:
        """CTAs launched."""
        return self.grid[0] * self.grid[1] * self.grid[2]

    def inside(self, tile: Tile) -> bool:
        """Whether a tile touches the matrix."""
        return tile.row < self.rows and tile.column < self.columns

    def assignment(self) -> tuple[tuple[Tile, ...], ...]:
        """The tiles of every CTA, in its order.

        Raises:
            ValueError: The order is dynamic.
        """
        if self.dynamic:
            raise ValueError("a dynamic scheduler assigns tiles at run time; see simulate")
        return tuple(self.tiles[cta :: self.ctas] for cta in range(self.ctas))

    def waves(self, concurrent: int) -> Iterator[tuple[Tile, ...]]:
        """Tiles in groups that run at the same time when all take equally long."""
        step = self.ctas if not self.dynamic else concurrent
        for start in range(0, len(self.tiles), step):
            yield self.tiles[start : start + step]


def tile_order(
    kernel: Kernel,
    m: int,
    n: int,
    batch: int,
    sm_count: int,
    raster_order: str = "heuristic",
    swizzle: int = 1,
    splits: int = 1,
) -> TileOrder:
    """The tile order of one launch.

    Args:
        kernel: The kernel.
        m: Rows of D.
        n: Columns of D.
        batch: Number of products.
        sm_count: Multiprocessors of the GPU.
        raster_order: ``"heuristic"``, ``"m"`` or ``"n"``.
        swizzle: 1, 2, 4, 8 or 16.
        splits: Parts of K, which are scheduled as a batch.
    """
    if kernel.cluster_k:
        return _cluster_k(kernel, m, n, batch, splits)
    form = "bands" if kernel.arch == "sm90" else "grid"
    return _order(kernel, m, n, batch * splits, sm_count, raster_order, swizzle, form)


def band_order(
    kernel: Kernel,
    m: int,
    n: int,
    batch: int,
    sm_count: int,
    raster_order: str = "heuristic",
    swizzle: int = 1,
) -> TileOrder:
    """The order in which SM100's stream-K kernels number tiles: CUTLASS's, in whole bands only.

    Args: as those of `tile_order`.
    """
    return _order(kernel, m, n, batch, sm_count, raster_order, swizzle, "whole bands")


def _order(
    kernel: Kernel,
    m: int,
    n: int,
    layers: int,
    sm_count: int,
    raster_order: str,
    swizzle: int,
    form: str,
) -> TileOrder:
    """A tile order in ``"bands"``, ``"whole bands"``, or as the clusters of a ``"grid"`` start."""
    swap = kernel.swap_ab
    mma_m, mma_n = (n, m) if swap else (m, n)
    pair = 2 if kernel.schedule == "2sm" else 1
    cm, cn = kernel.cluster_m, kernel.cluster_n
    tile_m, tile_n = kernel.tile_m // pair, kernel.tile_n
    # CTAs that touch the matrix. Both halves of a 2-CTA tile are launched in any case.
    touching_m, touching_n = ceil_div(mma_m, tile_m), ceil_div(mma_n, tile_n)
    blocks_m = round_up(ceil_div(mma_m, kernel.tile_m) * pair, cm)
    blocks_n = round_up(touching_n, cn)
    if form != "grid":
        raster, width, grid, coordinates = _bands(
            blocks_m, blocks_n, layers, cm, cn, sm_count, raster_order, swizzle,
            whole=form == "whole bands",
        )  # fmt: skip
    else:
        raster, width, grid, coordinates = _dynamic(
            blocks_m, blocks_n, layers, cm, cn, raster_order, swizzle
        )
    return TileOrder(
        grid,
        (cm, cn),
        *((touching_n, touching_m) if swap else (touching_m, touching_n)),
        *((tile_n, tile_m) if swap else (tile_m, tile_n)),
        raster,
        width,
        tuple(Tile(y, x, z) if swap else Tile(x, y, z) for x, y, z in coordinates),
        form == "grid",
    )


def _raster(along_m: int, along_n: int, wanted: str) -> str:
    """The raster order: by default the shorter dimension runs in the outer loop."""
    if wanted != "heuristic":
        return wanted
    return "m" if along_n > along_m else "n"


def static_swizzle(blocks_m: int, blocks_n: int, wanted: int) -> int:
    """The swizzle of whole bands: at most 8, less where the grid is narrow."""
    smallest = min(blocks_m, blocks_n)
    for width, needed in ((8, 6), (4, 3), (2, 2)):
        if wanted >= width and smallest >= needed:
            return width
    return 1


def _bands(
    blocks_m: int,
    blocks_n: int,
    layers: int,
    cm: int,
    cn: int,
    sm_count: int,
    raster_order: str,
    swizzle: int,
    whole: bool,
) -> tuple[str, int, tuple[int, int, int], Sequence[tuple[int, int, int]]]:
    """Bands of `swizzle` clusters. The last one is as high as what is left, or whole too."""
    if whole:
        height = static_swizzle(blocks_m, blocks_n, swizzle)
        blocks_m, blocks_n = round_up(blocks_m, height * cm), round_up(blocks_n, height * cn)
    raster = _raster(blocks_m, blocks_n, raster_order)
    clusters = (blocks_m // cm, blocks_n // cn)
    rows, length = clusters if raster == "n" else clusters[::-1]
    if not whole:
        height = 1
        while 2 * height <= min(swizzle, rows):
            height *= 2
    # Fastest: CTAs of a cluster, then clusters across the band, those along it, the bands.
    coordinates = []
    for layer in range(layers):
        for first in range(0, rows, height):
            for along in range(length):
                for across in range(first, min(first + height, rows)):
                    x, y = (across, along) if raster == "n" else (along, across)
                    ctas = [(x * cm + i, y * cn + j, layer) for j in range(cn) for i in range(cm)]
                    coordinates += ctas if raster == "n" else sorted(ctas)
    count = min(concurrent_ctas(sm_count, cm * cn), len(coordinates))
    grid = (cm, count // cm, 1) if raster == "n" else (count // cn, cn, 1)
    return raster, height, grid, coordinates


def _dynamic(
    blocks_m: int, blocks_n: int, layers: int, cm: int, cn: int, raster_order: str, swizzle: int
) -> tuple[str, int, tuple[int, int, int], Sequence[tuple[int, int, int]]]:
    """SM100: one cluster per block of tiles; bands only as far as whole ones fit."""
    clusters_m, clusters_n = blocks_m // cm, blocks_n // cn
    raster = _raster(clusters_m, clusters_n, raster_order)
    if raster_order == "heuristic" and raster == "n" and clusters_m * cn > MAX_GRID_Y:
        raster = "m"
    # The hardware starts clusters along x first, so x is the dimension that runs faster.
    fast, slow = (clusters_n, clusters_m) if raster == "n" else (clusters_m, clusters_n)
    # A swizzled cluster that has no whole band around it stays where it is.
    whole_fast, whole_slow = (c - c % swizzle for c in (fast, slow))

    def cluster_at(x: int, y: int) -> tuple[int, int]:
        if swizzle > 1 and x < whole_fast and y < whole_slow:
            band, within = divmod(y, swizzle)
            x, y = x // swizzle + fast // swizzle * within, x % swizzle + band * swizzle
        return (y, x) if raster == "n" else (x, y)

    coordinates = []
    for layer in range(layers):
        for y in range(slow):
            for x in range(fast):
                m, n = cluster_at(x, y)
                coordinates += [
                    (m * cm + i, n * cn + j, layer) for j in range(cn) for i in range(cm)
                ]
    return raster, swizzle, (fast * cm, slow * cn, layers), coordinates


def _cluster_k(kernel: Kernel, m: int, n: int, batch: int, splits: int) -> TileOrder:
    """Cluster-K: the parts of a tile side by side, then the tiles along M, along N, the batch."""
    inside, apart = cluster_k.parts(splits)
    rows, columns = ceil_div(m, kernel.tile_n), ceil_div(n, kernel.tile_m)
    tiles = tuple(
        Tile(row, column, layer * inside + part)
        for layer in range(batch * apart)
        for column in range(columns)
        for row in range(rows)
        for part in range(inside)
    )
    size = kernel.tile_n, kernel.tile_m
    return TileOrder(
        (len(tiles), 1, 1), (inside, 1), rows, columns, *size, "n", 1, tiles, dynamic=False
    )


@dataclasses.dataclass(frozen=True)
class Span:
    """A tile on a multiprocessor, in units of one tile's time.

    Attributes:
        worker: Multiprocessor (its place in the machine is arbitrary).
        start: When it starts.
        end: When it ends.
        tile: The tile.
        steps: First step along K and one past the last; None for all.
    """

    worker: int
    start: float
    end: float
    tile: Tile
    steps: tuple[int, int] | None = None


def simulate(
    order: TileOrder, sm_count: int, duration: Sequence[float] | None = None
) -> list[Span]:
    """Runs an order on identical multiprocessors.

    Args:
        order: The tiles.
        sm_count: Multiprocessors; whole clusters run or wait.
        duration: Time of each tile of ``order.tiles``; 1 each by default.
    """
    cost = duration or [1.0] * len(order.tiles)
    if not order.dynamic:
        spans = []
        for cta in range(order.ctas):
            now = 0.0
            for index in range(cta, len(order.tiles), order.ctas):
                spans.append(Span(cta, now, now + cost[index], order.tiles[index]))
                now += cost[index]
        return spans
    size = order.cluster[0] * order.cluster[1]
    free = [(0.0, worker) for worker in range(max(1, sm_count // size))]
    heapq.heapify(free)
    spans = []
    for first in range(0, len(order.tiles), size):
        now, worker = heapq.heappop(free)
        # A cluster asks for its next tiles together.
        end = now + max(cost[first : first + size])
        spans += [Span(worker * size + i, now, end, order.tiles[first + i]) for i in range(size)]
        heapq.heappush(free, (end, worker))
    return spans
