"""Results of tuning grouped products: kept, selected, stored, measured by the command.

Only the clock is invented, as in test_autotune.py.
"""

# Fixtures are imported and are then names of arguments.
# ruff: noqa: F811

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from grouped_oracle import canonical
from numerics import assert_exact, small_integers
from tuning_fakes import (  # noqa: F401
    BF16,
    GROUPED_KINDS,
    H200,
    SM90,
    array,
    clock,
    gpu,
    grouped_key,
    key,
    own_cache,
    rule,
    without_gpu,
)

import jax_bwgemm as bw
from jax_bwgemm import runtime
from jax_bwgemm.config import make_target
from jax_bwgemm.grouped import heuristics
from jax_bwgemm.grouped.tuned import dims_of, spec_of
from jax_bwgemm.product.kernels import Kernel
from jax_bwgemm.tuning import autotuning, kernel_timer
from jax_bwgemm.tuning.bench import Bench
from jax_bwgemm.tuning.group_draws import draw_groups
from jax_bwgemm.tuning.keys import GroupedKey
from jax_bwgemm.tuning.records import Choice, TunedDevice, TunedEntry, TuningFileError
from jax_bwgemm.tuning.table import TuningTable
from jax_bwgemm.tuning.work import work_of

M, N, K, G = 4096, 1024, 768, 8
X, W, SIZES = array(M, K), array(G, K, N), jax.ShapeDtypeStruct((G,), jnp.int32)

# --- the result ---


def test_the_fastest_is_kept_and_selected(gpu: None, clock: list[Choice], tmp_path: Path) -> None:
    f = jax.jit(jax.grad(lambda x, w, s: bw.ragged_dot(x, w, s).sum(), (0, 1)))
    got = bw.autotune(f, X, W, SIZES, save=True)
    assert {m.problem.kind for m in got.measurements} == {"m-grouped", "k-grouped"}
    for measurement in got.measurements:
        entry, best = got.get(measurement.problem), measurement.times_us[0][0]
        assert (entry.kernel, entry.raster_order) == (best.kernel.name, best.raster_order)
        assert (entry.swizzle, entry.splits) == (best.swizzle, 1)
        assert entry.us == round(rule(best), 3) <= entry.heuristic_us
    assert any(entry.heuristic_us > entry.us for _, entry in got.items())
    assert TuningTable.loads(got.dumps()) == got
    assert "m-grouped 4096x768x1024 in 8 kk bfloat16->bfloat16: " in str(got)
    # Selection takes it from the cache, and says so.
    cached = tmp_path / "cache" / "nvidia_h200.json"
    assert TuningTable.load(cached) == got
    found = bw.explain_program(f, X, W, SIZES, device="sm90").products
    kernels = {e.kernel for e, _ in found if "grouped" in e.problem}
    assert kernels == {entry.kernel for _, entry in got.items()}
    assert all(f"tuned, from the tuning cache {cached}" in e.reason
               for e, _ in found if "grouped" in e.problem)  # fmt: skip


def entry_for(kernel: Kernel | str, **changes: Any) -> TunedEntry:
    name = kernel if isinstance(kernel, str) else kernel.name
    fields = {"kernel": name, "raster_order": "m", "swizzle": 3, "splits": 1, "us": 1.0}
    return TunedEntry(**fields | {"heuristic_us": 2.0, "method": "cupti"} | changes)


def tuned_for(problem: GroupedKey, device: TunedDevice = H200, **changes: Any) -> TuningTable:
    """A table with the kernel that the heuristic ranks last."""
    ranked, _ = heuristics.rank(
        runtime.grouped_kernels(), spec_of(problem), problem.in_dtype, dims_of(problem), SM90
    )
    entry = entry_for(**{"kernel": ranked[-1].kernel} | changes)
    return TuningTable(device, {problem: entry})


def explained(**more: Any) -> Any:
    def f(x: jax.Array, w: jax.Array, sizes: jax.Array) -> jax.Array:
        return bw.ragged_dot(x, w, sizes, **more)

    ((found, _),) = bw.explain_program(f, X, W, SIZES, device="sm90").products
    return found


def lowered_text(f: Any) -> str:
    with bw.config.target("sm90"):
        return f.trace(X, W, SIZES).lower(lowering_platforms=("cuda",)).as_text()


def test_a_table_in_force_decides_also_when_lowered_later() -> None:
    before, tuned = explained(), tuned_for(GROUPED_KINDS[0])
    ((_, entry),) = tuned.items()
    step = jax.jit(bw.ragged_dot)
    plain = lowered_text(step)
    with tuned:
        got = explained()
        inside = lowered_text(step)
        with bw.config.target("sm90"):
            traced = jax.jit(bw.ragged_dot).trace(X, W, SIZES)
    assert got.kernel == entry.kernel != before.kernel
    assert (got.raster_order, got.swizzle) == ("m", 3)
    assert "tuned, from the tuning in force: measured 1 us (cupti)" in got.reason
    assert entry.kernel in inside
    assert entry.kernel not in plain
    assert lowered_text(step) == plain
    assert entry.kernel in traced.lower(lowering_platforms=("cuda",)).as_text()
    assert explained() == before


