"""Which kernel a scaled product gets, why others not, and what is emitted for CUDA."""

from __future__ import annotations

import logging
import re
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from emulator_cases import BUILT
from kernel_table import described_scaled_grouped_kernels, described_scaled_kernels

import jax_bwgemm as bw
from jax_bwgemm import runtime
from jax_bwgemm.config import make_target
from jax_bwgemm.dense import costs
from jax_bwgemm.dense.spec import GemmDims
from jax_bwgemm.product.implementations import log_once
from jax_bwgemm.product.kernels import Kernel
from jax_bwgemm.scaled.costs import as_dense, candidates, parameters_of
from jax_bwgemm.scaled.primitive import for_one_group
from jax_bwgemm.scaled.selection import Choice, refusal, select
from jax_bwgemm.scaled.spec import ScaledDims, ScaledSpec

TABLE = described_scaled_kernels()
E4M3, E5M2, E2M1 = "float8_e4m3fn", "float8_e5m2", "float4_e2m1fn"


def spec(a: str, b: str, out: str = "bfloat16", accumulation: str = "promoted") -> ScaledSpec:
    return ScaledSpec(a_scaling=a, b_scaling=b, accumulation=accumulation, out_dtype=out)


def dims(m: int = 4096, n: int = 4096, k: int = 4096, a: str = E4M3, b: str = E4M3) -> ScaledDims:
    return ScaledDims(1, m, n, k, a, b)


def choice(product: ScaledSpec, sizes: ScaledDims) -> str:
    assert refusal(TABLE, product, sizes) is None
    found = select(TABLE, product, sizes, make_target("sm90"))
    assert isinstance(found, Choice)
    return f"{found.kernel.name} {found.splits}"


@pytest.mark.parametrize(
    ("product", "sizes", "want"),
    [
        (spec("1x128", "128x128"), dims(), "e4m3_e4m3_bf16_blocks_128x256x128_2x1_cooperative 1"),
        (spec("1x128", "1x128"), dims(), "e4m3_e4m3_bf16_rows_128x256x128_2x1_cooperative 1"),
        (
            spec("tensor", "tensor", accumulation="fast"),
            dims(4096, 4096, 7168),
            "e4m3_e4m3_bf16_sums_128x256x128_2x1_cooperative 1",
        ),
        # 32 x 41 tiles are ten waves of 132 almost exactly.
        (
            spec("tensor", "tensor", accumulation="fast"),
            dims(4096, 7168, 2048),
            "e4m3_e4m3_bf16_sums_128x176x128_2x1_pingpong 1",
        ),
        (
            spec("tensor", "tensor", "float32"),
            dims(a=E5M2),
            "e5m2_e4m3_f32_blocks_128x256x128_2x1_cooperative 1",
        ),
        # Short K: one tile's results are stored while the next is multiplied.
        (
            spec("row", "row", accumulation="fast"),
            dims(4096, 32768, 1536),
            "e4m3_e4m3_bf16_sums_128x192x128_2x1_pingpong 1",
        ),
        (
            spec("row", "row", accumulation="fast"),
            dims(4096, 32768, 512),
            "e4m3_e4m3_bf16_sums_128x176x128_2x1_pingpong_swap 1",
        ),
        (
            spec("row", "row", "float16", "fast"),
            dims(128, 7168, 16384),
            "e4m3_e4m3_f32_sums_64x128x128_2x1_pingpong 1",
        ),
        (
            spec("row", "row", accumulation="fast"),
            dims(16),
            "e4m3_e4m3_bf16_sums_64x16x256_1x1_pingpong_swap 1",
        ),
        # Few tiles and long K.
        (
            spec("row", "row", accumulation="fast"),
            dims(384, 384, 16384),
            "e4m3_e4m3_bf16_sums_64x128x128_2x1_pingpong 7",
        ),
        (
            spec("1x128", "128x128"),
            dims(16, 7168, 16384),
            "e4m3_e4m3_bf16_rows_64x16x128_1x1_pingpong_swap 1",
        ),
        # One scale for 128 rows of A, as weights' gradients of square blocks of activations have.
        (
            spec("128x128", "1x128"),
            dims(4096, 28672, 8192),
            "e4m3_e4m3_bf16_blocks_128x256x128_2x1_cooperative_swap 1",
        ),
        # None of the small swapped kernels has that.
        (
            spec("tensor", "128x128"),
            dims(16),
            "e4m3_e4m3_bf16_blocks_64x128x128_1x1_pingpong 3",
        ),
    ],
)
def test_choice(product: ScaledSpec, sizes: ScaledDims, want: str) -> None:
    assert choice(product, sizes) == f"sm90_scaled_{want}"


