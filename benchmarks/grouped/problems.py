"""The grouped GEMMs that bench_grouped.py runs: shapes, group sizes, operands, exact results.

A problem is lhs[m, k] @ rhs[groups, k, n]: rows in consecutive groups, each multiplied by its
group's matrix. Its modes are what training needs of it:

    forward   x[m, k], w[groups, k, n]  -> [m, n]
    dx        dy[m, n], w[groups, k, n] -> [m, k]           the gradient of x
    dw        x[m, k], dy[m, n]         -> [groups, k, n]   the gradient of w
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

MODES = ("forward", "dx", "dw")
DISTRIBUTIONS = ("random", "uniform", "zipf", "one_hot", "many_empty")
REFERENCE_TILE = 128


def group_sizes(distribution: str, rows: int, groups: int, seed: int) -> np.ndarray:
    """Sizes of `groups` groups, [groups] int32, that sum to `rows`.

    Args:
      distribution: "random" cuts the rows at random places; "uniform" is as equal as can be; "zipf"
        gives the i-th largest group a share proportional to 1/i, in random order; "one_hot" gives
        all rows to one group; "many_empty" leaves seven groups of eight empty and cuts the rows
        among the others at random places.
      rows: sum of the sizes.
      groups: how many.
      seed: of the random choices.

    Raises:
      ValueError: unknown distribution.
    """
    rng = np.random.default_rng((seed, rows, groups))
    if distribution == "random":
        sizes = _cut(rng, rows, groups)
    elif distribution == "uniform":
        sizes = np.full(groups, rows // groups)
        sizes[: rows % groups] += 1
    elif distribution == "zipf":
        weights = 1 / np.arange(1, groups + 1)
        sizes = np.floor(rows * weights / weights.sum()).astype(np.int64)
        sizes[0] += rows - sizes.sum()
        rng.shuffle(sizes)
    elif distribution == "one_hot":
        sizes = np.zeros(groups, np.int64)
        sizes[rng.integers(groups)] = rows
    elif distribution == "many_empty":
        used = rng.choice(groups, max(1, groups // 8), replace=False)
        sizes = np.zeros(groups, np.int64)
        sizes[used] = _cut(rng, rows, len(used))
    else:
        raise ValueError(
            f"unknown distribution {distribution!r}; there are {', '.join(DISTRIBUTIONS)}"
        )
    return sizes.astype(np.int32)


def _cut(rng: np.random.Generator, rows: int, parts: int) -> np.ndarray:
    cuts = np.sort(rng.integers(0, rows + 1, parts - 1))
    return np.diff(cuts, prepend=0, append=rows)


@dataclasses.dataclass(frozen=True)
class Problem:
    """One grouped GEMM and how its group sizes are drawn."""

    m: int
    n: int
    k: int
    groups: int
    distribution: str = "random"

    def __post_init__(self) -> None:
        if min(self.m, self.n, self.k, self.groups) < 1:
            raise ValueError(f"a grouped problem's extents must be positive, got {self.name}")
        if self.distribution not in DISTRIBUTIONS:
            raise ValueError(
                f"unknown distribution {self.distribution!r}; there are {', '.join(DISTRIBUTIONS)}"
            )

    @property
    def name(self) -> str:
        """`m,n,k,groups`, with the distribution where it is not "random"."""
        tail = "" if self.distribution == "random" else f":{self.distribution}"
        return f"{self.m},{self.n},{self.k},{self.groups}{tail}"

    @property
    def flops(self) -> int:
        """Multiplies and adds, the same in every mode."""
        return 2 * self.m * self.n * self.k

    def sizes(self, seed: int) -> np.ndarray:
        """The group sizes, [groups] int32."""
        return group_sizes(self.distribution, self.m, self.groups, seed)

    def bytes(self, mode: str, itemsize: int, seed: int) -> int:
        """Bytes that any kernel must move: rows once, matrices of groups that have rows once.

        dw must write the zeros of empty groups too.
        """
        used = self.groups if mode == "dw" else int(np.count_nonzero(self.sizes(seed)))
        return itemsize * (self.m * (self.k + self.n) + used * self.k * self.n)

    def shapes(self, mode: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Shapes of a mode's two operands."""
        m, n, k, matrices = self.m, self.n, self.k, (self.groups, self.k, self.n)
        return {
            "forward": ((m, k), matrices),
            "dx": ((m, n), matrices),
            "dw": ((m, k), (m, n)),
        }[mode]


