"""The dense product by kernels that an epilogue can be linked into."""

from __future__ import annotations

import dataclasses

from jax_bwgemm.dense.contraction import Dense
from jax_bwgemm.epilogue.linkable import linkable_kernels
from jax_bwgemm.product.kernels import Kernel


@dataclasses.dataclass(frozen=True)
class LinkableDense(Dense):
    """As `Dense`, of few kernels, which never split K: the epilogue follows the whole sum.

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


LINKABLE_DENSE = LinkableDense()
