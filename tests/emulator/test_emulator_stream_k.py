"""Stream-K kernels in the emulator: exact, reproducible, and divided as the Python mirror says."""

from __future__ import annotations

import collections
from typing import Any

import jax
import numpy as np
import pytest
from emulator_cases import (
    Problem,
    expected,
    operands,
    requires_emulator,
    two_cta_kernel,
)
from numerics import assert_exact, normal

from jax_bwgemm import emulator, runtime
from jax_bwgemm.dense.work_schedule import work_order
from jax_bwgemm.emulator.dense import operand_shapes, run_gemm
from jax_bwgemm.emulator.trace import ASYNC
from jax_bwgemm.product.kernels import Kernel

pytestmark = requires_emulator

KERNELS = tuple(k for k in runtime.emulated_kernels() if k.stream_k)
# One storage order and type of each tile.
TILES = tuple(k for k in KERNELS if "_bf16_bf16_kn_" in k.name)


def _id(value: object) -> str | None:
    return value.name if isinstance(value, Kernel) else None


def problems(kernel: Kernel) -> dict[str, tuple[Problem, int]]:
    """Problems with the number of multiprocessors, which decides how they are divided."""
    tm, tn, tk = kernel.tile_m, kernel.tile_n, kernel.tile_k
    return {
        # 5 x 1 tiles, and as many CTAs as divide them worst.
        "shared": (Problem(5 * tm - 40, tn, 12 * tk + 8), 4),
        # Two whole waves and a bit: whole tiles follow the shared ones.
        "hybrid": (Problem(3 * tm, 3 * tn - 24, 9 * tk), 4),
        # One tile for all: the heuristic splits K.
        "one_tile": (Problem(tm - 8, tn - 8, 33 * tk), 4),
        "batch": (Problem(tm + 8, tn, 10 * tk, batch=3), 8),
    }


@pytest.mark.parametrize("decomposition", ["heuristic", "stream_k"])
@pytest.mark.parametrize("case", ["shared", "hybrid", "one_tile", "batch"])
@pytest.mark.parametrize("kernel", KERNELS, ids=_id)
def test_exact(kernel: Kernel, case: str, decomposition: str) -> None:
    p, sms = problems(kernel)[case]
    a, b = operands(kernel, p)
    with emulator.configure(sm_count=sms):
        out = run_gemm(kernel, a, b, decomposition=decomposition)
    assert_exact(out, expected(kernel, a, b), f"{case} {decomposition}")


@pytest.mark.parametrize("kernel", TILES, ids=_id)
@pytest.mark.parametrize(
    ("decomposition", "splits"),
    [("heuristic", 3), ("split_k", 2), ("split_k", 64), ("data_parallel", 1)],
)
def test_split_inside_of_the_kernel(kernel: Kernel, decomposition: str, splits: int) -> None:
    """Also where two kernels could not: a batch, and a K that the parts do not divide."""
    p = Problem(kernel.tile_m + 40, kernel.tile_n + 24, 10 * kernel.tile_k + 8, batch=2)
    a, b = operands(kernel, p)
    with emulator.configure(sm_count=6):
        out = run_gemm(kernel, a, b, splits=splits, decomposition=decomposition)
    assert_exact(out, expected(kernel, a, b), f"{decomposition} in {splits}")
    # No CTA has a second part: it would wait for one that may not have started.
    order = {"splits": splits, "decomposition": decomposition}
    work = work_order(kernel, p.m, p.n, p.k, p.batch, 6, **order)
    stats = emulator.last_launch()
    assert stats is not None
    assert stats.grid == work.grid
    if kernel.arch == "sm90" and splits > 1:
        assert all(len(parts) <= 1 for parts in work.assignment())


