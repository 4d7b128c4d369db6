"""`Selection`: what selecting a kernel results in, whatever the product."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from jax_bwgemm.config import Target


def waves_text(waves: int) -> str:
    """``"1 wave"``, ``"2 waves"``."""
    return f"{waves} wave{'s' * (waves != 1)}"


def none_fits(
    table: Sequence[Any], rejected: Sequence[tuple[str, str]], config: object, target: Target
) -> str:
    """The reason when no kernel can run a product.

    Args:
        table: All kernels.
        rejected: Their names, and the reason against each.
        config: The configuration; None without one. One may ask for another GPU's kernel, so that
            the reasons against these are then of interest too.
        target: The GPU.
    """
    own = {k.name for k in table if config is not None or k.arch == target.arch}
    if (asked := getattr(config, "kernel", None)) is not None:  # no other is of interest
        own &= {asked}
    names: dict[str, list[str]] = {}
    for name, reason in rejected:
        if name in own:
            names.setdefault(reason, []).append(name)
    # What is against each kernel that a configuration may mean is of interest: all are listed.
    shown = names if config is not None else {r: [_first_of(found)] for r, found in names.items()}
    reasons = "; ".join(f"{name}: {reason}" for reason, found in shown.items() for name in found)
    if not reasons:
        others = sorted({k.arch for k in table})
        reasons = f"all are for {' and '.join(others)}" if others else "no kernels"
    return f"no kernel for {target.arch} fits ({reasons})"


def _first_of(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"


@dataclasses.dataclass(frozen=True)
class Selection:
    """A kernel with its run-time attributes, and the reasons.

    Attributes:
        kernel: The chosen kernel.
        raster_order: ``"heuristic"`` (the kernel decides), ``"m"`` or ``"n"``.
        swizzle: Height of the bands of tiles, in clusters; of grouped products in tiles.
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
