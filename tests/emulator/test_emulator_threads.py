"""Launches by several threads: every kernel exact, settings, what they do not see."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from emulator_cases import BUILT, requires_emulator
from numerics import assert_exact, small_integers

import jax_bwgemm as bw
from jax_bwgemm import config, emulator, runtime

pytestmark = requires_emulator

KERNELS = runtime.emulated_kernels() if BUILT else ()
ONE_OF_EACH = {(k.arch, k.schedule, k.swap_ab, k.stream_k): k for k in KERNELS if k.majors == "kn"}


@pytest.mark.parametrize("kernel", ONE_OF_EACH.values(), ids=lambda k: k.name)
def test_kernels_are_exact(kernel: Any) -> None:
    """More tiles than threads, in clusters of each size; persistent ones take them in turn."""
    rng = np.random.default_rng(0)
    m, n, k = 3 * kernel.tile_m + 8, 2 * kernel.tile_n + 24, 2 * kernel.tile_k + 8
    if kernel.swap_ab:
        m, n = 2 * kernel.tile_n + 8, 3 * kernel.tile_m + 24
    a = jnp.asarray(small_integers(rng, (m, k), kernel.a_dtype))
    b = jnp.asarray(small_integers(rng, (k, n), kernel.b_dtype))
    want = np.float64(a) @ np.float64(b)
    precision = "highest" if kernel.splits_both else None
    for seed in range(4):
        with config.target(kernel.arch, 8), emulator.configure(sm_count=8, threads=3, seed=seed):
            got = bw.matmul(
                a,
                b,
                precision=precision,
                preferred_element_type=kernel.out_dtype,
                implementation="emulator",
                config=kernel.name,
            )
        assert_exact(got, want.astype(kernel.out_dtype))


def test_groups_are_exact() -> None:
    rng = np.random.default_rng(1)
    sizes = np.array([300, 0, 17, 512, 64])
    a = jnp.asarray(small_integers(rng, (sizes.sum(), 96), "bfloat16"))
    b = jnp.asarray(small_integers(rng, (5, 96, 144), "bfloat16"))
    groups = np.repeat(np.arange(5), sizes)
    want = np.einsum("mk,mkn->mn", np.float64(a), np.float64(b)[groups])
    for arch in ("sm90", "sm100"):
        with config.target(arch, 6), emulator.configure(sm_count=6, threads=2):
            got = bw.ragged_dot(a, b, jnp.asarray(sizes), implementation="emulator")
        assert_exact(got, want.astype(jnp.bfloat16))


def test_settings() -> None:
    with emulator.configure(threads=2) as settings:
        assert settings.threads == 2
    for bad, kind in ((0, ValueError), (1025, ValueError), (True, TypeError), (1.5, TypeError)):
        with pytest.raises(kind, match="threads must be"), emulator.configure(threads=bad):
            pass


def test_a_timeline_has_one_thread() -> None:
    a = jnp.ones((256, 64), jnp.bfloat16)
    launches = []
    for threads in (1, 4):
        with emulator.configure(threads=threads, trace=True):
            bw.matmul(a, a.T, implementation="emulator")
            trace = emulator.last_trace()
            assert trace is not None
            launches.append(list(trace.chrome_events()))
    assert launches[0] == launches[1]
