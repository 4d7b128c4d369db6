"""Selection: which kernel runs a problem, and why. Explicit > tuned > heuristic."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from jax_bwgemm.config import Target
from jax_bwgemm.dense import heuristics
from jax_bwgemm.dense.spec import GemmDims, GemmSpec
from jax_bwgemm.dense.tuned import find_tuned
from jax_bwgemm.runtime import KernelInfo
from jax_bwgemm.tuning.lookup import Found


@dataclasses.dataclass(frozen=True)
class Selection:
    """A kernel with its run-time attributes, and the reasons.

    Attributes:
        kernel: The chosen kernel.
        raster_order: ``"heuristic"`` (the kernel decides), ``"m"`` or ``"n"``.
        swizzle: Width of the bands of tiles: 1, 2, 4, 8 or 16.
        reason: Why this kernel.
        rejected: Every other kernel of the build, with the reason against it.
        splits: Parts that K is split into.
        decomposition: How a stream-K kernel divides the work, as in `TuningConfig`.
    """

    kernel: KernelInfo
    raster_order: str
    swizzle: int
    reason: str
    rejected: tuple[tuple[str, str], ...]
    splits: int = 1
    decomposition: str = "heuristic"


def select(
    spec: GemmSpec, in_dtype: str, dims: GemmDims, target: Target, table: Sequence[KernelInfo]
) -> Selection | str:
    """Selects the kernel for a problem whose sizes satisfy the alignment rules.

    Args:
        spec: The problem.
        in_dtype: Type of both operands.
        dims: Sizes, padded where needed.
        target: The GPU.
        table: The kernels to choose from.

    Returns:
        The selection, or the reason why no kernel can run the problem.

    Raises:
        TuningMissError: There is no tuned entry, and the policy on a miss is ``"error"``.
    """
    if spec.config is None:
        found = find_tuned(spec, in_dtype, dims, target, table)
        if found is not None:
            return _tuned(found, table)
    return select_by_heuristic(spec, in_dtype, dims, target, table)


def _tuned(found: Found, table: Sequence[KernelInfo]) -> Selection:
    kernel, entry = found.kernel, found.entry
    others = tuple((k.name, "another kernel was measured to be best") for k in table if k != kernel)
    return Selection(
        kernel,
        entry.raster_order,
        entry.swizzle,
        found.reason,
        others,
        entry.splits,
        entry.decomposition,
    )


def select_by_heuristic(
    spec: GemmSpec, in_dtype: str, dims: GemmDims, target: Target, table: Sequence[KernelInfo]
) -> Selection | str:
    """As `select`, without tuned entries: explicit configuration, then predicted times."""
    usable, rejected = heuristics.rank(table, spec, in_dtype, dims, target)
    if not usable:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in rejected) or "no kernels"
        return f"no kernel for {target.arch} fits ({reasons})"
    best, *others = usable
    raster_order, swizzle = heuristics.tile_order(best, dims, np.dtype(in_dtype).itemsize)
    chosen_by = "the heuristic"
    if spec.config is not None:
        raster_order = spec.config.grid_minor_dim or raster_order
        swizzle = spec.config.grid_tile_width or swizzle
        chosen_by = f"{spec.config}" if not others else f"the heuristic within {spec.config}"
    inside = heuristics.reuse_fraction(best, dims)
    reason = (
        f"chosen by {chosen_by}: {best.tiles_m}x{best.tiles_n} tiles per batch in {best.waves} "
        f"waves on {target.sm_count} multiprocessors, {inside:.0%} of the tiles inside the "
        f"matrix, predicted {best.cycles:.0f} cycles"
    )
    if best.splits > 1:
        reason += f", K in {best.splits} parts"
    slower = [
        (c.kernel.name, f"predicted {c.cycles:.0f} cycles in {c.waves} waves") for c in others
    ]
    if best.kernel.stream_k:
        reason += f", stream-K: {best.decomposition}"
    return Selection(
        best.kernel,
        raster_order,
        swizzle,
        reason,
        (*slower, *rejected),
        best.splits,
        best.decomposition,
    )
