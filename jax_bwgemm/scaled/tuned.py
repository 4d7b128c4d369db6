"""Tuned choices of scaled products: their keys, and which entries this build can run."""

from __future__ import annotations

from collections.abc import Sequence

from jax_bwgemm.config import Target
from jax_bwgemm.product.kernels import Kernel
from jax_bwgemm.scaled.costs import candidates
from jax_bwgemm.scaled.fit import kernel_dtype, scales_whole_sums
from jax_bwgemm.scaled.ragged_spec import ScaledRaggedDims, ScaledRaggedSpec
from jax_bwgemm.scaled.spec import ScaledDims, ScaledSpec
from jax_bwgemm.tuning import lookup
from jax_bwgemm.tuning.keys import KINDS, ScaledGroupedKey, ScaledKey
from jax_bwgemm.tuning.records import TunedEntry

K_GROUPED = KINDS[1]


def key_of(spec: ScaledSpec, dims: ScaledDims, target: Target) -> ScaledKey:
    """The key of a product."""
    shared = "none"
    if dims.batch != 1 and dims.a_batch != dims.b_batch:
        shared = "lhs" if dims.a_batch == 1 else "rhs"
    return ScaledKey(*_common(spec, dims, target), dims.m, dims.n, dims.k, dims.batch, shared)


def grouped_key_of(
    spec: ScaledRaggedSpec, dims: ScaledRaggedDims, target: Target
) -> ScaledGroupedKey | None:
    """The key of a grouped product; None of a batch of them, which has no entry."""
    if dims.batch != 1:
        return None
    sizes = dims.m, dims.n, dims.k, dims.groups, dims.experts
    return ScaledGroupedKey(*_common(spec, dims, target), spec.kind, *sizes)


def _common(
    spec: ScaledSpec | ScaledRaggedSpec, dims: ScaledDims | ScaledRaggedDims, target: Target
) -> tuple[str, ...]:
    accumulation = "fast" if scales_whole_sums(spec, target.arch) else "promoted"
    types = dims.a_dtype, dims.b_dtype
    scalings = spec.a_scaling, spec.b_scaling
    return *types, *scalings, accumulation, kernel_dtype(spec.out_dtype)


def spec_of(key: ScaledKey) -> ScaledSpec:
    """The product as selection sees it."""
    return ScaledSpec(
        a_scaling=key.a_scaling,
        b_scaling=key.b_scaling,
        accumulation=key.accumulation,
        out_dtype=key.out_dtype,
    )


def grouped_spec_of(key: ScaledGroupedKey) -> ScaledRaggedSpec:
    """The grouped product as selection sees it."""
    return ScaledRaggedSpec(
        kind=key.kind,
        experts=key.experts if key.kind == K_GROUPED else 0,
        a_scaling=key.a_scaling,
        b_scaling=key.b_scaling,
        accumulation=key.accumulation,
        out_dtype=key.out_dtype,
    )


def find_tuned(
    spec: ScaledSpec, dims: ScaledDims, target: Target, fitting: Sequence[Kernel]
) -> lookup.Found | None:
    """The tuned choice of a product; None to leave it to the heuristic.

    Args:
        spec: The product, with the tuning in force where it was traced.
        dims: Its sizes.
        target: The GPU.
        fitting: The kernels that fit.

    Raises:
        TuningMissError: There is none, and the policy is ``"error"``.
    """

    def usable(entry: TunedEntry) -> Kernel | str:
        kernel = _named(entry, fitting)
        if isinstance(kernel, str) or entry.splits == 1:
            return kernel
        if entry.splits in {c.splits for c in candidates(kernel, dims, target)}:
            return kernel
        return f"does not compute it with K in {entry.splits} parts"

    return lookup.find(key_of(spec, dims, target), spec.policy.tuning, target, usable)


def find_tuned_grouped(
    spec: ScaledRaggedSpec, dims: ScaledRaggedDims, target: Target, fitting: Sequence[Kernel]
) -> lookup.Found | None:
    """As `find_tuned`, of a grouped product."""
    key = grouped_key_of(spec, dims, target)
    if key is None:
        return None
    return lookup.find(key, spec.policy.tuning, target, lambda entry: _named(entry, fitting))


def _named(entry: TunedEntry, fitting: Sequence[Kernel]) -> Kernel | str:
    found = next((k for k in fitting if k.name == entry.kernel), None)
    return found or "is not in this build, or computes other products"
