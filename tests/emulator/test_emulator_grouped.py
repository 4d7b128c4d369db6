"""Every grouped kernel of the table in the emulator, against exact integer results."""

from __future__ import annotations

import itertools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from emulator_cases import requires_emulator
from grouped_cases import (
    GROUPS,
    check,
    column_tile,
    emulated,
    expected,
    families,
    one_per_line,
    problem,
    row_tile,
    rows_of,
    run,
)
from jax import lax
from numerics import assert_exact, small_integers

import jax_bwgemm
from jax_bwgemm import emulator
from jax_bwgemm.config import target
from jax_bwgemm.dense.costs import round_up
from jax_bwgemm.grouped.heuristics import row_step
from jax_bwgemm.product.kernels import Kernel

pytestmark = requires_emulator


def _id(value: object) -> str | None:
    return value.name if isinstance(value, Kernel) else None


every_kernel = pytest.mark.parametrize("kernel", emulated(), ids=_id)
every_line = pytest.mark.parametrize("kernel", one_per_line(), ids=_id)


def test_both_kinds_of_both_architectures_are_tested() -> None:
    kinds = {(k.arch, k.kind, k.swap_ab) for k in emulated() if k.terms == 1}
    both = {("m-grouped", True), ("k-grouped", False)}
    # On sm90 the ragged rows are the MMA's N side, whose width is a multiple of 8. But an operand
    # of f32 is its M side.
    expected = {"sm90": both, "sm100": both | {("m-grouped", False)}}
    archs = {arch for arch, *_ in kinds}
    assert archs
    assert kinds == {(arch, *kind) for arch in archs for kind in expected[arch]}
    f32 = {(k.kind, k.swap_ab) for k in emulated() if k.terms > 1}
    assert f32 == ({*both, ("m-grouped", False), ("k-grouped", True)} if "sm90" in archs else set())


@every_kernel
def test_group_sizes(kernel: Kernel) -> None:
    """All families; types and majors are kernels of their own. N and K end inside of a tile."""
    m, n, k = 2 * row_tile(kernel) + 60, column_tile(kernel) + 72, 136
    for i, (name, sizes) in enumerate(families(kernel, m).items()):
        p = problem(kernel, m, n, k, sizes, seed=i)
        # One pair of multiprocessors has more tiles than accumulators.
        with emulator.configure(sm_count=2, seed=i, races=i % 4 == 0):
            stats = check(kernel, p, name)
        if name == "zeros":
            assert stats.tma_load_bytes == 0, "groups without rows were loaded"
        if kernel.kind == "k-grouped" and kernel.arch == "sm100":
            assert stats.clusters_cancelled > 0, "no cluster took over another's tile"


@every_line
def test_no_mask_of_the_lanes_that_happen_to_be_together(kernel: Kernel) -> None:
    """After a wait, which lanes may leave apart, __activemask() need not be the warp."""
    m = row_tile(kernel) + 4
    p = problem(kernel, m, column_tile(kernel), 64, families(kernel, m)["random"])
    with emulator.configure(sm_count=2):
        check(kernel, p, "random")
    assert "activemask" not in emulator.last_ptx()


@every_kernel
def test_offset(kernel: Kernel) -> None:
    """Any offset, clamped; what lies outside of the experts' groups is NaN and does not count."""
    m = 2 * row_tile(kernel) + 60
    sizes = families(kernel, m)["random"]
    for offset, experts in ((0, 2), (2, 2), (5, 2), (6, 2), (-3, 2), (100, 2)):
        p = problem(kernel, m, 72, 72, sizes, experts=experts, offset=offset)
        want = expected(kernel, p)
        used = range(max(offset, 0), min(max(offset, 0) + experts, GROUPS))
        outside = np.ones(m, bool)
        for group in used:
            outside[rows_of(p, group)] = False
        p.lhs[:, outside] = np.nan
        if kernel.kind == "k-grouped":
            p.rhs[:, outside] = np.nan
        assert_exact(run(kernel, p), want, f"{kernel.name} offset {offset}")


@every_line
def test_groups_do_not_touch_each_other(kernel: Kernel) -> None:
    """A group of NaNs makes NaNs of its own result and of no other."""
    m = row_tile(kernel) + 60
    sizes = np.asarray([7, 0, row_tile(kernel) - 3, 21, 4, 2])
    for group in (0, 2, 3):
        p = problem(kernel, m, 72, 72, sizes)
        want = expected(kernel, p)
        rows = rows_of(p, group)
        p.lhs[:, rows] = np.nan
        if kernel.kind == "k-grouped":
            p.rhs[:, rows] = np.nan
        want[:, rows if kernel.kind == "m-grouped" else group] = np.nan
        out = run(kernel, p)
        assert np.array_equal(out.astype(np.float32), want.astype(np.float32), equal_nan=True)


