"""The grouped scaled part of sanitize_gpu.py: every kernel, with every layout it takes.

Group sizes are as sanitize_grouped.py has them: negative ones, empty groups, one that runs past the
last row; and matrices for a part of the groups. On integers and scales that are powers of two,
every sum is exact.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from sanitize_grouped import OFFSET
from sanitize_scaled import equal, k_multiple, layouts_of, random_operands


def ragged_bands(groups: Sequence[slice], rows: int, experts: int) -> tuple[np.ndarray, int]:
    """The row of bands of 128 in which a row of a group lies, and how many bands there are.

    Of every row of A; -1 of those of no group.
    """
    found = np.full(rows, -1)
    for e, group in enumerate(groups):
        within = np.arange(group.stop - group.start)
        found[group] = (group.start // 128 + e) * 128 + within
    return found, -(-rows // 128) + experts - 1


@dataclasses.dataclass(frozen=True)
class ScaledGroupedCase:
    """One launch.

    Attributes:
        kernel: Name of the kernel.
        kind: ``"m-grouped"`` or ``"k-grouped"``.
        types: Types of A, B and D.
        scalings: Layouts of A and B.
        m, n, k: Sizes; m counts the ragged rows.
        sizes: Rows of each group, as the device gets them.
        experts: Matrices, from group OFFSET on.
        order: Tile order.
        seed: Of the operands.
    """

    kernel: str
    kind: str
    types: tuple[str, str, str]
    scalings: tuple[str, str]
    m: int
    n: int
    k: int
    sizes: tuple[int, ...]
    experts: int
    order: str = "heuristic"
    seed: int = 0

    def __str__(self) -> str:
        groups = ",".join(map(str, self.sizes))
        layouts = " x ".join(self.scalings)
        return (
            f"{self.kernel} {layouts} {self.m}x{self.n}x{self.k} sizes {groups} order {self.order}"
        )

    def operands(self) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """Operands by their roles, and the exact product, rounded once."""
        rng = np.random.default_rng(self.seed)
        if self.kind == "m-grouped":
            shapes = ((1, self.m, self.k), (self.experts, self.n, self.k))
        else:
            shapes = ((1, self.k, self.m), (1, self.n, self.m))
        ends = np.minimum(np.cumsum(np.maximum(self.sizes, 0)), self.m)
        starts = np.concatenate([[0], ends[:-1]])
        groups = [slice(*span) for span in zip(starts, ends, strict=True)]
        groups = groups[OFFSET : OFFSET + self.experts]
        m_grouped = self.kind == "m-grouped"
        bands = ragged_bands(groups, self.m, self.experts) if m_grouped else None
        given, (a, b) = random_operands(rng, shapes, self.scalings, self.types, bands)
        if m_grouped:
            given |= {name: given[name][None] for name in ("b", "b_scales")}
            if "alpha" in given:
                given["alpha"] = np.full((1, self.experts), given["alpha"][0], np.float32)
        if self.kind == "m-grouped":
            exact = np.zeros((self.m, self.n), np.float32)
            for rows, matrix in zip(groups, b, strict=False):
                exact[rows] = a[0, rows] @ matrix.T
        else:
            exact = np.zeros((self.experts, self.k, self.n), np.float32)
            for i, rows in enumerate(groups):
                exact[i] = a[0, :, rows] @ b[0, :, rows].T
        order = ("a", "b", "group_sizes", "group_offset", "a_scales", "b_scales", "alpha")
        given["group_sizes"] = np.asarray([self.sizes], np.int32)
        given["group_offset"] = np.asarray([OFFSET], np.int32)
        operands = {name: given[name] for name in order if name in given}
        return operands, exact[None].astype(np.dtype(self.types[2]))

    def launch(self, implementation: str, operands: dict[str, Any]) -> Any:
        """Emits the call: D."""
        import jax

        from jax_bwgemm import runtime
        from jax_bwgemm.product import targets

        sizes = {"m": self.m, "n": self.n, "k": self.k, "batch": 1}
        groups = {"groups": len(self.sizes), "experts": self.experts}
        shape = (self.m, self.n) if self.kind == "m-grouped" else (self.experts, self.k, self.n)
        return targets.call_kernel(
            implementation,
            self.kernel,
            operands,
            jax.ShapeDtypeStruct((1, *shape), self.types[2]),
            runtime.kernel_workspace_bytes(
                implementation, self.kernel, **sizes, **groups, sm_count=1
            ),
            a_scaling=self.scalings[0],
            b_scaling=self.scalings[1],
            order=self.order,
        )

    def run(self, implementation: str) -> tuple[np.ndarray, np.ndarray]:
        """Launches it in this process: the result, and the exact product rounded once."""
        operands, want = self.operands()
        return np.asarray(self.launch(implementation, operands)), want

    def is_exact(self, implementation: str) -> bool:
        """Launches it in this process and compares."""
        return equal(*self.run(implementation))


def _case(kernel: Any, scalings: tuple[str, str], *sizes: Any, **more: Any) -> ScaledGroupedCase:
    types = kernel.a_dtype, kernel.b_dtype, kernel.out_dtype
    return ScaledGroupedCase(kernel.name, kernel.kind, types, scalings, *sizes, **more)


def cases(arch: str, pattern: str) -> list[ScaledGroupedCase]:
    """Every kernel whose name the pattern is in, with ragged edges, once for each pair of layouts.

    The first pair goes around the pipeline more than once, in every order of tiles.
    """
    from jax_bwgemm import runtime

    table = runtime.scaled_grouped_kernels()
    return cases_of([k for k in table if k.arch == arch and re.search(pattern, k.name)])


def cases_of(kernels: Sequence[Any]) -> list[ScaledGroupedCase]:
    """The cases of some kernels."""
    found: list[ScaledGroupedCase] = []
    for k in kernels:
        rows, columns = (k.tile_n, k.tile_m) if k.swap_ab else (k.tile_m, k.tile_n)
        for i, scalings in enumerate(layouts_of(k)):
            depth = (k.stages + 2 if i == 0 else 1) * k.tile_k + k_multiple(k)
            if k.kind == "m-grouped":
                m = 2 * rows + 41
                sizes = 5, 0, rows + 9, -3, 1, 10 * m
                orders = ("horizontal", "vertical") if i == 0 else ("heuristic",)
                for order in orders:
                    found.append(
                        _case(k, scalings, m, columns + 24, depth, sizes, 4, order, seed=len(found))
                    )
            else:
                sizes = 5, 0, depth - 9, -3, 1, 10 * depth
                m = depth + 128
                found.append(
                    _case(k, scalings, m, columns + 24, rows + 7, sizes, 5, seed=len(found))
                )
            if k.scales == "mma":  # which takes one pair of layouts
                found += _more_cases(k, scalings, len(found))
    return found


def _more_cases(k: Any, scalings: tuple[str, str], seed: int) -> list[ScaledGroupedCase]:
    """Whole tiles; groups of few rows that begin within blocks of scales; one row and column."""
    least = k_multiple(k)
    small = 1, 2, 13, 16, 17, 0, 31, 3, 64, 97, 5, 33
    if k.kind == "m-grouped":
        rest = ((512, k.tile_n, 2 * k.tile_k, (128, 256, 128), 2),)
        rest += ((304, 40, least, small, 11), (40, 8, 3 * least, (1,) * 40, 39))
    else:
        rest = ((4 * k.tile_k, k.tile_n, k.tile_m, (k.tile_k, 2 * k.tile_k, k.tile_k), 2),)
        rest += ((320, 40, 136, small, 11), (64, 8, 1, (1,) * 64, 9))
    return [_case(k, scalings, *sizes, seed=seed + i) for i, sizes in enumerate(rest)]


def random_cases(kernels: Sequence[Any], count: int, seed: int = 0) -> list[ScaledGroupedCase]:
    """Random kernels, layouts, sizes and groups."""
    rng = np.random.default_rng(seed)

    def size(most: int, multiple: int) -> int:
        return int(np.ceil(2 ** rng.uniform(0, np.log2(most / multiple)))) * multiple

    found = []
    for i in range(count):
        kernel = kernels[rng.integers(len(kernels))]
        pairs = layouts_of(kernel)
        scalings = pairs[rng.integers(len(pairs))]
        rows_last = kernel.kind == "k-grouped"
        least = k_multiple(kernel)
        m, n, k = size(1500, least if rows_last else 1), size(1000, 8), size(1000, least)
        groups = int(rng.integers(1, 40))
        mean = m / groups
        sizes = tuple(int(s) for s in rng.integers(-int(mean / 4) - 1, int(2 * mean) + 2, groups))
        experts = int(rng.integers(1, groups + 1))
        order = ("horizontal", "vertical")[rng.integers(2)]
        found.append(_case(kernel, scalings, m, n, k, sizes, experts, order, seed=i))
    return found
