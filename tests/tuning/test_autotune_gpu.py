"""Autotuning on a real GPU: real kernel times, and results that are right under any choice."""

from __future__ import annotations

from pathlib import Path

import jax
import numpy as np
import pytest
from numerics import assert_exact, small_integers

import jax_bwgemm as bw
from jax_bwgemm.cli import main
from jax_bwgemm.tuning.table import TuningTable

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
    assert entry.us <= 1.02 * measured.times_us[0][1]
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