@every_line
def test_extents(kernel: Kernel) -> None:
    """From less than one tile to K several times around the pipeline."""
    deep = (2 * kernel.stages + 1) * kernel.tile_k + 8
    for m, n, k in ((1, 8, 8), (9, column_tile(kernel), kernel.tile_k), (40, 24, deep)):
        sizes = [0, m // 2, m - m // 2]
        check(kernel, problem(kernel, m, n, k, sizes), f"m={m} n={n} k={k}")
    if kernel.kind == "k-grouped":
        p = problem(kernel, deep, 136, 264, [deep - 70, 65, 5])
        check(kernel, p, "deep groups")


@every_kernel
def test_last_tiles_of_every_width(kernel: Kernel) -> None:
    """A tile is computed as wide as its rows need: around every multiple of 16.

    Of every kernel, since the steps depend on the type of the result.
    """
    steps = range(16, row_tile(kernel) + 1, 16)
    sizes = [size for step in steps for size in (step - 1, step, step + 1)]
    p = problem(kernel, sum(sizes), 72, 72, sizes)
    with emulator.configure(sm_count=2):
        check(kernel, p, "widths")


def test_a_cluster_must_fit_on_the_gpu() -> None:
    kernel = next((k for k in emulated() if k.cluster_m * k.cluster_n == 2), None)
    if kernel is None:
        pytest.skip("the emulator was not built with such a kernel")
    with (
        emulator.configure(sm_count=1),
        pytest.raises(Exception, match="a cluster of 2 CTAs does not fit on a GPU of 1 multip"),
    ):
        check(kernel, problem(kernel, 64, 72, 72, [64]), "one multiprocessor")


@pytest.mark.parametrize(
    "kernel",
    [k for k in emulated() if (k.arch, k.kind, row_tile(k)) == ("sm90", "m-grouped", 192)],
    ids=_id,
)
@pytest.mark.parametrize("order", ["horizontal", "vertical"])
def test_groups_are_divided_evenly_and_come_in_falling_order_of_their_tiles(
    kernel: Kernel, order: str
) -> None:
    """One cluster computes one tile after the other. 32 groups are ordered, then the next 32."""
    step = row_step(kernel)
    first = [20, row_tile(kernel) + 40, 0, 70, 130, *[0] * 27]
    second = [9, row_tile(kernel) + 138]
    sizes = [*first, *second]
    with emulator.configure(sm_count=kernel.cluster_m, trace=True):
        check(kernel, problem(kernel, sum(sizes), 72, 72, sizes), "order", order=order)
    trace = emulator.last_trace()
    assert trace is not None
    mmas = [e for e in trace.events if trace.names[e["name"]].startswith("wgmma.mma_async")]
    names = [trace.names[e["name"]] for e in sorted(mmas, key=lambda e: e["begin"])]
    widths = [int(re.search(r"\.m64n(\d+)k16", name)[1]) for name in names]  # type: ignore[index]
    tiles = [
        *(130, *_even(row_tile(kernel) + 40, 2, step), 70, 20),
        *(*_even(row_tile(kernel) + 138, 2, step), 9),
    ]
    assert list(dict.fromkeys(widths)) == list(dict.fromkeys(round_up(t, step) for t in tiles))


def _even(rows: int, tiles: int, step: int) -> list[int]:
    """Widths of a group's tiles: multiples of `step` that differ by one step at most."""
    steps = -(-rows // step)
    return [(steps // tiles + (i < steps % tiles)) * step for i in range(tiles)]


@every_line
@pytest.mark.parametrize("order", ["horizontal", "vertical"])
@pytest.mark.parametrize("swizzle", [1, 2])
def test_order_and_swizzle(kernel: Kernel, order: str, swizzle: int) -> None:
    """More groups than a warp has lanes, and several tiles in every direction."""
    rng = np.random.default_rng(1)
    sizes = np.where(rng.random(36) < 0.3, 0, rng.integers(0, 9, 36))
    sizes[33] = 2 * row_tile(kernel) + 1
    m = int(sizes.sum()) + 3
    p = problem(kernel, m, 2 * column_tile(kernel) + 8, 72, sizes)
    with emulator.configure(sm_count=6):
        check(kernel, p, f"{order}, swizzle {swizzle}", order=order, swizzle=swizzle)


@every_line
def test_batch(kernel: Kernel) -> None:
    """Operands of the batch, or shared by it: of any three of them every combination."""
    m = row_tile(kernel) + 9
    sizes = np.asarray([[5, row_tile(kernel), 2], [30, 0, 11]])
    for lhs, rhs, groups in itertools.product((False, True), repeat=3):
        offset = lhs ^ rhs ^ groups
        p = problem(
            kernel,
            m,
            40,
            72,
            sizes if groups else sizes[:1],
            experts=2,
            offset=[1, 0] if offset else [1],
            lhs_batch=2 if lhs else 1,
            rhs_batch=2 if rhs else 1,
        )
        check(kernel, p, f"batched: lhs {lhs}, rhs {rhs}, sizes {groups}, offset {offset}")


@every_line
def test_random_problems(kernel: Kernel) -> None:
    rng = np.random.default_rng(2)
    for i in range(4):
        m = int(rng.integers(1, 2 * row_tile(kernel) + 30))
        groups = int(rng.integers(1, 8))
        sizes = rng.integers(-1, 2 * m // groups + 2, groups)
        n, k = (8 * int(v) for v in rng.integers(1, 40, 2))
        experts, offset = int(rng.integers(1, groups + 2)), int(rng.integers(0, groups + 1))
        p = problem(kernel, m, n, k, sizes, experts=experts, offset=offset, seed=i)
        with emulator.configure(sm_count=int(rng.choice([2, 4, 6])), seed=i):
            check(kernel, p, f"m={m} n={n} k={k} sizes={sizes} experts={experts} offset={offset}")


@every_line
def test_seeds_give_identical_results(kernel: Kernel) -> None:
    """Whatever the order in which warps run and copies and MMAs complete."""
    m = 2 * row_tile(kernel) + 60
    sizes = families(kernel, m)["straddling"]
    p = problem(kernel, m, column_tile(kernel) + 8, 200, sizes)
    orders = set()
    for seed in range(4):
        with emulator.configure(seed=seed, sm_count=2):
            orders.add(check(kernel, p, f"seed {seed}").instructions)
    assert len(orders) > 1, "all seeds ran the same schedule"


@pytest.mark.parametrize("kernel", [k for k in one_per_line() if k.arch == "sm100"], ids=_id)
def test_no_row_of_another_group_is_loaded(kernel: Kernel) -> None:
    """Groups much smaller than the tile: SM100 kernels read their rows and nothing around them.

    With swapped operands they do not compute the rest of the tile either.
    """
    m, n, k = 60, 64, 64
    p = problem(kernel, m, n, k, [3, 4, 5])
    stats = check(kernel, p, "small groups")
    matrices = n * (12 if kernel.kind == "k-grouped" else 3 * k)
    assert stats.tma_load_bytes == 2 * (12 * k + matrices)
    if kernel.swap_ab:
        assert stats.mma_flops == 3 * 2 * kernel.tile_m * 16 * kernel.cluster_m * k


@pytest.mark.parametrize("arch", sorted({k.arch for k in emulated()}))
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_ragged_dot_and_gradients(arch: str, dtype: str) -> None:
    """The public function: forward, dX and dW by kernels, chosen for few and for many rows."""
    for m in (24, 700):
        sizes = np.asarray([m // 3, 0, m // 2, 1], np.int32)
        rng = np.random.default_rng(3)
        lhs = jnp.asarray(small_integers(rng, (m, 72), dtype))
        rhs = jnp.asarray(small_integers(rng, (4, 72, 136), dtype))
        cotangent = jnp.asarray(small_integers(rng, (m, 136), dtype))

        def ours(x: jax.Array, w: jax.Array, s: np.ndarray = sizes) -> jax.Array:
            return jax_bwgemm.ragged_dot(x, w, s, implementation="emulator")

        with target(arch):
            out, pullback = jax.vjp(ours, lhs, rhs)
            gradients = pullback(cotangent)
        f32 = [x.astype(jnp.float32) for x in (lhs, rhs, cotangent)]
        want, want_pullback = jax.vjp(lambda x, w, s=sizes: lax.ragged_dot(x, w, s), *f32[:2])
        assert_exact(out, want.astype(dtype), f"{arch} {dtype} m={m}")
        for got, exact in zip(gradients, want_pullback(f32[2]), strict=True):
            assert_exact(got, exact.astype(dtype), f"gradient, {arch} {dtype} m={m}")
