"""How choices are measured: copies of operands, turns, medians; and how time is shared."""

# Fixtures are imported and are then names of arguments.

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from tuning_fakes import H200, SM90, gpu, invent_times, key, own_cache, rule  # noqa: F401

from jax_bwgemm import runtime
from jax_bwgemm.dense import heuristics, search_space
from jax_bwgemm.dense.tuned import dims_of, spec_of
from jax_bwgemm.dense.work_schedule import work_order
from jax_bwgemm.product.kernels import Kernel
from jax_bwgemm.tuning import autotuning, kernel_timer
from jax_bwgemm.tuning import bench as benches
from jax_bwgemm.tuning.abstract_work import Operands, Work
from jax_bwgemm.tuning.bench import Bench
from jax_bwgemm.tuning.problems import Problems
from jax_bwgemm.tuning.records import Choice
from jax_bwgemm.tuning.work import work_of


class NoWork(Work):
    """Operands of any size that are never drawn, and calls that do nothing."""

    def __init__(self, size: int) -> None:
        self.bytes, self.copies, self.traced = size, 0, 0

    def kernels_to_try(self, limit: int) -> list[Choice]:
        return []

    def orders_to_try(self, choice: Choice, known: Sequence[Choice]) -> list[Choice]:
        return []

    def operands(self, copies: int) -> Callable[[int], Operands]:
        self.copies = copies
        return lambda i: (jnp.full(1, i % copies),)

    def emit(self, choice: Choice, *operands: jax.Array) -> jax.Array:
        self.traced += 1
        return operands[0]


class ListedTimer:
    """Takes the times of bursts from a list, and keeps the numbers of their calls."""

    method = "wall"

    def __init__(self, times: Sequence[float]) -> None:
        self.times, self.starts = list(times), []

    def burst(self, call: Callable[[int], Any], start: int, count: int) -> list[float]:
        self.starts.append(start)
        call(start)
        return [self.times.pop(0)] * count


CHOICE = Choice("some kernel", "m", 1)


