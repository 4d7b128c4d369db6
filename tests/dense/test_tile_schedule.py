"""The Python mirror of the tile schedulers, against hand computations, CUTLASS and the emulator."""

from __future__ import annotations

import collections
import hashlib
import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jax_bwgemm import runtime
from jax_bwgemm.config import Target
from jax_bwgemm.dense import heuristics
from jax_bwgemm.dense.costs import evaluate
from jax_bwgemm.dense.occupancy import concurrent_ctas
from jax_bwgemm.dense.spec import GemmDims
from jax_bwgemm.dense.tile_schedule import (
    Tile,
    TileOrder,
    band_order,
    simulate,
    static_swizzle,
    tile_order,
)
from jax_bwgemm.product.kernels import Kernel


def kernel(
    tile_m: int, tile_n: int, cm: int = 1, cn: int = 1, arch: str = "sm90", swap: bool = False
) -> Kernel:
    schedule = "pingpong" if arch == "sm90" else "2sm" if tile_m == 256 else "1sm"
    return Kernel.of_tile(arch, (tile_m, tile_n, 64), (cm, cn), schedule, swap_ab=swap)


def places(tiles: Any) -> list[tuple[int, int]]:
    return [(t.row, t.column) for t in tiles]


# --- by hand ---


def test_one_cta_walks_along_the_raster_dimension() -> None:
    along_n = tile_order(kernel(64, 64), 128, 192, 1, 1, "n")
    assert places(along_n.tiles) == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]
    along_m = tile_order(kernel(64, 64), 128, 192, 1, 1, "m")
    assert places(along_m.tiles) == [(0, 0), (1, 0), (0, 1), (1, 1), (0, 2), (1, 2)]
    # The default puts the longer dimension outside.
    assert tile_order(kernel(64, 64), 128, 192, 1, 1).tiles == along_m.tiles
    assert tile_order(kernel(64, 64), 192, 128, 1, 1).raster_order == "n"


def test_tiles_are_dealt_out_in_turn() -> None:
    order = tile_order(kernel(64, 64), 128, 192, 1, 4, "n")
    assert order.grid == (1, 4, 1)
    assert [places(tiles) for tiles in order.assignment()] == [
        [(0, 0), (1, 1)],
        [(0, 1), (1, 2)],
        [(0, 2)],
        [(1, 0)],
    ]


def test_a_swizzle_of_two_makes_bands_of_two_rows() -> None:
    order = tile_order(kernel(64, 64), 256, 128, 1, 1, "n", 2)
    assert places(order.tiles) == [
        (0, 0), (1, 0), (0, 1), (1, 1), (2, 0), (3, 0), (2, 1), (3, 1),
    ]  # fmt: skip


def test_the_last_band_may_be_lower() -> None:
    order = tile_order(kernel(64, 64), 192, 128, 1, 132, "n", 8)  # 3 x 2 tiles: at most 2 high
    assert order.swizzle == 2
    assert places(order.tiles) == [(0, 0), (1, 0), (0, 1), (1, 1), (2, 0), (2, 1)]


def test_bands_of_stream_k_are_whole_so_a_swizzle_adds_tiles_outside() -> None:
    order = band_order(kernel(64, 64), 192, 192, 1, 132, "n", 8)  # 3 x 3 tiles: at most 4 wide
    assert order.swizzle == 4
    assert len(order.tiles) == 16
    assert sum(map(order.inside, order.tiles)) == 9


@pytest.mark.parametrize(
    ("smallest", "wanted", "got"),
    [(1, 8, 1), (2, 8, 2), (3, 8, 4), (5, 8, 4), (6, 8, 8), (6, 16, 8), (6, 4, 4), (100, 2, 2)],
)
def test_narrow_grids_get_narrower_bands(smallest: int, wanted: int, got: int) -> None:
    assert static_swizzle(smallest, 1000, wanted) == static_swizzle(1000, smallest, wanted) == got


def test_a_clusters_ctas_are_neighbours_along_its_dimensions() -> None:
    order = tile_order(kernel(64, 64, 2, 1), 256, 128, 1, 4, "n")
    assert order.grid == (2, 2, 1)
    assert places(order.tiles) == [
        (0, 0), (1, 0), (0, 1), (1, 1), (2, 0), (3, 0), (2, 1), (3, 1),
    ]  # fmt: skip
    along_n = tile_order(kernel(64, 64, 1, 2), 64, 256, 1, 4, "m")
    assert places(along_n.tiles) == [(0, 0), (0, 1), (0, 2), (0, 3)]


