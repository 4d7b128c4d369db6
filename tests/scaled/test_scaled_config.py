"""`config=` of scaled products: which kernel runs, and how, is what was asked for."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from emulator_cases import requires_emulator
from numerics import assert_exact
from ragged_cases import exact_pair, expected
from scaled_cases import exact_operand, formula_product

import jax_bwgemm as bw
from jax_bwgemm import emulator, runtime
from jax_bwgemm.config import make_target
from jax_bwgemm.product.kernels import Kernel
from jax_bwgemm.scaled.costs import candidates
from jax_bwgemm.scaled.primitive import DENSE
from jax_bwgemm.scaled.ragged_primitive import RAGGED
from jax_bwgemm.scaled.spec import ScaledDims
from jax_bwgemm.tuning import problems

E4M3 = "float8_e4m3fn"
SIZES = np.array([100, 0, 40, 130])
# By what a kernel applies scales to.
LAYOUTS = {
    "sums": ("tensor", "row"),
    "blocks": ("1x128", "128x128"),
    "rows": ("1x128", "1x128"),
    "mma": ("mxfp8", "mxfp8"),
}


def structs(a: str, b: str, m: int = 4096, n: int = 4096, k: int = 4096) -> tuple[Any, Any]:
    """The types of two operands."""
    shapes = ((m, k), a), ((n, k), b)
    return tuple(
        jax.eval_shape(lambda x, s=scaling: bw.quantize(x, s), jax.ShapeDtypeStruct(x, jnp.float32))
        for x, scaling in shapes
    )


def of(table: tuple[Kernel, ...], arch: str, out: str = "bfloat16") -> list[Kernel]:
    wanted = (arch, E4M3, E4M3, out)
    return [k for k in table if (k.arch, k.a_dtype, k.b_dtype, k.out_dtype) == wanted]


def accumulation(kernel: Kernel) -> str:
    return "fast" if kernel.scales == "sums" else "promoted"


@pytest.mark.parametrize("arch", ["sm90", "sm100"])
def test_every_kernel_can_be_asked_for(arch: str) -> None:
    table = of(DENSE.table_of("cutlass"), arch)
    assert len(table) > 1 or runtime.extension() is None
    for kernel in table:
        a, b = structs(*(LAYOUTS[kernel.scales][:: -1 if kernel.swap_ab else 1]))
        how = {"config": kernel.name, "accumulation": accumulation(kernel)}
        found = bw.explain_scaled_matmul(a, b, device=arch, implementation="cutlass", **how)
        assert found.kernel == kernel.name
        assert f"chosen by TuningConfig(kernel='{kernel.name}')" in found.reason


@pytest.mark.parametrize("arch", ["sm90", "sm100"])
@pytest.mark.parametrize("kind", ["m-grouped", "k-grouped"])
def test_every_grouped_kernel_can_be_asked_for(arch: str, kind: str) -> None:
    table = [k for k in of(RAGGED.table_of("cutlass"), arch) if k.kind == kind]
    assert table or runtime.extension() is None
    for kernel in table:
        layouts = LAYOUTS[kernel.scales][:: -1 if kernel.swap_ab else 1]
        if kernel.scales == "sums":
            layouts = ("tensor", "tensor")
        a, b = exact_pair(kind, layouts, (272, 256, 256), len(SIZES))
        how = {"config": kernel.name, "accumulation": accumulation(kernel)}
        found = bw.explain_scaled_ragged_dot(
            a, b, SIZES, device=arch, implementation="cutlass", **how
        )
        assert found.kernel == kernel.name
        assert f"chosen by GroupedConfig(kernel='{kernel.name}')" in found.reason


def asked(config: Any, a: str = "tensor", b: str = "tensor", **more: Any) -> Any:
    operands = structs(a, b, **more)
    return bw.explain_scaled_matmul(
        *operands, accumulation="fast", config=config, device="sm90", implementation="cutlass"
    )


@pytest.fixture
def _compiled() -> None:
    if not DENSE.table_of("cutlass"):
        pytest.skip("jax_bwgemm was installed without its compiled kernels")


@pytest.mark.usefixtures("_compiled")
def test_run_time_attributes() -> None:
    tile = {"tile_m": 128, "tile_n": 128}
    found = asked(bw.TuningConfig(**tile, raster_order="m", swizzle=2, splits=4))
    assert (found.raster_order, found.swizzle, found.splits) == ("m", 2, 4)
    assert "128x128x128" in str(found.kernel)
    free = asked(bw.TuningConfig(**tile))
    assert (free.kernel, free.splits) == (found.kernel, 1)
    a, b = exact_pair("m-grouped", ("1x128", "128x128"), (272, 256, 256), len(SIZES))
    found = bw.explain_scaled_ragged_dot(
        a, b, SIZES, config=bw.GroupedConfig(raster_order="m", swizzle=7), device="sm90"
    )
    assert (found.raster_order, found.swizzle) == ("m", 7)


@pytest.mark.usefixtures("_compiled")
@pytest.mark.parametrize(
    ("config", "layouts", "error", "message"),
    [
        ("nothing", (), NotImplementedError, r"kernel 'nothing' is not in this build; for this "),
        (
            bw.TuningConfig(tile_m=8),
            (),
            NotImplementedError,
            r"no kernel of this build satisfies TuningConfig\(tile_m=8\): .*tile_m is 128, not 8",
        ),
        (
            "sm90_scaled_e4m3_e4m3_bf16_sums_128x128x128_2x1_pingpong",
            ("1x128", "128x128"),
            ValueError,
            r"_pingpong' does not compute scaled GEMM float8_e4m3fn 1x128 x float8_e4m3fn 128x128",
        ),
        (
            bw.TuningConfig(schedule="2sm"),
            (),
            NotImplementedError,
            r"no kernel for sm90 fits \(.*schedule is 'pingpong', not '2sm'",
        ),
        (bw.GroupedConfig(), (), TypeError, r"config must be a TuningConfig, a kernel name or"),
    ],
)
def test_what_cannot_be_done(config: Any, layouts: Any, error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        asked(config, *layouts)


@pytest.mark.usefixtures("_compiled")
def test_splits() -> None:
    steps = asked(bw.TuningConfig(splits=64), "1x128", "1x128", k=512)
    assert steps.splits == 4
    short_last_step = asked(bw.TuningConfig(splits=64), "1x128", "1x128", k=400)
    assert short_last_step.splits == 4
    a, b = (
        jax.eval_shape(lambda x: jax.tree.map(lambda y: jnp.stack([y, y]), x), x)
        for x in structs("tensor", "tensor")
    )
    with pytest.raises(NotImplementedError, match=r"K=4096 cannot be computed in 2 parts by sm90_"):
        bw.explain_scaled_matmul(
            a, b, config=bw.TuningConfig(splits=2), device="sm90", implementation="cutlass"
        )


def test_parts_that_are_compared_have_512_of_16_bits() -> None:
    """As many bytes as of a 16-bit product: shorter ones do not fill a kernel's pipeline."""
    kernel = next(k for k in of(DENSE.table_of("cutlass"), "sm90") if k.f32_twin)
    dims = ScaledDims(1, 128, 256, 4096, E4M3, E4M3)
    found = candidates(kernel, dims, make_target("sm90"))
    assert [c.splits for c in found] == [1, 2, 3, 4]


