"""What is known of a tuned problem: the fastest choice, and the GPU it was measured on. Pure."""

from __future__ import annotations

import dataclasses
from typing import Any

METHODS = ("cupti", "wall")


class TuningFileError(ValueError):
    """Text that is not a tuning file this version reads, with the place and the reason."""


@dataclasses.dataclass(frozen=True)
class TunedEntry:
    """The fastest choice measured for a problem.

    Attributes:
        kernel: Name of the kernel.
        raster_order: Order of the tiles, as in the configuration of that kind of product.
        swizzle: Height of the bands of tiles, in clusters.
        splits: Parts that K was split into.
        us: Median time in microseconds.
        heuristic_us: Median time of the heuristic's choice in the same measurement.
        method: ``"cupti"`` (kernel time) or ``"wall"``.
        decomposition: How a stream-K kernel divided the work. Files may lack it.
    """

    kernel: str
    raster_order: str
    swizzle: int
    splits: int
    us: float
    heuristic_us: float
    method: str
    decomposition: str = "heuristic"


@dataclasses.dataclass(frozen=True)
class TunedDevice:
    """The GPU that a table was measured on.

    Attributes:
        kind: JAX's ``device_kind``, for example ``"NVIDIA H200"``.
        arch: Architecture of the kernels.
        sm_count: Number of multiprocessors.
    """

    kind: str
    arch: str
    sm_count: int


@dataclasses.dataclass(frozen=True)
class Choice:
    """A kernel with its run-time attributes: one thing to measure.

    Attributes:
        kernel: The kernel.
        raster_order: Order of the tiles.
        swizzle: Height of the bands of tiles, in clusters.
        splits: Parts that K is split into.
        decomposition: How a stream-K kernel divides the work.
    """

    kernel: Any
    raster_order: str
    swizzle: int
    splits: int = 1
    decomposition: str = "heuristic"

    def __str__(self) -> str:
        splits = f", {self.splits} splits" if self.splits != 1 else ""
        if self.decomposition != "heuristic":
            splits += f", {self.decomposition}"
        return f"{self.kernel.name}, raster {self.raster_order}, swizzle {self.swizzle}{splits}"
