"""`Selection`: what selecting a kernel results in, whatever the product."""

from __future__ import annotations

import dataclasses
from typing import Any


def waves_text(waves: int) -> str:
    """``"1 wave"``, ``"2 waves"``."""
    return f"{waves} wave{'s' * (waves != 1)}"


@dataclasses.dataclass(frozen=True)
class Selection:
    """A kernel with its run-time attributes, and the reasons.

    Attributes:
        kernel: The chosen kernel.
        raster_order: ``"heuristic"`` (the kernel decides), ``"m"`` or ``"n"``.
        swizzle: Width of the bands of tiles.
        reason: Why this kernel.
        rejected: Every other kernel of the build, with the reason against it.
        splits: Parts that K is split into.
        decomposition: How a stream-K kernel divides the work, as in `TuningConfig`.
    """

    kernel: Any
    raster_order: str
    swizzle: int
    reason: str
    rejected: tuple[tuple[str, str], ...]
    splits: int = 1
    decomposition: str = "heuristic"

    def __str__(self) -> str:
        stream_k = f", {self.decomposition}" if self.decomposition != "heuristic" else ""
        return (
            f"{self.kernel.name}, raster {self.raster_order}, swizzle {self.swizzle}, "
            f"splits {self.splits}{stream_k}; {self.reason}"
        )
