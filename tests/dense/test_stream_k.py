"""The division of work in stream-K launches: the Python mirror, by hand and against CUTLASS."""

from __future__ import annotations

import collections
import hashlib
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jax_bwgemm.dense.stream_k import MIN_STEPS, Plan, plan
from jax_bwgemm.dense.tile_schedule import Tile
from jax_bwgemm.dense.tuning_config import DECOMPOSITIONS
from jax_bwgemm.dense.work_schedule import Part, WorkOrder, simulate, work_order
from jax_bwgemm.product.kernels import Kernel


def kernel(tile_m: int, tile_n: int, cm: int = 1, cn: int = 1, arch: str = "sm90") -> Kernel:
    schedule = "cooperative" if arch == "sm90" else "2sm" if tile_m == 256 else "1sm"
    return Kernel.of_tile(arch, (tile_m, tile_n, 64), (cm, cn), schedule, stream_k=True)


# --- by hand ---


@pytest.mark.parametrize("splits", [2, 3])
def test_every_part_of_a_split_tile_runs_at_once(splits: int) -> None:
    """A part waits for the one before it."""
    work = work_order(kernel(128, 128), 256, 256, 4096, 1, 132, splits=splits)
    assert len(work.units) == work.order.ctas == 4 * splits


def test_five_tiles_on_four_ctas_are_cut_into_four() -> None:
    got = plan(tiles=5, ctas=4, cluster=1, steps=40, rows=1, sm_count=4)
    assert (got.kind, got.shared_tiles, got.shared_units, got.units) == ("stream_k", 5, 4, 4)
    # 200 steps, 50 each; every unit begins with the last of its tiles.
    assert [got.pieces(unit) for unit in range(4)] == [
        [(1, 0, 10), (0, 0, 40)],
        [(2, 0, 20), (1, 10, 40)],
        [(3, 0, 30), (2, 20, 40)],
        [(4, 0, 40), (3, 30, 40)],
    ]


def test_whole_waves_but_one_are_left_whole() -> None:
    got = plan(tiles=4 * 4 + 1, ctas=4, cluster=1, steps=40, rows=1, sm_count=4)
    assert (got.shared_tiles, got.shared_units) == (5, 4)
    assert got.units == 4 + 12
    assert [got.pieces(unit) for unit in (4, 15)] == [[(5, 0, 40)], [(16, 0, 40)]]


@pytest.mark.parametrize(
    ("tiles", "decomposition", "kind"),
    [
        (8, "heuristic", "data_parallel"),  # whole waves
        (8, "stream_k", "data_parallel"),
        (5, "heuristic", "stream_k"),  # a quarter of a wave left over
        (6, "heuristic", "data_parallel"),  # half a wave
        (6, "stream_k", "stream_k"),
        (5, "data_parallel", "data_parallel"),
        (2, "heuristic", "data_parallel"),  # half of the only wave
        (1, "heuristic", "split_k"),  # the CTAs divide the tile evenly
        (1, "stream_k", "stream_k"),
        (5, "split_k", "data_parallel"),  # in one part
    ],
)
def test_last_wave_heuristic(tiles: int, decomposition: str, kind: str) -> None:
    assert plan(tiles, 4, 1, 40, 1, 4, decomposition=decomposition).kind == kind


def test_short_k_is_not_divided() -> None:
    assert plan(1, 4, 1, MIN_STEPS, 1, 4, decomposition="stream_k").kind == "data_parallel"
    got = plan(1, 4, 1, 2 * MIN_STEPS + 1, 1, 4, decomposition="stream_k")
    assert got.shared_units == 2  # not 4: each has 8 steps at least
    assert [got.pieces(unit) for unit in range(2)] == [[(0, 0, 9)], [(0, 9, 17)]]


def test_cuts_near_an_edge_move_to_it() -> None:
    # 3 tiles of 20 steps in 4: cuts at 15, 30 and 45, of which 15 and 45 are 5 from an edge.
    got = plan(3, 4, 1, 20, 1, 4, decomposition="stream_k")
    assert [got.pieces(unit) for unit in range(4)] == [
        [(0, 0, 20)],
        [(1, 0, 10)],
        [(1, 10, 20)],
        [(2, 0, 20)],
    ]


def test_split_k_gives_every_tile_as_many_parts() -> None:
    got = plan(2, 8, 1, 10, 1, 8, splits=3)
    assert (got.kind, got.units) == ("split_k", 6)
    assert [got.pieces(unit)[0] for unit in range(6)] == [
        (0, 0, 4), (1, 0, 4), (0, 4, 7), (1, 4, 7), (0, 7, 10), (1, 7, 10),
    ]  # fmt: skip
    assert plan(2, 8, 1, 10, 1, 8, splits=20).splits == 8  # no more parts than multiprocessors,
    assert plan(2, 8, 1, 3, 1, 8, splits=20).splits == 3  # nor than steps