@pytest.mark.parametrize("kernel", TILES, ids=_id)
@pytest.mark.parametrize(("raster_order", "swizzle"), [("m", 1), ("n", 4), ("m", 2)])
def test_tile_orders(kernel: Kernel, raster_order: str, swizzle: int) -> None:
    p = Problem(3 * kernel.tile_m, 3 * kernel.tile_n, 9 * kernel.tile_k)
    a, b = operands(kernel, p)
    for decomposition in ("heuristic", "stream_k"):
        with emulator.configure(sm_count=10):
            out = run_gemm(
                kernel, a, b, raster_order=raster_order, swizzle=swizzle,
                decomposition=decomposition,
            )  # fmt: skip
        assert_exact(out, expected(kernel, a, b), f"{raster_order} {swizzle} {decomposition}")


@pytest.mark.parametrize("kernel", TILES, ids=_id)
@pytest.mark.parametrize("case", ["shared", "one_tile"])
def test_bits_do_not_depend_on_who_is_first(kernel: Kernel, case: str) -> None:
    """The parts' order of arrival changes with the seed, the order in which they are added not."""
    p, sms = problems(kernel)[case]
    rng = np.random.default_rng(3)
    a, b = (
        normal(rng, shape, kernel.in_dtype)
        for shape in operand_shapes(kernel, p.m, p.n, p.k, p.batch)
    )
    first, ticks = None, set()
    for seed in range(8):
        with emulator.configure(seed=seed, sm_count=sms):
            out = run_gemm(kernel, a, b, decomposition="stream_k")
        first = out if first is None else first
        assert_exact(out, first, f"seed {seed} against seed 0")
        stats = emulator.last_launch()
        assert stats is not None
        ticks.add(stats.ticks)
    assert len(ticks) > 4, "the seeds did not change the schedule"


@pytest.mark.parametrize("kernel", TILES, ids=_id)
@pytest.mark.parametrize("case", ["shared", "hybrid", "one_tile", "batch"])
@pytest.mark.parametrize("decomposition", ["heuristic", "stream_k", "data_parallel"])
def test_ctas_multiply_what_the_mirror_says(kernel: Kernel, case: str, decomposition: str) -> None:
    p, sms = problems(kernel)[case]
    a, b = operands(kernel, p)
    with emulator.configure(seed=0, sm_count=sms, trace=True):
        run_gemm(kernel, a, b, decomposition=decomposition)
    stats, trace = emulator.last_launch(), emulator.last_trace()
    assert stats is not None
    assert trace is not None
    work = work_order(kernel, p.m, p.n, p.k, p.batch, sms, decomposition=decomposition)
    assert stats.grid == work.grid
    steps = [sum(part.end - part.begin for part in parts) for parts in work.units]
    pair = 2 if kernel.schedule == "2sm" else 1
    flops_per_step = 2 * kernel.tile_m * kernel.tile_n * kernel.tile_k // pair
    assert stats.mma_flops == sum(steps) * flops_per_step
    if work.order.dynamic:  # which CTA takes a unit is decided at run time
        return
    mma = collections.Counter(
        int(e["cta"])
        for e in trace.events
        if e["kind"] == ASYNC and "mma" in trace.names[e["name"]]
    )
    by_cta = [sum(part.end - part.begin for part in parts) for parts in work.assignment()]
    per_step = stats.mma_instructions // sum(steps)
    assert sorted(mma.values()) == sorted(n * per_step for n in by_cta if n)


def test_a_part_is_not_used_before_it_has_left_tensor_memory() -> None:
    """The waits that CUTLASS's scheduler lacks (stream_k_sm100.h): without them, a report."""
    kernel = next(k for k in TILES if k.arch == "sm100")
    p, sms = problems(kernel)["one_tile"]
    a, b = operands(kernel, p)
    with emulator.configure(sm_count=sms):
        run_gemm(kernel, a, b, decomposition="stream_k")
    text = emulator.last_ptx()
    assert text is not None
    # The last wait before the sum goes back is the one of the parts.
    wait = "tcgen05.wait::ld.sync.aligned"
    begin = text.rindex(wait, 0, text.index("tcgen05.st.sync"))
    unwaited = text[:begin] + "//" + text[begin:]
    with (
        emulator.substituted_ptx(unwaited),
        emulator.configure(sm_count=sms),
        pytest.raises(jax.errors.JaxRuntimeError, match=r"(still in use by|while) tcgen05\.ld"),
    ):
        run_gemm(kernel, a, b, decomposition="stream_k")


