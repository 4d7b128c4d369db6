"""Tuning products of scaled operands: found, tried, kept, selected, stored.

Only the clock is invented, as in test_autotune.py.
"""

# Fixtures are imported and are then names of arguments.
# ruff: noqa: F811

from __future__ import annotations

import dataclasses
import functools
import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numerics import assert_exact, small_integers
from tuning_fakes import (  # noqa: F401
    H200,
    SM90,
    clock,
    gpu,
    own_cache,
    rule,
    without_gpu,
)

import jax_bwgemm as bw
from jax_bwgemm import runtime
from jax_bwgemm.cli import main
from jax_bwgemm.config import make_target
from jax_bwgemm.scaled import search_space, selection, tuned
from jax_bwgemm.scaled.layouts import layout_of
from jax_bwgemm.scaled.spec import ScaledDims
from jax_bwgemm.tuning import problems
from jax_bwgemm.tuning.keys import Key, ScaledGroupedKey, ScaledKey
from jax_bwgemm.tuning.records import Choice, TunedDevice, TunedEntry, TuningFileError
from jax_bwgemm.tuning.table import TuningTable
from jax_bwgemm.tuning.work import work_of

E4M3, E5M2, BF16 = "float8_e4m3fn", "float8_e5m2", "bfloat16"
BLOCKS = ScaledKey(E4M3, E4M3, "1x128", "128x128", "promoted", BF16, 512, 768, 1024)
TENSOR = ScaledKey(E5M2, E4M3, "tensor", "tensor", "fast", "float32", 512, 768, 1024)
ROWS = ScaledGroupedKey(E4M3, E4M3, "row", "row", "fast", BF16, "m-grouped", 512, 768, 1024, 4, 4)
CONTRACT = ScaledGroupedKey(
    E4M3, E5M2, "tensor", "tensor", "fast", BF16, "k-grouped", 512, 768, 1024, 4, 4
)
KEYS = (BLOCKS, TENSOR, ROWS, CONTRACT)


def operand(*shape: int, scaling: str, dtype: str = E4M3) -> bw.ScaledArray:
    scales = layout_of(scaling).scales_shapes(shape)[0]
    arrays = jax.ShapeDtypeStruct(shape, dtype), jax.ShapeDtypeStruct(scales, "float32")
    return bw.ScaledArray(*arrays, scaling)


def call_of(key: Key, **more: Any) -> tuple[Any, ...]:
    """A function of the key's product, and its arguments."""
    options = {"preferred_element_type": key.out_dtype, "accumulation": key.accumulation} | more
    a, b = (key.m, key.k), (key.n, key.k)
    if isinstance(key, ScaledGroupedKey):
        k_grouped = key.kind == "k-grouped"
        a = (key.k, key.m) if k_grouped else a
        b = (key.n, key.m) if k_grouped else (key.experts, *b)
    both = (
        operand(*a, scaling=key.a_scaling, dtype=key.a_dtype),
        operand(*b, scaling=key.b_scaling, dtype=key.b_dtype),
    )
    if isinstance(key, ScaledKey):
        return functools.partial(bw.scaled_matmul, **options), *both
    sizes = jax.ShapeDtypeStruct((key.groups,), jnp.int32)
    return functools.partial(bw.scaled_ragged_dot, **options), *both, sizes


def entry_for(kernel: str, **changes: Any) -> TunedEntry:
    fields = {"raster_order": "heuristic", "swizzle": 1, "splits": 1, "us": 5.0}
    fields |= {"heuristic_us": 6.0, "method": "cupti"}
    return TunedEntry(kernel, **fields | changes)


def explained(key: Key) -> Any:
    f, *args = call_of(key)
    ((found, _),) = bw.explain_program(f, *args, device="sm90").products
    return found


# --- finding ---


@pytest.mark.parametrize("key", KEYS, ids=str)
def test_a_program_has_the_problem_that_it_was_made_of(key: Key) -> None:
    f, *args = call_of(key)
    assert dict(problems.find(f, SM90, tuple(args), {}).counts) == {key: 1}


