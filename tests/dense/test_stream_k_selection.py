"""Stream-K kernels in selection: configuration, prediction, explanations, calls, autotuning."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from kernel_table import described_kernels

import jax_bwgemm as bw
from jax_bwgemm import runtime
from jax_bwgemm.config import make_target
from jax_bwgemm.dense import costs, heuristics, search_space, selection
from jax_bwgemm.dense.spec import GemmDims, GemmSpec
from jax_bwgemm.product.kernels import Kernel
from jax_bwgemm.product.spec import Policy
from jax_bwgemm.tuning.keys import DenseKey
from jax_bwgemm.tuning.records import Choice, TunedDevice, TunedEntry, TuningFileError
from jax_bwgemm.tuning.table import TuningTable

H200 = make_target("sm90", 132)
TABLE = described_kernels()
SHARED = next(k for k in TABLE if k.stream_k and k.arch == "sm90")  # 128 x 256, 2 x 1
WHOLE = next(k for k in TABLE if k.name == SHARED.name.removesuffix("_streamk"))


def selected(m: int, n: int, k: int, **config: Any) -> selection.Selection:
    spec = GemmSpec("k", "n", policy=Policy(config=bw.TuningConfig(**config) if config else None))
    got = selection.select(spec, "bfloat16", GemmDims(m, n, k), H200, TABLE)
    assert isinstance(got, selection.Selection)
    return got


def struct(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.bfloat16)


def test_names_and_table() -> None:
    assert SHARED.name.endswith("_128x256x64_2x1_cooperative_streamk")
    assert not WHOLE.stream_k
    assert {k.out_dtype for k in TABLE if k.stream_k} == {"bfloat16", "float16"}
    assert {k.arch for k in TABLE if k.stream_k} == {"sm90", "sm100"}


def test_scheduler_field_tells_the_kernels_apart() -> None:
    fields = {"tile_m": 128, "tile_n": 256}
    assert selected(1024, 4352, 4096, **fields, scheduler="stream_k").kernel == SHARED
    assert selected(1024, 4352, 4096, **fields, scheduler="persistent").kernel == WHOLE
    assert bw.TuningConfig(scheduler="clc").mismatch(SHARED) == "scheduler is 'stream_k', not 'clc'"


def test_decomposition_asks_for_a_stream_k_kernel() -> None:
    got = selected(1024, 4352, 4096, decomposition="stream_k")
    assert got.kernel.stream_k
    assert got.decomposition == "stream_k"
    assert got.reason.endswith("stream-K: stream_k")
    # A small problem is not split in equal parts as well: that would contradict it.
    assert selected(128, 128, 16384, decomposition="stream_k").splits == 1
    assert selected(128, 512, 16384, decomposition="split_k").splits == 4
    assert bw.TuningConfig(decomposition="heuristic").mismatch(WHOLE) == (
        "decomposition='heuristic' is for stream-K kernels"
    )


def test_splits_inside_of_a_stream_k_kernel_have_no_conditions() -> None:
    odd = GemmDims(64, 64, 136, batch=3)
    assert heuristics.run_refusal(SHARED, odd, 3, "split_k", 2) is None
    assert heuristics.run_refusal(WHOLE, odd, 3, "heuristic", 2) is not None
    assert heuristics.run_refusal(WHOLE, odd, 1, "stream_k", 2) == (
        "decomposition='stream_k' is for stream-K kernels"
    )
    assert heuristics.run_refusal(SHARED, odd, 3, "stream_k", 2) == (
        "splits=3 contradicts decomposition='stream_k'"
    )
    few = GemmSpec("k", "n"), SHARED, GemmDims(128, 512, 8200), 2, 2, 132
    assert heuristics.possible_splits(*few) == [1, 2, 3, 4]
    got = selected(128, 256, 4096, kernel=SHARED.name, splits=3)
    assert (got.splits, got.decomposition) == (3, "heuristic")


def cycles(kernel: Kernel, n: int, decomposition: str = "heuristic") -> float:
    dims = GemmDims(1024, n, 4096)
    return costs.evaluate(kernel, dims, H200, 1, decomposition).cycles


def test_prediction_follows_the_waves() -> None:
    margin = costs.SM90.stream_k_margin
    # Whole waves: the same kernel. 8 x 33 tiles are two waves of 132.
    assert cycles(SHARED, 33 * 256) == pytest.approx(margin * cycles(WHOLE, 33 * 256))
    # One tile more a row: a third wave of 8, which stream-K shares.
    assert cycles(SHARED, 34 * 256) < 0.9 * cycles(WHOLE, 34 * 256)
    # Shared or whole, it is never faster than its share of the work.
    for n in range(256, 52 * 256, 256):
        work = cycles(WHOLE, 33 * 256) * n / (33 * 256)
        assert cycles(SHARED, n, "stream_k") > 0.9 * work
    few = costs.evaluate(SHARED, GemmDims(128, 256, 8192), H200)
    one = costs.evaluate(SHARED, GemmDims(128, 256, 8192), H200, 1, "data_parallel")
    assert few.cycles < one.cycles
    split = costs.evaluate(SHARED, GemmDims(128, 256, 8192), H200, 8, "split_k")
    # 16 parts are added one after the other: half as many, twice as long, are better.
    assert split.cycles < few.cycles


def test_pairs_of_ctas_are_counted() -> None:
    b200 = make_target("sm100", 148)
    pair = next(k for k in TABLE if k.stream_k and k.arch == "sm100")
    plan = costs.stream_k_plan(pair, 80, 64, b200, 1, "stream_k")
    assert (plan.tiles, plan.shared_tiles, plan.shared_units) == (160, 160, 148)
    shared = costs.evaluate(pair, GemmDims(256 * 8, 1280, 4096), b200, 1, "stream_k")
    whole = costs.evaluate(pair, GemmDims(256 * 8, 1280, 4096), b200, 1, "data_parallel")
    assert shared.cycles < whole.cycles


def test_explain_says_how_the_work_is_divided(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "kernels", described_kernels)
    config = bw.TuningConfig(decomposition="stream_k", tile_n=256)
    got = bw.explain(struct(1024, 4096), struct(4096, 4352), config=config, device="sm90")
    assert got.decomposition == "stream_k"
    assert "  stream-K        stream_k" in str(got).splitlines()
    config = bw.TuningConfig(scheduler="persistent", tile_n=256)
    got = bw.explain(struct(1024, 4096), struct(4096, 4352), config=config, device="sm90")
    assert got.decomposition is None
    assert "stream-K" not in str(got).split("why")[0]


@pytest.mark.parametrize("decomposition", [None, "stream_k"])
def test_the_call_and_its_workspace(
    monkeypatch: pytest.MonkeyPatch, decomposition: str | None
) -> None:
    asked: list[tuple] = []

    def workspace(*args: Any, **order: Any) -> int:
        asked.append((args, order))
        return 1234

    monkeypatch.setattr(runtime, "kernels", described_kernels)
    monkeypatch.setattr(runtime, "workspace_bytes", workspace)
    jax.clear_caches()
    config = bw.TuningConfig(
        kernel=SHARED.name, decomposition=decomposition, raster_order="n", swizzle=2
    )
    with bw.config.target("sm90"):
        traced = jax.jit(lambda a, b: bw.matmul(a, b, config=config)).trace(
            struct(1024, 4096), struct(4096, 4352)
        )
        text = traced.lower(lowering_platforms=("cuda",)).as_text()
    jax.clear_caches()
    # A program that says nothing of it runs in versions before stream-K, apart from its kernel.
    assert ('decomposition = "stream_k"' in text) == (decomposition is not None)
    assert "tensor<1234xui8>" in text
    order = {"raster_order": "n", "swizzle": 2, "decomposition": decomposition or "heuristic"}
    assert asked == [((SHARED.name, 1024, 4352, 4096, 1, 1, 132), order)]


# --- autotuning ---


def key(m: int, n: int, k: int) -> DenseKey:
    return DenseKey("bfloat16", "bfloat16", "kn", m, n, k)


def test_autotuning_tries_the_divisions_that_differ() -> None:
    found = search_space.kernels_to_try(key(1024, 4352, 4096), TABLE, H200, 30)
    ways = {(c.kernel.tile_n, c.decomposition) for c in found if c.kernel.stream_k}
    # 8 x 17 tiles: an eighth of a wave over one; both ways share it alike, so one is enough.
    assert (256, "heuristic") in ways
    assert (256, "stream_k") not in ways
    half = search_space.kernels_to_try(key(1024, 3264, 4096), TABLE, H200, 30)
    # 8 x 13 tiles fill most of a wave: only when asked to are they shared.
    assert (256, "stream_k") in {
        (c.kernel.tile_n, c.decomposition) for c in half if c.kernel.stream_k
    }


def test_autotuning_tries_whole_tiles_of_a_tile_that_only_stream_k_has() -> None:
    table = [k for k in TABLE if k != WHOLE]
    found = search_space.kernels_to_try(key(1024, 3264, 4096), table, H200, 30)
    whole = search_space.kernels_to_try(key(1024, 3264, 4096), TABLE, H200, 30)

    def ways(choices: list[Choice]) -> set[str]:
        return {c.decomposition for c in choices if c.kernel == SHARED and c.splits == 1}

    # 8 x 13 tiles fill most of a wave, so the kernel's own heuristic leaves them whole.
    assert ways(found) == {"heuristic", "stream_k"}
    assert ways(whole) == {"stream_k"}


def test_orders_of_a_stream_k_choice() -> None:
    first = Choice(SHARED, "n", 1, 1, "stream_k")
    found = search_space.orders_to_try(first, key(1024, 4352, 4096), H200, [first])
    assert found
    assert {(c.kernel, c.decomposition) for c in found} == {(SHARED, "stream_k")}
    assert str(first).endswith("raster n, swizzle 1, stream_k")


def entry(**changes: Any) -> TunedEntry:
    fields = {"kernel": SHARED.name, "raster_order": "n", "swizzle": 2, "splits": 1, "us": 1.0}
    return TunedEntry(
        **fields | {"heuristic_us": 2.0, "method": "cupti", "decomposition": "stream_k"} | changes
    )


def table_of(found: TunedEntry) -> TuningTable:
    return TuningTable(TunedDevice("NVIDIA H200", "sm90", 132), {key(1024, 4352, 4096): found})


def test_tuned_entries_keep_the_division() -> None:
    tuned = table_of(entry())
    text = tuned.dumps()
    assert TuningTable.loads(text) == tuned
    # Files from before stream-K have no such field.
    old = text.replace(', "decomposition": "stream_k"', "")
    assert old != text
    ((_, found),) = TuningTable.loads(old).items()
    assert found.decomposition == "heuristic"
    with pytest.raises(TuningFileError, match="decomposition has the impossible value 'k'"):
        TuningTable.loads(text.replace('"stream_k"', '"k"'))


@pytest.mark.parametrize(
    ("changes", "used"),
    [({}, True), ({"kernel": WHOLE.name}, False), ({"splits": 2}, False)],
)
def test_tuned_entries_are_selected_if_they_can_run(changes: dict[str, Any], used: bool) -> None:
    from jax_bwgemm.tuning.context import Tuning

    spec = GemmSpec("k", "n", policy=Policy(tuning=Tuning(tables=(table_of(entry(**changes)),))))
    got = selection.select(spec, "bfloat16", GemmDims(1024, 4352, 4096), H200, TABLE)
    assert isinstance(got, selection.Selection)
    assert got.reason.startswith("tuned") == used
    if used:
        assert (got.kernel, got.decomposition, got.swizzle) == (SHARED, "stream_k", 2)


@pytest.mark.parametrize("kernel", [SHARED, WHOLE], ids=["stream-k", "twin"])
def test_no_part_of_k_is_shorter_than_a_step(kernel: Kernel) -> None:
    steps = {64: 1, 200: 4, 1024: 16, 64 * 64: 64}
    got = {k: selected(128, 256, k, kernel=kernel.name, splits=64) for k in steps}
    assert {k: chosen.splits for k, chosen in got.items()} == steps
    assert "parts" not in got[64].reason
    assert "K in 4 parts" in got[200].reason