def call_raw(
    kernel: Kernel, a: np.ndarray, b: np.ndarray, scratch: int, **config: Any
) -> np.ndarray:
    """The FFI call as an exported program may have it."""
    shape = (1, a.shape[1], b.shape[2])
    call = jax.ffi.ffi_call(
        "bwgemm.gemm.emulated.v1",
        (
            jax.ShapeDtypeStruct(shape, kernel.out_dtype),
            jax.ShapeDtypeStruct((scratch,), "uint8"),
        ),
    )
    whole = {"kernel": kernel.name, "raster_order": "heuristic", "swizzle": np.int64(1)} | config
    return np.asarray(call(a, b, config=whole)[0])


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"decomposition": "k"}, "decomposition 'k' is none of 'heuristic', 'data_parallel', "),
        (
            {"decomposition": "stream_k", "splits": np.int64(2)},
            "splits 2 needs the decomposition 'split_k' or 'heuristic'",
        ),
        ({"splits": np.int64(65)}, r"splits 65 is outside \[1, 64\]"),
        ({}, r"needs \d+ bytes of workspace for \[B=1, M=128, .*got 0"),
        ({"unknown": np.int64(2)}, "config member 'unknown' is not known to this version of jax_"),
        ({"decomposition": np.int64(2)}, "config member 'decomposition': .*"),
    ],
)
def test_refusals(config: dict[str, Any], message: str) -> None:
    kernel = next(k for k in TILES if k.arch == "sm90")
    a, b = operands(kernel, Problem(128, 128, 64 * 33))
    with emulator.configure(sm_count=8), pytest.raises(jax.errors.JaxRuntimeError, match=message):
        call_raw(kernel, a, b, 0, **config)


def test_other_kernels_refuse_a_decomposition() -> None:
    kernel = two_cta_kernel()
    a, b = operands(kernel, Problem(64, 64, 64))
    with pytest.raises(jax.errors.JaxRuntimeError, match="'stream_k' needs a stream-K kernel, 'sm"):
        run_gemm(kernel, a, b, decomposition="stream_k")


def test_programs_from_before_stream_k_and_split_k_run() -> None:
    kernel = next(k for k in TILES if k.arch == "sm90")
    a, b = operands(kernel, Problem(128, 128, 64))
    assert_exact(call_raw(kernel, a, b, 0), expected(kernel, a, b))


def test_workspace_only_where_tiles_are_shared() -> None:
    kernel = next(k for k in TILES if k.arch == "sm90")

    def need(m: int, **order: Any) -> int:
        return runtime.emulated_workspace_bytes(kernel.name, m, 256, 64 * 32, 1, 1, 8, **order)

    assert need(8 * 128) == 0  # a whole wave
    assert need(6 * 128) == 0  # more than half of one
    assert need(9 * 128) > 0
    tile = 4 * 128 * 256
    assert 0 <= need(6 * 128, decomposition="stream_k") - 6 * tile <= 1024
    # Bands end where the tiles do.
    wide = runtime.emulated_workspace_bytes
    args = kernel.name, 3 * 128, 3 * 256, 64 * 32, 1, 1, 12
    assert wide(*args, decomposition="stream_k") == wide(*args, swizzle=4, decomposition="stream_k")


@pytest.mark.parametrize("kernel", TILES, ids=_id)
def test_fewer_multiprocessors_than_a_cluster_has_ctas(kernel: Kernel) -> None:
    a, b = operands(kernel, Problem(600, 520, 1000))
    with (
        emulator.configure(sm_count=1),
        pytest.raises(ValueError, match="cluster of 2 CTAs does not fit on a GPU of 1 multiproc"),
    ):
        run_gemm(kernel, a, b, decomposition="stream_k")