@pytest.mark.parametrize(
    ("sms", "cluster", "ctas"),
    # 132 = 7 groups of 18 and 6: four per cluster leave 2 of every group idle.
    [(132, 1, 132), (132, 2, 132), (132, 4, 116), (114, 4, 100), (10, 4, 10), (18, 4, 16)],
)
def test_clusters_do_not_cross_groups_of_multiprocessors(sms: int, cluster: int, ctas: int) -> None:
    assert concurrent_ctas(sms, cluster) == ctas


def test_splits_and_batches_come_one_after_another() -> None:
    split = tile_order(kernel(64, 64), 64, 128, 1, 132, splits=3)
    assert split.tiles == tuple(Tile(0, n, part) for part in range(3) for n in range(2))
    assert split.tiles == tile_order(kernel(64, 64), 64, 128, 3, 132).tiles


def test_swapped_operands_swap_rows_and_columns() -> None:
    order = tile_order(kernel(64, 16, swap=True), 20, 200, 1, 132, "n")
    assert (order.rows, order.columns) == (2, 4)
    assert (order.tile_rows, order.tile_columns) == (16, 64)
    # The MMA's N is D's M: "n" walks along rows of D first.
    assert places(order.tiles)[:3] == [(0, 0), (1, 0), (0, 1)]


def test_clc_launches_a_cluster_per_block_of_tiles() -> None:
    order = tile_order(kernel(256, 128, 2, 1, "sm100"), 500, 400, 1, 148, "m")
    assert order.grid == (4, 4, 1)
    # A pair of CTAs has one 2-CTA tile, each half of its rows.
    assert (order.rows, order.tile_rows) == (4, 128)
    assert places(order.tiles)[:6] == [(0, 0), (1, 0), (2, 0), (3, 0), (0, 1), (1, 1)]
    along_n = tile_order(kernel(256, 128, 2, 1, "sm100"), 500, 400, 1, 148, "n")
    assert along_n.grid == (8, 2, 1)
    assert places(along_n.tiles)[:6] == [(0, 0), (1, 0), (0, 1), (1, 1), (0, 2), (1, 2)]


def test_clc_swizzles_whole_bands_only() -> None:
    # Columns of two, four rows: (m / 2 + 2 * (n % 2), m % 2) for the cluster that was (m, n).
    order = tile_order(kernel(128, 64, arch="sm100"), 512, 192, 1, 148, "m", 2)
    assert places(order.tiles)[:8] == [
        (0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1), (3, 0), (3, 1),
    ]  # fmt: skip
    assert places(order.tiles)[8:] == [(m, 2) for m in range(4)]  # no whole band left
    assert order.swizzle == 2


def test_clc_keeps_the_grid_within_its_limits() -> None:
    tall = kernel(128, 128, arch="sm100")
    assert tile_order(tall, 128 * 70_000, 128, 1, 148).raster_order == "m"
    assert tile_order(tall, 128 * 60_000, 128, 1, 148).raster_order == "n"
    # Of clusters that lie along the grid's y, every CTA counts.
    pairs = kernel(128, 128, cn=2, arch="sm100")
    assert tile_order(pairs, 128 * 40_000, 128, 1, 148).raster_order == "m"
    assert tile_order(pairs, 128 * 30_000, 128, 1, 148).raster_order == "n"


def test_two_waves_have_the_bands_of_many() -> None:
    dims = GemmDims(128 * 18, 256 * 14, 4096, 1, 1, 1)
    candidate = evaluate(kernel(128, 256, 2), dims, Target("sm90", 132))
    assert candidate.waves == 2
    assert heuristics.tile_order(candidate, dims, 2) == ("n", heuristics.BAND)


# --- by CUTLASS 4.2: digests of the tiles that its schedulers' code, compiled for the host, gives
# the CTAs: m, n, batch, tile_m, tile_n, cluster_m, cluster_n, SMs, raster order, swizzle ---

