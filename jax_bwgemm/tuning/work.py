"""What tuning has to know of a kind of product: what to try, with which operands, how to run it.

`Bench` and `autotune` are the same for all kinds.
"""

from __future__ import annotations

import abc
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax_bwgemm.config import Target
from jax_bwgemm.dense import search_space as dense_search
from jax_bwgemm.dense import tuned as dense_tuned
from jax_bwgemm.dense.contraction import DENSE
from jax_bwgemm.grouped import search_space as grouped_search
from jax_bwgemm.grouped import tuned as grouped_tuned
from jax_bwgemm.grouped.contraction import GROUPED
from jax_bwgemm.product.contraction import Contraction, Folded, KernelCall
from jax_bwgemm.product.dtypes import types_of_operands
from jax_bwgemm.product.ffi import emit
from jax_bwgemm.product.selection import Selection
from jax_bwgemm.tuning.keys import DenseKey, GroupedKey, Key, shares_of, types_of
from jax_bwgemm.tuning.records import Choice

Operands = tuple[jax.Array, ...]

# Draws of group sizes that calls go through, whatever the number of copies of A and B.
DRAWS = 7


class Work(abc.ABC):
    """One problem as tuning sees it.

    Args:
        key: The problem.
        target: The GPU.
        implementation: ``"cutlass"``; ``"emulator"`` runs the same code on a CPU.

    Attributes:
        bytes: Size of A and B.
    """

    contraction: Contraction

    def __init__(self, key: Any, target: Target, implementation: str = "cutlass") -> None:
        self._key, self._target, self._implementation = key, target, implementation
        self._table = self.contraction.kernels(implementation)
        self._spec, self._dims = self.problem()
        extents, names = self._dims.extents, self.contraction.operand_names(self._spec)
        self._shapes = tuple(
            (batch, *(extents[d] for d in dims[1:]))
            for batch, dims in zip(self._dims.batches, names, strict=True)
        )
        self.bytes = sum(
            jnp.dtype(dtype).itemsize * int(np.prod(shape, dtype=object))
            for dtype, shape in self._typed_shapes()
        )

    def _typed_shapes(self) -> list[tuple[str, tuple[int, ...]]]:
        """Type and shape of A and of B."""
        return list(zip(types_of_operands(types_of(self._key)), self._shapes[:2], strict=True))

    @abc.abstractmethod
    def problem(self) -> tuple[Any, Any]:
        """Specification and sizes, as selection sees them."""

    @abc.abstractmethod
    def kernels_to_try(self, limit: int) -> list[Choice]:
        """The heuristic's choice, then at most ``limit - 1`` others, the most promising first.

        Raises:
            ValueError: No kernel can run the problem.
        """

    @abc.abstractmethod
    def orders_to_try(self, choice: Choice, known: Sequence[Choice]) -> list[Choice]:
        """Other tile orders of a choice's kernel that are worth measuring."""

    def operands(self, copies: int) -> Callable[[int], Operands]:
        """Draws that many copies of A and B, and gives the operands of a call by its number.

        Normal numbers: how many bits toggle decides power, and so the clock.
        """

        @functools.partial(jax.jit, static_argnums=(1, 2))
        def draw(key: jax.Array, dtype: str, shape: tuple[int, ...]) -> jax.Array:
            return jax.random.normal(key, shape, dtype)

        keys = jax.random.split(jax.random.key(0), (copies, 2))
        drawn = [
            tuple(draw(k, *x) for k, x in zip(row, self._typed_shapes(), strict=True))
            for row in keys
        ]
        return lambda i: drawn[i % copies]

    def emit(self, choice: Choice, *operands: jax.Array) -> jax.Array:
        """The call of a kernel, to be traced."""
        selection = Selection(
            choice.kernel,
            choice.raster_order,
            choice.swizzle,
            "autotuning",
            (),
            choice.splits,
            choice.decomposition,
        )
        folded = Folded(self._spec, self._shapes, (None,) * len(self._shapes))
        call = KernelCall(
            self._implementation, selection, self._target, folded, self._dims, self._dims
        )
        shape = self.contraction.out_shape(self._spec, self._dims)
        return emit(self.contraction, call, operands, shape)


class DenseWork(Work):
    """A dense product."""

    contraction = DENSE

    def problem(self) -> tuple[Any, Any]:
        return dense_tuned.spec_of(self._key), dense_tuned.dims_of(self._key)

    def kernels_to_try(self, limit: int) -> list[Choice]:
        return dense_search.kernels_to_try(self._key, self._table, self._target, limit)

    def orders_to_try(self, choice: Choice, known: Sequence[Choice]) -> list[Choice]:
        return dense_search.orders_to_try(choice, self._key, self._target, known)


class GroupedWork(Work):
    """A grouped product, with several draws of group sizes."""

    contraction = GROUPED

    def problem(self) -> tuple[Any, Any]:
        return grouped_tuned.spec_of(self._key), grouped_tuned.dims_of(self._key)

    def kernels_to_try(self, limit: int) -> list[Choice]:
        return grouped_search.kernels_to_try(self._key, self._table, self._target, limit)

    def orders_to_try(self, choice: Choice, known: Sequence[Choice]) -> list[Choice]:
        return grouped_search.orders_to_try(choice, self._key, known)

    def operands(self, copies: int) -> Callable[[int], Operands]:
        large = super().operands(copies)
        groups = [tuple(map(jnp.asarray, draw)) for draw in draw_groups(self._key, DRAWS)]
        return lambda i: (*large(i), *groups[i % DRAWS])


def draw_groups(key: GroupedKey, count: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Group sizes and the offset of the first matrix, as a router might give them.

    Sizes that are expected come in random order; where nothing is known the rows are cut at random
    places. Where there are fewer matrices than groups, as on one device of several, it is any of
    these devices.

    Args:
        key: The problem.
        count: How many draws.

    Returns:
        Sizes [batch, groups] and offset [1], int32, of each draw. They are the same every time.
    """
    rng = np.random.default_rng(0)
    shares = shares_of(key)
    places = max(1, key.groups // key.experts)
    draws = []
    for _ in range(count):
        rows = [_sizes(rng, key, shares) for _ in range(key.batch)]
        offset = key.experts * int(rng.integers(places))
        draws.append((np.stack(rows).astype(np.int32), np.full(1, offset, np.int32)))
    return draws


def _sizes(rng: np.random.Generator, key: GroupedKey, shares: Sequence[float] | None) -> np.ndarray:
    if shares is None:
        cuts = np.sort(rng.integers(0, key.m + 1, key.groups - 1))
        return np.diff(cuts, prepend=0, append=key.m)
    # Rounded so that what is lost in one is in the next: the sum stays that of the shares.
    ends = np.rint(np.cumsum(shares) * key.m)
    return rng.permutation(np.diff(np.minimum(ends, key.m), prepend=0))


def work_of(key: Key, target: Target, implementation: str = "cutlass") -> Work:
    """How to tune a problem."""
    kind = DenseWork if isinstance(key, DenseKey) else GroupedWork
    return kind(key, target, implementation)
