"""How to tune every kind of product. `Bench` and `autotune` are the same for all kinds."""

from __future__ import annotations

import abc
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
from jax_bwgemm.tuning.abstract_work import Operands, Work, draw
from jax_bwgemm.tuning.group_draws import groups_of_call
from jax_bwgemm.tuning.keys import DenseKey, GroupedKey, Key, ScaledKey, types_of
from jax_bwgemm.tuning.records import Choice
from jax_bwgemm.tuning.scaled_work import ScaledGroupedWork, ScaledWork


class ProductWork(Work):
    """A product of unscaled operands.

    Args:
        key: The problem.
        target: The GPU.
        implementation: ``"cutlass"``; ``"emulator"`` runs the same code on a CPU.
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

    def operands(self, copies: int) -> Callable[[int], Operands]:
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


class DenseWork(ProductWork):
    """A dense product."""

    contraction = DENSE

    def problem(self) -> tuple[Any, Any]:
        return dense_tuned.spec_of(self._key), dense_tuned.dims_of(self._key)

    def kernels_to_try(self, limit: int) -> list[Choice]:
        return dense_search.kernels_to_try(self._key, self._table, self._target, limit)

    def orders_to_try(self, choice: Choice, known: Sequence[Choice]) -> list[Choice]:
        return dense_search.orders_to_try(choice, self._key, self._target, known)


class GroupedWork(ProductWork):
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
        groups = groups_of_call(self._key)
        return lambda i: (*large(i), *groups[i % len(groups)])


def work_of(key: Key, target: Target, implementation: str = "cutlass") -> Work:
    """How to tune a problem.

    Args:
        key: The problem.
        target: The GPU.
        implementation: ``"cutlass"``; ``"emulator"`` runs the same code on a CPU.
    """
    kinds = {DenseKey: DenseWork, GroupedKey: GroupedWork, ScaledKey: ScaledWork}
    return kinds.get(type(key), ScaledGroupedWork)(key, target, implementation)
