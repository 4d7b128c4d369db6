"""Autotuning on a real GPU: real kernel times, and results that are right under any choice."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from grouped_oracle import canonical, rows
from numerics import assert_exact, small_integers

import jax_bwgemm as bw
from jax_bwgemm.cli import main
from jax_bwgemm.grouped.tuned import spec_of
from jax_bwgemm.tuning.devices import local_device
from jax_bwgemm.tuning.group_draws import draw_groups
from jax_bwgemm.tuning.table import TuningTable
from jax_bwgemm.tuning.work import work_of

pytestmark = pytest.mark.gpu


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BWGEMM_TUNING_CACHE", str(tmp_path))
    return tmp_path


def operands(m: int, n: int, k: int) -> tuple[jax.Array, jax.Array, np.ndarray]:
    """Small integers, and their exact product in bf16 (|sums| <= 4 K, far below 2^24)."""
    rng = np.random.default_rng(0)
    a, b = small_integers(rng, (m, k), "bfloat16"), small_integers(rng, (k, n), "bfloat16")
    exact = a.astype(np.float32) @ b.astype(np.float32)
    return jax.numpy.asarray(a), jax.numpy.asarray(b), exact.astype(a.dtype)


@pytest.mark.parametrize("sizes", [(512, 768, 1024), (16, 1024, 2048), (128, 128, 8192)])
def test_every_measured_choice_is_right_and_the_fastest_is_kept(
    cache: Path, sizes: tuple[int, int, int]
) -> None:
    a, b, exact = operands(*sizes)
    found = bw.autotune(bw.matmul, a, b, timeout=30)
    ((key, entry),) = found.items()
    assert (key.m, key.n, key.k) == sizes
    assert entry.method == "cupti"
    (measured,) = found.measurements
    assert not measured.failures
    assert len(measured.times_us) > 3
    # Finalists are measured anew: another choice may have been faster before.
    assert entry.us <= entry.heuristic_us
    times = {(choice.kernel.name, round(us, 3)) for choice, us in measured.times_us}
    assert (entry.kernel, entry.us) in times
    for choice, us in measured.times_us:
        assert 0 < us < 1e4
        config = bw.TuningConfig(
            kernel=choice.kernel.name,
            raster_order=choice.raster_order,
            swizzle=choice.swizzle,
            splits=choice.splits,
            decomposition=choice.decomposition if choice.kernel.stream_k else None,
        )
        assert_exact(bw.matmul(a, b, implementation="cutlass", config=config), exact, str(choice))
    with found:
        assert bw.explain(a, b).kernel == entry.kernel
        assert_exact(bw.matmul(a, b, implementation="cutlass"), exact)
    assert not list(cache.iterdir())  # nothing is saved unless asked for


EXPECTED = [600, 0, 24, 8, 0, 100, 268, 24]


def ragged_operands(m: int, n: int, k: int, groups: int) -> tuple[np.ndarray, np.ndarray]:
    """Small integers: sums of products of at most 4 stay far below 2^24."""
    rng = np.random.default_rng(1)
    x, w = small_integers(rng, (m, k), "bfloat16"), small_integers(rng, (groups, k, n), "bfloat16")
    return x, w


def ragged_step(representative: list[int] | None) -> Any:
    def loss(x: jax.Array, w: jax.Array, sizes: jax.Array) -> jax.Array:
        out = bw.ragged_dot(x, w, sizes, representative_group_sizes=representative)
        return (out.astype(jnp.float32) ** 2).sum()

    return jax.value_and_grad(loss, (0, 1))


@pytest.mark.parametrize("representative", [None, EXPECTED], ids=["unknown", "expected"])
def test_grouped_products_of_a_step_are_tuned_and_right(
    cache: Path, representative: list[int] | None
) -> None:
    """Every choice that was measured, and the step with the table in force."""
    m, n, k = 1024, 384, 512
    x, w = ragged_operands(m, n, k, len(EXPECTED))
    sizes = np.array(EXPECTED, np.int32)
    step = ragged_step(representative)
    found = bw.autotune(step, x, w, jnp.asarray(sizes), timeout=60)
    assert not found.skipped
    assert {(p.kind, p.b_major, p.n, p.k) for p in found} == {
        ("m-grouped", "n", n, k), ("m-grouped", "k", k, n), ("k-grouped", "n", n, k),
    }  # fmt: skip
    _, target, _ = local_device()
    rng = np.random.default_rng(2)
    for measured in found.measurements:
        problem = measured.problem
        assert bool(problem.shares) == (representative is not None)
        entry = found.get(problem)
        assert entry.method == "cupti"
        assert entry.us <= entry.heuristic_us
        assert entry.kernel in {choice.kernel.name for choice, _ in measured.times_us}
        assert not measured.failures
        assert len(measured.times_us) > 3
        work, spec = work_of(problem, target), spec_of(problem)
        (drawn,) = draw_groups(problem, 1)
        matrices = [small_integers(rng, x.shape, "bfloat16") for x in work.operands(2)(0)[:2]]
        operands = (*matrices, *drawn)
        want = canonical(spec, *operands).astype(jnp.bfloat16)
        for choice, us in measured.times_us:
            assert 0 < us < 1e4
            run = jax.jit(functools.partial(work.emit, choice))
            assert_exact(run(*map(jnp.asarray, operands)), want, str(choice))
    with found:
        products = bw.explain_program(step, x, w, jnp.asarray(sizes)).products
        kernels = {p.kernel for p, _ in products if "grouped" in p.problem}
        assert kernels == {entry.kernel for _, entry in found.items()}
        out = jax.jit(bw.ragged_dot, static_argnames="implementation")(
            x, w, jnp.asarray(sizes), implementation="cutlass"
        )
    assert_exact(out, rows(x, w, sizes).astype(jnp.bfloat16))
    assert not list(cache.iterdir())  # nothing is saved unless asked for


def test_products_of_scaled_operands_are_tuned_and_right(cache: Path) -> None:
    """Those of a training step's layers, dense and grouped: every choice that was measured."""
    dot, ragged = bw.fp8_dot_general("per_tensor"), bw.fp8_ragged_dot("blockwise")

    def loss(x: jax.Array, w: jax.Array, experts: jax.Array, sizes: jax.Array) -> jax.Array:
        hidden = dot(x, w, (((1,), (0,)), ((), ())))
        return (ragged(hidden, experts, sizes).astype(jnp.float32) ** 2).sum()

    x, experts = ragged_operands(1024, 384, 512, 4)
    w = small_integers(np.random.default_rng(3), (512, 512), "bfloat16")
    args = jnp.asarray(x), jnp.asarray(w), jnp.asarray(experts), jnp.array([600, 0, 256, 168])
    step = jax.value_and_grad(loss, (0, 1, 2))
    found = bw.autotune(step, *args, timeout=60)
    assert not found.skipped
    kinds = [type(key).__name__ for key in found]
    assert (kinds.count("ScaledKey"), kinds.count("ScaledGroupedKey")) == (3, 3)
    _, target, _ = local_device()
    rng = np.random.default_rng(4)
    for measured in found.measurements:
        entry = found.get(measured.problem)
        assert entry.us <= entry.heuristic_us
        assert not measured.failures
        work = work_of(measured.problem, target)
        drawn = work.operands(2)(0)
        values = [small_integers(rng, v.shape, v.dtype.name) for v in drawn[:2]]
        operands = [*map(jnp.asarray, values), *drawn[2:]]
        want = np.asarray(work.reference(*operands))
        for choice, us in measured.times_us:
            assert 0 < us < 1e4
            run = jax.jit(functools.partial(work.emit, choice))
            assert_exact(run(*operands), want, str(choice))
    with found:
        reasons = [p.reason for p, _ in bw.explain_program(step, *args).products if p.kernel]
        assert sum(reason.startswith("tuned, from the tuning in force") for reason in reasons) == 6


