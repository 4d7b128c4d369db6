"""What the emulator's tests share: when they can run, and checked runs of a kernel."""

from __future__ import annotations

import dataclasses
import os
import zlib

import jax.numpy as jnp
import numpy as np
import pytest
from numerics import assert_exact, exact_factors, exact_integers, normal

from jax_bwgemm import emulator, runtime
from jax_bwgemm.emulator.dense import operand_shapes, reference, run_gemm
from jax_bwgemm.product.kernels import Kernel

BUILT = runtime.load_emulator() is not None
if not BUILT and os.environ.get("BWGEMM_REQUIRE_EMULATOR") == "1":
    raise RuntimeError("BWGEMM_REQUIRE_EMULATOR=1, but the emulator was not built")

requires_emulator = [
    pytest.mark.emulator,
    pytest.mark.skipif(not BUILT, reason="the emulator was not built"),
]


def emulated(arch: str) -> tuple[Kernel, ...]:
    """Every kernel of an architecture that this build can emulate."""
    return tuple(k for k in runtime.emulated_kernels() if k.arch == arch)


def one_per_tile(arch: str) -> tuple[Kernel, ...]:
    """The first kernel of each tile shape and schedule."""
    first: dict[str, Kernel] = {}
    for k in emulated(arch):
        rest = k.name.split(f"_{k.majors}_", 1)[1]
        terms = "" if k.terms == 1 else f"{k.in_dtype} {k.mmas} {k.term_dtype} "
        first.setdefault(f"{terms}{rest}", k)
    return tuple(first.values())


def two_cta_kernel() -> Kernel:
    """The flagship: 256x256x64 over a pair of CTAs, bf16, row-major operands."""
    name = "sm100_bf16_bf16_kn_256x256x64_2x1_2sm"
    return next(k for k in runtime.emulated_kernels() if k.name == name)


@dataclasses.dataclass(frozen=True)
class Problem:
    """Sizes of one GEMM."""

    m: int
    n: int
    k: int
    batch: int = 1

    def __str__(self) -> str:
        return f"{self.m}x{self.n}x{self.k}" + (f"_b{self.batch}" if self.batch > 1 else "")


def problems(kernel: Kernel) -> dict[str, Problem]:
    """The shapes that every kernel has to get right, from its tile."""
    tm, tn, tk = kernel.tile_m, kernel.tile_n, kernel.tile_k
    return {
        # One tile, with fewer K blocks than the pipeline has stages.
        "one_tile": Problem(tm, tn, 2 * tk),
        # More tiles than a 4-SM machine holds at once: the persistent loop takes several rounds.
        "many_tiles_batch_3": Problem(2 * tm, 2 * tn, tk, batch=3),
        # Every edge ragged, and K several times around the pipeline.
        "ragged_deep": Problem(tm + 40, tn + 24, (2 * kernel.stages + 1) * tk + 8),
        # Less than one tile in every direction.
        "tiny": Problem(8, 16, 8),
    }


def operands(kernel: Kernel, p: Problem, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Small integers in the kernel's memory order."""
    rng = np.random.default_rng(seed)
    lhs, rhs = operand_shapes(kernel, p.m, p.n, p.k, p.batch)
    if kernel.splits_both:
        a, b = np.empty(lhs, np.float32), np.empty(rhs, np.float32)
        k_axes = 2 if kernel.a_major == "k" else 1, 2 if kernel.b_major == "k" else 1
        exact_factors(rng, a, b, k_axes, kernel)
        return a, b
    return exact_integers(rng, lhs, kernel.a_dtype), exact_integers(rng, rhs, kernel.b_dtype)


def normals(kernel: Kernel, rng: np.random.Generator, *sizes: int) -> tuple[np.ndarray, np.ndarray]:
    """Normal values in the kernel's memory order; sizes are M, N, K and batch."""
    lhs, rhs = operand_shapes(kernel, *sizes)
    return normal(rng, lhs, kernel.a_dtype), normal(rng, rhs, kernel.b_dtype)


def expected(kernel: Kernel, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The exact product, rounded once to the output type."""
    return reference(kernel, a, b).astype(np.float32).astype(jnp.dtype(kernel.out_dtype))


def check(kernel: Kernel, p: Problem, **settings: int | bool) -> emulator.LaunchStats:
    """Runs a kernel on integers and compares bit for bit; returns the launch's statistics.

    It may break no rule that is on by default.
    """
    a, b = operands(kernel, p)
    # The history of accesses costs time: a quarter of the runs keeps it, by kernel and shape.
    settings.setdefault("races", zlib.crc32(f"{kernel.name} {p}".encode()) % 4 == 0)
    with emulator.configure(**settings):
        out = run_gemm(kernel, a, b)
    assert_exact(out, expected(kernel, a, b), f"{kernel.name} {p}")
    return rules_kept(kernel)


def rules_kept(kernel: Kernel) -> emulator.LaunchStats:
    """Asserts that the last launch, of this kernel, broke no rule; returns its statistics."""
    stats = emulator.last_launch()
    assert stats is not None
    assert stats.ok
    # Tiles of SM90 kernels overlap at ragged edges and store the same values there.
    allowed = {"same-value"} if kernel.arch == "sm90" else set()
    assert {warning.rule for warning in stats.warnings} <= allowed, stats.warnings
    return stats
