"""Selection of grouped kernels: pure, over the table of this build."""

from __future__ import annotations

import dataclasses
import random
from typing import Any

import pytest

import jax_bwgemm as bw
from jax_bwgemm import runtime
from jax_bwgemm.config import make_target
from jax_bwgemm.grouped import heuristics
from jax_bwgemm.grouped.selection import select_by_heuristic
from jax_bwgemm.grouped.spec import GroupedDims, GroupedSpec
from jax_bwgemm.product.spec import Policy

ARCHS = ["sm90", "sm100"]


def choose(dims: GroupedDims, arch: str, spec: GroupedSpec | None = None) -> Any:
    spec = spec or GroupedSpec()
    table = runtime.grouped_kernels()
    return select_by_heuristic(spec, "bfloat16", dims, make_target(arch), table)


def row_extent(kernel: Any) -> int:
    return kernel.tile_n if kernel.swap_ab else kernel.tile_m


def extents(arch: str) -> list[int]:
    """Rows that the tiles of 16-bit operands have, in order."""
    table = [k for k in runtime.grouped_kernels() if k.terms == 1]
    return sorted({row_extent(k) for k in table if (k.arch, k.kind) == (arch, "m-grouped")})


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize(
    "shape",
    [(8192, 14336, 4096, 8), (8192, 4096, 14336, 8), (32768, 4096, 7168, 4)],
    ids=str,
)
def test_large_groups_have_a_large_tile(arch: str, shape: Any) -> None:
    """The largest, and a pair of CTAs."""
    m, n, k, groups = shape
    selected = choose(GroupedDims(m, n, k, groups, groups), arch)
    assert row_extent(selected.kernel) == extents(arch)[-1], selected.reason
    assert selected.kernel.cluster_m == 2


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("m", [64, 256])
def test_groups_of_a_few_rows_have_the_smallest_tile(arch: str, m: int) -> None:
    selected = choose(GroupedDims(m, 2048, 7168, 64, 64), arch)
    assert row_extent(selected.kernel) == extents(arch)[0], selected.reason
    assert selected.kernel.swap_ab


@pytest.mark.parametrize("arch", ARCHS)
def test_groups_in_between_have_a_tile_in_between(arch: str) -> None:
    """SM90 has none in between: its MMAs are only as wide as a tile has rows."""
    selected = choose(GroupedDims(4096, 2048, 7168, 64, 64), arch)
    assert extents(arch)[0] < row_extent(selected.kernel), selected.reason
    assert arch == "sm90" or row_extent(selected.kernel) < extents(arch)[-1], selected.reason


def test_columns_that_fill_no_pair_of_tiles_have_tiles_without_a_cluster() -> None:
    """11 tiles of 128 columns are 12 in pairs."""
    assert choose(GroupedDims(16384, 1408, 2048, 64, 64), "sm90").kernel.cluster_m == 1
    assert choose(GroupedDims(16384, 1536, 2048, 64, 64), "sm90").kernel.cluster_m == 2


@pytest.mark.parametrize("arch", ARCHS)
def test_representative_sizes_override_the_mean(arch: str) -> None:
    """63 empty groups and one with all rows are one large matrix, not 64 small ones."""
    dims = GroupedDims(256, 4096, 4096, 64, 64)
    one_hot = GroupedSpec(representative=(1.0, *[0.0] * 63))
    one, many = choose(dims, arch, one_hot).kernel, choose(dims, arch).kernel
    assert row_extent(one) > row_extent(many) == extents(arch)[0]
    assert "4 rows per group expected" in choose(dims, arch, one_hot).reason
    assert "4 rows per group assumed" in choose(dims, arch).reason


def test_experts_of_one_device_are_a_part_of_the_groups() -> None:
    """Expert parallel: a device with two of eight matrices works on about a quarter of the rows."""
    part = GroupedDims(8000, 4096, 4096, 2, 8)
    assert heuristics.expected_sizes(GroupedSpec(), part) == (1000, 1000)
    spec = GroupedSpec(representative=(0.5, 0, 0, 0.25, 0.125, 0.125, 0, 0))
    assert heuristics.expected_sizes(spec, part) == (0, 2000)


@pytest.mark.parametrize("arch", ARCHS)
def test_every_kind_major_and_type_has_a_kernel(arch: str) -> None:
    dims = GroupedDims(4096, 1024, 1024, 8, 8)
    for kind, major in (("m-grouped", "n"), ("m-grouped", "k"), ("k-grouped", "n")):
        for in_dtype in ("bfloat16", "float16"):
            for out_dtype in (in_dtype, "float32"):
                spec = GroupedSpec(
                    kind, major, 8 if kind == "k-grouped" else 0, out_dtype=out_dtype
                )
                target = make_target(arch)
                got = select_by_heuristic(spec, in_dtype, dims, target, runtime.grouped_kernels())
                kernel = got.kernel
                assert (kernel.kind, kernel.b_major, kernel.arch) == (kind, major, arch)
                assert (kernel.in_dtype, kernel.out_dtype) == (in_dtype, out_dtype)
                assert len(got.rejected) == len(runtime.grouped_kernels()) - 1


