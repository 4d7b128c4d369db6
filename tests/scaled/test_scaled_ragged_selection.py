"""Which kernel a grouped scaled product gets."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import pytest
from kernel_table import described_scaled_grouped_kernels

import jax_bwgemm as bw
from jax_bwgemm import runtime
from jax_bwgemm.config import make_target
from jax_bwgemm.grouped import heuristics
from jax_bwgemm.grouped.spec import K_GROUPED, M_GROUPED
from jax_bwgemm.product.kernels import Kernel
from jax_bwgemm.scaled.ragged_costs import COSTS, key_of
from jax_bwgemm.scaled.ragged_selection import refusal, select
from jax_bwgemm.scaled.ragged_spec import ScaledRaggedDims, ScaledRaggedSpec
from jax_bwgemm.scaled.selection import Choice

TABLE = described_scaled_grouped_kernels()
E4M3, E5M2 = "float8_e4m3fn", "float8_e5m2"


def spec(a: str, b: str, kind: str = M_GROUPED, accumulation: str = "promoted") -> ScaledRaggedSpec:
    return ScaledRaggedSpec(kind=kind, a_scaling=a, b_scaling=b, accumulation=accumulation)


def dims(m: int, n: int, k: int, groups: int, a: str = E4M3, b: str = E4M3) -> ScaledRaggedDims:
    return ScaledRaggedDims(m, n, k, groups, groups, a_dtype=a, b_dtype=b)


BLOCKWISE = spec("1x128", "128x128")
TENSOR = spec("tensor", "tensor", accumulation="fast")


@pytest.mark.parametrize(
    ("product", "sizes", "want"),
    [
        # Many rows: where scales change along K, they lie along P.
        (BLOCKWISE, dims(32768, 4096, 7168, 4), "blocks_128x256x128_1x2_cooperative"),
        (TENSOR, dims(32768, 4096, 7168, 4), "sums_128x192x128_2x1_pingpong_swap"),
        (TENSOR, dims(65536, 1536, 2048, 128), "sums_128x192x128_2x1_pingpong_swap"),
        # Few: tiles as narrow as groups.
        (BLOCKWISE, dims(512, 2048, 7168, 64), "rows_128x128x128_1x1_cooperative_swap"),
        (TENSOR, dims(512, 2048, 7168, 64), "sums_128x128x128_1x1_cooperative_swap"),
        (TENSOR, dims(512, 2048, 7168, 64, a=E5M2), "sums_128x128x128_1x1_cooperative_swap"),
        # Square blocks of A, few rows: no swapped kernel has them.
        (
            spec("128x128", "128x128"),
            dims(512, 2048, 7168, 64),
            "blocks_128x256x128_1x2_cooperative",
        ),
        (
            spec("1x128", "1x128", K_GROUPED),
            dims(32768, 4096, 7168, 4),
            "rows_128x256x128_2x1_cooperative",
        ),
        (
            spec("1x128", "1x128", K_GROUPED),
            dims(32768, 384, 7168, 4),
            "rows_128x128x128_2x1_cooperative",
        ),
        # The gradients of the recipe "blockwise_2d".
        (
            spec("128x128", "1x128", K_GROUPED),
            dims(32768, 4096, 7168, 4),
            "blocks_128x256x128_2x1_cooperative_swap",
        ),
        (
            spec("tensor", "tensor", K_GROUPED, "fast"),
            dims(65536, 1536, 2048, 128),
            "sums_128x192x128_2x1_pingpong",
        ),
        # Tiles of 192 would compute 1152 columns.
        (
            spec("tensor", "tensor", K_GROUPED, "fast"),
            dims(16384, 1024, 1024, 32),
            "sums_128x128x128_2x1_pingpong",
        ),
        # Up to 6144 rows of an average group, that many included.
        (
            spec("tensor", "tensor", K_GROUPED, "fast"),
            dims(4 * 6144, 4096, 2048, 4),
            "sums_128x192x128_2x1_pingpong",
        ),
        (
            spec("tensor", "tensor", K_GROUPED, "fast"),
            dims(4 * 6144 + 16, 4096, 2048, 4),
            "sums_128x256x128_2x1_cooperative",
        ),
    ],
)
def test_choice(product: ScaledRaggedSpec, sizes: ScaledRaggedDims, want: str) -> None:
    assert refusal(TABLE, product, sizes) is None
    found = select(TABLE, product, sizes, make_target("sm90"))
    assert isinstance(found, Choice)
    assert found.kernel.name.endswith(f"bf16_{want}")


def test_bands_of_tiles_where_the_operands_are_large() -> None:
    """Rows and the matrices of all groups count: together 32 MiB here, or a row less."""
    for rows, swizzle in ((2048, 8), (2047, 1)):
        found = select(TABLE, TENSOR, dims(rows, 512, 8192, 4), make_target("sm90"))
        assert isinstance(found, Choice)
        assert found.swizzle == swizzle


@pytest.mark.parametrize(
    "kernel",
    [k for k in TABLE if (k.arch, k.kind) == ("sm90", M_GROUPED)],
    ids=lambda k: k.name,
)
def test_every_tile_has_a_cost(kernel: Kernel) -> None:
    assert key_of(kernel) in COSTS


@pytest.mark.usefixtures("benchmark_programs")
def test_what_choices_lose_on_recorded_times() -> None:
    from scaled import grouped_choice

    problems = grouped_choice.load()
    found = [grouped_choice.regret(p, TABLE, COSTS) for p in problems]
    assert len(found) >= 290
    assert math.exp(sum(map(math.log, found)) / len(found)) <= 1.005
    assert sum(x > 1.05 for x in found) <= 0.03 * len(found)
    assert max(found) <= 1.2  # of 8 rows in all


@pytest.mark.usefixtures("benchmark_programs")
def test_the_fitter_finds_the_costs_that_made_the_times() -> None:
    from scaled import grouped_choice

    kernels = [k for k in TABLE if key_of(k) in COSTS and k.scales == "sums"]
    problems = [p for p in grouped_choice.load() if p.scalings == ("tensor", "tensor")][::9]
    made = [grouped_choice.with_predicted_times(p, kernels, COSTS) for p in problems]
    start = {key_of(k): heuristics.GroupedCost(0.5, 500, 0.7) for k in kernels}
    fitted = grouped_choice.fit(made, kernels, start)
    assert grouped_choice.error(made, kernels, fitted) < 0.01
    assert grouped_choice.error(made, kernels, start) > 0.1


@pytest.mark.skipif(runtime.extension() is None, reason="the kernels were not built")
def test_explain_takes_types() -> None:
    quantized = [
        jax.eval_shape(lambda x, s=s: bw.quantize(x, s), jax.ShapeDtypeStruct(shape, jnp.bfloat16))
        for shape, s in (((512, 7168), "1x128"), ((64, 2048, 7168), "128x128"))
    ]
    sizes = jax.ShapeDtypeStruct((64,), jnp.int32)
    found = bw.explain_scaled_ragged_dot(*quantized, sizes, device="sm90", implementation="cutlass")
    assert "tiles of 128x128, operands swapped" in found.reason
    with pytest.raises(TypeError, match="not a valid JAX type"):
        bw.scaled_ragged_dot(*quantized, sizes)