def test_groups_share_their_own_tiles() -> None:
    got = plan(tiles=10, ctas=8, cluster=1, steps=40, rows=4, sm_count=8)
    assert got.groups == 2  # of 4, 3 and 2, the most that divide 8 units and 10 tiles
    assert got.pieces(0) == [(2, 0, 10), (0, 0, 40)]  # even tiles
    assert got.pieces(1) == [(3, 0, 10), (1, 0, 40)]  # odd tiles


def test_ctas_of_a_cluster_do_the_same_steps() -> None:
    work = work_order(kernel(128, 64, 2, 1), 256, 64 * 5, 64 * 40, 1, 8, "n")
    assert work.plan.kind == "stream_k"
    for left, right in zip(work.units[::2], work.units[1::2], strict=True):
        assert [(p.begin, p.end) for p in left] == [(p.begin, p.end) for p in right]
        assert [(p.tile.row + 1, p.tile.column) for p in left] == [
            (p.tile.row, p.tile.column) for p in right
        ]


def test_units_are_dealt_out_in_turn() -> None:
    work = work_order(kernel(128, 64), 128 * 17, 64, 64 * 40, 1, 4, "n")
    assert work.grid == (1, 4, 1)
    first = work.assignment()[0]
    assert first[0] == Part(Tile(1, 0, 0), 0, 10)
    assert [p.tile.row for p in first] == [1, 0, 5, 9, 13]
    clc = work_order(kernel(128, 64, arch="sm100"), 128 * 17, 64, 64 * 40, 1, 4, "n")
    assert clc.grid == (4, 1, 4)
    assert clc.units == work.units
    with pytest.raises(ValueError, match="a dynamic scheduler assigns units at run time"):
        clc.assignment()


def test_clc_without_shared_tiles_runs_over_the_grid() -> None:
    work = work_order(kernel(128, 64, arch="sm100"), 256, 192, 640, 2, 148, "n", splits=2)
    assert work.grid == (2, 3, 4)
    assert [u[0] for u in work.units[:3]] == [
        Part(Tile(0, 0, 0), 0, 5), Part(Tile(1, 0, 0), 0, 5), Part(Tile(0, 1, 0), 0, 5),
    ]  # fmt: skip
    assert work.units[6][0] == Part(Tile(0, 0, 0), 5, 10)  # all parts of a batch element in turn
    assert work.units[12][0].tile.batch == 1


def test_simulation_shows_why() -> None:
    shape = 128 * 5, 64, 64 * 40, 1, 4
    for arch in ("sm90", "sm100"):
        k = kernel(128, 64, arch=arch)
        shared = simulate(work_order(k, *shape), 4)
        whole = simulate(work_order(k, *shape, decomposition="data_parallel"), 4)
        assert max(s.end for s in shared) == 1.25
        assert max(s.end for s in whole) == 2.0
        assert {s.steps for s in whole} == {(0, 40)}


# --- by CUTLASS 4.2: digests of what its scheduler's code, compiled for the host, gives the CTAs.
# tools/compare_tile_schedule.py compares any number of random problems. Without splits on SM90,
# where every part has a CTA of its own.
# m, n, k, batch, SMs, raster order, swizzle, splits, decomposition ---

OF_CUTLASS = [
    ("sm90", (128, 256, 2, 1), (1024, 3264, 4096, 1, 132, "heuristic", 1, 1, "stream_k")),
    ("sm90", (128, 256, 2, 1), (8192, 4352, 4096, 1, 132, "n", 1, 1, "heuristic")),
    ("sm90", (128, 128, 2, 1), (1024, 768, 8192, 1, 132, "heuristic", 2, 1, "heuristic")),
    ("sm90", (128, 128, 2, 1), (384, 384, 16384, 1, 132, "m", 1, 1, "heuristic")),
    ("sm90", (128, 128, 2, 2), (1000, 3000, 3000, 3, 114, "m", 4, 1, "stream_k")),
    ("sm100", (256, 128, 2, 1), (1024, 3264, 4096, 1, 148, "heuristic", 1, 1, "stream_k")),
    ("sm100", (256, 128, 2, 1), (4096, 1664, 8192, 1, 148, "n", 8, 1, "heuristic")),
    ("sm100", (256, 128, 2, 1), (500, 500, 5000, 2, 148, "heuristic", 1, 3, "heuristic")),
    ("sm100", (128, 128, 2, 2), (2000, 3333, 1000, 1, 148, "m", 4, 1, "stream_k")),
]
DIGESTS = [
    "ac71df993fc4bf44",
    "ef35546b1b68d51a",
    "07d6792dda71a8fa",
    "347e28aa0a1e7b45",
    "398266ceef967002",
    "ba197412911104ba",
    "172a614b710da5ad",
    "d2de81dcadf5372d",
    "e30b22e9fca93aa2",
]