def test_xla_has_no_kernels() -> None:
    a, b = structs("row", "row", 16, 16, 128)
    message = r"TuningConfig\(tile_m=128\) is for the kernels; implementation='xla' has none"
    with pytest.raises(ValueError, match=message):
        bw.explain_scaled_matmul(a, b, config=bw.TuningConfig(tile_m=128), implementation="xla")


def test_without_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "scaled_kernels", lambda: ())
    with pytest.raises(
        NotImplementedError,
        match=r"TuningConfig\(tile_m=8\) cannot be satisfied: jax_bwgemm was installed without",
    ):
        asked(bw.TuningConfig(tile_m=8))


@pytest.mark.usefixtures("_compiled")
def test_nothing_is_left_to_tune() -> None:
    a, b = structs("tensor", "tensor")
    target = make_target("sm90")
    with bw.config.target("sm90"), bw.config.tuning_miss("error"):
        jaxpr = jax.make_jaxpr(
            lambda a, b: bw.scaled_matmul(a, b, config=bw.TuningConfig(swizzle=2))
        )(a, b)
        # A tuned entry would be asked for, and there is none.
        assert bw.explain_scaled_matmul(a, b, config=bw.TuningConfig(swizzle=2)).swizzle == 2
    found = problems.find(jaxpr, target, (), {})
    assert not found.counts
    assert [reason for _, reason in found.skipped] == ["it has an explicit TuningConfig(swizzle=2)"]


EMULATED = of(DENSE.table_of("emulator"), "sm90") if DENSE.table_of("emulator") else []


@pytest.mark.parametrize("kernel", EMULATED, ids=lambda k: k.name)
@requires_emulator[0]
@requires_emulator[1]
@pytest.mark.usefixtures("no_rule_broken")
def test_emulated(kernel: Kernel) -> None:
    rng = np.random.default_rng(0)
    layouts = LAYOUTS[kernel.scales][:: -1 if kernel.swap_ab else 1]
    a, b = exact_operand(rng, (70, 256), layouts[0]), exact_operand(rng, (136, 256), layouts[1])
    splits = 2 if kernel.f32_twin else None
    config = bw.TuningConfig(kernel=kernel.name, raster_order="m", swizzle=2, splits=splits)
    with emulator.configure(sm_count=4):
        got = bw.scaled_matmul(
            a, b, config=config, implementation="emulator", accumulation=accumulation(kernel)
        )
    assert_exact(got, formula_product(a, b).astype(jnp.bfloat16))


@pytest.mark.parametrize("order", ["m", "n"])
@requires_emulator[0]
@requires_emulator[1]
@pytest.mark.usefixtures("no_rule_broken")
def test_emulated_in_groups(order: str) -> None:
    a, b = exact_pair("m-grouped", ("1x128", "128x128"), (300, 256, 256), len(SIZES))
    with emulator.configure(sm_count=4):
        got = bw.scaled_ragged_dot(
            a, b, SIZES, config=bw.GroupedConfig(raster_order=order), implementation="emulator"
        )
    assert_exact(got, expected(a, b, SIZES).astype(jnp.bfloat16))