def test_all_products_of_a_training_step_are_found() -> None:
    def loss(x: jax.Array, w: jax.Array) -> jax.Array:
        dot = bw.fp8_dot_general("per_tensor")
        return dot(x, w, (((1,), (0,)), ((), ()))).astype("float32").sum()

    args = jax.ShapeDtypeStruct((256, 512), BF16), jax.ShapeDtypeStruct((512, 384), BF16)
    found = problems.find(jax.grad(loss, (0, 1)), SM90, args, {}).counts
    assert {(key.m, key.n, key.k, key.a_dtype, key.b_dtype) for key in found} == {
        (256, 384, 512, E4M3, E4M3),
        (256, 512, 384, E5M2, E4M3),
        (512, 384, 256, E4M3, E5M2),
    }


def test_a_batch_knows_what_it_shares() -> None:
    f, a, b = call_of(BLOCKS)
    many = jax.tree.map(lambda x: jax.ShapeDtypeStruct((3, *x.shape), x.dtype), a)
    want = dataclasses.replace(BLOCKS, batch=3, shared="rhs")
    for g in (f, jax.vmap(f, (0, None))):
        assert dict(problems.find(g, SM90, (many, b), {}).counts) == {want: 1}
    assert "512x768x1024 x3 (rhs shared)" in str(want)


@pytest.mark.parametrize("shared", ["none", "lhs", "rhs"])
def test_a_batch_in_lowered_text_knows_what_it_shares(shared: str) -> None:
    f, *both = call_of(BLOCKS)
    many = [jax.tree.map(lambda x: jax.ShapeDtypeStruct((3, *x.shape), x.dtype), x) for x in both]
    axes = tuple(None if side == shared else 0 for side in ("lhs", "rhs"))
    args = [one if axis is None else all_ for one, all_, axis in zip(both, many, axes, strict=True)]
    with bw.config.target("sm90"):
        traced = jax.jit(jax.vmap(f, axes)).trace(*args)
        lowered = traced.lower(lowering_platforms=("cuda",))
    want = dataclasses.replace(BLOCKS, batch=3, shared=shared)
    assert dict(problems.find(lowered, SM90, (), {}).counts) == {want: 1}


@pytest.mark.parametrize(
    ("key", "a", "b"),
    [
        (dataclasses.replace(BLOCKS, batch=3), (3, 512, 1024), (3, 768, 1024)),
        (dataclasses.replace(BLOCKS, batch=3, shared="lhs"), (1, 512, 1024), (3, 768, 1024)),
        (dataclasses.replace(BLOCKS, batch=3, shared="rhs"), (3, 512, 1024), (1, 768, 1024)),
        (ROWS, (1, 512, 1024), (1, 4, 768, 1024)),
        (CONTRACT, (1, 1024, 512), (1, 768, 512)),
    ],
    ids=str,
)
def test_a_problem_is_measured_on_operands_of_its_sizes(key: Key, a: Any, b: Any) -> None:
    work = work_of(key, SM90)
    assert [x.shape for x in work.operands(2)(0)[:2]] == [a, b]
    assert work.bytes == np.prod(a) + np.prod(b)


def test_what_is_not_tuned_has_a_reason() -> None:
    f, *args = call_of(BLOCKS, implementation="xla")
    assert not problems.find(f, SM90, tuple(args), {}).counts  # XLA's own operations
    f, a, *rest = call_of(ROWS)
    many = jax.tree.map(lambda x: jax.ShapeDtypeStruct((3, *x.shape), x.dtype), a)
    found = problems.find(jax.vmap(f, (0, None, None)), SM90, (many, *rest), {})
    assert not found.counts
    assert [why for _, why in found.skipped] == ["it is a batch of grouped products"]


@pytest.mark.parametrize("key", KEYS, ids=str)
def test_lowered_text_has_the_same_problems(key: Key) -> None:
    f, *args = call_of(key)
    with bw.config.target("sm90"):
        lowered = jax.jit(f).trace(*args).lower(lowering_platforms=("cuda",))
    assert dict(problems.find(lowered, SM90, (), {}).counts) == {key: 1}


# --- what is tried ---


def test_the_heuristics_choice_comes_first_and_nothing_twice() -> None:
    table = runtime.scaled_kernels()
    dims = ScaledDims(1, 4096, 7168, 16384, E4M3, E4M3, 1, 1)
    choices = search_space.kernels_to_try(tuned.spec_of(BLOCKS), dims, table, SM90, 12)
    want = explained(dataclasses.replace(BLOCKS, m=4096, n=7168, k=16384))
    first = choices[0]
    assert (first.kernel.name, first.raster_order) == (want.kernel, want.raster_order)
    assert (first.swizzle, first.splits) == (want.swizzle, want.splits)
    assert 1 < len(choices) == len({(c.kernel, c.splits) for c in choices})
    orders = search_space.orders_to_try(first, dims, SM90, choices)
    assert len(orders) > 3
    assert all(o.kernel is first.kernel and o not in choices for o in orders)