# The table of the design: rows 1-2 are a Mixtral layer, 3 few large groups, 4 many groups, 5-6 are
# bound by reading the matrices.
TABLE = (
    Problem(8192, 14336, 4096, 8),
    Problem(8192, 4096, 14336, 8),
    Problem(32768, 4096, 7168, 4),
    Problem(65536, 1536, 2048, 128),
    Problem(4096, 2048, 7168, 64),
    Problem(512, 2048, 7168, 64),
)
# What nothing was tuned on.
HELD_OUT = (
    *(Problem(8192, 4096, 4096, 8, d) for d in DISTRIBUTIONS[1:]),
    *(Problem(65536, 1536, 2048, 128, d) for d in DISTRIBUTIONS[1:]),
    *(Problem(4096, 2048, 7168, 64, d) for d in DISTRIBUTIONS[1:]),
    *(Problem(32768, 1024, 2048, 512, d) for d in ("random", "uniform", "zipf", "many_empty")),
    Problem(1024, 1024, 2048, 256, "zipf"),
    Problem(16384, 2048, 4096, 32),
    Problem(3000, 1160, 1208, 7),
)
SMALL = (Problem(96, 48, 64, 4), Problem(40, 32, 48, 16, "many_empty"))


def parse(text: str, distribution: str = "random") -> Problem:
    """A problem from `m,n,k,groups` or `m,n,k,groups:distribution`.

    Raises:
      ValueError: not of this form.
    """
    extents, _, named = text.partition(":")
    try:
        m, n, k, groups = (int(part) for part in extents.split(","))
    except ValueError:
        raise ValueError(f"a grouped shape is m,n,k,groups[:distribution], got {text!r}") from None
    return Problem(m, n, k, groups, named or distribution)


# Whole layers: rows are tokens times experts per token, n is gate and up together, twice the hidden
# width. How many rows each expert gets is the router's doing.
LAYERS = (
    Problem(8192, 28672, 4096, 8),  # Mixtral 8x7B, 4096 tokens
    Problem(65536, 1536, 2048, 128),  # Qwen3 30B-A3B, 8192 tokens
    Problem(4096, 4096, 7168, 64),  # a quarter of DeepSeek-V3's experts, 512 tokens
)
SMALL_LAYERS = (Problem(64, 32, 16, 8),)


def top_k(problem: Problem) -> int:
    """Experts of each token: as many as the models that the problems are taken from have."""
    return 2 if problem.groups <= 8 else 8


def check_layers(problems: Sequence[Problem]) -> None:
    """Raises ValueError for a problem that is no layer: rows without whole tokens, or an odd n."""
    for problem in problems:
        if problem.m % top_k(problem) or problem.n % 2 or problem.groups < top_k(problem):
            raise ValueError(
                f"{problem.name} is not a layer: its rows must be a multiple of the "
                f"{top_k(problem)} experts of a token, n of 2, and there must be as many groups"
            )


Operands = tuple[jax.Array, jax.Array, jax.Array]