@pytest.mark.parametrize("a", ["tensor", "row", "1x128", "128x128"])
@pytest.mark.parametrize("b", ["tensor", "row", "1x128", "128x128"])
@pytest.mark.parametrize("accumulation", ["promoted", "fast"])
@pytest.mark.parametrize("m", [1, 64, 65, 4096])
def test_every_pair_of_layouts_has_a_kernel(a: str, b: str, accumulation: str, m: int) -> None:
    assert choice(spec(a, b, accumulation=accumulation), dims(m))


@pytest.mark.parametrize(
    ("product", "sizes", "reason"),
    [
        (spec("mxfp8", "row"), dims(), "no kernel multiplies mxfp8 by row"),
        (spec("nvfp4", "mxfp8"), dims(), "no kernel multiplies nvfp4 by mxfp8"),
        (spec("mxfp8", "mxfp8"), dims(k=40), "K=40 is not a multiple of 16, which TMA needs"),
        (
            spec("nvfp4", "nvfp4"),
            dims(k=48, a=E2M1, b=E2M1),
            "K=48 is not a multiple of 32, which TMA needs",
        ),
        (
            spec("tensor", "tensor"),
            dims(a=E5M2, b=E5M2),
            f"kernels exist for {E2M1} x {E2M1}, {E4M3} x {E4M3}, {E4M3} x {E5M2}, {E5M2} x {E4M3}",
        ),
        (
            spec("1x128", "1x128"),
            dims(a=E5M2),
            f"no kernel for {E5M2} x {E4M3} applies scales of 1x128 and 1x128",
        ),
        (spec("row", "row"), dims(k=40), "K=40 is not a multiple of 16, which TMA needs"),
        (spec("row", "row"), dims(n=20), "N=20 is not a multiple of 8, which TMA needs"),
        (spec("row", "row", "float32"), dims(n=2), "N=2 is not a multiple of 4, which TMA needs"),
    ],
)
def test_refusals(product: ScaledSpec, sizes: ScaledDims, reason: str) -> None:
    assert refusal(TABLE, product, sizes) == reason


@pytest.mark.parametrize("sizes", [(0, 512, 512), (512, 0, 512), (512, 512, 0)])
@pytest.mark.parametrize("layouts", [("row", "row"), ("1x128", "128x128"), ("mxfp8", "mxfp8")])
def test_an_empty_problem_runs_no_kernel(
    layouts: tuple[str, str], sizes: tuple[int, int, int]
) -> None:
    a, b = structs(*layouts, *sizes)
    assert "bwgemm" not in cuda_text(a, b, implementation="cutlass").partition("{")[2]
    found = bw.explain_scaled_matmul(a, b, implementation="cutlass", device="sm90")
    assert (found.implementation, found.kernel, found.flops) == ("cutlass", None, 0)
    assert found.reason == "an empty problem runs no kernel: the result is empty or all zeros"
    with pytest.raises(NotImplementedError, match="cutlass runs on cuda, this program is lowered"):
        bw.explain_scaled_matmul(a, b, implementation="cutlass", device="cpu")


def test_another_architecture() -> None:
    target = make_target("sm100")
    for product, sizes, want in (
        (spec("row", "tensor"), dims(), "e4m3_e4m3_bf16_sums_256x256x128_2x1_2sm"),
        (spec("row", "row", accumulation="fast"), dims(256), "sums_128x128x128_1x1_1sm"),
        (spec("tensor", "row", "float32"), dims(a=E5M2), "e5m2_e4m3_f32_sums_256x256x128_2x1_2sm"),
        (spec("mxfp8", "mxfp8"), dims(), "e4m3_e4m3_bf16_mma_256x256x128_2x1_2sm"),
        (spec("mxfp8", "mxfp8", "float16"), dims(a=E5M2), "e5m2_e4m3_f32_mma_256x256x128_2x1_2sm"),
        # K is not split: the scales of a part would have a layout of their own.
        (spec("mxfp8", "mxfp8"), dims(128, 128, 16384), "mma_128x128x128_1x1_1sm"),
        (
            spec("nvfp4", "nvfp4", accumulation="fast"),
            dims(a=E2M1, b=E2M1),
            "e2m1_e2m1_bf16_mma_256x256x256_2x1_2sm",
        ),
    ):
        found = select(TABLE, product, sizes, target)
        assert isinstance(found, Choice)
        assert found.kernel.name.startswith("sm100_scaled_")
        assert found.kernel.name.endswith(want)
        assert found.splits == 1 or found.kernel.scales == "sums"
    found = select(TABLE, spec("mxfp8", "mxfp8"), dims(), make_target("sm90"))
    assert found == f"no kernel of sm90 for {E4M3} x {E4M3} applies scales of mxfp8 and mxfp8"
    found = select(TABLE, spec("1x128", "128x128"), dims(), target)
    assert found == f"no kernel of sm100 for {E4M3} x {E4M3} applies scales of 1x128 and 128x128"
    hopper = [k for k in TABLE if k.arch == "sm90"]
    found = select(hopper, spec("row", "row"), dims(), target)
    assert found == "scaled kernels exist for sm90, this is sm100"


