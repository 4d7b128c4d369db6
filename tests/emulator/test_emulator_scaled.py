"""Every scaled kernel in the emulator against exact products."""

from __future__ import annotations

import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from emulator_cases import BUILT, requires_emulator, rules_kept
from numerics import assert_exact
from scaled_cases import exact_operand, formula_product

import jax_bwgemm as bw
from jax_bwgemm import emulator, runtime
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


def test_the_tool_runs_here(capsys: pytest.CaptureFixture[str]) -> None:
    import sanitize_scaled

    counts = ["--random", "2", "--random-grouped", "3"]
    arguments = [*counts, "--implementation", "emulator", "--filter", "swap"]
    assert sanitize_scaled.main(arguments) == 0
    assert capsys.readouterr().out == "5 random problems, 0 wrong\n"
    assert sanitize_scaled.main([*arguments[:-1], "nothing"]) == 2
    assert "no scaled kernel has 'nothing' in its name" in capsys.readouterr().err
    assert "sanitize_scaled" in sys.modules
