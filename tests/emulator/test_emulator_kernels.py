"""Every kernel of the table in the emulator, against exact integer products."""

from __future__ import annotations

import numpy as np
import pytest
from emulator_cases import (
    Problem,
    check,
    emulated,
    expected,
    normals,
    one_per_tile,
    operands,
    problems,
    requires_emulator,
    two_cta_kernel,
)
from numerics import assert_as_good_as_xla, assert_exact, split_error

from jax_bwgemm import emulator
from jax_bwgemm.emulator.dense import reference, run_gemm
from jax_bwgemm.product.kernels import Kernel

pytestmark = requires_emulator


def _id(value: object) -> str | None:
    return value.name if isinstance(value, Kernel) else None


@pytest.mark.parametrize("case", ["one_tile", "many_tiles_batch_3", "ragged_deep", "tiny"])
@pytest.mark.parametrize("kernel", emulated("sm100"), ids=_id)
def test_sm100_kernel(kernel: Kernel, case: str) -> None:
    """All dtypes, outputs and majors are kernels of their own."""
    p = problems(kernel)[case]
    stats = check(kernel, p, sm_count=4)
    # The MMAs cover the padded problem; TMA reads at least each operand once.
    assert stats.mma_flops >= 2 * p.m * p.n * p.k * p.batch
    assert stats.tma_load_bytes > 0
    if case == "many_tiles_batch_3":
        assert stats.clusters_cancelled > 0, "no cluster was taken over: not a persistent loop"


@pytest.mark.parametrize("case", ["one_tile", "many_tiles_batch_3", "ragged_deep", "tiny"])
@pytest.mark.parametrize("kernel", emulated("sm90"), ids=_id)
def test_sm90_kernel(kernel: Kernel, case: str) -> None:
    check(kernel, problems(kernel)[case], sm_count=4)


@pytest.mark.parametrize("kernel", one_per_tile("sm100") + one_per_tile("sm90"), ids=_id)
def test_random_values_as_good_as_xla(kernel: Kernel) -> None:
    """Real numbers, where the order of the sums shows."""
    rng = np.random.default_rng(1)
    a, b = normals(kernel, rng, kernel.tile_m, 64, 192, 1)
    exact = reference(kernel, a, b)
    # XLA on CPU may accumulate in other ways; one rounding of the exact product is the strictest
    # peer.
    assert_as_good_as_xla(
        run_gemm(kernel, a, b),
        exact.astype(np.float32).astype(kernel.out_dtype),
        exact,
        split=split_error(reference(kernel, np.abs(a), np.abs(b)), kernel),
    )


def split_in_registers() -> list[Kernel]:
    """A kernel of each tile of f32 operands, for either storage of the one that is split last."""
    kernels: dict[object, Kernel] = {}
    for k in emulated("sm90"):
        major = k.b_major if k.swap_ab else k.a_major
        rest = k.name.split(f"_{k.majors}_", 1)[1]
        if k.terms > 1 and k.out_dtype == "float32":
            kernels.setdefault((k.in_dtype, k.mmas, k.term_dtype, rest, major), k)
    return list(kernels.values())


@pytest.mark.parametrize("kernel", split_in_registers(), ids=_id)
def test_sums_whose_upper_parts_leave_the_accumulators(kernel: Kernel) -> None:
    """K is long enough for that to happen twice, and sums are large in between."""
    check(kernel, Problem(40, 72, 2056), sm_count=4)


@pytest.mark.parametrize(
    "kernel", [k for k in emulated("sm90") if k.terms == 2 and not k.splits_both], ids=_id
)
def test_f32_values_that_have_no_two_finite_terms(kernel: Kernel) -> None:
    """Infinities, NaN, zeros and values below bf16's least come out as IEEE products do."""
    row = np.array([np.inf, -np.inf, np.nan, 0.0, -0.0, 1e-40, 3.0e38, 1.0], np.float32)
    f32 = np.zeros((1, 8, 8), np.float32)
    np.fill_diagonal(f32[0], row)
    ones = np.ones((1, 8, 8), "bfloat16")
    a, b = (f32, ones) if kernel.a_dtype == "float32" else (ones, f32)
    with np.errstate(invalid="ignore"):
        want = reference(kernel, a, b).astype(np.float32).astype(kernel.out_dtype)
    got = run_gemm(kernel, a, b)
    flat = np.isclose(np.float32(got), np.float32(want), rtol=2e-5, atol=2.0**-133, equal_nan=True)
    assert flat.all(), f"got {got}, expected {want}"


# Exact in few bits, in many; not finite; denormal; beyond bf16's largest.
SPECIAL = np.array(
    [np.inf, -np.inf, np.nan, 0.0, -0.0, 1.0, -2.5, 1000.3, 999.7, 2.0**-130, -3.4e38, 3.4e38],
    np.float32,
)


@pytest.mark.parametrize("kernel", [k for k in emulated("sm90") if k.splits_both], ids=_id)
def test_f32_products_of_values_that_bf16_has_not(kernel: Kernel) -> None:
    """Every value times every other is what IEEE says, but where the product overflows."""
    a, b = np.zeros((2, 1, 16, 16), np.float32)
    n = len(SPECIAL)
    a[0, :n, 0], b[0, 0, :n] = SPECIAL, SPECIAL
    stored_a = a if kernel.a_major == "k" else a.swapaxes(1, 2).copy()
    stored_b = b if kernel.b_major == "n" else b.swapaxes(1, 2).copy()
    got = run_gemm(kernel, stored_a, stored_b)[0, :n, :n]
    with np.errstate(invalid="ignore", over="ignore"):
        want = np.outer(SPECIAL, SPECIAL)
        finite = np.isfinite(SPECIAL)
        overflows = np.isinf(want) & np.outer(finite, finite)
    same = np.isclose(
        got, want, rtol=2.0 ** (-16 if kernel.f32_algorithms == ("x3",) else -22), equal_nan=True
    )
    assert np.all(same | overflows), f"got {got}, expected {want}"
    assert not np.isfinite(got[overflows]).any()


