"""The dense product by kernels that an epilogue can be linked into, or after which one follows."""

from __future__ import annotations

import dataclasses

from jax_bwgemm.dense.contraction import Dense
from jax_bwgemm.epilogue.linkable import linkable_kernels
from jax_bwgemm.epilogue.split_k_hook import split_k_symbol
from jax_bwgemm.product.kernels import Kernel


@dataclasses.dataclass(frozen=True)
class LinkableDense(Dense):
    """As `Dense`, of few kernels, which leave no parts of K: the epilogue follows the whole sum.

    Attributes:
        only: The only kernel; None: all.
    """

    only: str | None = None

    def kernels(self, implementation: str) -> tuple[Kernel, ...]:
        found = linkable_kernels()
        return tuple(
            dataclasses.replace(kernel, f32_twin="", uneven_parts=False)
            for kernel in super().kernels(implementation)
            if kernel.name in found and self.only in (None, kernel.name)
        )


@dataclasses.dataclass(frozen=True)
class SplitDense(Dense):
    """As `Dense`, of kernels that leave parts of K: the epilogue follows their sum.

    Attributes:
        only: The only kernel; None: all.
    """

    only: str | None = None

    def kernels(self, implementation: str) -> tuple[Kernel, ...]:
        found = linkable_kernels()
        return tuple(
            kernel
            for kernel in super().kernels(implementation)
            if kernel.f32_twin
            and split_k_symbol(kernel.arch, kernel.out_dtype) in found
            and self.only in (None, kernel.name)
        )


LINKABLE_DENSE = LinkableDense()
SPLIT_DENSE = SplitDense()
