"""Every scaled kernel in the emulator against exact products, and the errors of its call."""

from __future__ import annotations

import functools
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from emulator_cases import BUILT, requires_emulator, rules_kept
from numerics import assert_exact
from scaled_cases import exact_operand, formula_product

import jax_bwgemm as bw
from jax_bwgemm import config, emulator, runtime
from jax_bwgemm.product import targets
from jax_bwgemm.product.kernels import Kernel

TOOLS = Path(__file__).resolve().parents[2] / "tools"
pytestmark = [
    *requires_emulator,
    pytest.mark.skipif(not TOOLS.is_dir(), reason="not part of an installed package"),
]
KERNELS = runtime.emulated_scaled_kernels() if BUILT else ()


@pytest.fixture(autouse=True)
def _tools_on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(TOOLS))


def problems(kernel: Kernel) -> dict[str, tuple[int, int, int, int]]:
    """M, N, K and batch: families that every kernel has to get right, from its tile."""
    least = 32 if kernel.a_dtype == "float4_e2m1fn" else 16  # of K, whose rows have whole 16 bytes
    rows, columns = (
        (kernel.tile_n, kernel.tile_m) if kernel.swap_ab else (kernel.tile_m, kernel.tile_n)
    )
    return {
        "one_tile": (rows, columns, 256, 1),
        # More tiles than the machine holds at once; scales of each matrix of the batch.
        "many_tiles_batch_3": (2 * rows, 2 * columns, 128, 3),
        # Edges inside of boxes and of blocks of scales, K several times around the pipeline.
        "ragged_deep": (rows + 41, columns + 40, (2 * kernel.stages + 1) * 128 + least, 1),
        "tiny": (3, 8, least, 1),
    }


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda k: k.name)
@pytest.mark.parametrize("family", ["one_tile", "many_tiles_batch_3", "ragged_deep", "tiny"])
def test_kernel_is_exact_with_every_pair_of_layouts(kernel: Kernel, family: str) -> None:
    import sanitize_scaled

    types = kernel.a_dtype, kernel.b_dtype, kernel.out_dtype
    m, n, k, batch = problems(kernel)[family]
    for seed, scalings in enumerate(sanitize_scaled.layouts_of(kernel)):
        case = sanitize_scaled.ScaledCase(kernel.name, types, scalings, m, n, k, batch, seed=seed)
        with emulator.configure(sm_count=4, seed=seed):
            got, want = case.run("emulator")
        assert_exact(got, want, str(case))
        rules_kept(kernel)


OVERLAPPING = [k for k in KERNELS if k.arch == "sm90" and not k.swap_ab and k.tile_n % 64]


@pytest.mark.parametrize("kernel", OVERLAPPING, ids=lambda k: k.name)
def test_columns_of_the_last_tile_end_in_either_of_two_overlapping_chunks(kernel: Kernel) -> None:
    import sanitize_scaled

    types = kernel.a_dtype, kernel.b_dtype, kernel.out_dtype
    last = kernel.tile_n - 64  # the first column of the last chunk
    for seed, columns in enumerate((8, last - 8, last, last + 8, last + 16, last + 24, last + 56)):
        sizes = 72, kernel.tile_n + columns, 144, 1
        case = sanitize_scaled.ScaledCase(kernel.name, types, ("row", "row"), *sizes, seed=seed)
        got, want = case.run("emulator")
        assert_exact(got, want, str(case))


def test_there_is_a_tile_whose_last_chunks_overlap() -> None:
    assert OVERLAPPING