def make_operands(
    problem: Problem, mode: str, dtype: Any, copies: int, seed: int
) -> list[Operands]:
    """`copies` independent (left, right, sizes) of a mode; standard normal, results of O(1)."""
    left_shape, right_shape = problem.shapes(mode)
    mean_rows = max(1, problem.m // problem.groups)
    contracted = {"forward": problem.k, "dx": problem.n, "dw": mean_rows}[mode]

    @jax.jit
    def draw(key: jax.Array) -> tuple[jax.Array, jax.Array]:
        left, right = jax.random.split(key)
        scale = jnp.asarray(contracted**-0.5, dtype)
        return (
            jax.random.normal(left, left_shape, dtype),
            jax.random.normal(right, right_shape, dtype) * scale,
        )

    sizes = jnp.asarray(problem.sizes(seed))
    keys = jax.random.split(jax.random.key(seed), copies)
    return jax.block_until_ready([(*draw(key), sizes) for key in keys])


def reference(mode: str, left: jax.Array, right: jax.Array, sizes: Sequence[int]) -> jax.Array:
    """The result in float32, by one plain product for every tile of rows of every group.

    Shares no code with what is measured: sizes are read on the host, and a tile's product is XLA's
    dot with float32 accumulation.
    """
    tiles = []
    start = 0
    for group, size in enumerate(map(int, sizes)):
        for first in range(0, size, REFERENCE_TILE):
            tiles.append((group, start + first, min(REFERENCE_TILE, size - first)))
        start += size
    table = jnp.asarray(np.array(tiles, np.int32).reshape(-1, 3))
    return _reference(mode, len(sizes), left, right, table)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _reference(
    mode: str, groups: int, left: jax.Array, right: jax.Array, table: jax.Array
) -> jax.Array:
    dot = functools.partial(lax.dot_general, preferred_element_type=jnp.float32)
    rows = left.shape[0]
    left = jnp.pad(left, ((0, REFERENCE_TILE), (0, 0)))  # the last tile must not be shifted

    def cut(x: jax.Array, tile: jax.Array) -> jax.Array:
        found = lax.dynamic_slice_in_dim(x, tile[1], REFERENCE_TILE)
        inside = jnp.arange(REFERENCE_TILE)[:, None] < tile[2]
        return jnp.where(inside, found, jnp.zeros((), x.dtype))

    if mode == "dw":
        right = jnp.pad(right, ((0, REFERENCE_TILE), (0, 0)))

        def add(i: jax.Array, out: jax.Array) -> jax.Array:
            tile = table[i]
            product = dot(cut(left, tile), cut(right, tile), (((0,), (0,)), ((), ())))
            return out.at[tile[0]].add(product)

        out = jnp.zeros((groups, left.shape[1], right.shape[1]), jnp.float32)
        return lax.fori_loop(0, len(table), add, out)

    contract = 1 if mode == "forward" else 2
    width = right.shape[3 - contract]

    def put(i: jax.Array, out: jax.Array) -> jax.Array:
        tile = table[i]
        matrix = lax.dynamic_index_in_dim(right, tile[0], keepdims=False)
        product = dot(cut(left, tile), matrix, (((1,), (contract - 1,)), ((), ())))
        # In order: what a short tile writes past its rows is zero, and the next tile's to write.
        return lax.dynamic_update_slice_in_dim(out, product, tile[1], 0)

    out = jnp.zeros((rows + REFERENCE_TILE, width), jnp.float32)
    return lax.fori_loop(0, len(table), put, out)[:rows]


@jax.jit
def worst_row(got: jax.Array, want: jax.Array) -> jax.Array:
    """Largest relative squared distance of a row to its reference; inf where a zero row is not."""
    difference = jnp.sum((got.astype(jnp.float32) - want) ** 2, axis=-1)
    size = jnp.sum(want**2, axis=-1)
    nothing = jnp.where(difference == 0, 0.0, jnp.inf)
    return jnp.max(jnp.where(size == 0, nothing, difference / size))


def bound(dtype: Any) -> float:
    """What `worst_row` may be: twice what rounding every element of the result by half can make.

    Sums in float32 add far less than that.
    """
    return 2 * (float(jnp.finfo(dtype).eps) / 2) ** 2
