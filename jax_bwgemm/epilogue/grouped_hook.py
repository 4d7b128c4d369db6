"""The functions that are linked into an m-grouped kernel: ``cc/grouped/linked.h``."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from jax_bwgemm.epilogue.hook import MAX_STAGED, Hook, Staging
from jax_bwgemm.epilogue.program import Program
from jax_bwgemm.product.kernels import Kernel

_FUNCTION = (
    'extern "C" __device__ float2 bwgemm_grouped_epilogue(float x, float y, float u, float v, '
    "int m, int n, int expert, int end, const bw_arguments* a, const unsigned* staged, "
    "unsigned* stored, float2* summed) {"
)
_ROW_FUNCTION = (
    'extern "C" __device__ float2 bwgemm_grouped_row_epilogue(float x, float y, int m, int n, '
    "int expert, int end, const bw_arguments* a) {"
)
# kPartColumns of cc/core/epilogue_arguments.h.
PART_COLUMNS = 16
# No rows: a thread reads one value of them for many results.
_STAGING = Staging(tile_n=0, row_bytes=0, matrices=MAX_STAGED)


@dataclasses.dataclass(frozen=True)
class GroupedHook(Hook):
    """As `Hook`, of a kernel with swapped operands that knows a tile's matrix and last row.

    SM90's move up to two matrices and two results of D's type. What is summed is one result, over
    columns.

    Attributes:
        halves: Whether D has both of the first two results, side by side.
    """

    arch: str = "sm90"
    swapped: bool = True
    staging: Staging | None = _STAGING
    halves: bool = False

    _may_have_no_matrix: ClassVar[bool] = True

    def sums_shape(self, kernel: Kernel, m: int, n: int) -> tuple[int, int]:
        return -(-n // PART_COLUMNS), m

    @property
    def form(self) -> str:
        return "halves" if self.halves else ""

    @property
    def result_roles(self) -> str:
        words = super().result_roles.split(" ")
        return " ".join([f"{self.result_types[1]}:half", *words[1:]] if self.halves else words)

    @property
    def _most_staged_results(self) -> int:
        return 0 if self.staging is None else MAX_STAGED

    @property
    def _head(self) -> str:
        return _FUNCTION

    @property
    def _matrix(self) -> str:
        return "expert"

    @property
    def _end(self) -> str:
        return "end"

    def _stored(self, i: int) -> str:
        return f"stored[{self.staged_results.index(i)}]"


def grouped_hook(
    program: Program, result_types: tuple[str, ...], arch: str, *, halves: bool = False
) -> GroupedHook:
    """Of a kernel of one product: SM100's move nothing, and neither sum nor write halves."""
    staging = _STAGING if arch == "sm90" else None
    return GroupedHook(program, result_types, arch, staging=staging, halves=halves)


@dataclasses.dataclass(frozen=True)
class GroupedRowHook(GroupedHook):
    """As `GroupedHook`, of a kernel without swapped operands, which moves and sums nothing."""

    swapped: bool = False
    staging: Staging | None = None

    @property
    def _head(self) -> str:
        return _ROW_FUNCTION


@dataclasses.dataclass(frozen=True)
class GatedGroupedHook(GroupedHook):
    """As `GroupedHook`; the program's first operand is a second product: the kernel has it."""

    products: ClassVar[int] = 2

    @property
    def form(self) -> str:
        return "gated"

    def symbol(self, kernel: str) -> str:
        return gated_symbol(kernel)

    @property
    def operand_roles(self) -> str:
        return " ".join(super().operand_roles.split(" ")[1:])

    def _pointer(self, i: int) -> str:
        return super()._pointer(i - 1)

    def _loads(self, i: int, dtype: str, axes: tuple[int, ...], along: int) -> list[str]:
        if i == 0:
            return ["  const float x0_0 = u, x0_1 = v;"]
        return super()._loads(i, dtype, axes, along)


def gated_symbol(kernel: str) -> str:
    """Name of a kernel's entry of two products."""
    return kernel.replace("_rows_", "_gated_")