@pytest.mark.parametrize("types", ["float32 x bfloat16", "bfloat16 x float32"])
def test_an_f32_operand_has_a_kernel_on_sm90_at_twice_the_mmas(types: str) -> None:
    dims, table = GroupedDims(32768, 4096, 7168, 8, 8), runtime.grouped_kernels()
    for kind, major in (("m-grouped", "n"), ("m-grouped", "k"), ("k-grouped", "n")):
        for out_dtype in ("bfloat16", "float32"):
            spec = GroupedSpec(kind, major, 8 if kind == "k-grouped" else 0, out_dtype=out_dtype)
            got = select_by_heuristic(spec, types, dims, make_target("sm90"), table)
            plain = select_by_heuristic(spec, "bfloat16", dims, make_target("sm90"), table)
            assert (got.kernel.kind, got.kernel.b_major, got.kernel.terms) == (kind, major, 2)
            assert (got.kernel.in_dtype, got.kernel.out_dtype) == (types, out_dtype)
            ratio = (
                heuristics.evaluate(got.kernel, spec, dims, make_target("sm90")).cycles
                / heuristics.evaluate(plain.kernel, spec, dims, make_target("sm90")).cycles
            )
            assert ratio > 1.5
    reason = select_by_heuristic(GroupedSpec(), types, dims, make_target("sm100"), table)
    assert reason.startswith("no kernel for sm100 fits")


def test_the_order_of_the_table_does_not_matter() -> None:
    dims, table = GroupedDims(4096, 2048, 7168, 64, 64), list(runtime.grouped_kernels())
    first = choose(dims, "sm90").kernel
    for seed in range(5):
        random.Random(seed).shuffle(table)
        target = make_target("sm90")
        assert select_by_heuristic(GroupedSpec(), "bfloat16", dims, target, table).kernel == first


def test_at_equal_cost_operands_are_swapped() -> None:
    same = [k for k in runtime.grouped_kernels() if "sm100_grouped_rows_bf16_bf16_kn_" in k.name]
    pair = [k for k in same if (k.tile_m, k.tile_n) == (256, 256)]
    assert {k.swap_ab for k in pair} == {False, True}
    for table in (pair, pair[::-1]):
        dims, target = GroupedDims(8192, 4096, 4096, 8, 8), make_target("sm100")
        assert select_by_heuristic(GroupedSpec(), "bfloat16", dims, target, table).kernel.swap_ab


def test_configuration_decides_within_the_table() -> None:
    dims = GroupedDims(8192, 4096, 4096, 8, 8)
    name = next(k.name for k in runtime.grouped_kernels() if "sm100_grouped_rows_bf16" in k.name)
    spec = GroupedSpec(
        policy=Policy(config=bw.GroupedConfig(kernel=name, raster_order="m", swizzle=5))
    )
    selected = choose(dims, "sm100", spec)
    assert (selected.kernel.name, selected.raster_order, selected.swizzle) == (name, "m", 5)
    assert selected.reason.startswith(f"chosen by GroupedConfig(kernel='{name}', ")
    some = GroupedSpec(policy=Policy(config=bw.GroupedConfig(swap_ab=True)))
    assert choose(dims, "sm100", some).reason.startswith("chosen by the heuristic within Grouped")


def test_reasons_when_nothing_fits() -> None:
    dims = GroupedDims(64, 64, 64, 8, 8)
    assert select_by_heuristic(GroupedSpec(), "bfloat16", dims, make_target("sm90"), ()) == (
        "no kernel for sm90 fits (no kernels)"
    )
    one = runtime.grouped_kernels()[:1]
    got = select_by_heuristic(GroupedSpec(), "bfloat16", dims, make_target("sm100"), one)
    assert got == "no kernel for sm100 fits (all are for sm90)"
    named = GroupedSpec(policy=Policy(config=bw.GroupedConfig(kernel=one[0].name)))
    got = select_by_heuristic(named, "bfloat16", dims, make_target("sm100"), one)
    assert got == f"no kernel for sm100 fits ({one[0].name}: for sm90)"
    huge = GroupedDims(2**31 - 8, 2**31 - 8, 64, 8, 8)
    spec = GroupedSpec(policy=Policy(config=bw.GroupedConfig(swap_ab=True)))
    assert "tiles are more than 1073741824" in choose(huge, "sm90", spec)