def test_gradients_have_the_tuning_of_the_call() -> None:
    gradient = jax.jit(
        jax.grad(lambda x, w, s: bw.ragged_dot(x, w, s).astype(jnp.float32).sum(), (0, 1))
    )
    tuned = tuned_for(GROUPED_KINDS[1]) | tuned_for(GROUPED_KINDS[2])
    with tuned:
        text = lowered_text(gradient)
    for _, entry in tuned.items():
        assert entry.kernel in text


def test_explicit_before_tuned_and_other_expectations_are_other_problems() -> None:
    before = explained(representative_group_sizes=[M, 0, 0, 0, 0, 0, 0, 0])
    with tuned_for(GROUPED_KINDS[0]):
        assert explained(config=bw.GroupedConfig(swizzle=5)).swizzle == 5
        assert explained(representative_group_sizes=[M, 0, 0, 0, 0, 0, 0, 0]) == before
    with tuned_for(GROUPED_KINDS[3]):
        assert explained(representative_group_sizes=[0, 2048, 0, 0, 0, 2048, 0, 0]).swizzle == 3


@pytest.mark.parametrize("other", ["sm90_no_longer_built", "f16", "k-grouped", "sm100"])
def test_entries_that_cannot_run_are_ignored_with_a_line_in_the_log(
    other: str, caplog: pytest.LogCaptureFixture
) -> None:
    matching: dict[str, Callable[[Any], bool]] = {
        "f16": lambda k: k.in_dtype == "float16" and k.arch == "sm90" and k.kind == "m-grouped",
        "k-grouped": lambda k: k.kind == "k-grouped" and k.arch == "sm90",
        "sm100": lambda k: k.arch == "sm100",
    }
    name = other
    if other in matching:
        name = next(k.name for k in runtime.grouped_kernels() if matching[other](k))
    before = explained()
    caplog.set_level("INFO", logger="jax_bwgemm")
    with tuned_for(GROUPED_KINDS[0], kernel=name, us=1.5):
        assert explained() == before
    assert f"kernel {name} of the tuning in force is ignored: " in caplog.text


def test_a_table_of_another_gpu_is_ignored() -> None:
    before = explained()
    with tuned_for(GROUPED_KINDS[0], TunedDevice("smaller", "sm90", 114)):
        assert explained() == before


def test_a_miss_is_an_error_or_measured_where_wanted(gpu: None, clock: list[Choice]) -> None:
    with bw.config.tuning_miss("error"):
        with pytest.raises(bw.TuningMissError, match=r"no tuned entry for m-grouped 4096x1024x768"):
            explained()
        with tuned_for(GROUPED_KINDS[0]):
            assert explained().swizzle == 3
    with bw.config.tuning_miss("autotune"):
        text = lowered_text(jax.jit(bw.ragged_dot))
        measured = len(clock)
        got = explained()
    assert measured == len(clock) > 0
    assert got.kernel in text
    assert "tuned, from what was measured in this process" in got.reason
    assert explained() == got  # also without the policy


