"""Cluster-K kernels: how K is divided, what selection expects of them, and their results."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest
from emulator_cases import Problem, emulated, expected, operands
from kernel_table import described_kernels
from numerics import assert_exact, normal, small_integers

from jax_bwgemm import emulator, runtime
from jax_bwgemm.config import Target
from jax_bwgemm.dense import cluster_k, costs, heuristics
from jax_bwgemm.dense.spec import GemmDims
from jax_bwgemm.dense.tile_schedule import tile_order
from jax_bwgemm.emulator.dense import operand_shapes, run_gemm
from jax_bwgemm.product.kernels import Kernel

KERNELS = tuple(k for k in emulated("sm90") if k.cluster_k)


def kernel() -> Kernel:
    return next(k for k in described_kernels() if k.cluster_k)


def dims(m: int, n: int, k: int, batch: int = 1) -> GemmDims:
    return GemmDims(m=m, n=n, k=k, batch=batch, a_batch=batch, b_batch=batch)


# --- how K is divided ---


@pytest.mark.parametrize(
    ("splits", "parts"),
    [(1, (1, 1)), (3, (3, 1)), (8, (8, 1)), (9, (3, 3)), (11, (1, 11)), (16, (8, 2))],
)
def test_a_cluster_takes_the_largest_divisor_of_the_splits(
    splits: int, parts: tuple[int, int]
) -> None:
    assert cluster_k.parts(splits) == parts


def test_parts_of_a_tile_are_neighbours_and_rows_come_first() -> None:
    order = tile_order(kernel(), 100, 150, 1, 132, splits=3)
    assert order.grid == (18, 1, 1)
    assert (order.rows, order.columns) == (2, 3)
    assert [(t.row, t.column, t.batch) for t in order.tiles[:7]] == [
        (0, 0, 0), (0, 0, 1), (0, 0, 2), (1, 0, 0), (1, 0, 1), (1, 0, 2), (0, 1, 0),
    ]  # fmt: skip
    assert all(len(tiles) == 1 for tiles in order.assignment())


# --- selection ---


def test_parts_are_worth_comparing_while_all_ctas_run_at_once() -> None:
    assert cluster_k.worthwhile_splits(kernel(), 4096, 64, 132) == [1, 2, 3]
    assert cluster_k.worthwhile_splits(kernel(), 4096, 96, 132) == [1, 2]
    assert cluster_k.worthwhile_splits(kernel(), 4096, 448, 132) == [1]
    assert cluster_k.worthwhile_splits(kernel(), 4096, 8, 132) == [1, 2, 3, 4, 5, 6, 7, 8]
    assert cluster_k.worthwhile_splits(kernel(), 768, 8, 132) == [1, 2, 3]
    assert cluster_k.worthwhile_splits(kernel(), 256, 8, 132) == [1]


def test_few_tiles_of_a_long_k_have_many_parts() -> None:
    """16 x 512 x 4096 on an H200: 8 parts 4.4 us, 3 parts 5.6."""
    target, few = Target("sm90", 132), dims(16, 512, 4096)
    three, eight = (costs.evaluate(kernel(), few, target, s) for s in (3, 8))
    assert eight.cycles < 0.85 * three.cycles


def test_only_the_rows_that_there_are_cost() -> None:
    """A K-major operand loads no others; the parts of no others are exchanged."""
    target, m_major = Target("sm90", 132), dataclasses.replace(kernel(), a_major="m")

    def cycles(k: Kernel, m: int) -> float:
        return costs.evaluate(k, dims(m, 4096, 4096), target, 2).cycles

    assert cycles(kernel(), 1) < cycles(m_major, 1) < cycles(m_major, 64)


def test_the_inner_parts_need_neither_divisibility_nor_a_single_batch() -> None:
    assert heuristics.run_refusal(kernel(), dims(64, 64, 100, 3), 7, "heuristic", 2) is None
    assert heuristics.run_refusal(kernel(), dims(64, 64, 100, 3), 9, "heuristic", 2) == (
        "a batch of 3 cannot be split along K"
    )
    assert heuristics.run_refusal(kernel(), dims(64, 64, 100), 16, "heuristic", 2) == (
        "K=100 is not a multiple of 16"
    )


def test_two_parts_are_predicted_to_pay_where_tiles_are_few() -> None:
    target = Target("sm90", 132)
    one, two = (costs.evaluate(kernel(), dims(64, 1024, 4096), target, s) for s in (1, 2))
    assert two.cycles < one.cycles
    # All multiprocessors have a tile as it is.
    one, two = (costs.evaluate(kernel(), dims(64, 8192, 4096), target, s) for s in (1, 2))
    assert one.cycles < two.cycles
    # Sixteen parts need a second kernel.
    long = dims(64, 512, 8192)
    eight, sixteen = (costs.evaluate(kernel(), long, target, s) for s in (8, 16))
    assert eight.cycles < sixteen.cycles


# --- results ---


@pytest.mark.emulator
@pytest.mark.skipif(not KERNELS, reason="no cluster-K kernel to emulate")
class TestEmulated:
    @pytest.mark.parametrize("splits", [1, 2, 3, 5, 7, 8, 9, 16])
    @pytest.mark.parametrize("k", KERNELS, ids=lambda k: k.name)
    def test_any_number_of_parts(self, k: Kernel, splits: int) -> None:
        """Some parts have no K block at all; the tile has edges both ways."""
        rng = np.random.default_rng(splits)
        depth = 144 * 3 if splits in (9, 16) else 4 * 64 + 8
        a, b = (
            small_integers(rng, shape, k.in_dtype)
            for shape in operand_shapes(k, k.tile_n + 16, k.tile_m + 24, depth, 1)
        )
        with emulator.configure(sm_count=8, seed=splits):
            got = run_gemm(k, a, b, splits=splits)
        assert_exact(got, expected(k, a, b))

    @pytest.mark.parametrize("k", KERNELS[:4], ids=lambda k: k.name)
    def test_a_batch_shares_an_operand(self, k: Kernel) -> None:
        rng = np.random.default_rng(0)
        lhs, rhs = operand_shapes(k, 24, 136, 200, 3)
        a = small_integers(rng, lhs, k.in_dtype)
        b = small_integers(rng, (1, *rhs[1:]), k.in_dtype)
        with emulator.configure(sm_count=8):
            got = run_gemm(k, a, b, splits=3)
        assert_exact(got, expected(k, a, b))

    def test_the_same_bits_in_every_order_of_execution(self) -> None:
        k = KERNELS[0]
        rng = np.random.default_rng(0)
        a, b = (normal(rng, shape, k.in_dtype) for shape in operand_shapes(k, 64, 128, 1024, 1))
        results = []
        for seed in range(4):
            with emulator.configure(sm_count=8, seed=seed):
                results.append(run_gemm(k, a, b, splits=6))
        for other in results[1:]:
            np.testing.assert_array_equal(
                np.asarray(jnp.asarray(other, jnp.float32)),
                np.asarray(jnp.asarray(results[0], jnp.float32)),
            )

    @pytest.mark.parametrize("k", KERNELS, ids=lambda k: k.name)
    def test_workspace_holds_what_clusters_leave_apart(self, k: Kernel) -> None:
        """One tile: its f32 result for every launch's worth of parts, none if there is one."""
        for splits in range(1, 65):
            apart = cluster_k.parts(splits)[1]
            got = runtime.emulated_workspace_bytes(k.name, 64, 64, 512 * splits, 1, splits, 132)
            assert got == (64 * 64 * 4 * apart if apart > 1 else 0), splits

    @pytest.mark.parametrize(
        ("problem", "splits"), [(Problem(24, 200, 640, 2), 3), (Problem(104, 152, 432), 7)], ids=str
    )
    def test_the_launch_is_the_mirrors(self, problem: Problem, splits: int) -> None:
        k, sizes = KERNELS[0], (problem.m, problem.n, problem.batch)
        with emulator.configure(sm_count=8):  # more than 8 parts: the last launch adds them
            run_gemm(k, *operands(k, problem), splits=splits)
        stats = emulator.last_launch()
        assert stats is not None
        assert stats.grid == tile_order(k, *sizes, 8, splits=splits).grid

    @pytest.mark.parametrize(
        ("tiles", "splits", "together"),
        [
            *[(14, 8, 1), (15, 8, 2), (28, 4, 1), (30, 4, 2), (35, 3, 1), (40, 3, 2)],
            *[(66, 2, 1), (67, 2, 2), (132, 1, 1), (133, 1, 2)],
        ],
    )
    def test_clusters_that_find_no_place_share_multiprocessors(
        self, tiles: int, splits: int, together: int
    ) -> None:
        """A cluster of 8 takes half of a GPC, so that 132 multiprocessors may hold only 14.

        A kernel with less shared memory lets two of them run on the same multiprocessors at once.
        """
        k = KERNELS[0]
        with emulator.configure(sm_count=132):
            run_gemm(k, *operands(k, Problem(8, 64 * tiles, 64)), splits=splits)
        stats = emulator.last_launch()
        assert stats is not None
        of_multiprocessor = 228 * 1024
        reserved = 1024
        assert (stats.dynamic_shared_bytes + reserved) * together <= of_multiprocessor
        assert (stats.dynamic_shared_bytes + reserved) * (together + 1) > of_multiprocessor

    def test_a_cluster_that_does_not_fit(self) -> None:
        """Three CTAs fit on a multiprocessor."""
        k = KERNELS[0]
        with (
            emulator.configure(sm_count=2),
            pytest.raises(Exception, match="a cluster of 8 CTAs does not fit on a GPU of 2 multip"),
        ):
            run_gemm(k, *operands(k, Problem(24, 200, 640)), splits=8)

    @pytest.mark.parametrize("batch", [1, 2**31 - 1])
    def test_more_tiles_than_a_grid_can_have(self, batch: int) -> None:
        most = 2**31 - 8
        with pytest.raises(ValueError, match=r"has more than 2\^31 - 1 tiles times parts of K"):
            runtime.emulated_workspace_bytes(KERNELS[0].name, most, most, 64, batch, 2, 132)
