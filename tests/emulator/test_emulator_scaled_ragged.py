"""Every grouped scaled kernel in the emulator against exact products; errors of its call."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from emulator_cases import BUILT, requires_emulator
from numerics import assert_exact
from ragged_cases import SIZES, exact_pair, expected

import jax_bwgemm as bw
from jax_bwgemm import config, emulator, runtime
from jax_bwgemm.product.kernels import Kernel

TOOLS = Path(__file__).resolve().parents[2] / "tools"
pytestmark = [
    *requires_emulator,
    pytest.mark.usefixtures("no_rule_broken"),
    pytest.mark.skipif(not TOOLS.is_dir(), reason="not part of an installed package"),
]
KERNELS = runtime.emulated_scaled_grouped_kernels() if BUILT else ()


@pytest.fixture(autouse=True)
def _tools_on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(TOOLS))


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda k: k.name)
def test_kernel_is_exact_with_every_pair_of_layouts(
    kernel: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sanitize_scaled_grouped

    monkeypatch.setattr(runtime, "scaled_grouped_kernels", lambda: (kernel,))
    cases = sanitize_scaled_grouped.cases(kernel.arch, "")
    assert len(cases) >= 4
    for case in cases:
        with emulator.configure(sm_count=4, seed=case.seed):
            got, want = case.run("emulator")
        assert_exact(got, want, str(case))
        stats = emulator.last_launch()
        assert stats is not None
        assert stats.ok


def test_random_problems_are_exact() -> None:
    import sanitize_scaled_grouped

    for case in sanitize_scaled_grouped.random_cases(KERNELS, 30, seed=7):
        if case.m * case.n * case.k > 2e8:
            continue
        got, want = case.run("emulator")
        assert_exact(got, want, str(case))


@pytest.mark.parametrize(
    ("arch", "scaling"),
    [
        ("sm90", "tensor"),
        ("sm90", "1x128"),
        ("sm100", "row"),
        ("sm100", "1x128"),
        ("sm100", "mxfp8"),
    ],
)
def test_groups_end_at_every_place_of_a_chunk(arch: str, scaling: str) -> None:
    """Columns of small groups share 16 bytes; those of no group are NaN and reach no result."""
    sizes = (1, 2, 13, 16, 17, 0, 31, 3, 64, 97, 5, 33)
    rows = sum(sizes)
    a, b = exact_pair("k-grouped", (scaling, scaling), (304, 136, 144), len(sizes))
    nans = [jnp.where(jnp.arange(304) < rows, x.values, jnp.nan) for x in (a, b)]
    pair = [
        bw.ScaledArray(v.astype(x.dtype), x.scales, x.scaling)
        for v, x in zip(nans, (a, b), strict=True)
    ]
    with config.target(arch):
        got = bw.scaled_ragged_dot(
            *pair, jnp.array(sizes), preferred_element_type=jnp.float32, implementation="emulator"
        )
    assert np.isnan(np.asarray(pair[0].values, np.float32)).any()
    assert_exact(got, expected(a, b, sizes).astype(np.float32))


@pytest.mark.parametrize("operand", [0, 1])
@pytest.mark.parametrize(
    ("arch", "scalings"),
    [
        ("sm90", ("tensor", "tensor")),
        ("sm90", ("1x128", "1x128")),
        ("sm90", ("128x128", "1x128")),
        ("sm100", ("tensor", "tensor")),
        ("sm100", ("1x128", "1x128")),
        ("sm100", ("mxfp8", "mxfp8")),
    ],
)
def test_a_group_of_nans_makes_no_other_nan(
    arch: str, scalings: tuple[str, str], operand: int
) -> None:
    """Ahead of groups and behind them: both operands are zero there, since 0 x NaN is NaN."""
    sizes, spoilt = (3, 29, 31, 90, 7, 64, 80), 3
    a, b = exact_pair("k-grouped", scalings, (304, 136, 144), len(sizes))
    want = expected(a, b, sizes).astype(np.float32)
    first = sum(sizes[:spoilt])
    inside = (jnp.arange(304) >= first) & (jnp.arange(304) < first + sizes[spoilt])
    pair = [a, b]
    x = pair[operand]
    values = jnp.where(inside, jnp.nan, x.values.astype(jnp.float32)).astype(x.values.dtype)
    pair[operand] = bw.ScaledArray(values, x.scales, x.scaling)
    with config.target(arch):
        got = bw.scaled_ragged_dot(
            *pair, jnp.array(sizes), preferred_element_type=jnp.float32, implementation="emulator"
        )
    assert np.isnan(np.asarray(got[spoilt])).all()
    others = np.arange(len(sizes)) != spoilt
    assert_exact(got[others], want[others])


@pytest.mark.parametrize(("scaling", "block"), [("mxfp8", 32), ("nvfp4", 16)])
def test_scales_of_other_groups_do_not_count(scaling: str, block: int) -> None:
    """Though they are in the same tile, and what they multiply is zeroed: they may be NaN."""
    sizes = tuple(block * n for n in (1, 0, 3, 2, 9, 4))
    a, b = exact_pair("k-grouped", (scaling, scaling), (320, 136, 144), len(sizes))
    want = expected(a, b, sizes).astype(np.float32)
    blocks = jnp.arange(a.scales.shape[-1])
    spoilt = (blocks < 1) | (blocks >= sum(sizes) // block)  # of the first group, and of none
    pair = [
        bw.ScaledArray(x.values, jnp.where(spoilt, jnp.nan, x.scales), scaling, x.global_scale)
        for x in (a, b)
    ]
    got = bw.scaled_ragged_dot(
        *pair, jnp.array(sizes), preferred_element_type=jnp.float32, implementation="emulator"
    )
    assert np.isnan(np.asarray(got[0])).all()
    assert_exact(got[1:], want[1:])


@pytest.mark.parametrize("kind", ["m-grouped", "k-grouped"])
@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize(
    ("arch", "layouts"),
    [
        ("sm90", ("1x128", "128x128")),
        ("sm100", ("row", "tensor")),
        ("sm100", ("1x128", "128x128")),
        ("sm100", ("128x128", "1x128")),
        ("sm100", ("mxfp8", "mxfp8")),
        ("sm100", ("nvfp4", "nvfp4")),
    ],
)
def test_through_selection(kind: str, batched: bool, arch: str, layouts: tuple[str, str]) -> None:
    """float16 by way of float32; batches of vmap."""
    import jax

    shape = (320, 280, 224)
    a, b = exact_pair(kind, layouts, shape, len(SIZES))

    def product(a: bw.ScaledArray, sizes: jax.Array) -> jax.Array:
        with config.target(arch):
            return bw.scaled_ragged_dot(
                a, b, sizes, preferred_element_type=jnp.float16, implementation="emulator"
            )

    if not batched:
        assert_exact(product(a, jnp.array(SIZES)), expected(a, b, SIZES).astype(np.float16))
        return
    stacked = jax.tree.map(lambda leaf: jnp.stack([leaf, jnp.flip(leaf)]), a)
    got = jax.vmap(product, (0, None))(stacked, jnp.array(SIZES))
    one = jax.tree.map(lambda leaf: leaf[1], stacked)
    assert_exact(got[1], expected(one, b, SIZES).astype(np.float16))


def test_layouts_without_a_kernel_on_a_gpu() -> None:
    a, b = exact_pair("m-grouped", ("mxfp8", "mxfp8"), (304, 280, 208), len(SIZES))
    message = (
        "no m-grouped kernel for sm90 applies scales of mxfp8 and mxfp8 to "
        "float8_e4m3fn x float8_e4m3fn"
    )
    with config.target("sm90"), pytest.raises(NotImplementedError, match=message):
        bw.scaled_ragged_dot(a, b, jnp.array(SIZES), implementation="emulator")


@pytest.mark.parametrize("recipe", ["blockwise", "mxfp8", "nvfp4"])
def test_all_three_products_of_experts_run_on_kernels(recipe: str) -> None:
    """The same results as XLA's, whose sums differ by f32 roundings only."""
    import jax

    rng = np.random.default_rng(0)
    shapes = ((160, 96), (4, 96, 64), (160, 64))
    x, w, g = (jnp.asarray(rng.standard_normal(shape), jnp.float32) for shape in shapes)
    sizes = jnp.array([70, 0, 1, 50])
    key = {"key": jax.random.key(0)} if recipe == "nvfp4" else {}

    def step(implementation: Any) -> Any:
        dot = bw.fp8_ragged_dot(recipe, implementation=implementation)

        def products(x: jax.Array, w: jax.Array, g: jax.Array) -> Any:
            out, back = jax.vjp(lambda x, w: dot(x, w, sizes, **key), x, w)
            return out, *back(g)

        return jax.block_until_ready(jax.jit(products)(x, w, g))

    before = emulator.launch_count()
    with config.target("sm100"):
        ours = step(("emulator", "xla"))
    # Three operands are quantized, once each; layouts with 8-bit scales by XLA.
    assert emulator.launch_count() == before + (6 if recipe == "blockwise" else 3)
    for got, want in zip(ours, step("xla"), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-3)