STATIC = [
    ((8192, 8192, 1, 128, 256, 2, 1, 132, "n", 8), (2, 66, 1), "64b217847f232621"),
    ((4096, 28672, 1, 128, 256, 2, 1, 132, "heuristic", 1), (132, 1, 1), "3cef7310ae381f92"),
    ((1000, 3264, 3, 128, 128, 2, 1, 132, "m", 4), (132, 1, 1), "0af672a9cbadda9e"),
    ((512, 6144, 1, 64, 128, 1, 1, 114, "heuristic", 16), (114, 1, 1), "7d1a240a22211267"),
    ((129, 777, 2, 64, 16, 4, 1, 132, "n", 2), (4, 29, 1), "add7a9f3ae8efaaa"),
    ((2048, 2304, 1, 256, 128, 1, 2, 132, "heuristic", 8), (66, 2, 1), "44408d1634db95ca"),
    ((3000, 1111, 1, 128, 128, 2, 2, 78, "m", 8), (34, 2, 1), "b24cee4b7b6bf76d"),
    ((100, 100, 1, 64, 64, 1, 1, 7, "heuristic", 8), (1, 4, 1), "3001d4348f77eb58"),
]
DYNAMIC = [
    ((8192, 8192, 1, 256, 256, 2, 1, 148, "n", 8), (64, 32, 1), "a83519b22252d79b"),
    ((4096, 28672, 1, 256, 256, 2, 1, 148, "heuristic", 1), (32, 112, 1), "fd6203566476370a"),
    ((1000, 3264, 3, 256, 128, 2, 1, 148, "m", 4), (8, 26, 3), "a759af4a5e634734"),
    ((512, 6144, 1, 128, 128, 1, 1, 148, "heuristic", 16), (4, 48, 1), "0098434b8c3f0c77"),
    ((3000, 1111, 1, 256, 128, 4, 1, 148, "n", 2), (36, 6, 1), "2b469f6efac6e960"),
    ((2000, 3333, 2, 128, 64, 2, 2, 148, "m", 8), (16, 54, 2), "353bc3266c50f5ca"),
]


