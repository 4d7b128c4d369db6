"""What autotuning tries for a problem: kernels, parts of K and tile orders."""

from __future__ import annotations

from typing import Any

import pytest
from tuning_fakes import SM90, array, key, own_cache, table_for  # noqa: F401

import jax_bwgemm as bw
from jax_bwgemm import runtime
from jax_bwgemm.config import Target, make_target
from jax_bwgemm.dense import heuristics, search_space
from jax_bwgemm.dense.tuned import dims_of, spec_of
from jax_bwgemm.tuning.keys import DenseKey
from jax_bwgemm.tuning.records import Choice
from jax_bwgemm.tuning.work import work_of


@pytest.mark.parametrize("sizes", [(8192, 8192, 8192), (16, 6144, 4096), (384, 384, 16384)])
@pytest.mark.parametrize("arch", ["sm90", "sm100"])
def test_the_heuristics_choice_comes_first_and_nothing_twice(sizes: Any, arch: str) -> None:
    target, problem = make_target(arch), key(*sizes)
    choices = search_space.kernels_to_try(problem, runtime.kernels(), target, 12)
    with bw.config.target(arch):
        want = bw.explain(array(sizes[0], sizes[2]), array(sizes[2], sizes[1]), device=arch)
    assert choices[0].kernel.name == want.kernel
    assert (choices[0].raster_order, choices[0].swizzle) == (want.raster_order, want.swizzle)
    assert 1 < len(choices) <= 12
    assert len({(c.kernel, c.splits, c.decomposition) for c in choices}) == len(choices)
    fits = heuristics.rank(runtime.kernels(), spec_of(problem), "bfloat16",
                           dims_of(problem), target)[0]  # fmt: skip
    assert {c.kernel for c in choices} <= {c.kernel for c in fits}


def test_orders_differ_from_each_other_and_from_what_is_known() -> None:
    wide = next(k for k in table_for(SM90) if (k.tile_m, k.tile_n) == (128, 256))
    known = [Choice(wide, "heuristic", 1)]
    large = search_space.orders_to_try(known[0], key(8192, 8192, 8192), SM90, known)
    assert {(c.raster_order, c.swizzle) for c in large} >= {("n", 8), ("m", 8), ("m", 1)}
    assert ("n", 1) not in {(c.raster_order, c.swizzle) for c in large}  # what the default is
    # One row of tiles has few orders, whatever the swizzle.
    narrow = search_space.orders_to_try(known[0], key(128, 4096, 4096), SM90, known)
    assert len(narrow) < 8


@pytest.mark.parametrize("arch", ["sm90", "sm100"])
def test_millions_of_tiles_are_not_listed(arch: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Orders with other names then count as others."""
    target, problem = make_target(arch), key(2**31 - 1, 64, 64)
    for name in ("tile_order", "work_order"):
        monkeypatch.setattr(search_space, name, lambda *_: pytest.fail("tiles are listed"))
    choices = search_space.kernels_to_try(problem, runtime.kernels(), target, 12)
    for choice in choices:
        orders = search_space.orders_to_try(choice, problem, target, choices)
        named = {(c.raster_order, c.swizzle) for c in orders}
        assert named == {*search_space.ORDERS} - {(choice.raster_order, choice.swizzle)}


@pytest.mark.parametrize("arch", ["sm90", "sm100"])
def test_stream_k_of_millions_of_tiles_is_not_tried_beside_its_twin(arch: str) -> None:
    """It would compute whole tiles, as the twin does."""
    target, problem = make_target(arch), key(2**31 - 1, 64, 64)
    table = table_for(target)
    names = {k.name for k in table}
    for kernel in (k for k in table if k.stream_k):
        ways = search_space._decompositions(kernel, problem, table, target)
        twin = kernel.name.removesuffix("_streamk")
        assert [way.kernel for way in ways] == ([] if twin in names else [kernel])


@pytest.mark.parametrize("in_dtype", ["float32x3", "float32x6", "float32highest"])
@pytest.mark.parametrize("target", [SM90, make_target("sm100")], ids=lambda target: target.arch)
def test_products_of_f32_are_tried_on_f32_operands(in_dtype: str, target: Target) -> None:
    problem = DenseKey(in_dtype, "float32", "kn", 1024, 1024, 1024)
    work = work_of(problem, target)
    assert work.bytes == 2 * 4 * 1024**2
    if any(k.splits_both for k in table_for(target)):
        assert all(c.kernel.splits_both for c in work.kernels_to_try(12))


def test_a_cluster_k_kernel_has_no_other_order() -> None:
    shared = Choice(next(k for k in table_for(SM90) if k.cluster_k), "heuristic", 1)
    for known in ([shared], []):
        assert search_space.orders_to_try(shared, key(64, 4096, 4096), SM90, known) == []


def test_a_problem_without_kernels_is_an_error() -> None:
    with pytest.raises(ValueError, match="no kernel for sm90 fits"):
        search_space.kernels_to_try(key(8, 8, 8), [], SM90, 12)


def test_splits_are_tried_where_tiles_are_few() -> None:
    deep = search_space.kernels_to_try(key(384, 384, 16384), runtime.kernels(), SM90, 12)
    assert {c.splits for c in deep} - {1}
    large = search_space.kernels_to_try(key(8192, 8192, 8192), runtime.kernels(), SM90, 12)
    assert {c.splits for c in large} == {1}