def test_kernels_that_are_predicted_to_take_far_longer_are_not_tried() -> None:
    table, dims = runtime.scaled_kernels(), ScaledDims(1, 4096, 7168, 16384, E4M3, E4M3, 1, 1)
    spec = tuned.spec_of(BLOCKS)
    ranked = selection.ranked(selection.kernels_for(table, spec, dims, SM90), dims, SM90)
    near = [(k, c.splits) for k, c in ranked if c.cycles <= 2 * ranked[0][1].cycles]
    choices = search_space.kernels_to_try(spec, dims, table, SM90, len(ranked))
    assert [(c.kernel, c.splits) for c in choices] == near
    assert len(near) < len(ranked)


def test_kernels_and_bands_of_grouped_products() -> None:
    work = work_of(CONTRACT, SM90)
    choices = work.kernels_to_try(12)
    assert choices[0].kernel.name == explained(CONTRACT).kernel
    assert {c.kernel.schedule for c in choices} == {"pingpong", "cooperative"}
    bands = work.orders_to_try(choices[0], choices)
    assert len({choices[0].swizzle, *(c.swizzle for c in bands)}) == len(bands) + 1 > 3
    assert work.kernels_to_try(1) == choices[:1]


@pytest.mark.parametrize("key", [BLOCKS, ROWS], ids=str)
def test_a_problem_without_kernels_is_an_error(key: Key, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("scaled_kernels", "scaled_grouped_kernels"):
        monkeypatch.setattr(runtime, name, lambda: ())
    with pytest.raises(ValueError, match="kernel"):
        work_of(key, SM90).kernels_to_try(12)


# --- the result ---


@pytest.mark.parametrize("key", KEYS, ids=str)
def test_the_fastest_is_kept_and_selected(
    gpu: None, clock: list[Choice], tmp_path: Path, key: Key
) -> None:
    f, *args = call_of(key)
    before = explained(key)
    got = bw.autotune(f, *args, save=True)
    ((problem, entry),) = got.items()
    best = got.measurements[0].times_us[0][0]
    assert problem == key
    assert (entry.kernel, entry.raster_order) == (best.kernel.name, best.raster_order)
    assert (entry.swizzle, entry.splits, entry.us) == (
        best.swizzle,
        best.splits,
        round(rule(best), 3),
    )
    assert clock[0].kernel.name == before.kernel
    assert TuningTable.loads(got.dumps()) == got
    assert str(key) in str(got)
    jax.clear_caches()
    after = explained(key)
    assert (after.kernel, after.swizzle) == (entry.kernel, entry.swizzle)
    assert f"tuned, from the tuning cache {tmp_path / 'cache' / 'nvidia_h200.json'}" in after.reason


@pytest.mark.parametrize("key", [BLOCKS, ROWS], ids=str)
def test_an_entry_that_cannot_run_is_ignored(key: Key) -> None:
    before = explained(key)
    split = {"splits": 7} if key is BLOCKS else {}
    wrong = [entry_for("sm90_gone"), entry_for("sm90_scaled_e4m3_e4m3_bf16_sums_none")]
    wrong += [entry_for(before.kernel, **split)] if split else []
    for entry in wrong:
        with TuningTable(TunedDevice("any", "sm90", 132), {key: entry}):
            assert explained(key) == before
    right = entry_for(before.kernel, swizzle=16)
    with TuningTable(TunedDevice("any", "sm90", 132), {key: right}):
        assert (explained(key).kernel, explained(key).swizzle) == (before.kernel, 16)


@pytest.mark.parametrize("key", [BLOCKS, ROWS], ids=str)
def test_a_miss_can_be_an_error(key: Key) -> None:
    with bw.config.tuning_miss("error"), pytest.raises(LookupError, match="no tuned entry for sc"):
        explained(key)


def test_the_type_that_kernels_write_is_the_keys() -> None:
    f, a, b = call_of(dataclasses.replace(BLOCKS, out_dtype="float16"))
    (found,) = problems.find(f, SM90, (a, b), {}).counts
    assert found == dataclasses.replace(BLOCKS, out_dtype="float32")


# --- files ---


def test_keys_survive_json_and_every_field_is_checked() -> None:
    entries = dict.fromkeys(KEYS, entry_for("sm90_some", swizzle=4))
    table = TuningTable(H200, entries)
    assert TuningTable.loads(table.dumps()) == table
    bad: list[tuple[str, Any]] = [
        ("a_dtype", "bfloat16"), ("b_scaling", "mxfp4"), ("accumulation", "slow"), ("m", 0),
        ("out_dtype", "float16"), ("product", "scaled x"), ("k", 2.0), ("b_dtype", None),
    ]  # fmt: skip
    for name, value in [*bad, ("batch", -1), ("shared", "both")]:
        with pytest.raises(TuningFileError, match="has the impossible value"):
            TuningTable.loads(changed(BLOCKS, **{name: value}))
    for name, value in [*bad, ("kind", "scaled"), ("groups", 0), ("experts", "4"), ("splits", 2)]:
        with pytest.raises(TuningFileError, match="has the impossible value"):
            TuningTable.loads(changed(ROWS, **{name: value}))
    with pytest.raises(TuningFileError, match=r"unknown fields \['shares'\]"):
        TuningTable.loads(changed(ROWS, shares=[]))


def changed(key: Key, **changes: Any) -> str:
    data = json.loads(TuningTable(H200, {key: entry_for("sm90_some")}).dumps())
    data["entries"][0] |= changes
    return json.dumps(data)


# --- the command ---


@without_gpu
def test_the_command_tunes(
    gpu: None, clock: list[Choice], tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    out = str(tmp_path / "t.json")
    command = ["tune", "--scaled", "512,768,1024:1x128/128x128", "256,256,512x2:row/tensor"]
    assert main([*command, "--accumulation", "fast", "--out", out]) == 0
    pair = ScaledKey(E4M3, E4M3, "row", "tensor", "fast", BF16, 256, 256, 512, 2)
    assert set(TuningTable.load(out)) == {BLOCKS, pair}
    assert main(["tune", "--scaled", "512,768,1024:mxfp8/row", "--out", out]) == 1
    assert "no kernel" in capsys.readouterr().out


@without_gpu
@pytest.mark.parametrize("text", ["8,8,8", "8,8:row/row", "8,8,0:row/row", "8,8,8:row"])
def test_the_command_says_what_is_wrong(
    gpu: None, capsys: pytest.CaptureFixture, text: str
) -> None:
    assert main(["tune", "--scaled", text]) == 2
    assert f"is M,N,K[xBATCH]:A/B with sizes from 1 to 2147483647 and layouts of scales A and B, " \
        f"got {text!r}" in capsys.readouterr().err  # fmt: skip
    assert main(["tune", "--scaled", "8,8,8:row/rows"]) == 2
    assert "a layout must be one of 'tensor', 'row'" in capsys.readouterr().err


# --- measuring ---


@pytest.mark.emulator
@pytest.mark.parametrize(
    "key",
    [
        dataclasses.replace(BLOCKS, m=64, n=128, k=256),
        dataclasses.replace(TENSOR, m=64, n=64, k=128, batch=2, shared="lhs"),
        dataclasses.replace(ROWS, m=64, n=128, k=128),
        dataclasses.replace(CONTRACT, m=128, n=64, k=64),
    ],
    ids=str,
)
def test_the_measured_calls_are_the_kernels(key: Key) -> None:
    """Every choice computes the product, of operands as they are measured with."""
    if runtime.load_emulator() is None:
        pytest.skip("the emulator was not built")
    work = work_of(key, make_target("sm90", 2), "emulator")
    choices = work.kernels_to_try(2)
    drawn = work.operands(2)(0)
    rng = np.random.default_rng(0)
    values = [small_integers(rng, x.shape, x.dtype.name) for x in drawn[:2]]
    operands = [*map(jnp.asarray, values), *drawn[2:]]
    want = work.reference(*operands)
    for choice in [*choices, *work.orders_to_try(choices[0], choices)[:2]]:
        got = jax.jit(functools.partial(work.emit, choice))(*operands)
        assert_exact(got, np.asarray(want), str(choice))
