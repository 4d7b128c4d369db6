"""The functions that are linked into split-K's second kernel: ``cc/dense/split_k``."""

from __future__ import annotations

import dataclasses

from jax_bwgemm.epilogue.hook import Hook


@dataclasses.dataclass(frozen=True)
class SplitKHook(Hook):
    """As `Hook`, of a kernel that adds what others left, and moves and sums nothing."""

    swapped: bool = False

    @property
    def form(self) -> str:
        return "split_k"

    def symbol(self, kernel: str) -> str:
        del kernel
        return split_k_symbol(self.arch, self.result_types[0])


def split_k_symbol(arch: str, dtype: str) -> str:
    """Name of the second kernel of results of a type."""
    return f"{arch}_split_k_{dtype}"