@pytest.mark.parametrize("kernel", [k for k in KERNELS if k.scales == "rows"], ids=lambda k: k.name)
@pytest.mark.parametrize("wide", ["all", "one block", "one row"])
def test_scales_that_are_not_powers_of_two(kernel: Kernel, wide: str) -> None:
    """Of rows along the tile's columns, in all blocks of K, one block or one row."""
    rng = np.random.default_rng(3)
    m, n, k = (kernel.tile_n + 8, 72, 400) if kernel.swap_ab else (72, kernel.tile_n + 8, 400)
    a, b = (exact_operand(rng, (rows, k), "1x128") for rows in (m, n))
    columns = a if kernel.swap_ab else b
    factors = np.ones(columns.scales.shape, np.float32)
    factors[{"all": (), "one block": (1,), "one row": (slice(None), 5)}[wide]] += 2.0**-9
    columns = bw.ScaledArray(columns.values, columns.scales * factors, "1x128")
    a, b = (columns, b) if kernel.swap_ab else (a, columns)
    named = {"a": a.values, "b": b.values, "a_scales": a.scales, "b_scales": b.scales}
    got = targets.call_kernel(
        "emulator",
        kernel.name,
        {role: x[None] for role, x in named.items()},
        jax.ShapeDtypeStruct((1, m, n), kernel.out_dtype),
        0,
        a_scaling="1x128",
        b_scaling="1x128",
    )
    assert_exact(got[0], formula_product(a, b).astype(np.float32).astype(kernel.out_dtype))


def test_random_problems_are_exact() -> None:
    import sanitize_scaled

    for case in sanitize_scaled.random_cases(KERNELS, 24, seed=7):
        small = 1 if case.m * case.n * case.k * case.batch > 2e8 else case.batch
        if case.m * case.n * case.k * small > 4e8:
            continue
        got, want = case.run("emulator")
        assert_exact(got, want, str(case))


@pytest.mark.parametrize("a", ["tensor", "row", "1x128", "128x128"])
@pytest.mark.parametrize("b", ["tensor", "row", "1x128", "128x128"])
@pytest.mark.parametrize("accumulation", ["promoted", "fast"])
@pytest.mark.parametrize("m", [24, 136])
def test_scaled_matmul(a: str, b: str, accumulation: str, m: int) -> None:
    """Through selection; float16 by way of float32."""
    rng = np.random.default_rng(0)
    x, y = exact_operand(rng, (m, 272), a), exact_operand(rng, (144, 272), b)
    got = bw.scaled_matmul(
        x,
        y,
        accumulation=accumulation,
        preferred_element_type=jnp.float16,
        implementation="emulator",
    )
    assert_exact(got, formula_product(x, y).astype(np.float16))


@pytest.mark.parametrize(
    "layouts",
    [
        ("1x128", "128x128"),
        ("128x128", "1x128"),
        ("1x128", "1x128"),
        ("row", "1x128"),
        ("1x128", "tensor"),
    ],
)
@pytest.mark.parametrize("shape", [(24, 136, 16), (256, 128, 512), (300, 280, 656)])
def test_blocks_of_128_on_sm100(layouts: tuple[str, str], shape: tuple[int, int, int]) -> None:
    """By a grouped kernel: one matrix, and a batch of which one operand is shared."""
    rng = np.random.default_rng(0)
    m, n, k = shape
    x, y = exact_operand(rng, (m, k), layouts[0]), exact_operand(rng, (2, n, k), layouts[1])

    def product(x: bw.ScaledArray, y: bw.ScaledArray) -> jax.Array:
        with config.target("sm100"):
            return bw.scaled_matmul(
                x, y, preferred_element_type=jnp.float32, implementation="emulator"
            )

    want = formula_product(x, y).astype(np.float32)
    assert_exact(product(x, y), want)
    stats = emulator.last_launch()
    assert stats is not None
    assert stats.ok
    assert not stats.warnings
    first = jax.tree.map(lambda leaf: leaf[0] if leaf.ndim else leaf, y)
    assert_exact(product(x, first), want[0])


@pytest.mark.parametrize("shared", ["a", "b", None])
def test_batches_and_vmap(shared: str | None) -> None:
    rng = np.random.default_rng(0)
    x = exact_operand(rng, (40, 144) if shared == "a" else (3, 40, 144), "1x128")
    y = exact_operand(rng, (32, 144) if shared == "b" else (3, 32, 144), "128x128")

    def product(x: bw.ScaledArray, y: bw.ScaledArray) -> jax.Array:
        return bw.scaled_matmul(x, y, preferred_element_type=jnp.float32, implementation="emulator")

    want = formula_product(x, y).astype(np.float32)
    assert_exact(product(x, y), want)
    axes = (None if shared == "a" else 0, None if shared == "b" else 0)
    assert_exact(jax.vmap(product, in_axes=axes)(x, y), want)
    stack = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf], 1), x if shared != "a" else y)
    if shared is None:  # a second batch over one operand only
        got = jax.vmap(product, in_axes=(1, None), out_axes=1)(stack, y)
        assert_exact(got, np.stack([want, want], 1))