def digest(lines: list[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def as_text(tile: Tile) -> str:
    return f"{tile.row},{tile.column},{tile.batch}"


@pytest.mark.parametrize(("case", "grid", "want"), STATIC)
def test_static_assignment_is_that_of_cutlass(case: tuple, grid: tuple, want: str) -> None:
    m, n, batch, tm, tn, cm, cn, sms, raster, swizzle = case
    order = band_order(kernel(tm, tn, cm, cn), m, n, batch, sms, raster, swizzle)
    assert order.grid == grid
    assert digest([" ".join(map(as_text, tiles)) for tiles in order.assignment()]) == want


@pytest.mark.parametrize(("case", "grid", "want"), DYNAMIC)
def test_dynamic_order_is_that_of_cutlass(case: tuple, grid: tuple, want: str) -> None:
    m, n, batch, tm, tn, cm, cn, sms, raster, swizzle = case
    order = tile_order(kernel(tm, tn, cm, cn, "sm100"), m, n, batch, sms, raster, swizzle)
    assert order.grid == grid
    assert digest(list(map(as_text, order.tiles))) == want


# --- properties ---


@given(
    st.integers(1, 1500), st.integers(1, 1500), st.integers(1, 3),
    st.sampled_from([(64, 64, 1, 1), (128, 256, 2, 1), (64, 16, 4, 1), (256, 128, 2, 1)]),
    st.sampled_from(["sm90", "sm100"]), st.booleans(),
    st.sampled_from(["heuristic", "m", "n"]), st.sampled_from([1, 2, 4, 8, 16]),
    st.sampled_from([4, 114, 132, 148]),
)  # fmt: skip
def test_every_tile_of_the_matrix_is_computed_once(
    m: int, n: int, batch: int, tile: tuple, arch: str, swap: bool, raster: str, swizzle: int,
    sms: int,
) -> None:  # fmt: skip
    order = tile_order(kernel(*tile, arch, swap), m, n, batch, sms, raster, swizzle)
    inside = [t for t in order.tiles if order.inside(t)]
    assert len(inside) == len(set(inside)) == order.rows * order.columns * batch
    assert order.rows == -(-m // order.tile_rows)
    assert order.columns == -(-n // order.tile_columns)
    spans = simulate(order, sms)
    assert {s.tile for s in spans} == set(order.tiles)
    by_worker = collections.defaultdict(list)
    for span in spans:
        by_worker[span.worker].append(span)
    for own in by_worker.values():
        for before, after in itertools.pairwise(own):
            assert after.start >= before.end  # one tile at a time
    if not order.dynamic:
        assert sum(map(len, order.assignment())) == len(order.tiles)
        assert order.ctas <= sms


def test_simulation_of_a_dynamic_order_balances_unequal_tiles() -> None:
    order = tile_order(kernel(128, 128, arch="sm100"), 128 * 5, 128, 1, 2)
    spans = simulate(order, 2, [3.0, 1.0, 1.0, 1.0, 1.0])
    assert max(s.end for s in spans) == 4.0
    with pytest.raises(ValueError, match="a dynamic scheduler assigns tiles at run time"):
        order.assignment()


def test_waves_are_what_runs_together() -> None:
    static = tile_order(kernel(64, 64), 640, 64, 1, 4)
    assert [len(wave) for wave in static.waves(4)] == [4, 4, 2]
    dynamic = tile_order(kernel(128, 64, arch="sm100"), 1280, 64, 1, 4)
    assert [len(wave) for wave in dynamic.waves(4)] == [4, 4, 2]


# --- by the emulator: what the kernels really launch and compute ---


def emulated(arch: str, tile_m: int, tile_n: int, cluster_m: int, swap: bool) -> Kernel:
    if runtime.load_emulator() is None:
        pytest.skip("the emulator was not built")
    wanted = (arch, "bfloat16", "bfloat16", "k", "n", tile_m, tile_n, cluster_m, swap)
    for k in runtime.emulated_kernels():
        have = (k.arch, k.in_dtype, k.out_dtype, k.a_major, k.b_major)
        if (*have, k.tile_m, k.tile_n, k.cluster_m, k.swap_ab) == wanted and not k.stream_k:
            return k
    raise AssertionError(f"no kernel {wanted}")


def launched(k: Kernel, m: int, n: int, sms: int, raster: str, swizzle: int) -> Any:
    """Statistics of a launch, and MMA instructions by CTA."""
    from jax_bwgemm import emulator
    from jax_bwgemm.emulator.dense import operand_shapes, run_gemm
    from jax_bwgemm.emulator.trace import ASYNC

    a, b = (np.ones(s, "bfloat16") for s in operand_shapes(k, m, n, k.tile_k, 1))
    with emulator.configure(seed=0, sm_count=sms, trace=True):
        run_gemm(k, a, b, raster_order=raster, swizzle=swizzle)
    trace = emulator.last_trace()
    mma = collections.Counter(
        int(e["cta"])
        for e in trace.events
        if e["kind"] == ASYNC and "mma" in trace.names[e["name"]]
    )
    return emulator.last_launch(), mma


@pytest.mark.emulator
@pytest.mark.parametrize(
    ("tile", "sizes", "sms", "raster", "swizzle"),
    [
        ((64, 128, 1, False), (150, 600), 3, "n", 2),
        ((64, 16, 1, True), (20, 704), 8, "m", 1),
        ((128, 128, 2, False), (300, 504), 4, "heuristic", 1),
        ((128, 128, 2, False), (700, 400), 6, "n", 4),
    ],
)
def test_static_ctas_compute_as_many_tiles_as_the_mirror_says(
    tile: tuple, sizes: tuple, sms: int, raster: str, swizzle: int
) -> None:
    k = emulated("sm90", *tile)
    stats, mma = launched(k, *sizes, sms, raster, swizzle)
    order = tile_order(k, *sizes, 1, sms, raster, swizzle)
    assert stats.grid == order.grid
    tiles = [len(mine) for mine in order.assignment()]
    assert stats.mma_instructions % sum(tiles) == 0
    per_tile = stats.mma_instructions // sum(tiles)
    # CTAs count along x first, the mirror in the order in which it deals out tiles.
    assert sorted(mma.values()) == sorted(n * per_tile for n in tiles)


@pytest.mark.emulator
@pytest.mark.parametrize(
    ("tile", "sizes", "sms", "raster", "swizzle"),
    [
        ((128, 128, 1, False), (300, 504), 3, "n", 2),
        ((256, 256, 2, False), (500, 600), 4, "heuristic", 1),
        ((256, 128, 2, False), (500, 600), 4, "m", 2),
        ((128, 16, 1, True), (20, 700), 4, "heuristic", 4),
    ],
)
def test_clc_launches_and_hands_on_the_clusters_of_the_mirror(
    tile: tuple, sizes: tuple, sms: int, raster: str, swizzle: int
) -> None:
    k = emulated("sm100", *tile)
    m, n = sizes[0], sizes[1] - sizes[1] % 8
    stats, mma = launched(k, m, n, sms, raster, swizzle)
    order: TileOrder = tile_order(k, m, n, 1, sms, raster, swizzle)
    assert stats.grid == order.grid
    clusters = len(order.tiles) // (k.cluster_m * k.cluster_n)
    started = stats.ctas // (k.cluster_m * k.cluster_n)
    assert stats.clusters_cancelled == clusters - started
    pair = 2 if k.schedule == "2sm" else 1
    assert stats.mma_flops == 2 * len(order.tiles) // pair * k.tile_m * k.tile_n * k.tile_k
    assert sum(mma.values()) == stats.mma_instructions
