"""Selection: which kernel runs a problem, and why. Explicit > tuned > heuristic."""

from __future__ import annotations

from collections.abc import Sequence

from jax_bwgemm.config import Target
from jax_bwgemm.dense import heuristics
from jax_bwgemm.dense.spec import GemmDims, GemmSpec
from jax_bwgemm.dense.tuned import find_tuned
from jax_bwgemm.product.dtypes import narrowest_bytes
from jax_bwgemm.product.kernels import Kernel
from jax_bwgemm.product.selection import Selection, none_fits, waves_text


def select(
    spec: GemmSpec, in_dtype: str, dims: GemmDims, target: Target, table: Sequence[Kernel]
) -> Selection | str:
    """Selects the kernel for a problem whose sizes satisfy the alignment rules.

    Args:
        spec: The problem.
        in_dtype: The operands' types, as `dtypes.operand_types` says them.
        dims: Sizes, padded where needed.
        target: The GPU.
        table: The kernels to choose from.

    Returns:
        The selection, or the reason why no kernel can run the problem.

    Raises:
        TuningMissError: There is no tuned entry, and the policy on a miss is ``"error"``.
    """
    if spec.policy.config is None:
        found = find_tuned(spec, in_dtype, dims, target, table)
        if found is not None:
            return found.selection(table)
    return select_by_heuristic(spec, in_dtype, dims, target, table)


def select_by_heuristic(
    spec: GemmSpec, in_dtype: str, dims: GemmDims, target: Target, table: Sequence[Kernel]
) -> Selection | str:
    """As `select`, without tuned entries: explicit configuration, then predicted times."""
    usable, rejected = heuristics.rank(table, spec, in_dtype, dims, target)
    if not usable:
        return none_fits(table, rejected, spec.policy.config, target)
    best, *others = usable
    raster_order, swizzle = heuristics.tile_order(best, dims, narrowest_bytes(in_dtype))
    chosen_by = "the heuristic"
    if spec.policy.config is not None:
        raster_order = spec.policy.config.raster_order or raster_order
        swizzle = spec.policy.config.swizzle or swizzle
        chosen_by = (
            f"{spec.policy.config}" if not others else f"the heuristic within {spec.policy.config}"
        )
    inside = heuristics.fraction_inside(best, dims)
    reason = (
        f"chosen by {chosen_by}: {best.tiles_m}x{best.tiles_n} tiles per batch in "
        f"{waves_text(best.waves)} on {target.sm_count} multiprocessors, {inside:.0%} of the "
        f"tiles inside the matrix, predicted {best.cycles:.0f} cycles"
    )
    if best.splits > 1:
        reason += f", K in {best.splits} parts"
    slower = [
        (c.kernel.name, f"predicted {c.cycles:.0f} cycles in {waves_text(c.waves)}") for c in others
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


def predicted_cycles(
    spec: GemmSpec, in_dtype: str, dims: GemmDims, target: Target, table: Sequence[Kernel]
) -> float | None:
    """Clock cycles that the heuristic's kernel is predicted to take; None if no kernel fits.

    The arguments are those of `select`.
    """
    usable, _ = heuristics.rank(table, spec, in_dtype, dims, target)
    return usable[0].cycles if usable else None
