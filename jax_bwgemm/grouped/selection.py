"""Selection: which kernel runs a grouped product, and why. Explicit > tuned > heuristic."""

from __future__ import annotations

from collections.abc import Sequence

from jax_bwgemm.config import Target
from jax_bwgemm.grouped import heuristics
from jax_bwgemm.grouped.spec import GroupedDims, GroupedSpec
from jax_bwgemm.grouped.tuned import find_tuned
from jax_bwgemm.product.kernels import Kernel
from jax_bwgemm.product.selection import Selection


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
    return heuristics.select(spec, in_dtype, dims, target, table)