def test_grouped_kernels_for_one_group_have_groups_of_rows() -> None:
    """One that contracts the rows of groups computes another product."""
    found = [k for k in described_scaled_grouped_kernels() if for_one_group(k)]
    assert {(k.arch, k.contraction) for k in found} == {("sm100", "m_grouped")}
    assert {k.scales for k in found} == {"blocks", "rows"}


def test_what_a_call_has() -> None:
    found = select(
        TABLE,
        spec("row", "row", accumulation="fast"),
        dims(384, 384, 16384),
        make_target("sm90", sm_count=132),
    )
    assert isinstance(found, Choice)
    assert (found.raster_order, found.swizzle, found.splits) == ("heuristic", 1, 7)
    assert found.sm_count == 132
    assert str(found) == f"{found.kernel.name}, raster heuristic, swizzle 1, splits 7"
    assert found.why.endswith(", K in 7 parts")


def test_a_batch_is_not_split() -> None:
    sizes = ScaledDims(2, 384, 384, 16384, E4M3, E4M3)
    assert choice(spec("row", "row", accumulation="fast"), sizes).endswith(" 1")


@pytest.mark.parametrize("scaling", ["row", "mxfp8"])
def test_a_batch_that_no_grid_has(scaling: str) -> None:
    """SM100's kernels count matrices along grid.z."""
    sizes = ScaledDims(70000, 32, 32, 128, E4M3, E4M3)
    given = spec(scaling, scaling, accumulation="fast")
    assert select(TABLE, given, sizes, make_target("sm100")) == "a batch of more than 65535"