@pytest.mark.parametrize("raster_order", ["m", "n"])
@pytest.mark.parametrize("swizzle", [1, 4])
def test_raster_order_and_swizzle(raster_order: str, swizzle: int) -> None:
    kernel = two_cta_kernel()
    a, b = operands(kernel, Problem(1024, 768, 64))
    out = run_gemm(kernel, a, b, raster_order=raster_order, swizzle=swizzle)
    assert_exact(out, expected(kernel, a, b), f"raster {raster_order}, swizzle {swizzle}")


@pytest.mark.parametrize(
    "kernel", [k for k in one_per_tile("sm100") + one_per_tile("sm90") if k.splits_k], ids=_id
)
@pytest.mark.parametrize("splits", [2, 3])
def test_split_k(kernel: Kernel, splits: int) -> None:
    """Parts of K as a batch, and the kernel that adds their results."""
    a, b = operands(kernel, Problem(72, 136, 48 * splits))
    out = run_gemm(kernel, a, b, splits=splits)
    assert_exact(out, expected(kernel, a, b), f"{splits} splits")


def split_unevenly() -> list[Kernel]:
    """A kernel of each tile, and all majors of one."""
    majors = [k for k in emulated("sm90") if "bf16_bf16" in k.name and "64x128x64_1x1" in k.name]
    kernels = dict.fromkeys([*one_per_tile("sm90"), *majors])
    return [k for k in kernels if k.uneven_parts and k.f32_twin]


# Parts of two blocks and of one; of one and of none.
@pytest.mark.parametrize(("k", "splits"), [(456, 3), (72, 5)])
@pytest.mark.parametrize("kernel", split_unevenly(), ids=_id)
def test_split_k_in_uneven_parts(kernel: Kernel, k: int, splits: int) -> None:
    a, b = operands(kernel, Problem(72, 136, k))
    out = run_gemm(kernel, a, b, splits=splits)
    assert_exact(out, expected(kernel, a, b), f"{splits} splits of {k}")


@pytest.mark.parametrize(("batch_a", "batch_b"), [(1, 3), (3, 1)])
def test_broadcast_operand(batch_a: int, batch_b: int) -> None:
    kernel = two_cta_kernel()
    a, b = operands(kernel, Problem(256, 64, 64, batch=3))
    a, b = a[:batch_a], b[:batch_b]
    assert_exact(run_gemm(kernel, a, b), expected(kernel, a, b), "broadcast")


@pytest.mark.parametrize("kernel", one_per_tile("sm100")[:2] + one_per_tile("sm90")[:1], ids=_id)
def test_twenty_seeds_give_identical_results(kernel: Kernel) -> None:
    rng = np.random.default_rng(2)
    a, b = normals(kernel, rng, kernel.tile_m + 8, kernel.tile_n, 5 * kernel.tile_k, 1)
    first, orders = None, set()
    for seed in range(20):
        with emulator.configure(seed=seed, sm_count=2):
            out = run_gemm(kernel, a, b)
        first = out if first is None else first
        assert_exact(out, first, f"seed {seed} against seed 0")
        stats = emulator.last_launch()
        assert stats is not None
        orders.add((stats.ticks, tuple(w.wait_ticks for w in stats.warps)))
    assert len(orders) > 10, "the seeds did not change the schedule"


def one_per_schedule() -> tuple[Kernel, ...]:
    """A kernel of each schedule; stream-K kernels have tests of their own."""
    first: dict[tuple, Kernel] = {}
    for k in one_per_tile("sm100") + one_per_tile("sm90"):
        if k.splits_k and not k.stream_k:
            first.setdefault((k.schedule, k.swap_ab), k)
    return tuple(first.values())


@pytest.mark.parametrize("kernel", one_per_schedule(), ids=_id)
@pytest.mark.parametrize("splits", [1, 3])
def test_bits_do_not_depend_on_the_seed(kernel: Kernel, splits: int) -> None:
    """Every schedule over several tiles a CTA, and the sum of split K."""
    rng = np.random.default_rng(4)
    sizes = 2 * kernel.tile_m + 8, 2 * kernel.tile_n + 8, 6 * kernel.tile_k, 1
    a, b = normals(kernel, rng, *sizes)
    results = []
    for seed in range(4):
        with emulator.configure(seed=seed, sm_count=4):
            results.append(run_gemm(kernel, a, b, splits=splits))
    for seed, out in enumerate(results[1:], 1):
        assert_exact(out, results[0], f"seed {seed} against seed 0")


def test_a_run_is_reproducible_from_its_seed() -> None:
    kernel = two_cta_kernel()
    a, b = operands(kernel, Problem(512, 256, 320))

    def run(seed: int) -> tuple[list[object], bytes]:
        with emulator.configure(seed=seed, sm_count=2, trace=True):
            run_gemm(kernel, a, b)
        stats, trace = emulator.last_launch(), emulator.last_trace()
        assert stats is not None
        assert trace is not None
        return [stats.instructions, stats.ticks, stats.warps], trace.events.tobytes()

    once = run(7)
    assert run(7) == once
    assert run(8)[1] != once[1]
