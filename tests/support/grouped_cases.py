"""What tests of single grouped kernels share: group sizes of every kind, operands, checked runs."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp
import numpy as np
from numerics import assert_exact, exact_integers

from jax_bwgemm import emulator, runtime
from jax_bwgemm.emulator.grouped import group_rows, reference, run_grouped
from jax_bwgemm.product.kernels import Kernel

GROUPS = 6
LARGEST = 2**31 - 1


def emulated() -> tuple[Kernel, ...]:
    """Every grouped kernel that this build can emulate."""
    return runtime.emulated_grouped_kernels()


def one_per_line() -> tuple[Kernel, ...]:
    """One kernel of each line of grouped.def; types and majors differ from line to line."""
    lines: dict[tuple[object, ...], list[Kernel]] = {}
    for k in emulated():
        tile = (k.arch, k.kind, k.tile_m, k.tile_n, k.cluster_m, k.cluster_n)
        lines.setdefault((*tile, k.swap_ab, k.schedule), []).append(k)
    return tuple(kernels[i % len(kernels)] for i, kernels in enumerate(lines.values()))


def row_tile(kernel: Kernel) -> int:
    """Ragged rows that a tile (rows) or a stage of the pipeline (contract) has."""
    if kernel.kind == "k-grouped":
        return kernel.tile_k
    return kernel.tile_n if kernel.swap_ab else kernel.tile_m


def column_tile(kernel: Kernel) -> int:
    """Columns of D that a tile has."""
    return kernel.tile_m if kernel.swap_ab else kernel.tile_n


def families(kernel: Kernel, rows: int) -> dict[str, np.ndarray]:
    """Group sizes, [GROUPS] each, that every kernel has to get right."""
    tile = row_tile(kernel)
    rng = np.random.default_rng(0)
    cuts = np.sort(rng.integers(0, rows + 1, GROUPS - 1))
    sizes = {
        "zeros": [0] * GROUPS,
        "ones": [1] * GROUPS,
        "one_group": [0, 0, rows, 0, 0, 0],
        "sum_below_m": [tile // 2 + 1, 0, 3, 0, tile, 1],
        "straddling": [tile + 3, tile - 1, 1, 0, 2, 5],
        "hostile": [-5, 7, LARGEST, LARGEST, -LARGEST - 1, 4],
        "random": np.diff(cuts, prepend=0, append=rows),
    }
    return {name: np.asarray(s, np.int32) for name, s in sizes.items()}


@dataclasses.dataclass(frozen=True)
class Problem:
    """Operands of one call of a kernel, batch extents included."""

    lhs: np.ndarray
    rhs: np.ndarray
    sizes: np.ndarray
    offset: np.ndarray
    experts: int


def problem(
    kernel: Kernel,
    m: int,
    n: int,
    k: int,
    sizes: np.ndarray,
    *,
    experts: int | None = None,
    offset: object = 0,
    lhs_batch: int = 1,
    rhs_batch: int = 1,
    seed: int = 0,
) -> Problem:
    """Integers whose products are exact. Sizes [G] or [Bs, G], offset a scalar or [Bo]."""
    rng = np.random.default_rng(seed)
    sizes = np.atleast_2d(np.asarray(sizes, np.int32))
    experts = sizes.shape[1] if experts is None else experts
    shape: tuple[int, ...] = (rhs_batch, m, n)
    if kernel.kind == "m-grouped":
        shape = (rhs_batch, experts, *((k, n) if kernel.b_major == "n" else (n, k)))
    lhs = exact_integers(rng, (lhs_batch, m, k), kernel.a_dtype)
    rhs = exact_integers(rng, shape, kernel.b_dtype)
    return Problem(lhs, rhs, sizes, np.atleast_1d(np.asarray(offset, np.int32)), experts)


def expected(kernel: Kernel, p: Problem) -> np.ndarray:
    """The exact result, rounded once to the output type."""
    exact = reference(kernel, p.lhs, p.rhs, p.sizes, p.offset, p.experts)
    return exact.astype(np.float32).astype(jnp.dtype(kernel.out_dtype))


def run(kernel: Kernel, p: Problem, **attributes: str | int) -> np.ndarray:
    """The kernel's result."""
    return run_grouped(kernel, p.lhs, p.rhs, p.sizes, p.offset, p.experts, **attributes)


def check(
    kernel: Kernel, p: Problem, context: str, **attributes: str | int
) -> emulator.LaunchStats:
    """Compares bit for bit; the statistics of the launch."""
    assert_exact(run(kernel, p, **attributes), expected(kernel, p), f"{kernel.name} {context}")
    stats = emulator.last_launch()
    assert stats is not None
    assert stats.ok
    assert not stats.warnings
    return stats


def rows_of(p: Problem, group: int) -> slice:
    """The rows of a group of the first batch element."""
    return slice(*group_rows(p.sizes[0], p.lhs.shape[1])[group])