def digest(work: WorkOrder) -> str:
    ctas = work.units if work.order.dynamic else work.assignment()
    lines = [
        " ".join(
            f"{p.tile.row},{p.tile.column},{p.tile.batch},{p.begin},{p.end}" for p in parts
        ).strip()
        for parts in ctas
    ]
    text = f"{work.grid}\n" + "\n".join(lines)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@pytest.mark.parametrize(("index", "case"), list(enumerate(OF_CUTLASS)))
def test_assignment_is_that_of_cutlass(index: int, case: tuple) -> None:
    arch, tile, run = case
    assert digest(work_order(kernel(*tile, arch), *run)) == DIGESTS[index]


# --- properties ---


def check_cover(got: Plan) -> None:
    """Every step of every tile once, in pieces whose order along K is that of the units."""
    by_tile = collections.defaultdict(list)
    for unit in range(got.units):
        for tile, begin, end in got.pieces(unit):
            by_tile[tile].append((begin, end, unit))
    assert sorted(by_tile) == list(range(got.tiles))
    for pieces in by_tile.values():
        pieces.sort()
        assert pieces[0][0] == 0
        assert pieces[-1][1] == got.steps
        for before, after in itertools.pairwise(pieces):
            assert before[1] == after[0]
            # A CTA waits for the piece before: it must belong to a unit that started earlier.
            assert before[2] < after[2]
        if got.kind == "stream_k" and len(pieces) > 1:
            assert min(end - begin for begin, end, _ in pieces) >= MIN_STEPS


@given(
    st.integers(1, 200), st.integers(1, 40), st.sampled_from([1, 2, 4]), st.integers(1, 70),
    st.integers(1, 12), st.sampled_from(DECOMPOSITIONS),
)  # fmt: skip
def test_every_step_of_every_tile_is_computed_once(
    tiles: int, ctas: int, cluster: int, steps: int, rows: int, decomposition: str
) -> None:
    check_cover(
        plan(
            tiles * cluster, ctas * cluster, cluster, steps, rows, ctas * cluster,
            decomposition=decomposition,
        )
    )  # fmt: skip


@given(st.integers(1, 50), st.integers(1, 200), st.integers(2, 64), st.integers(1, 132))
def test_every_step_is_computed_once_when_k_is_split(
    tiles: int, steps: int, splits: int, sm_count: int
) -> None:
    check_cover(plan(tiles, sm_count, 1, steps, 1, sm_count, splits, "split_k"))


@given(
    st.integers(1, 1500), st.integers(1, 1500), st.integers(1, 4000), st.integers(1, 3),
    st.sampled_from(
        [("sm90", 128, 256, 2, 1), ("sm90", 128, 128, 2, 2), ("sm100", 256, 128, 2, 1)]
    ),
    st.sampled_from(["heuristic", "m", "n"]), st.sampled_from([1, 4, 8]),
    st.sampled_from([8, 132, 148]), st.sampled_from(DECOMPOSITIONS),
)  # fmt: skip
def test_every_tile_of_the_matrix_is_there(
    m: int, n: int, k: int, batch: int, tile: tuple, raster: str, swizzle: int, sms: int, mode: str
) -> None:
    arch, *sizes = tile
    work = work_order(kernel(*sizes, arch), m, n, k, batch, sms, raster, swizzle, 1, mode)
    check_cover(work.plan)
    steps = collections.Counter()
    for unit in work.units:
        for part in unit:
            steps[part.tile] += part.end - part.begin
    inside = {t for t in steps if work.order.inside(t)}
    assert len(inside) == work.order.rows * work.order.columns * batch
    assert set(steps.values()) == {-(-k // 64)}
    spans = simulate(work, sms)
    assert len(spans) == sum(map(len, work.units))
    # No later than whole tiles would be.
    whole = simulate(
        work_order(kernel(*sizes, arch), m, n, k, batch, sms, raster, swizzle, 1, "data_parallel"),
        sms,
    )
    if work.plan.kind == "stream_k":
        assert max(s.end for s in spans) < max(s.end for s in whole) + 1e-9