@pytest.mark.parametrize("k", [16, 48, 1000, 4096])
def test_costs_are_those_of_half_a_k_of_16_bits(k: int) -> None:
    kernel = next(t for t in TABLE if t.scales == "sums")
    dense = as_dense(kernel)
    assert (dense.a_dtype, dense.b_dtype, dense.tile_k) == ("bfloat16", "bfloat16", 64)
    whole, *_ = candidates(kernel, dims(k=k), make_target("sm90"))
    half = GemmDims(4096, 4096, k // 2)
    same = costs.evaluate(dense, half, make_target("sm90"), parameters=parameters_of(kernel))
    assert whole.cycles == same.cycles


def test_costs_of_4_bits_are_those_of_a_quarter_of_k() -> None:
    kernel = next(t for t in TABLE if t.a_dtype == E2M1)
    assert as_dense(kernel).tile_k == 64
    target, quarter = make_target("sm100"), GemmDims(4096, 4096, 2048)
    (whole,) = candidates(kernel, dims(k=8192, a=E2M1, b=E2M1), target)
    same = costs.evaluate(as_dense(kernel), quarter, target, parameters=parameters_of(kernel))
    assert whole.cycles == same.cycles


@pytest.mark.parametrize("kernel", TABLE, ids=lambda k: k.name)
def test_every_tile_has_a_cost(kernel: Kernel) -> None:
    assert costs.tile_key(as_dense(kernel)) in parameters_of(kernel).tiles


def structs(a: str, b: str, m: int = 512, n: int = 512, k: int = 512) -> Any:
    return tuple(
        jax.eval_shape(lambda x, s=s: bw.quantize(x, s), jax.ShapeDtypeStruct(shape, jnp.float32))
        for s, shape in ((a, (m, k)), (b, (n, k)))
    )


def cuda_text(a: Any, b: Any, arch: str = "sm90", **options: Any) -> str:
    with bw.config.target(arch):
        traced = jax.jit(lambda a, b: bw.scaled_matmul(a, b, **options)).trace(a, b)
        return traced.lower(lowering_platforms=("cuda",)).as_text()


def test_call_for_cuda() -> None:
    text = cuda_text(*structs("1x128", "128x128"))
    (config,) = re.findall(r"mhlo\.backend_config = \{config = \{(.*?)\}\}", text)
    assert 'kernel = "sm90_scaled_e4m3_e4m3_bf16_' in config
    assert 'operands = "a b a_scales b_scales"' in config
    assert 'a_scaling = "1x128"' in config
    assert 'b_scaling = "128x128"' in config
    assert not {"stablehlo.transpose", "stablehlo.pad", "stablehlo.convert"} & set(
        re.findall(r"stablehlo\.\w+", text)
    )


def test_call_of_4_bits_for_cuda() -> None:
    text = cuda_text(*structs("nvfp4", "nvfp4"), arch="sm100")
    (config,) = re.findall(r"mhlo\.backend_config = \{config = \{(.*?)\}\}", text)
    assert 'kernel = "sm100_scaled_e2m1_e2m1_bf16_mma_' in config
    assert 'operands = "a b a_scales b_scales alpha"' in config
    assert 'a_scaling = "nvfp4"' in config
    (types,) = re.findall(r"custom_call @bwgemm.*? : \((.*?)\) ->", text)
    operand, scales = "tensor<1x512x256xui8>", "tensor<1x4x8x512xui8>"
    assert types == f"{operand}, {operand}, {scales}, {scales}, tensor<1xf32>"


@pytest.mark.parametrize(
    ("layouts", "use", "b_scales"),
    [(("1x128", "128x128"), "blocks", "1x1x4x4"), (("1x128", "1x128"), "rows", "1x1x4x512")],
)
def test_call_of_one_group_for_cuda(
    layouts: tuple[str, str], use: str, b_scales: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SM100's kernels that add sums of blocks are grouped ones."""
    monkeypatch.setattr(runtime, "kernel_workspace_bytes", lambda *_, **__: 0)
    text = cuda_text(*structs(*layouts), arch="sm100")
    (config,) = re.findall(r"mhlo\.backend_config = \{config = \{(.*?)\}\}", text)
    assert f'kernel = "sm100_scaled_rows_e4m3_e4m3_bf16_{use}_256x128x128_2x1_2sm"' in config
    assert 'operands = "a b group_sizes group_offset a_scales b_scales"' in config
    (types,) = re.findall(r"custom_call @bwgemm.*? : \((.*?)\) ->", text)
    sizes = "tensor<1x1xi32>, tensor<1xi32>"
    assert types == (
        f"tensor<1x512x512xf8E4M3FN>, tensor<1x1x512x512xf8E4M3FN>, {sizes}, "
        f"tensor<1x4x512xf32>, tensor<{b_scales}xf32>"
    )


def test_float16_is_converted_by_xla() -> None:
    text = cuda_text(*structs("row", "row"), preferred_element_type=jnp.float16)
    assert re.search(r"stablehlo\.convert .*xf32>\) -> tensor<512x512xf16>|xf16>", text)
    assert "_f32_rows_" in text


@pytest.mark.parametrize(
    ("pair", "arch", "reason"),
    [
        (structs("mxfp8", "mxfp8"), "sm90", "no kernel of sm90 for"),
        (structs("mxfp8", "row"), "sm100", "no kernel multiplies mxfp8 by row"),
        (structs("row", "row", k=100), "sm90", "K=100 is not a multiple of 16"),
    ],
)
def test_what_no_kernel_runs_is_xlas_with_the_reason(
    pair: Any, arch: str, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    log_once.cache_clear()
    with caplog.at_level(logging.INFO, logger="jax_bwgemm"):
        assert "custom_call @bwgemm" not in cuda_text(*pair, arch=arch)
    assert re.search(f"not cutlass \\({reason}.*\\), using xla", caplog.text)
    with pytest.raises(NotImplementedError, match=reason):
        cuda_text(*pair, arch=arch, implementation="cutlass")


def test_a_program_for_several_devices(cpu_devices: list[jax.Device]) -> None:
    """The compiler divides the product; inside of shard_map it is one device's already."""
    mesh = jax.sharding.Mesh(cpu_devices[:2], "x")
    rows = jax.NamedSharding(mesh, jax.P("x"))
    a, b = structs("row", "row")
    a = jax.tree.map(lambda s: jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=rows), a)

    def product(a: Any, b: Any) -> jax.Array:
        return bw.scaled_matmul(a, b)

    with bw.config.target("sm90"):
        text = jax.jit(product).trace(a, b).lower(lowering_platforms=("cuda",)).as_text()
        assert "custom_call @CustomSPMDPartitioning" in text
        manual = jax.shard_map(
            product, mesh=mesh, in_specs=(jax.P("x"), jax.P()), out_specs=jax.P("x")
        )
        text = jax.jit(manual).trace(a, b).lower(lowering_platforms=("cuda",)).as_text()
    assert "custom_call @bwgemm.product.v2" in text


def test_shard_map_values(cpu_devices: list[jax.Device]) -> None:
    mesh = jax.sharding.Mesh(cpu_devices[:2], "x")
    x = jax.random.normal(jax.random.key(0), (64, 256))
    a, b = bw.quantize(x, "row"), bw.quantize(x[:32], "128x128")
    manual = jax.shard_map(
        bw.scaled_matmul, mesh=mesh, in_specs=(jax.P("x"), jax.P()), out_specs=jax.P("x")
    )
    assert bool(jnp.all(jax.jit(manual)(a, b) == bw.scaled_matmul(a, b)))


@pytest.mark.skipif(not BUILT, reason="the emulator was not built")
def test_a_devices_part_that_no_kernel_computes_is_xlas(cpu_devices: list[jax.Device]) -> None:
    """All columns are aligned, those of one device are not."""
    mesh = jax.sharding.Mesh(cpu_devices[:2], "x")
    x = jax.random.normal(jax.random.key(0), (24, 128))
    a, b = bw.quantize(x[:16], "row"), bw.quantize(x, "row")
    placed = jax.device_put(b, jax.NamedSharding(mesh, jax.P("x")))
    product = jax.jit(lambda a, b: bw.scaled_matmul(a, b, implementation=("emulator", "xla")))
    assert "emulated" not in product.lower(a, placed).compile().as_text()
    assert bool(jnp.all(product(a, placed) == bw.scaled_matmul(a, b, implementation="xla")))


def test_explain() -> None:
    pair = structs("1x128", "128x128")
    found = bw.explain_scaled_matmul(*pair, device="sm90")
    assert found.implementation == "cutlass"
    assert found.kernel is not None
    assert found.kernel.startswith("sm90_scaled_e4m3_e4m3_bf16_")
    assert re.search(r"scales .*after every 128 of K; .* tiles per batch in 1 wave ", str(found))
    found = bw.explain_scaled_matmul(*pair, device="cpu")
    assert found.implementation == "xla"
    assert "cutlass runs on cuda, this program is lowered for cpu" in str(found)
    found = bw.explain_scaled_matmul(*structs("mxfp8", "mxfp8"), device="sm90")
    assert found.reason.startswith("no kernel of sm90 for")
    with bw.config.target("sm90"):
        assert bw.explain_scaled_matmul(*pair).implementation == "cutlass"
    assert bw.explain_scaled_matmul(*pair, implementation="xla").reason == "asked for"
    found = bw.explain_scaled_matmul(*pair, device="sm100")
    assert found.kernel == "sm100_scaled_rows_e4m3_e4m3_bf16_blocks_256x128x128_2x1_2sm"
    of_8_bits = bw.explain_scaled_matmul(*structs("mxfp8", "mxfp8"), device="sm100")
    assert bw.explain_scaled_matmul(*structs("mxfp8", "mxfp4"), device="sm100") == of_8_bits
    with pytest.raises(NotImplementedError, match=r"no kernel of sm90 for .* of mxfp8"):
        bw.explain_scaled_matmul(
            *structs("mxfp8", "mxfp8"), implementation="cutlass", device="sm90"
        )
    with pytest.raises(ValueError, match="unknown device 'sm80'"):
        bw.explain_scaled_matmul(*pair, device="sm80")


def test_the_description_of_the_build_is_right() -> None:
    if runtime.extension() is None:
        pytest.skip("jax_bwgemm was installed without its compiled kernels")
    described = {k.name: k for k in TABLE}
    for kernel in runtime.scaled_kernels():
        same = described[kernel.name]
        for field in ("a_dtype", "b_dtype", "out_dtype", "scales", "swap_ab", "tile_m", "tile_n"):
            assert getattr(kernel, field) == getattr(same, field)


def test_without_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "scaled_kernels", lambda: ())
    with pytest.raises(NotImplementedError, match="without its compiled kernels for scaled"):
        bw.explain_scaled_matmul(*structs("row", "row"), implementation="cutlass", device="sm90")
