"""Tuned choices of grouped products: their keys, and which entries this build can run."""

from __future__ import annotations

from collections.abc import Sequence

from jax_bwgemm.config import Target
from jax_bwgemm.grouped import heuristics
from jax_bwgemm.grouped.spec import K_GROUPED, GroupedDims, GroupedSpec
from jax_bwgemm.product.kernels import Kernel
from jax_bwgemm.tuning import lookup
from jax_bwgemm.tuning.keys import GroupedKey, canonical_shares, shares_of
from jax_bwgemm.tuning.records import TunedEntry


def key_of(spec: GroupedSpec, in_dtype: str, dims: GroupedDims) -> GroupedKey:
    """The key of a padded problem."""
    shared = "none"
    if dims.batch != 1:
        whole = (dims.a_batch != 1, dims.b_batch != 1)
        shared = {(True, True): "none", (False, True): "lhs", (True, False): "rhs"}.get(
            whole, "both"
        )
    return GroupedKey(
        spec.kind,
        in_dtype,
        spec.out_dtype,
        spec.b_major,
        dims.m,
        dims.n,
        dims.k,
        dims.groups,
        dims.experts,
        dims.batch,
        shared,
        canonical_shares(spec.representative),
    )


def spec_of(key: GroupedKey) -> GroupedSpec:
    """The problem as selection sees it."""
    return GroupedSpec(
        kind=key.kind,
        b_major=key.b_major,
        out_dtype=key.out_dtype,
        experts=key.experts if key.kind == K_GROUPED else 0,
        representative=shares_of(key),
    )


def dims_of(key: GroupedKey) -> GroupedDims:
    """The sizes as selection takes them; every element of a batch has group sizes of its own."""
    lhs = 1 if key.shared in ("lhs", "both") else key.batch
    rhs = 1 if key.shared in ("rhs", "both") else key.batch
    return GroupedDims(
        key.m, key.n, key.k, key.experts, key.groups, key.batch, lhs, rhs, sizes_batch=key.batch
    )


def find_tuned(
    spec: GroupedSpec,
    in_dtype: str,
    dims: GroupedDims,
    target: Target,
    table: Sequence[Kernel],
) -> lookup.Found | None:
    """The tuned choice of a padded problem; None to leave it to the heuristic.

    Args:
        spec: The problem, with the tuning in force where it was traced.
        in_dtype: The operands' types, as `dtypes.operand_types` says them.
        dims: Sizes.
        target: The GPU.
        table: The kernels to choose from.

    Raises:
        TuningMissError: There is none, and the policy is ``"error"``.
    """

    def usable(entry: TunedEntry) -> Kernel | str:
        kernel = next((k for k in table if k.name == entry.kernel), None)
        if kernel is None:
            return "is not in this build"
        reason = heuristics.kernel_mismatch(kernel, spec, in_dtype, target.arch)
        return reason or heuristics.tiles_refusal(kernel, dims) or kernel

    return lookup.find(key_of(spec, in_dtype, dims), spec.policy.tuning, target, usable)