def test_small_operands_need_no_bands() -> None:
    assert choose(GroupedDims(512, 512, 512, 4, 4), "sm90").swizzle == 1
    large = GroupedDims(8192, 4096, 4096, 8, 8)
    assert choose(large, "sm90").swizzle == heuristics.SWIZZLE_SM90_ROWS
    contract = GroupedSpec("k-grouped", experts=8)
    assert choose(large, "sm90", contract).swizzle == heuristics.SWIZZLE
    assert choose(large, "sm100").swizzle == heuristics.SWIZZLE
    of_f32 = next(k for k in runtime.grouped_kernels() if (k.kind, k.terms) == ("m-grouped", 2))
    assert heuristics.swizzle_of(of_f32, large) == heuristics.SWIZZLE_F32_ROWS


def test_padding() -> None:
    dims = GroupedDims(100, 33, 50, 4, 4)
    padded = heuristics.aligned_dims(dims, 2, 2)
    assert (padded.m, padded.n, padded.k) == (100, 40, 56)
    assert heuristics.padding_refusal(dims, dims) is None
    assert heuristics.padding_refusal(dims, padded).endswith("when M, N or K is below 512")
    large = GroupedDims(1000, 1001, 1002, 4, 4)
    assert heuristics.padding_refusal(large, heuristics.aligned_dims(large, 2, 4)) is None


@pytest.mark.parametrize("m", [1, 100, 4096])
def test_predictions_are_positive_and_grow_with_the_work(m: int) -> None:
    spec, target = GroupedSpec(), make_target("sm90")
    for kernel in runtime.grouped_kernels():
        if kernel.arch != "sm90":
            continue
        here = dataclasses.replace(spec, kind=kernel.kind)
        small, large = (
            heuristics.evaluate(kernel, here, GroupedDims(rows, 512, 512, 8, 8), target).cycles
            for rows in (m, 16 * m)
        )
        assert 0 < small <= large


def test_clusters_are_launched_whole() -> None:
    """Two CTAs side by side along N: three tiles of columns take four."""
    spec, dims = GroupedSpec(representative=(1.0,)), GroupedDims(256, 3 * 128, 512, 1, 1)
    for kernel in runtime.grouped_kernels():
        if kernel.arch != "sm90" or kernel.kind != "m-grouped" or not kernel.swap_ab:
            continue
        tiles = heuristics.evaluate(kernel, spec, dims, make_target("sm90")).tiles
        columns = 4 if kernel.cluster_m == 2 else 3
        assert tiles == heuristics.ceil_div(256, kernel.tile_n) * columns


def test_a_tile_without_a_cost_is_ranked_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """A line added to the list needs nothing else."""
    monkeypatch.setattr(heuristics, "COSTS", {})
    assert choose(GroupedDims(8192, 4096, 4096, 8, 8), "sm100").kernel.arch == "sm100"


def test_every_group_may_have_a_tile_of_its_own() -> None:
    """32 groups of a row are 32 rows of tiles: a count of tiles must not be less."""
    for kernel in runtime.grouped_kernels():
        if kernel.kind == "m-grouped":
            columns = heuristics.tile_extents(kernel)[1]
            dims = GroupedDims(32, columns, 64, 32, 32)
            assert heuristics.most_tiles(kernel, dims) >= 32
            many = dataclasses.replace(dims, n=columns * 2**10, groups=2**20)
            assert "tiles are more than" in str(heuristics.tiles_refusal(kernel, many))


@pytest.mark.parametrize(("in_bytes", "out_bytes", "n"), [(2, 4, 24), (4, 2, 24), (4, 4, 20)])
def test_rows_of_operands_and_results_are_aligned(in_bytes: int, out_bytes: int, n: int) -> None:
    padded = heuristics.aligned_dims(GroupedDims(8, 18, 18, 2, 2), in_bytes, out_bytes)
    assert (padded.m, padded.n, padded.k) == (8, n, n)


def test_a_cluster_along_the_columns_reads_rows_once() -> None:
    swapped = next(k for k in runtime.grouped_kernels() if k.swap_ab and k.cluster_m == 2)
    dims = GroupedDims(4096, 8 * swapped.tile_m, 4096, 8, 8)
    sizes, kernels = (512.0,) * 8, (swapped, dataclasses.replace(swapped, cluster_m=1))
    # Without rows of tiles that read weights again, what is left is the readers of lhs.
    together, apart = (heuristics._rereads(k, dims, sizes, 8.0) for k in kernels)
    assert together * 7 == pytest.approx(apart * 3)
