"""Products of scaled operands as tuning sees them."""

from __future__ import annotations

import abc
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jax_bwgemm.config import Target
from jax_bwgemm.scaled import search_space, tuned
from jax_bwgemm.scaled.family import Family
from jax_bwgemm.scaled.fit import kernel_dtype
from jax_bwgemm.scaled.layouts import layout_of
from jax_bwgemm.scaled.primitive import DENSE
from jax_bwgemm.scaled.ragged_primitive import RAGGED
from jax_bwgemm.scaled.selection import Choice as ScaledChoice
from jax_bwgemm.tuning.abstract_work import Operands, Work, draw
from jax_bwgemm.tuning.group_draws import groups_of_call
from jax_bwgemm.tuning.records import Choice

Typed = tuple[str, tuple[int, ...]]


class _Scaled(Work):
    """What both kinds have in common.

    Args:
        key: The problem.
        target: The GPU.
        implementation: As in `work_of`.
    """

    family: Family

    def __init__(self, key: Any, target: Target, implementation: str = "cutlass") -> None:
        self._key, self._target, self._implementation = key, target, implementation
        self._table = self.family.table_of(implementation)
        self._spec = self.spec()
        a, b = self.values()
        self._values = (key.a_dtype, a), (key.b_dtype, b)
        self._scales = [
            (layout.scale_dtype.name, layout.scales_shapes(shape)[-1])
            for shape, layout in ((a, layout_of(key.a_scaling)), (b, layout_of(key.b_scaling)))
        ]
        self._dims = self.family.dims_of(self._abstract(), self._spec)
        self.bytes = sum(jnp.dtype(t).itemsize * math.prod(shape) for t, shape in self._values)

    @abc.abstractmethod
    def spec(self) -> Any:
        """The product."""

    @abc.abstractmethod
    def values(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Shapes of A's and B's values."""

    @abc.abstractmethod
    def ordered(self, values: Sequence[Any], groups: Sequence[Any], rest: Sequence[Any]) -> Any:
        """Operands in the family's order: values, group sizes and offset, scales and alpha."""

    @abc.abstractmethod
    def alpha_shape(self) -> tuple[int, ...]:
        """Shape of the product of both global scales."""

    def groups(self) -> list[tuple[jax.Array, ...]]:
        """Group sizes and offset, for calls in turn."""
        return [()]

    def _abstract(self) -> Any:
        def shaped(typed: Typed) -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct(typed[1], typed[0])

        scales = [*self._scales, ("float32", self.alpha_shape())]
        return self.ordered(
            [shaped(x) for x in self._values], self.groups()[0], [shaped(x) for x in scales]
        )

    def operands(self, copies: int) -> Callable[[int], Operands]:
        keys = jax.random.split(jax.random.key(0), (copies, 2))
        # Powers of two, which every type of scales has.
        scales = [jnp.full(shape, 0.5, dtype) for dtype, shape in self._scales]
        scales.append(jnp.ones(self.alpha_shape(), "float32"))
        drawn = [[draw(k, *x) for k, x in zip(row, self._values, strict=True)] for row in keys]
        groups = self.groups()
        return lambda i: self.ordered(drawn[i % copies], groups[i % len(groups)], scales)

    def reference(self, *operands: jax.Array) -> jax.Array:
        """What every choice computes, by XLA."""
        return self.family.reference(*operands, spec=self._spec)

    def emit(self, choice: Choice, *operands: jax.Array) -> jax.Array:
        how = choice.raster_order, choice.swizzle, choice.splits
        out_dtype = kernel_dtype(self._key.out_dtype)
        call = ScaledChoice(choice.kernel, out_dtype, *how, self._target.sm_count, "autotuning")
        return self.family.emit(self._implementation, call, operands, self._spec)


class ScaledWork(_Scaled):
    """A product that is not grouped."""

    family = DENSE

    def spec(self) -> Any:
        return tuned.spec_of(self._key)

    def values(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        key = self._key
        a, b = (1 if key.shared == side else key.batch for side in ("lhs", "rhs"))
        return (a, key.m, key.k), (b, key.n, key.k)

    def alpha_shape(self) -> tuple[int, ...]:
        return (1,)

    def ordered(self, values: Sequence[Any], groups: Sequence[Any], rest: Sequence[Any]) -> Any:
        return *values, *rest

    def kernels_to_try(self, limit: int) -> list[Choice]:
        return search_space.kernels_to_try(self._spec, self._dims, self._table, self._target, limit)

    def orders_to_try(self, choice: Choice, known: Sequence[Choice]) -> list[Choice]:
        return search_space.orders_to_try(choice, self._dims, self._target, known)


class ScaledGroupedWork(_Scaled):
    """A grouped product, with several draws of group sizes."""

    family = RAGGED

    def spec(self) -> Any:
        return tuned.grouped_spec_of(self._key)

    def values(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        key = self._key
        if key.kind == tuned.K_GROUPED:
            return (1, key.k, key.m), (1, key.n, key.m)
        return (1, key.m, key.k), (1, key.experts, key.n, key.k)

    def alpha_shape(self) -> tuple[int, ...]:
        return (1,) if self._key.kind == tuned.K_GROUPED else (1, self._key.experts)

    def groups(self) -> list[tuple[jax.Array, ...]]:
        return list(groups_of_call(self._key))

    def ordered(self, values: Sequence[Any], groups: Sequence[Any], rest: Sequence[Any]) -> Any:
        return *values, *groups, *rest

    def kernels_to_try(self, limit: int) -> list[Choice]:
        return search_space.grouped_kernels_to_try(
            self._spec, self._dims, self._table, self._target, limit
        )

    def orders_to_try(self, choice: Choice, known: Sequence[Choice]) -> list[Choice]:
        return search_space.grouped_orders_to_try(choice, known)