@pytest.mark.parametrize("scaling", ["mxfp8", "nvfp4"])
@pytest.mark.parametrize("shared", ["a", "b", None])
def test_formats_that_an_mma_reads(scaling: str, shared: str | None) -> None:
    """Through selection, of two batches, with global scales of their own."""
    rng = np.random.default_rng(0)
    x = exact_operand(rng, (40, 160) if shared == "a" else (3, 40, 160), scaling)
    y = exact_operand(rng, (136, 160) if shared == "b" else (3, 136, 160), scaling)
    if scaling == "nvfp4" and shared != "a":
        x = bw.ScaledArray(x.values, x.scales, scaling, jnp.asarray([0.5, 2, 4], jnp.float32))
    factors = 1 if x.global_scale is None else np.asarray(x.global_scale)[..., None, None]
    ones = None if x.global_scale is None else jnp.float32(1)
    want = formula_product(bw.ScaledArray(x.values, x.scales, scaling, ones), y) * factors

    def product(x: bw.ScaledArray, y: bw.ScaledArray) -> jax.Array:
        return bw.scaled_matmul(x, y, preferred_element_type=jnp.float32, implementation="emulator")

    before = emulator.launch_count()
    assert_exact(product(x, y), want.astype(np.float32))
    assert emulator.launch_count() == before + 1
    stats = emulator.last_launch()
    assert stats is not None
    assert stats.ok
    assert not stats.warnings

    def axes(operand: bw.ScaledArray) -> Any:
        if operand.ndim == 2:
            return None
        one = operand.global_scale is not None and operand.global_scale.ndim == 0
        return bw.ScaledArray.tree_unflatten(scaling, (0, 0, None if one else 0))

    if scaling == "mxfp8":
        axes_of = [None if operand.ndim == 2 else 0 for operand in (x, y)]
    else:
        axes_of = [axes(operand) for operand in (x, y)]
    assert_exact(jax.vmap(product, in_axes=axes_of)(x, y), want.astype(np.float32))


@pytest.mark.parametrize("other", ["mxfp4", "mxfp8"])
def test_mxfp4_is_multiplied_as_mxfp8(other: str) -> None:
    rng = np.random.default_rng(0)
    x, y = exact_operand(rng, (40, 160), other), exact_operand(rng, (136, 160), "mxfp4")
    product = functools.partial(
        bw.scaled_matmul, preferred_element_type=jnp.float32, implementation="emulator"
    )
    before = emulator.launch_count()
    assert_exact(jax.jit(product)(x, y), formula_product(x, y).astype(np.float32))
    assert emulator.launch_count() == before + 1


@pytest.mark.parametrize(
    ("recipe", "arch"),
    [
        ("per_tensor", "sm90"),
        ("blockwise", "sm90"),
        ("blockwise", "sm100"),
        ("mxfp8", "sm100"),
        ("nvfp4", "sm100"),
    ],
)
def test_all_three_products_of_a_layer_run_on_kernels(recipe: str, arch: str) -> None:
    """The same results as XLA's, whose sums differ by f32 roundings only."""
    rng = np.random.default_rng(0)
    x, w, g = (
        jnp.asarray(rng.standard_normal(shape), jnp.float32)
        for shape in ((160, 288), (288, 192), (160, 192))
    )

    def step(implementation: Any) -> Any:
        dot = bw.fp8_dot_general(recipe, implementation=implementation)
        key = {"key": jax.random.key(0)} if recipe == "nvfp4" else {}
        out, back = jax.vjp(lambda x, w: dot(x, w, (((1,), (0,)), ((), ())), **key), x, w)
        return jax.block_until_ready((out, *back(g)))

    before = emulator.launch_count()
    # Three operands are quantized, once each; layouts with 8-bit scales by XLA.
    formats = recipe in ("mxfp8", "nvfp4")
    with config.target(arch):
        ours = step(("emulator", "xla") if formats else "emulator")
    assert emulator.launch_count() == before + (3 if formats else 6)
    for got, want in zip(ours, step("xla"), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-3)