def case_of(kind: str):
    import sanitize_scaled_grouped

    kernel = next(k for k in KERNELS if k.kind == kind and k.scales == "blocks")
    types = kernel.a_dtype, kernel.b_dtype, kernel.out_dtype
    return sanitize_scaled_grouped.ScaledGroupedCase(
        kernel.name, kind, types, ("tensor", "tensor"), 32, 16, 32, (16, 16), 1
    )


@pytest.mark.parametrize("kind", ["m-grouped", "k-grouped"])
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("a_scales", "operand a_scales is"),
        ("b_scales", "operand b_scales is"),
        ("b", "operand b is"),
    ],
)
def test_calls_with_wrong_shapes_are_refused(kind: str, name: str, message: str) -> None:
    case = case_of(kind)
    operands, _ = case.operands()
    operands[name] = np.concatenate([operands[name]] * 2, -1)
    if operands[name].ndim == 1:  # the scale of a tensor: a batch that nothing else has
        operands[name] = np.concatenate([operands[name]] * 3)
    with pytest.raises(Exception, match=re.escape(message)):
        np.asarray(case.launch("emulator", operands))


@pytest.mark.parametrize(
    ("values", "name", "shape", "message"),
    [
        ("float8_e4m3fn", "a_scales", (1, 3, 1, 512), "expected uint8[1,2,1,512]"),
        ("float8_e4m3fn", "b_scales", (1, 2, 1, 2, 512), "expected uint8[1,2,1,1,512]"),
        ("float4_e2m1fn", "a_scales", (1, 2, 2, 512), "expected uint8[1,2,1,512]"),
        ("float4_e2m1fn", "alpha", (1,), "expected float32[1,2]"),
        ("float4_e2m1fn", "b", (1, 2, 16, 32), "expected uint8[1,2,16,16]"),
    ],
)
def test_calls_of_block_formats_with_wrong_shapes_are_refused(
    values: str, name: str, shape: tuple[int, ...], message: str
) -> None:
    import sanitize_scaled_grouped

    kernel = next(
        k for k in KERNELS if (k.kind, k.scales, k.a_dtype) == ("m-grouped", "mma", values)
    )
    types = kernel.a_dtype, kernel.b_dtype, kernel.out_dtype
    layouts = ("nvfp4" if values == "float4_e2m1fn" else "mxfp8",) * 2
    case = sanitize_scaled_grouped.ScaledGroupedCase(
        kernel.name, kernel.kind, types, layouts, 32, 16, 32, (0, 16, 16), 2
    )
    operands, _ = case.operands()
    operands[name] = np.zeros(shape, operands[name].dtype)
    with pytest.raises(Exception, match=re.escape(message)):
        np.asarray(case.launch("emulator", operands))


