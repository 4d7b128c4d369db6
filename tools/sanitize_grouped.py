"""The grouped half of sanitize_gpu.py: every line of grouped.def, with sizes that nobody checked.

Sizes are known on the device only: negative ones, empty groups, groups that end inside of tiles,
one that runs past the last row; and experts for a part of the groups.
"""

from __future__ import annotations

import dataclasses
import re

import numpy as np

OFFSET = 1  # group that the first expert belongs to


@dataclasses.dataclass(frozen=True)
class GroupedCase:
    """One launch.

    Attributes:
        kernel: Name of the kernel.
        kind: "m-grouped" or "k-grouped".
        m, n, k: Sizes; m counts the ragged rows.
        sizes: Rows of each group, as the device gets them.
        experts: Matrices, from group OFFSET on.
        order: Tile order.
    """

    kernel: str
    types: tuple[str, str]
    kind: str
    m: int
    n: int
    k: int
    sizes: tuple[int, ...]
    experts: int
    order: str

    def __str__(self) -> str:
        groups = ",".join(map(str, self.sizes))
        return f"{self.kernel} {self.m}x{self.n}x{self.k} sizes {groups} order {self.order}"

    def is_exact(self, implementation: str) -> bool:
        """Launches it in this process and compares."""
        import jax
        import jax.numpy as jnp

        import jax_bwgemm as bw

        rng = np.random.default_rng(0)
        shape = (self.m, self.n) if self.kind == "k-grouped" else (self.experts, self.k, self.n)
        lhs = rng.integers(-2, 3, (self.m, self.k)).astype(np.float32)
        rhs = rng.integers(-2, 3, shape).astype(np.float32)
        for x, dtype in zip((lhs, rhs), self.types, strict=True):
            if dtype == "float32":
                x *= 257  # which needs two terms of bf16
        config = bw.GroupedConfig(kernel=self.kernel, order=self.order)
        options = {
            "implementation": implementation,
            "config": config,
            "preferred_element_type": jnp.bfloat16,
        }

        @jax.jit
        def run(a: jax.Array, b: jax.Array, sizes: jax.Array, offset: jax.Array) -> jax.Array:
            if self.kind == "m-grouped":
                return bw.ragged_dot(a, b, sizes, group_offset=offset, **options)
            dimensions = jax.lax.RaggedDotDimensionNumbers(
                dot_dimension_numbers=(((0,), (0,)), ((), ())),
                lhs_ragged_dimensions=[0],
                rhs_group_dimensions=[],
            )
            return bw.ragged_dot_general(
                a, b, sizes, dimensions, group_offset=offset, num_groups=self.experts, **options
            )

        operands = (jnp.asarray(x, t) for x, t in zip((lhs, rhs), self.types, strict=True))
        got = run(*operands, jnp.asarray(self.sizes, jnp.int32), jnp.asarray(OFFSET, jnp.int32))
        want = expected(self, lhs, rhs).astype(jnp.bfloat16)
        return np.array_equal(np.asarray(got), want)


def cases(arch: str, pattern: str) -> list[GroupedCase]:
    """A kernel of each line whose name the pattern is in, in every order of its tiles."""
    from jax_bwgemm import runtime

    lines = {}
    for k in runtime.grouped_kernels():
        if k.arch == arch and k.out_dtype == "bfloat16":
            line = k.in_dtype, k.kind, k.tile_m, k.tile_n, k.cluster_m, k.swap_ab, k.schedule
            lines.setdefault(line, k)
    found = []
    for k in lines.values():
        if not re.search(pattern, k.name):
            continue
        ragged = k.tile_n if k.swap_ab else k.tile_m
        m = 2 * ragged + 40
        sizes = 5, 0, ragged + 9, -3, 1, 10 * m
        columns, depth = 2 * max(k.tile_m, k.tile_n) + 24, (k.stages + 2) * k.tile_k + 8
        orders = ("horizontal", "vertical") if k.kind == "m-grouped" else ("heuristic",)
        for order in orders:
            types = k.a_dtype, k.b_dtype
            found.append(GroupedCase(k.name, types, k.kind, m, columns, depth, sizes, 4, order))
    return found


def expected(case: GroupedCase, lhs: np.ndarray, rhs: np.ndarray) -> np.ndarray:
    """The result in f32: exact on small integers."""
    ends = np.minimum(np.cumsum(np.maximum(case.sizes, 0)), case.m)
    starts = np.concatenate([[0], ends[:-1]])
    groups = [slice(*span) for span in zip(starts, ends, strict=True)]
    groups = groups[OFFSET : OFFSET + case.experts]
    if case.kind == "k-grouped":
        return np.stack([lhs[rows].T @ rhs[rows] for rows in groups])
    out = np.zeros((case.m, case.n), np.float32)
    for rows, matrix in zip(groups, rhs, strict=True):
        out[rows] = lhs[rows] @ matrix
    return out