SMALL = {"a": (1, 8, 16), "b": (1, 8, 16), "a_scales": (1,), "b_scales": (1,), "d": (1, 8, 8)}


@pytest.mark.parametrize(
    ("shapes", "options", "message"),
    [
        ({"a": (8, 16)}, {}, r"a is float8_e4m3fn\[8,16\], expected rank 3"),
        ({"b": (1, 8, 32)}, {}, r"operand b is float8_e4m3fn\[1,8,32\], expected .*\[1,8,16\]"),
        ({"a_scales": (2,)}, {}, r"operand a_scales is float32\[2\], expected float32\[1\]"),
        ({}, {"a_scaling": "row"}, r"operand a_scales is float32\[1\], expected float32\[1,8\]"),
        ({}, {"a_scaling": "column"}, "scaling 'column' of a_scales is none of 'tensor', 'row'"),
        ({}, {"a_scaling": ""}, "scaling '' of a_scales is none of"),
        ({}, {"b_scaling": "row"}, "applies scales to blocks, the call has a_scaling 'tensor'"),
        ({}, {"swizzle": 3}, "swizzle 3 is none of 1, 2, 4, 8, 16"),
        ({}, {"raster_order": "k"}, "raster_order 'k' is none of 'heuristic', 'm', 'n'"),
        ({}, {"splits": 65}, r"splits 65 is outside \[1, 64\]"),
        ({}, {"splits": 2}, "needs 512 bytes of workspace for .*, got 0"),
        (
            {"a": (2, 8, 16), "d": (2, 8, 8)},
            {"splits": 2},
            "a batch of 2 cannot be combined with splits 2",
        ),
        ({}, {"decomposition": "stream_k"}, r"\(scaled\) has no decomposition"),
        ({}, {"order": "vertical"}, r"\(scaled\) has no order"),
        (
            {"a": (1, 8, 24), "b": (1, 8, 24)},
            {},
            "the contiguous dimensions of .* must be multiples of 16 bytes",
        ),
    ],
)
def test_calls_that_are_refused(
    shapes: dict[str, Any], options: dict[str, Any], message: str
) -> None:
    kernel = next(k for k in KERNELS if k.scales == "blocks" and k.out_dtype == "float32")
    made = {**SMALL, **shapes}
    out = made.pop("d")
    operands = {
        name: jnp.ones(shape, "float32" if "scales" in name else kernel.a_dtype)
        for name, shape in made.items()
    }
    options = {"a_scaling": "tensor", "b_scaling": "tensor", **options}
    with pytest.raises((jax.errors.JaxRuntimeError, ValueError), match=message):
        jax.block_until_ready(
            targets.call_kernel(
                "emulator",
                kernel.name,
                operands,
                jax.ShapeDtypeStruct(out, kernel.out_dtype),
                0,
                **options,
            )
        )