@pytest.mark.parametrize(
    ("size", "copies"),
    [
        (0, benches.MAX_COPIES),
        (1, benches.MAX_COPIES),
        (benches.ROTATE_BYTES // 4, 4),
        (benches.ROTATE_BYTES // 4 - 1, 5),  # four would not fill it
        (benches.ROTATE_BYTES, 2),
        (benches.ROTATE_BYTES * 100, 2),
    ],
)
def test_calls_go_through_copies_that_no_cache_holds(
    cpu_devices: list[jax.Device], size: int, copies: int
) -> None:
    """Of operands of any size there is another copy, or a call would find what it has just read."""
    work = NoWork(size)
    Bench(work, cpu_devices[0], ListedTimer([]))
    assert work.copies == copies


def test_the_median_of_all_turns_counts(cpu_devices: list[jax.Device]) -> None:
    timer = ListedTimer([50.0, 9.0, 3.0, 4.0, 90.0, 5.0, 4.0, 2.0])  # the first: once unmeasured
    bench = Bench(NoWork(1), cpu_devices[0], timer)
    assert bench.measure([CHOICE], float("inf")) == {CHOICE: 4.0}
    assert timer.starts == [0, 0, 3, 6, 9, 12, 15, 18]  # each turn has operands of its own


def test_what_is_measured_again_is_compiled_once(cpu_devices: list[jax.Device]) -> None:
    work = NoWork(1)
    bench = Bench(work, cpu_devices[0], ListedTimer([1.0] * 16))
    bench.measure([CHOICE], float("inf"))
    bench.measure([CHOICE], float("inf"))
    assert work.traced == 1


def test_the_wall_clock_is_divided_among_the_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([10.0, 10.5])
    monkeypatch.setattr(kernel_timer, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    assert kernel_timer.WallTimer().burst(lambda i: jnp.ones(1), 0, 4) == [125000.0]


@pytest.mark.parametrize("stream_k", [False, True])
def test_what_is_measured_has_all_attributes_of_the_choice(stream_k: bool) -> None:
    problem = key(384, 512, 16384)
    kernel = next(
        k
        for k in runtime.kernels()
        if (k.arch, k.in_dtype, k.out_dtype, k.majors) == ("sm90", "bfloat16", "bfloat16", "kn")
        and k.stream_k == stream_k and k.splits_k and not k.cluster_k
    )  # fmt: skip
    choice = Choice(kernel, "n", 4, 3, "split_k" if stream_k else "heuristic")
    work = work_of(problem, SM90)
    operands = [jax.ShapeDtypeStruct(s, "bfloat16") for s in ((1, 384, 16384), (1, 16384, 512))]
    traced = jax.jit(lambda *x: work.emit(choice, *x)).trace(*operands)
    text = traced.lower(lowering_platforms=("cuda",)).as_text()
    for words in (f'kernel = "{kernel.name}"', 'raster_order = "n"', "swizzle = 4", "splits = 3"):
        assert words in text
    assert ('decomposition = "split_k"' in text) == stream_k


# --- what is tried ---


def test_one_kernel_is_tried_with_few_splits() -> None:
    """Splits near each other take about as long, and other kernels would have no turn."""
    choices = search_space.kernels_to_try(key(384, 384, 16384), runtime.kernels(), SM90, 10**6)
    tried = Counter(c.kernel.name for c in choices)
    assert max(tried.values()) == 3


@pytest.mark.parametrize(
    "sizes", [(8192, 8192, 8192), (16, 6144, 4096), (2048, 2048, 2048)], ids=str
)
def test_what_is_tried_is_predicted_to_be_fast(sizes: tuple[int, int, int]) -> None:
    problem = key(*sizes)
    choices = search_space.kernels_to_try(problem, runtime.kernels(), SM90, 10**6)
    ranked, _ = heuristics.rank(
        runtime.kernels(), spec_of(problem), "bfloat16", dims_of(problem), SM90
    )
    slow = {c.kernel for c in ranked if c.cycles > 2 * ranked[0].cycles}
    assert slow
    assert not slow & {c.kernel for c in choices}


def test_whole_tiles_are_tried_on_one_kernel_of_a_tile() -> None:
    """A stream-K kernel that divides nothing is its plain sibling, and slower."""
    problem = key(8192, 8192, 8192)
    choices = search_space.kernels_to_try(problem, runtime.kernels(), SM90, 10**6)
    names = {k.name for k in runtime.kernels()}
    run = 8192, 8192, 8192, 1, SM90.sm_count
    for c in choices:
        if c.kernel.stream_k and c.kernel.name.removesuffix("_streamk") in names:
            plan = work_order(c.kernel, *run, "n", 1, c.splits, c.decomposition).plan
            assert plan.kind != "data_parallel"


def test_an_order_that_another_kernel_has_is_tried() -> None:
    first = Kernel.of_tile("sm90", (128, 128, 64), (2, 1), "cooperative", name="one")
    second = dataclasses.replace(first, name="another", schedule="pingpong")
    known = [Choice(first, "n", 8), Choice(second, "heuristic", 1)]
    found = search_space.orders_to_try(known[1], key(8192, 8192, 8192), SM90, known)
    assert ("n", 8) in {(c.raster_order, c.swizzle) for c in found}
    assert {c.kernel for c in found} == {second}


# --- how the time is shared ---


def tuned(counts: dict[Any, int], timeout: float = 60.0) -> autotuning.AutotuneResult:
    device = SimpleNamespace(platform="gpu")
    return autotuning.tune(Problems(counts, ()), device, SM90, H200, timeout=timeout)


def test_what_a_program_calls_often_is_heavy(monkeypatch: pytest.MonkeyPatch) -> None:
    invent_times(monkeypatch, lambda choices: {c: rule(c) for c in choices})
    once, often = key(1024, 1024, 1024), key(512, 512, 512)
    got = tuned({once: 1, often: 9})  # 8 would be as heavy
    assert [m.problem for m in got.measurements] == [often, once]


def test_what_time_is_left_is_shared_by_the_problems_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a problem takes no time, those behind it have more."""
    deadlines: list[float] = []

    class Instant:
        failures: tuple = ()

        def __init__(self, *_: Any) -> None:
            deadlines.append(0.0)
            self.first: Choice | None = None  # the heuristic's, which others beat

        def measure(self, choices: Any, deadline: float) -> dict[Choice, float]:
            deadlines[-1] = deadline
            self.first = self.first or choices[0]
            return {c: 1.0 + (c == self.first) for c in choices}

    invent_times(monkeypatch, dict)
    monkeypatch.setattr(autotuning, "Bench", Instant)
    monkeypatch.setattr(autotuning, "time", SimpleNamespace(monotonic=lambda: 100.0))
    tuned({key(512, 512, 512): 1, key(512, 512, 1024): 1, key(512, 1024, 1024): 1}, timeout=90.0)
    assert deadlines == [130.0, 145.0, 190.0]


def test_a_choice_that_fails_when_it_is_measured_again_costs_no_entry(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The heuristic's choice, of which the times before count then."""
    passes: list[list[Choice]] = []

    def measure(choices: Any) -> dict[Choice, float]:
        passes.append(list(choices))
        first = passes[0][0]
        times = {c: 10.0 if c == first else 8.0 for c in choices}
        return {c: 30.0 for c in times if c != first} if len(passes) == 3 else times

    invent_times(monkeypatch, measure)
    problem = key(4096, 4096, 4096)
    entry = tuned({problem: 1}).get(problem)
    assert len(passes) == 3
    assert entry.kernel != passes[0][0].kernel.name or entry.us == 8.0
    assert (entry.us, entry.heuristic_us) == (8.0, 10.0)