@pytest.mark.parametrize("kind", ["m-grouped", "k-grouped"])
def test_layouts_that_a_kernel_does_not_apply_are_refused(kind: str) -> None:
    from jax_bwgemm.product import targets

    case = case_of(kind)
    operands, want = case.operands()
    import jax

    with pytest.raises(Exception, match="applies scales to blocks, the call has a_scaling 'row'"):
        np.asarray(
            targets.call_kernel(
                "emulator",
                case.kernel,
                operands,
                jax.ShapeDtypeStruct(want.shape, want.dtype),
                4,
                a_scaling="row",
                b_scaling="row",
            )
        )


@pytest.mark.parametrize(
    ("kind", "sizes", "message"),
    [
        ("m-grouped", {"k": 40}, "K of "),
        ("k-grouped", {"m": 40}, "M of "),
        ("m-grouped", {"n": 12}, "must be a multiple of 16, N of 8"),
        ("m-grouped", {"m": 2**31 - 1}, "has an extent above"),
        ("m-grouped", {"n": 2**24, "k": 2**20}, "may have more than 2^31 - 1 scales"),
    ],
)
def test_sizes_that_a_kernel_does_not_take(kind: str, sizes: dict[str, int], message: str) -> None:
    whole = {"m": 32, "n": 16, "k": 32, "batch": 1, "groups": 2, "experts": 1, "sm_count": 1}
    with pytest.raises(ValueError, match=re.escape(message)):
        runtime.kernel_workspace_bytes("emulator", case_of(kind).kernel, **whole | sizes)


@pytest.mark.parametrize("shape", [(0, 56, 128), (304, 0, 128), (304, 56, 0)])
@pytest.mark.parametrize("kind", ["m-grouped", "k-grouped"])
def test_an_empty_problem_runs_no_kernel(kind: str, shape: tuple[int, int, int]) -> None:
    pair, before = exact_pair(kind, ("row", "row"), shape, len(SIZES)), emulator.launch_count()
    got = bw.scaled_ragged_dot(*pair, jnp.array(SIZES), implementation="emulator")
    assert_exact(got, expected(*pair, SIZES).astype(jnp.bfloat16))
    assert not np.any(got)
    assert emulator.launch_count() == before