@pytest.mark.parametrize(
    ("types", "shapes", "options", "message"),
    [
        (
            "mxfp8",
            {"a_scales": (1, 1, 1, 256)},
            {},
            r"a_scales is uint8\[1,1,1,256\], expected uint8\[1,1,1,512\]",
        ),
        ("mxfp8", {}, {"a_scaling": "row"}, "applies scales to mma, the call has a_scaling 'row'"),
        ("mxfp8", {}, {"b_scaling": "nvfp4"}, "applies scales to mma, the call has a_scaling 'mxf"),
        (
            "mxfp8",
            {"a": (1, 8, 64), "b": (1, 8, 64)},
            {"splits": 2},
            "cannot split K: this build has no",
        ),
        ("mxfp8", {"alpha": (1,)}, {}, r"\(scaled\) takes no alpha"),
        ("nvfp4", {"alpha": None}, {}, r"\(scaled\) needs alpha"),
        ("nvfp4", {"alpha": (2,)}, {}, r"alpha is float32\[2\], expected float32\[1\]"),
        ("nvfp4", {"b": (1, 8, 32)}, {}, r"operand b is uint8\[1,8,32\], expected .*\[1,8,16\]"),
        ("nvfp4", {"a": (1, 8, 8), "b": (1, 8, 8)}, {}, "must be multiples of 16 bytes"),
        (
            "mxfp8",
            {"a": (2**16, 8, 16), "a_scales": (2**16, 1, 1, 512)},
            {},
            "65535 along y and z of a grid",
        ),
    ],
)
def test_calls_of_block_formats_that_are_refused(
    types: str, shapes: dict[str, Any], options: dict[str, Any], message: str
) -> None:
    values = "float4_e2m1fn" if types == "nvfp4" else "float8_e4m3fn"
    kernel = next(k for k in KERNELS if k.scales == "mma" and k.a_dtype == values)
    made: dict[str, Any] = {"a": (1, 8, 16), "b": (1, 8, 16)}
    made |= {"a_scales": (1, 1, 1, 512), "b_scales": (1, 1, 1, 512)}
    made |= ({"alpha": (1,)} if types == "nvfp4" else {}) | shapes
    dtypes = {"alpha": "float32"}
    dtypes |= dict.fromkeys(("a", "b"), "uint8" if types == "nvfp4" else values)
    operands = {
        name: jnp.ones(shape, dtypes.get(name, "uint8"))
        for name, shape in made.items()
        if shape is not None
    }
    with pytest.raises((jax.errors.JaxRuntimeError, ValueError), match=message):
        jax.block_until_ready(
            targets.call_kernel(
                "emulator",
                kernel.name,
                operands,
                jax.ShapeDtypeStruct((made["a"][0], 8, 8), kernel.out_dtype),
                0,
                **{"a_scaling": types, "b_scaling": types, **options},
            )
        )


def test_a_dense_kernel_has_no_scales() -> None:
    kernel = next(k for k in runtime.emulated_kernels() if k.arch == "sm90")
    a, b = (jnp.ones((1, 64, 64), kernel.a_dtype) for _ in range(2))
    out = jax.ShapeDtypeStruct((1, 64, 64), kernel.out_dtype)
    for operands, options, message in (
        ({"a": a, "b": b}, {"a_scaling": "row"}, r"\(dense\) has no a_scaling"),
        ({"a": a, "b": b, "a_scales": jnp.ones(1)}, {}, r"\(dense\) takes no a_scales"),
    ):
        with pytest.raises((jax.errors.JaxRuntimeError, ValueError), match=message):
            jax.block_until_ready(
                targets.call_kernel("emulator", kernel.name, operands, out, 0, **options)
            )


def test_a_scaled_kernel_needs_scales() -> None:
    kernel = KERNELS[0]
    a, b = (jnp.ones((1, 16, 16), kernel.a_dtype) for _ in range(2))
    out = jax.ShapeDtypeStruct((1, 16, 16), kernel.out_dtype)
    with pytest.raises((jax.errors.JaxRuntimeError, ValueError), match="needs a_scales"):
        jax.block_until_ready(
            targets.call_kernel("emulator", kernel.name, {"a": a, "b": b}, out, 0)
        )


def test_the_tool_runs_here(capsys: pytest.CaptureFixture[str]) -> None:
    import sanitize_scaled

    arguments = ["--random", "2", "--implementation", "emulator", "--filter", "swap"]
    assert sanitize_scaled.main(arguments) == 0
    assert "2 random problems, 0 wrong" in capsys.readouterr().out
    assert sanitize_scaled.main([*arguments[:-1], "nothing"]) == 2
    assert "no scaled kernel has 'nothing' in its name" in capsys.readouterr().err
    assert "sanitize_scaled" in sys.modules


@pytest.mark.parametrize("shape", [(0, 8, 128), (8, 0, 128), (8, 8, 0)])
@pytest.mark.parametrize("scaling", ["row", "1x128", "mxfp8"])
def test_an_empty_problem_runs_no_kernel(scaling: str, shape: tuple[int, int, int]) -> None:
    m, n, k = shape
    rng, before = np.random.default_rng(0), emulator.launch_count()
    a, b = exact_operand(rng, (m, k), scaling), exact_operand(rng, (n, k), scaling)
    got = bw.scaled_matmul(a, b, implementation="emulator")
    assert_exact(got, jnp.zeros((m, n), jnp.bfloat16))
    found = bw.explain_scaled_matmul(a, b, implementation="emulator", device="cpu")
    assert found.reason.startswith("an empty problem runs no kernel")
    assert emulator.launch_count() == before