def test_a_grouped_miss_is_tuned_while_compiling(cache: Path) -> None:
    x, w = ragged_operands(512, 256, 384, 4)
    sizes = jnp.array([100, 0, 400, 12], jnp.int32)
    exact = rows(x, w, np.asarray(sizes)).astype(jnp.bfloat16)
    with bw.config.tuning_miss("autotune"):
        assert_exact(jax.jit(bw.ragged_dot)(x, w, sizes), exact)
    (path,) = cache.glob("*.json")
    ((problem, entry),) = TuningTable.load(path).items()
    assert (problem.kind, problem.m, problem.groups) == ("m-grouped", 512, 4)
    with bw.config.tuning_miss("error"):  # it is no longer a miss
        assert_exact(jax.jit(bw.ragged_dot)(x, w, sizes), exact)
        ((product, _),) = bw.explain_program(bw.ragged_dot, x, w, sizes).products
        assert product.kernel == entry.kernel


def test_a_miss_is_tuned_while_compiling(cache: Path) -> None:
    a, b, exact = operands(256, 512, 768)
    with bw.config.tuning_miss("autotune"):
        assert_exact(jax.jit(bw.matmul)(a, b), exact)
        kernel = bw.explain(a, b).kernel
    (path,) = cache.glob("*.json")
    ((_, entry),) = TuningTable.load(path).items()
    assert entry.kernel == kernel
    with bw.config.tuning_miss("error"):  # it is no longer a miss
        assert_exact(jax.jit(bw.matmul)(a, b), exact)


def test_the_command_tunes(cache: Path) -> None:
    assert main(["tune", "--shapes", "256,256,512", "64,512,256:kk", "--budget", "30"]) == 0
    (path,) = cache.glob("*.json")
    assert len(TuningTable.load(path)) == 2
    ragged = ["512,256,384,8", "512,384,256,8:kk", "512,256,384,8:mn", "512,256,384,8/2"]
    assert main(["tune", "--ragged", *ragged, "--budget", "60"]) == 0
    assert len(TuningTable.load(path)) == 6
