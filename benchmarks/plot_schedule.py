"""Draws which multiprocessor computes which tile, and when.

    python plot_schedule.py --m 2048 --n 4096 --tile 128x256 --cluster 2x1 --out schedule.svg
    python plot_schedule.py --arch sm100 --m 2048 --n 4096 --tile 256x256 --cluster 2x1 --swizzle 4
    python plot_schedule.py --m 1024 --n 3264 --tile 128x256 --stream-k heuristic

Left: D, each tile coloured by when it is begun, with its place in the order (with stream-K: in how
many parts it is computed). Right: the multiprocessors over time. From the mirror of the schedulers
(jax_bwgemm/dense/tile_schedule.py and work_schedule.py).
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from typing import Any

import plot
from common import options

from jax_bwgemm.dense import work_schedule
from jax_bwgemm.dense.tile_schedule import Span, Tile, TileOrder, simulate, tile_order
from jax_bwgemm.dense.tuning_config import DECOMPOSITIONS, SWIZZLES
from jax_bwgemm.product.kernels import Kernel

# More tiles than this get no numbers: they would not be legible.
MAX_NUMBERED = 300


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n", 1)[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--m", type=options.positive, default=2048, help="rows of the result")
    parser.add_argument("--n", type=options.positive, default=4096, help="columns of it")
    parser.add_argument("--arch", choices=("sm90", "sm100"), default="sm90")
    parser.add_argument("--tile", default="128x256", metavar="MxN", help="MMA tile")
    parser.add_argument("--cluster", default="2x1", metavar="MxN", help="CTAs")
    parser.add_argument(
        "--sms", type=options.positive, help="multiprocessors; 132 or 148 by --arch unless given"
    )
    parser.add_argument("--raster", choices=("heuristic", "m", "n"), default="heuristic")
    parser.add_argument("--swizzle", type=int, choices=SWIZZLES, default=1)
    parser.add_argument("--splits", type=options.positive, default=1)
    parser.add_argument(
        "--stream-k", choices=DECOMPOSITIONS, help="how a stream-K kernel divides K"
    )
    parser.add_argument("--k", type=options.positive, default=4096, help="with --stream-k")
    parser.add_argument("--out", default="schedule.svg", help="picture: .svg, .png or .pdf")
    args = parser.parse_args(argv)
    try:
        args.sizes = [int(x) for text in (args.tile, args.cluster) for x in text.split("x")]
        if len(args.sizes) != 4 or min(args.sizes) < 1:
            raise ValueError
    except ValueError:
        parser.error(f"--tile and --cluster take MxN, got {args.tile!r} and {args.cluster!r}")
    args.sms = args.sms or {"sm90": 132, "sm100": 148}[args.arch]
    return args


def schedule_of(args: argparse.Namespace) -> tuple[TileOrder, list[Span], str]:
    """The tile order that the options describe, a run of it, and what kind it is."""
    tile_m, tile_n, cluster_m, cluster_n = args.sizes
    schedule = "cooperative"
    if args.arch == "sm100":
        schedule = "2sm" if tile_m == 256 else "1sm"
    kernel = Kernel.of_tile(args.arch, (tile_m, tile_n, 64), (cluster_m, cluster_n), schedule)
    run = args.sms, args.raster, args.swizzle, args.splits
    if args.stream_k:
        work = work_schedule.work_order(kernel, args.m, args.n, args.k, 1, *run, args.stream_k)
        spans = work_schedule.simulate(work, args.sms)
        return work.order, spans, work.plan.kind.replace("_", "-")
    order = tile_order(kernel, args.m, args.n, 1, *run)
    return order, simulate(order, args.sms), "dynamic" if order.dynamic else "static"


def draw(order: TileOrder, spans: Sequence[Span], title: str, sms: int) -> Any:
    """The picture of an order and of a run of it on so many multiprocessors."""
    from matplotlib import colormaps
    from matplotlib.patches import Rectangle

    drawing, axes = plot.figure(11, 4.6)
    drawing.delaxes(axes)
    matrix, time = drawing.subplots(1, 2, width_ratios=(1.1, 1))
    end = max(span.end for span in spans)
    colours = colormaps["viridis"]
    starts: dict[Tile, float] = {}
    parts: Counter[Tile] = Counter()
    for span in spans:
        starts[span.tile] = min(span.start, starts.get(span.tile, span.start))
        parts[span.tile] += 1
    shared = max(parts.values()) > 1
    layer = [(i, t) for i, t in enumerate(order.tiles) if t.batch == 0 and order.inside(t)]
    for index, tile in layer:
        shade = starts[tile] / end
        matrix.add_patch(
            Rectangle(
                (tile.column, tile.row),
                1,
                1,
                facecolor=colours(shade),
                edgecolor="white",
                linewidth=0.4,
            )
        )
        if len(layer) <= MAX_NUMBERED:
            matrix.text(
                tile.column + 0.5, tile.row + 0.5, str(parts[tile] if shared else index),
                ha="center", va="center",
                fontsize=6, color="black" if shade > 0.5 else "white",
            )  # fmt: skip
    matrix.set_xlim(0, order.columns)
    matrix.set_ylim(order.rows, 0)
    matrix.set_xlabel(f"tiles along N ({order.tile_columns} columns of D each)")
    matrix.set_ylabel(f"tiles along M ({order.tile_rows} rows)")
    matrix.set_title(title)
    for span in spans:
        colour = colours(span.start / end) if order.inside(span.tile) else "#c9c9c9"
        time.add_patch(
            Rectangle(
                (span.start, span.worker),
                span.end - span.start,
                1,
                facecolor=colour,
                edgecolor="white" if shared else "none",
                linewidth=0.2,
            )
        )
    workers = max(sms, 1 + max(span.worker for span in spans))
    time.set_xlim(0, end)
    time.set_ylim(workers, 0)
    time.set_xlabel("time (tiles)")
    time.set_ylabel("multiprocessor")
    busy = sum(s.end - s.start for s in spans if order.inside(s.tile)) / (end * workers)
    grey = " (grey: outside of D)" if any(not order.inside(s.tile) for s in spans) else ""
    time.set_title(f"{busy:.0%} of the time inside of D{grey}")
    return drawing


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_args(argv)
    order, spans, kind = schedule_of(args)
    title = f"{args.tile}, raster {order.raster_order}, swizzle {order.swizzle}, {kind}"
    if args.splits > 1 and not args.stream_k:
        title += f", part 1 of {args.splits}"
    plot.save(draw(order, spans, title, args.sms), args.out)
    print(args.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
