"""Kernel choice: what must hold whatever the constants, and the policy functions."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from kernel_table import described_kernels

import jax_bwgemm as bw
from jax_bwgemm import runtime
from jax_bwgemm.config import Target, make_target
from jax_bwgemm.dense import costs, heuristics
from jax_bwgemm.dense.selection import Selection, select
from jax_bwgemm.dense.spec import GemmDims, GemmSpec
from jax_bwgemm.dense.tuning_config import TuningConfig
from jax_bwgemm.product.kernels import Kernel
from jax_bwgemm.product.spec import Policy

SM90, SM100 = make_target("sm90"), make_target("sm100")
TABLE = described_kernels()
PLAIN = tuple(  # one of each tile
    k for k in TABLE if k.in_dtype == k.out_dtype == "bfloat16" and k.majors == "kn"
)


def kernel(tile: str) -> Kernel:
    """The kernel of a tile by the end of its name."""
    (found,) = (k for k in PLAIN if k.name.endswith(f"_kn_{tile}"))
    return found


def chosen(
    m: int,
    n: int,
    k: int,
    target: Target = SM90,
    batch: int = 1,
    config: TuningConfig | None = None,
) -> Selection:
    dims = GemmDims(m, n, k, batch, batch, batch)
    selection = select(GemmSpec(policy=Policy(config=config)), "bfloat16", dims, target, TABLE)
    assert isinstance(selection, Selection)
    return selection


# -- what must hold whatever the costs (test_choice_regret.py: what the choices lose)


@pytest.mark.parametrize(
    ("shape", "tile", "order"),
    [
        ((8192, 8192, 8192), "128x256x64_2x1_cooperative", ("n", 8)),
        ((512, 28672, 4096), "128x128x64_2x1_pingpong", ("n", 8)),  # in effect 2
        ((8192, 4096, 4096), "128x128x64_1x2_cooperative", ("m", 8)),
        ((8192, 1024, 8192), "128x256x64_2x1_cooperative_streamk", ("n", 4)),
        ((10240, 4608, 8192), "128x256x64_2x1_cooperative_streamk", ("n", 2)),  # 80 x 18, 11 waves
        ((512, 28672, 4096), "128x256x64_2x1_cooperative_streamk", ("heuristic", 1)),
        ((8192, 8192, 512), "128x192x64_2x1_pingpong", ("n", 1)),  # 8 MB of rhs stay in L2
        ((4096, 32768, 512), "128x192x64_2x1_pingpong", ("n", 16)),  # 32 MB do not beside results
        ((8192, 28672, 768), "128x192x64_2x1_pingpong", ("n", 16)),  # a band's 6 MB of lhs do
        ((8192, 28672, 2048), "128x192x64_2x1_pingpong", ("n", 8)),  # 16 MB do not
        ((28672, 4096, 512), "128x144x64_2x1_pingpong_swap", ("n", 16)),  # here n is along M
        # Rows of at most 768 bytes: along the shorter dimension of the result.
        ((4096, 32768, 384), "128x192x64_2x1_pingpong", ("m", 8)),  # 16 clusters
        ((4608, 32768, 384), "128x192x64_2x1_pingpong", ("m", 4)),  # 18
        ((32768, 4096, 256), "128x192x64_2x1_pingpong", ("n", 4)),
        ((8192, 8192, 256), "128x192x64_2x1_pingpong_swap", ("m", 4)),
        ((16384, 4096, 64), "128x192x64_2x1_pingpong_swap", ("m", 8)),  # here m is along N
        ((8192, 8192, 128), "128x192x64_2x1_pingpong", ("n", 1)),  # 256 bytes, not swapped
        ((1152, 8192, 512), "64x128x64_1x1_pingpong", ("m", 8)),  # 18 tiles along M
        ((512, 8192, 512), "64x128x64_1x1_pingpong", ("m", 1)),  # 8
        ((1000, 16384, 5120), "128x144x64_2x1_pingpong_swap", ("n", 1)),  # 7, along M
        ((2100, 16384, 5120), "128x144x64_2x1_pingpong_swap", ("n", 8)),  # 15
        ((1024, 1024, 1024), "128x128x64_2x1_pingpong", ("n", 4)),  # one wave
        ((2048, 2048, 2048), "64x128x64_1x1_pingpong", ("m", 8)),  # the wider operand is shared
        ((64, 32768, 8192), "64x64x64_1x1_clusterk_swap", ("heuristic", 1)),  # has one order
    ],
)
def test_tile_orders(shape: tuple, tile: str, order: tuple[str, int]) -> None:
    got = chosen(*shape, config=TuningConfig(kernel=kernel(tile).name))
    assert (got.raster_order, got.swizzle) == order


@pytest.mark.parametrize(("columns", "swizzle"), [(384, 1), (8192, 8)])  # 18 and 384 tiles each
def test_a_batch_of_small_matrices_has_no_bands(columns: int, swizzle: int) -> None:
    config = TuningConfig(kernel=kernel("64x128x64_2x1_pingpong").name)
    got = chosen(384, columns, 1536, batch=24, config=config)
    assert (got.raster_order, got.swizzle) == ("n", swizzle)


def test_clusters_of_four_leave_multiprocessors_idle() -> None:
    """29 of them fit on an H200, not 33, so 128 tiles are two waves."""
    tile = kernel("64x144x64_4x1_pingpong_swap")
    waves = [costs.evaluate(tile, GemmDims(144, 64 * n, 4096), SM90).waves for n in (116, 128)]
    assert waves == [1, 2]


def test_short_k_is_bound_by_writing() -> None:
    """Results leave registers about as slowly as memory takes them; a long K hides the former."""
    tile = kernel("128x192x64_2x1_pingpong")

    def cycles(parameters: costs.Parameters) -> list[float]:
        return [
            costs.evaluate(tile, GemmDims(8192, 8064, k), SM90, parameters=parameters).cycles
            for k in (64, 4096)
        ]

    short, long = cycles(costs.SM90)
    free = cycles(dataclasses.replace(costs.SM90, epilogue_cycles=0))
    assert free[0] < 0.95 * short
    assert free[1] == long


def test_ctas_without_a_tile_cost_once_the_gpu_is_full() -> None:
    def cycles(m: int, n: int) -> float:
        clusters_of_two = kernel("128x256x64_2x1_cooperative")
        return costs.evaluate(clusters_of_two, GemmDims(m, n, 8192), SM90).cycles

    # Nine tiles along M take the clusters of ten, and more time: the tenth's CTAs load too.
    assert cycles(9 * 128, 24 * 128) > 1.005 * cycles(10 * 128, 24 * 128)
    # Half of the GPU: the same but for the memory that two more rows of tiles take.
    assert cycles(5 * 128, 20 * 128) == pytest.approx(cycles(6 * 128, 20 * 128), rel=1e-3)


def test_rows_that_begin_between_sectors_need_clusters() -> None:
    """Their loads are not merged on the way to L2: 22.5 and 15.8 us on an H200."""

    def ratio(n: int, k: int) -> float:
        alone, pair = (kernel(f"64x128x64_{c}x1_pingpong") for c in (1, 2))
        dims = GemmDims(1000, n, k)
        return costs.evaluate(alone, dims, SM90).cycles / costs.evaluate(pair, dims, SM90).cycles

    assert ratio(1000, 3000) > 1.2
    assert ratio(1008, 3008) < 1.1


@pytest.mark.parametrize("shape", [(8192, 8192, 8192), (4096, 28672, 4096), (2048, 8192, 8192)])
def test_large_problems_on_sm100_get_the_cta_pair(shape: tuple) -> None:
    assert chosen(*shape, target=SM100).kernel.schedule == "2sm"


@pytest.mark.parametrize("shape", [(128, 4096, 4096), (64, 1024, 1024), (128, 128, 8192)])
def test_small_problems_on_sm100_get_the_single_cta(shape: tuple) -> None:
    assert chosen(*shape, target=SM100).kernel.schedule == "1sm"


def test_selection_does_not_depend_on_the_order_of_the_table() -> None:
    dims = GemmDims(1024, 1024, 1024)
    both = [
        select(GemmSpec(), "bfloat16", dims, SM90, table)
        for table in (TABLE, tuple(reversed(TABLE)))
    ]
    assert both[0].kernel == both[1].kernel


def test_every_kernel_is_chosen_or_rejected_with_a_reason() -> None:
    got = chosen(512, 512, 512)
    assert {got.kernel.name, *(name for name, _ in got.rejected)} == {k.name for k in TABLE}
    assert all(reason for _, reason in got.rejected)
    assert "for sm100" in {reason for _, reason in got.rejected}


def test_batches_count_as_tiles() -> None:
    one, many = (chosen(256, 256, 4096, batch=b).kernel for b in (1, 512))
    assert one.tile_m * one.tile_n < many.tile_m * many.tile_n


def test_a_batch_that_no_grid_has() -> None:
    """SM100's kernels count matrices along grid.z; SM90's count all tiles in one dimension."""
    a, b = (jax.ShapeDtypeStruct((70000, 16, 16), jnp.bfloat16) for _ in range(2))
    found = bw.explain(a, b, device="sm100")
    assert found.implementation == "xla"
    assert "a batch of more than 65535" in str(found)
    assert bw.explain(a, b, device="sm90").implementation == "cutlass"


def test_a_raster_order_that_no_grid_has() -> None:
    """Tiles along grid.y. Left to the kernel, it takes the other order."""
    assert chosen(2**24, 512, 256, SM100).raster_order == "heuristic"
    assert chosen(2**22, 512, 256, SM100).raster_order != "heuristic"
    assert chosen(256, 2**24, 512, SM100).raster_order == "n"  # its own has columns along y
    assert chosen(100, 2**23, 8, SM100).raster_order == "n"  # operands too small for bands
    assert chosen(100, 2**20, 8, SM100).raster_order == "heuristic"


@pytest.mark.parametrize(
    ("target", "rows", "columns"),
    [(SM90, 1, 16), (SM90, 16, 16), (SM100, 1, 16), (SM100, 16, 16)],
)
def test_few_rows_get_swapped_operands(target: Target, rows: int, columns: int) -> None:
    got = chosen(rows, 6144, 4096, target).kernel
    assert (got.swap_ab, got.tile_n) == (True, columns)


def test_long_k_with_few_tiles_is_split() -> None:
    assert chosen(384, 384, 16384).splits > 1
    assert chosen(384, 384, 16392).splits > 1  # whatever divides K
    assert chosen(8192, 8192, 8192).splits == 1


@pytest.mark.parametrize(("k", "batch"), [(16384 + 8, 1), (16384, 2), (16384, 1)])
def test_what_cannot_be_split_is_not(k: int, batch: int) -> None:
    got = chosen(384, 384, k, batch=batch)
    dims = GemmDims(384, 384, k, batch)
    refused = heuristics.run_refusal(got.kernel, dims, got.splits, got.decomposition, 2)
    assert refused is None


def test_splits_that_a_problem_cannot_have_are_refused() -> None:
    # Stream-K and cluster-K kernels add the parts themselves, and have no such rules.
    spec = GemmSpec(policy=Policy(config=TuningConfig(splits=5, schedule="1sm")))
    got = select(spec, "bfloat16", GemmDims(384, 384, 4096), SM100, TABLE)
    assert isinstance(got, str)
    assert "K=4096 is not a multiple of 40" in got
    spec = GemmSpec(policy=Policy(config=TuningConfig(splits=5, schedule="pingpong")))
    got = select(spec, "bfloat16", GemmDims(384, 384, 4096), SM90, TABLE)
    assert isinstance(got, Selection)  # parts of 12 and 13 blocks
    got = select(spec, "bfloat16", GemmDims(384, 384, 4000, 3), SM90, TABLE)
    assert "a batch of 3 cannot be split along K" in got


def test_a_tile_without_f32_output_is_not_split() -> None:
    whole = dataclasses.replace(kernel("128x192x64_2x1_pingpong"), f32_twin="")
    refused = heuristics.run_refusal(whole, GemmDims(384, 384, 4096), 2, "heuristic", 2)
    assert refused == "no kernel of this tile has the f32 output that parts of K are computed in"
    assert heuristics.run_refusal(whole, GemmDims(384, 384, 4096), 1, "heuristic", 2) is None
    few = GemmSpec(), whole, GemmDims(384, 384, 16384), 2, 6, 132
    assert heuristics.possible_splits(*few) == [1]


@pytest.mark.parametrize("candidate", PLAIN, ids=lambda k: k.name)
def test_predicted_time_grows_with_the_problem(candidate: Kernel) -> None:
    target = make_target(candidate.arch)
    times = [
        costs.evaluate(candidate, GemmDims(m, 4096, 4096), target).cycles
        for m in (256, 1024, 4096, 32768)
    ]
    assert times == sorted(times)


def test_no_cluster_is_larger_than_the_gpu() -> None:
    one = make_target("sm100", 1)
    usable, rejected = heuristics.rank(PLAIN, GemmSpec(), "bfloat16", GemmDims(128, 64, 64), one)
    assert all(c.kernel.cluster_m * c.kernel.cluster_n == 1 for c in usable)
    reason = "a cluster of 2 CTAs does not fit: 1 multiprocessors"
    assert reason in {why for _, why in rejected}


def test_of_a_named_kernel_its_own_reason_alone_is_given() -> None:
    named = next(k.name for k in PLAIN if k.arch == "sm100" and k.majors == "kn")
    policy = Policy(config=TuningConfig(kernel=named))
    got = select(GemmSpec(policy=policy), "bfloat16", GemmDims(8, 8, 8), SM90, PLAIN)
    assert got == f"no kernel for sm90 fits ({named}: for sm100)"


def test_no_usable_kernel_is_a_reason() -> None:
    got = select(GemmSpec("m", "n"), "bfloat16", GemmDims(8, 8, 8), SM90, PLAIN)
    assert isinstance(got, str)
    assert got.startswith("no kernel for sm90 fits (")
    own = [k.name for k in PLAIN if k.arch == "sm90"]
    # Every reason once, and nothing of other GPUs' kernels.
    assert got == f"no kernel for sm90 fits ({own[0]} and {len(own) - 1} more: majors kn)"
    others = [k for k in PLAIN if k.arch != "sm90"]
    none = select(GemmSpec(), "bfloat16", GemmDims(8, 8, 8), SM90, others)
    assert none == "no kernel for sm90 fits (all are for sm100)"
    assert select(GemmSpec(), "bfloat16", GemmDims(8, 8, 8), SM90, []).endswith("(no kernels)")


def test_explicit_fields_restrict_and_run_time_attributes_override() -> None:
    config = bw.TuningConfig(schedule="pingpong", swizzle=2, raster_order="m")
    got = chosen(8192, 8192, 8192, config=config)
    assert got.kernel.schedule == "pingpong"
    assert (got.raster_order, got.swizzle) == ("m", 2)
    assert str(config) in got.reason


@pytest.mark.parametrize(
    ("field", "value", "fits"),
    [
        ("tile_m", 256, True),
        ("two_cta", True, True),
        ("two_cta", False, False),
        ("cluster_m", 2, True),
        ("scheduler", "clc", True),
        ("scheduler", "persistent", False),
        ("stages", 4, True),
        ("splits", 1, True),
        ("swap_ab", True, False),
        ("swap_ab", False, True),
    ],
)
def test_config_matches_kernel_fields(field: str, value: object, fits: bool) -> None:
    pair = kernel("256x256x64_2x1_2sm")
    assert (bw.TuningConfig(**{field: value}).mismatch(pair) is None) == fits


def test_a_cluster_k_kernel_takes_no_tile_order() -> None:
    shared, other = kernel("64x64x64_1x1_clusterk_swap"), kernel("64x64x128_1x1_pingpong_swap")
    for order in ({"raster_order": "m"}, {"swizzle": 2}):
        config = TuningConfig(**order)
        assert config.mismatch(shared) == "a cluster-K kernel has one order of its tiles"
        assert config.mismatch(other) is None
        assert not chosen(64, 4096, 4096, config=config).kernel.cluster_k
    assert TuningConfig(swizzle=1).mismatch(shared) is None


# -- alignment


@pytest.mark.parametrize(
    ("majors", "out_bytes", "padded"),
    [
        # M=33 N=34 K=35; multiples of 8 elements (16 bit), N of the result 4 for f32.
        ("kn", 2, (33, 40, 40)),
        ("kk", 2, (33, 40, 40)),
        ("kk", 4, (33, 36, 40)),
        ("mn", 2, (40, 40, 35)),
        ("mk", 4, (40, 36, 40)),
    ],
)
def test_aligned_dims(majors: str, out_bytes: int, padded: tuple) -> None:
    got = heuristics.aligned_dims(GemmSpec(*majors), GemmDims(33, 34, 35), 2, out_bytes)
    assert (got.m, got.n, got.k) == padded


def test_padding_policy() -> None:
    size = heuristics.PAD_MIN_SIZE
    large, small = GemmDims(size, size + 1, size), GemmDims(size, size + 1, size - 8)
    aligned = GemmDims(8, 8, 8)
    assert heuristics.padding_refusal(large, GemmDims(size, size + 8, size)) is None
    assert "does not pay" in heuristics.padding_refusal(small, GemmDims(size, size + 8, size - 8))
    assert heuristics.padding_refusal(aligned, aligned) is None


# -- explain, and this build's own table


def struct(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.bfloat16)


@pytest.mark.parametrize("arch", ["sm90", "sm100"])
@pytest.mark.parametrize("m", [1, 16, 128, 512, 2048, 8192])
@pytest.mark.parametrize("majors", ["kn", "kk", "mn", "mk"])
def test_every_problem_has_a_kernel_in_this_build(arch: str, m: int, majors: str) -> None:
    if arch not in {k.arch for k in runtime.kernels()}:
        pytest.skip(f"this build has no {arch} kernels")
    numbers = (((1 if majors[0] == "k" else 0,), (0 if majors[1] == "n" else 1,)), ((), ()))
    a = struct(m, 4096) if majors[0] == "k" else struct(4096, m)
    b = struct(4096, 6144) if majors[1] == "n" else struct(6144, 4096)
    got = bw.explain(a, b, numbers, implementation="cutlass", device=arch)
    assert got.kernel.startswith(f"{arch}_bf16_bf16_")
    assert len(got.rejected) == len(runtime.kernels()) - 1


@pytest.mark.parametrize("make", [np.ones, jax.ShapeDtypeStruct], ids=["array", "type"])
def test_explain_sees_numpy_s_default_type_as_a_call_does(make: Any) -> None:
    x = make((1024, 1024), np.float64)
    want = bw.explain(
        *[jax.ShapeDtypeStruct(x.shape, jnp.float32)] * 2, precision="highest", device="sm90"
    )
    assert bw.explain(x, x, precision="highest", device="sm90") == want
    assert want.implementation == "cutlass"


def test_explain_reads_well() -> None:
    text = str(bw.explain(struct(512, 4096), struct(4096, 6144), device="sm90"))
    lines = text.splitlines()
    assert lines[0] == "GEMM bfloat16 x bfloat16 -> bfloat16, majors kn, M=512 N=6144 K=4096"
    assert lines[1].split() == ["implementation", "cutlass"]
    assert lines[2].split()[0] == "kernel"
    assert "1 wave on 132 multiprocessors" in text
    others = [line for line in lines if line.endswith(" kernels: for sm100")]
    count = sum(kernel.arch == "sm100" for kernel in runtime.kernels())
    assert others == [f"  not {count} kernels: for sm100"]
    assert len(lines) < 60  # of hundreds of kernels


def test_explain_says_why_xla() -> None:
    a = struct(30, 33)
    got = bw.explain(a, struct(33, 30), device="sm90")
    assert (got.implementation, got.kernel) == ("xla", None)
    assert "not multiples of 16 bytes" in got.reason
    forced = bw.explain(a, struct(33, 30), implementation="cutlass", device="sm90")
    assert forced.padded
    f32, f16 = (jax.ShapeDtypeStruct((8, 8), dtype) for dtype in (jnp.float32, jnp.float16))
    assert "kernels exist for" in bw.explain(f32, f16, device="sm90").reason
    assert bw.explain(a, struct(33, 30), implementation="xla").reason == "asked for"
    assert "lowered for cpu" in bw.explain(a, struct(33, 30), device=jax.devices("cpu")[0]).reason


def test_explain_counts_copies() -> None:
    numbers = (((0, 2), (1, 0)), ((), ()))
    got = bw.explain(struct(16, 64, 32), struct(32, 16, 640), numbers, device="sm90")
    assert got.copied_elements == 16 * 64 * 32
    assert "elements are copied" in str(got)


def test_explain_uses_the_explicit_target() -> None:
    with bw.config.target("sm100"):
        assert bw.explain(struct(4096, 4096), struct(4096, 4096)).kernel.startswith("sm100_")


# -- empty problems


@pytest.mark.parametrize("sizes", [(0, 64, 64, 1), (64, 0, 64, 1), (64, 64, 0, 1), (64, 64, 64, 0)])
@pytest.mark.parametrize("candidate", PLAIN, ids=lambda k: k.name)
def test_every_kernel_can_be_asked_about_an_empty_problem(
    candidate: Kernel, sizes: tuple[int, int, int, int]
) -> None:
    m, n, k, batch = sizes
    dims, target = GemmDims(m, n, k, batch, batch, batch), make_target(candidate.arch)
    for splits in (1, 2):
        found = costs.evaluate(candidate, dims, target, splits)
        assert 0 < found.cycles < math.inf
    got = chosen(m, n, k, target, batch, TuningConfig(kernel=candidate.name))
    assert got.kernel == candidate


@pytest.mark.parametrize("sizes", [(0, 64, 64, 1), (64, 0, 64, 1), (64, 64, 0, 1), (64, 64, 64, 0)])
@pytest.mark.parametrize("implementation", [None, "cutlass"])
def test_explain_says_that_an_empty_problem_runs_no_kernel(
    implementation: str | None, sizes: tuple[int, int, int, int]
) -> None:
    m, n, k, batch = sizes
    a, b = struct(batch, m, k), struct(batch, k, n)
    got = bw.explain(a, b, implementation=implementation, device="sm90")
    assert (got.implementation, got.kernel, got.splits) == ("cutlass", None, None)
    assert got.reason == "an empty problem runs no kernel: the result is empty or all zeros"
    assert "tile order" not in str(got)
