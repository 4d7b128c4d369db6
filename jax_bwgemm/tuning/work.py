"""What tuning has to know of a kind of product: what to try, with which operands, how to run it.

`Bench` and `autotune` are the same for all kinds.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Protocol

import jax
import jax.numpy as jnp

from jax_bwgemm.config import Target
from jax_bwgemm.dense import search_space
from jax_bwgemm.dense.contraction import DENSE
from jax_bwgemm.dense.tuned import dims_of, spec_of
from jax_bwgemm.product.contraction import Folded, KernelCall
from jax_bwgemm.product.ffi import emit
from jax_bwgemm.product.selection import Selection
from jax_bwgemm.tuning.keys import DenseKey, Key
from jax_bwgemm.tuning.records import Choice

Operands = tuple[jax.Array, ...]


class Work(Protocol):
    """One problem as tuning sees it.

    Attributes:
        bytes: Size of its operands.
    """

    bytes: int

    def kernels_to_try(self, limit: int) -> list[Choice]:
        """The heuristic's choice, then at most ``limit - 1`` others, the most promising first.

        Raises:
            ValueError: No kernel can run the problem.
        """

    def orders_to_try(self, choice: Choice, known: Sequence[Choice]) -> list[Choice]:
        """Other tile orders of a choice's kernel that are worth measuring."""

    def operands(self, copies: int) -> Callable[[int], Operands]:
        """Draws that many copies of the operands, and gives those of a call by its number."""

    def emit(self, choice: Choice, *operands: jax.Array) -> jax.Array:
        """The call of a kernel, to be traced."""


class DenseWork:
    """A dense product.

    Args:
        key: The problem.
        target: The GPU.
        implementation: ``"cutlass"``; ``"emulator"`` runs the same code on a CPU.
    """

    def __init__(self, key: DenseKey, target: Target, implementation: str = "cutlass") -> None:
        self._key, self._target, self._implementation = key, target, implementation
        self._dims = dims = dims_of(key)
        lhs = (dims.m, dims.k) if key.majors[0] == "k" else (dims.k, dims.m)
        rhs = (dims.k, dims.n) if key.majors[1] == "n" else (dims.n, dims.k)
        self._shapes = (dims.lhs_batch, *lhs), (dims.rhs_batch, *rhs)
        size = jnp.dtype(key.in_dtype).itemsize
        self.bytes = size * (dims.lhs_batch * dims.m + dims.rhs_batch * dims.n) * dims.k

    def kernels_to_try(self, limit: int) -> list[Choice]:
        table = DENSE.kernels(self._implementation)
        return search_space.kernels_to_try(self._key, table, self._target, limit)

    def orders_to_try(self, choice: Choice, known: Sequence[Choice]) -> list[Choice]:
        return search_space.orders_to_try(choice, self._key, self._target, known)

    def operands(self, copies: int) -> Callable[[int], Operands]:
        drawn = normal_operands(self._shapes, self._key.in_dtype, copies)
        return lambda i: drawn[i % copies]

    def emit(self, choice: Choice, *operands: jax.Array) -> jax.Array:
        dims = self._dims
        selection = Selection(
            choice.kernel,
            choice.raster_order,
            choice.swizzle,
            "autotuning",
            (),
            choice.splits,
            choice.decomposition,
        )
        folded = Folded(spec_of(self._key), self._shapes, (None, None))
        call = KernelCall(self._implementation, selection, self._target, folded, dims, dims)
        return emit(DENSE, call, operands, (dims.batch, dims.m, dims.n))


def normal_operands(
    shapes: Sequence[tuple[int, ...]], dtype: str, copies: int
) -> list[tuple[jax.Array, ...]]:
    """Normal numbers: how many bits toggle decides power, and so the clock."""

    @functools.partial(jax.jit, static_argnums=1)
    def draw(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
        return jax.random.normal(key, shape, dtype)

    keys = jax.random.split(jax.random.key(0), (copies, len(shapes)))
    return [tuple(draw(k, shape) for k, shape in zip(row, shapes, strict=True)) for row in keys]


def work_of(key: Key, target: Target, implementation: str = "cutlass") -> Work:
    """How to tune a problem."""
    return DenseWork(key, target, implementation)