def test_a_problem_whose_operands_do_not_fit_costs_no_other(
    gpu: None, clock: list[Choice], monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = autotuning.Bench

    def bench(work: Any, *args: Any) -> Any:
        if work.bytes > 2**31:
            raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: 4 GiB\nmore")
        return fake(work, *args)

    monkeypatch.setattr(autotuning, "Bench", bench)

    def f(a: jax.Array, b: jax.Array, x: jax.Array, w: jax.Array, s: jax.Array) -> Any:
        return bw.matmul(a, b), bw.ragged_dot(x, w, s)

    got = bw.autotune(f, array(32768, 32768), array(32768, 32768), X, W, SIZES)
    assert list(got) == [GROUPED_KINDS[0]]
    assert got.skipped == ((str(key(32768, 32768, 32768)), "RESOURCE_EXHAUSTED: 4 GiB"),)


# --- files ---


def document(**changes: Any) -> str:
    """A file with one grouped entry, with changes in it."""
    tuned = TuningTable(H200, {GROUPED_KINDS[3]: entry_for("sm90_some")})
    data = json.loads(tuned.dumps())
    data["entries"][0] |= changes
    return json.dumps(data)


def test_a_table_of_both_kinds_survives_json() -> None:
    entries = dict.fromkeys([*GROUPED_KINDS, key(8, 8, 8)], entry_for("sm90_some", swizzle=4))
    tuned = TuningTable(H200, entries)
    assert TuningTable.loads(tuned.dumps()) == tuned
    assert next(iter(tuned)) == key(8, 8, 8)
    assert '"version": 3' in tuned.dumps()
    assert '"rhs_major": "n"' in tuned.dumps()  # the field's name in caches that users keep
    assert TuningTable.loads(document()).get(GROUPED_KINDS[3]) == entry_for("sm90_some")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("kind", "rows"), ("kind", None), ("rhs_major", "m"), ("groups", 0), ("groups", 2**31),
        ("experts", -1), ("experts", 1.0), ("shared", "all"), ("shares", None), ("shares", "x"),
        ("shares", [1, 2]), ("shares", [[1]]), ("shares", [[0, 1]]), ("shares", [[1, -1]]),
        ("shares", [[1, 1.5]]), ("shares", [[True, 1]]), ("shares", [[4, 9], [4, 9]]),
        ("shares", [[4, 9], [4, 3]]), ("shares", [[2**31, 1]]), ("shares", [[1, 2**40]]),
        ("raster_order", "vertical"), ("swizzle", 65), ("splits", 2), ("decomposition", "stream_k"),
        ("us", 10**400), ("heuristic_us", False), ("product", "dens"),
    ],
)  # fmt: skip
def test_impossible_values_are_refused_with_their_place(field: str, value: Any) -> None:
    with pytest.raises(TuningFileError, match=rf"entries\[0\]: {field} has the impossible value"):
        TuningTable.loads(document(**{field: value}))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"shares": [[3, 1], [4, 16]]}, r"entries\[0\]: shares are not those of 8 groups"),
        ({"kind": "k-grouped", "rhs_major": "k"}, "rhs_major has the impossible value 'k'"),
        ({"majors": "kn"}, r"unknown fields \['majors'\]"),
        ({"product": "dense"}, "no field 'majors'"),
    ],
)
def test_fields_that_contradict_each_other_are_refused(
    changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(TuningFileError, match=message):
        TuningTable.loads(document(**changes))


# --- the command ---


def run_command(*args: str) -> int:
    from jax_bwgemm.cli import main

    return main(["tune", *args])


def test_the_command_tunes_grouped_products(
    gpu: None, clock: list[Choice], tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    ragged = ["--ragged", "4096,1024,768,8", "4096,768,1024,8:kk", "4096,1024,768,64/8:mn"]
    assert run_command(*ragged, "--shapes", "512,512,512") == 0
    cached = TuningTable.load(tmp_path / "cache" / "nvidia_h200.json")
    assert set(cached) == {
        key(512, 512, 512),
        *GROUPED_KINDS[:2],
        grouped_key(M, N, K, 64, "mn", experts=8),
    }
    assert "m-grouped 4096x1024x768 in 8 kn bfloat16->bfloat16: " in capsys.readouterr().out
    out = str(tmp_path / "t.json")
    sizes = ["--group-sizes", *map(str, [0, 0, 2048, 0, 0, 0, 2048, 0])]
    assert run_command("--ragged", "4096,1024,768,8", *sizes, "--out", out) == 0
    assert list(TuningTable.load(out)) == [GROUPED_KINDS[3]]


@without_gpu
def test_the_command_says_what_is_wrong(
    gpu: None, clock: list[Choice], capsys: pytest.CaptureFixture
) -> None:
    def error(*args: str) -> str:
        assert run_command(*args) == 2
        return capsys.readouterr().err

    assert "nothing to tune: give --shapes, --ragged or --scaled" in error()
    for text in ("8,8,8", "8,8,8,0", "8,8,8,2:mk", "8,8,8,2/3", f"8,8,{2**31},2", "8x8x8x2"):
        assert f"majors out of kn kk mn, got '{text}'" in error("--ragged", text)
    assert "--majors mk is for --shapes only" in error("--ragged", "8,8,8,2", "--majors", "mk")
    wrong = error("--ragged", "8,8,8,2", "--group-sizes", "4", "4", "4")
    assert "requires one of representative_group_sizes for each group, got 3 for 2" in wrong
    assert f"sizes from 1 to {2**31 - 1}" in error("--shapes", f"8,8,{2**31}")
    assert not clock


# --- measuring ---


@pytest.mark.emulator
@pytest.mark.parametrize(
    "problem",
    [
        grouped_key(64, 64, 64, 4),
        grouped_key(64, 64, 64, 4, "kk", experts=2, shares=((2, 4), (2, 28))),
        grouped_key(64, 64, 64, 4, "mn", batch=2, shared="lhs"),
    ],
    ids=str,
)
def test_the_measured_calls_are_the_kernels(
    cpu_devices: list[jax.Device], problem: GroupedKey
) -> None:
    """Every choice computes the product, of operands as they are measured with."""
    if runtime.load_emulator() is None:
        pytest.skip("the emulator was not built")
    work = work_of(problem, make_target("sm90", 2), "emulator")
    choices = work.kernels_to_try(1)
    bench = Bench(work, cpu_devices[0], kernel_timer.WallTimer())
    assert list(bench.measure(choices, 0.0)) == choices  # no time: one kernel, one round
    assert not bench.failures
    rng = np.random.default_rng(0)
    shapes = [x.shape for x in work.operands(2)(0)[:2]]
    operands = [small_integers(rng, shape, "bfloat16") for shape in shapes]
    operands += draw_groups(problem, 1)[0]
    want = canonical(spec_of(problem), *operands).astype(BF16)
    for choice in [*choices, *work.orders_to_try(choices[0], choices)]:
        run = jax.jit(functools.partial(work.emit, choice))
        assert_exact(run(*map(jnp.asarray, operands)), want, str(choice))
