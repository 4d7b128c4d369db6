"""The functions that are linked into an m-grouped kernel: ``cc/grouped/linked.h``."""

from __future__ import annotations

import dataclasses

from jax_bwgemm.epilogue.hook import Hook, Staging

_FUNCTION = (
    'extern "C" __device__ float2 bwgemm_grouped_epilogue(float x, float y, int m, int n, '
    "int expert, int end, const bw_arguments* a, unsigned staged, unsigned* stored) {"
)
# No rows: a thread reads one value of them for many results.
_STAGING = Staging(tile_n=0, row_bytes=0)


@dataclasses.dataclass(frozen=True)
class GroupedHook(Hook):
    """As `Hook`, of a kernel with swapped operands that knows a tile's matrix and last row.

    It moves a matrix and a result of D's type.
    """

    arch: str = "sm90"
    swapped: bool = True
    staging: Staging | None = _STAGING

    @property
    def _head(self) -> str:
        return _FUNCTION

    @property
    def _end(self) -> str:
        return "end"
