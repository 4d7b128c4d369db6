"""Selection: which kernel runs a grouped product, and why. Explicit > tuned > heuristic."""

from __future__ import annotations

from collections.abc import Sequence

from jax_bwgemm.config import Target
from jax_bwgemm.grouped import heuristics
from jax_bwgemm.grouped.spec import GroupedDims, GroupedSpec
from jax_bwgemm.grouped.tuned import find_tuned
from jax_bwgemm.product.kernels import Kernel
from jax_bwgemm.product.selection import Selection, none_fits, waves_text


def select(
    spec: GroupedSpec,
    in_dtype: str,
    dims: GroupedDims,
    target: Target,
    table: Sequence[Kernel],
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
    spec: GroupedSpec,
    in_dtype: str,
    dims: GroupedDims,
    target: Target,
    table: Sequence[Kernel],
) -> Selection | str:
    """As `select`, without tuned entries: explicit configuration, then predicted times."""
    usable, rejected = heuristics.rank(table, spec, in_dtype, dims, target)
    if not usable:
        return none_fits(table, rejected, spec.policy.config, target)
    best, *others = usable
    order, swizzle = "heuristic", heuristics.swizzle_of(best.kernel, dims)
    chosen_by = "the heuristic"
    if spec.policy.config is not None:
        order = spec.policy.config.raster_order or order
        swizzle = spec.policy.config.swizzle or swizzle
        chosen_by = (
            f"{spec.policy.config}" if not others else f"the heuristic within {spec.policy.config}"
        )
    sizes = heuristics.expected_sizes(spec, dims)
    mean = sum(sizes) / max(len(sizes), 1)
    expected = "expected" if spec.representative is not None else "assumed"
    reason = (
        f"chosen by {chosen_by}: {mean:.0f} rows per group {expected}, about {best.tiles:.0f} "
        f"tiles in {waves_text(best.waves)} on {target.sm_count} multiprocessors, bound by "
        f"{best.limit}, predicted {best.cycles:.0f} cycles"
    )
    slower = [
        (c.kernel.name, f"predicted {c.cycles:.0f} cycles in {waves_text(c.waves)}") for c in others
    ]
    return Selection(best.kernel, order, swizzle, reason, (*slower, *rejected))
