"""Which kernel computes a scaled product, or why none does: explicit > tuned > heuristic."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from jax_bwgemm.config import Target
from jax_bwgemm.dense import heuristics
from jax_bwgemm.grouped.contraction import ORDERS
from jax_bwgemm.product.kernel_config import KernelConfig
from jax_bwgemm.product.kernels import Kernel
from jax_bwgemm.product.selection import waves_text
from jax_bwgemm.scaled import tuned
from jax_bwgemm.scaled.costs import BYTES, Candidate, as_dense_dims, candidates
from jax_bwgemm.scaled.fit import by_mma, kernel_dtype, satisfying, scales_fit, types_fit
from jax_bwgemm.scaled.spec import ScaledDims, ScaledSpec
from jax_bwgemm.tuning.lookup import Found

# What kernels do with scales, in words.
WHERE = {
    "sums": "scales after the last block of K",
    "blocks": "scales after every 128 of K",
    "rows": "scales of rows of both operands after every 128 of K",
    "mma": "scales of blocks by the MMA instruction",
}


@dataclasses.dataclass(frozen=True)
class Choice:
    """A kernel and how it is called.

    Attributes:
        kernel: The kernel.
        out_dtype: Name of the type that it writes: where that is not the result's, XLA converts.
        raster_order: The call's option.
        swizzle: The call's option.
        splits: Parts that K is split into.
        sm_count: Multiprocessors that it was chosen for.
        why: The reason in words.
    """

    kernel: Kernel
    out_dtype: str
    raster_order: str
    swizzle: int
    splits: int
    sm_count: int
    why: str

    def __str__(self) -> str:
        return (
            f"{self.kernel.name}, raster {self.raster_order}, swizzle {self.swizzle}, "
            f"splits {self.splits}"
        )


def grouped_options(choice: Choice) -> dict[str, int | str]:
    """The options of a grouped kernel's call."""
    return {"swizzle": choice.swizzle, "order": ORDERS[choice.raster_order]}


def refusal(table: Sequence[Kernel], spec: ScaledSpec, dims: ScaledDims) -> str | None:
    """Why no kernel can run a product on any GPU; None when one may."""
    if by_mma(spec) and spec.a_scaling != spec.b_scaling:
        return f"no kernel multiplies {spec.a_scaling} by {spec.b_scaling}"
    if dims.empty:  # no kernel has anything to run, as for dense products
        return None
    typed = [k for k in table if types_fit(k, spec, dims)]
    if not typed:
        pairs = sorted({f"{k.a_dtype} x {k.b_dtype}" for k in table})
        return f"kernels exist for {', '.join(pairs)}"
    if not any(scales_fit(k, spec) for k in typed):
        return (
            f"no kernel for {dims.a_dtype} x {dims.b_dtype} applies scales of {spec.a_scaling} "
            f"and {spec.b_scaling}"
        )
    out = np.dtype(kernel_dtype(spec.out_dtype)).itemsize
    bits = 4 if spec.a_scaling == "nvfp4" else 8
    for size, bits_each, name in ((dims.k, bits, "K"), (dims.n, 8 * out, "N")):
        multiple = 128 // bits_each
        if size % multiple:
            return f"{name}={size} is not a multiple of {multiple}, which TMA needs"
    return None


def select(
    table: Sequence[Kernel], spec: ScaledSpec, dims: ScaledDims, target: Target
) -> Choice | str:
    """The kernel for a product that `refusal` has nothing against, or why a GPU has none.

    Raises:
        TuningMissError: There is no tuned entry, and the policy on a miss is ``"error"``.
    """
    fitting = kernels_for(table, spec, dims, target)
    if isinstance(fitting, str):
        return fitting
    if spec.policy.config is None:
        found = tuned.find_tuned(spec, dims, target, fitting)
        if found is not None:
            return as_tuned(found, spec, target)
    return by_heuristic(fitting, spec, dims, target)


def by_heuristic(
    fitting: Sequence[Kernel], spec: ScaledSpec, dims: ScaledDims, target: Target
) -> Choice | str:
    """The kernel of those that fit with the shortest predicted time."""
    config = spec.policy.config
    splits = None if config is None else config.splits
    found = ranked(fitting, dims, target, splits)
    if not found:
        names = ", ".join(k.name for k in fitting)
        return f"K={dims.k} cannot be computed in {splits} parts by {names}"
    kernel, best = found[0]
    raster_order, swizzle = ordered_by(config, order_of(kernel, best, dims))
    why = (
        f"{WHERE[kernel.scales]}; {chosen_by(config)}{best.tiles_m}x{best.tiles_n} tiles per "
        f"batch in {waves_text(best.waves)} on {target.sm_count} multiprocessors, predicted "
        f"{best.cycles:.0f} cycles"
    )
    if best.splits > 1:
        why += f", K in {best.splits} parts"
    out_dtype = kernel_dtype(spec.out_dtype)
    return Choice(kernel, out_dtype, raster_order, swizzle, best.splits, target.sm_count, why)


def fitting_kernels(table: Sequence[Kernel], spec: ScaledSpec, dims: ScaledDims) -> list[Kernel]:
    """The kernels of any GPU that have a product's types and use of scales."""
    return [k for k in table if types_fit(k, spec, dims) and scales_fit(k, spec)]


def kernels_for(
    table: Sequence[Kernel], spec: ScaledSpec, dims: ScaledDims, target: Target
) -> list[Kernel] | str:
    """The kernels that a GPU has for a product, or why it has none."""
    fitting = [k for k in fitting_kernels(table, spec, dims) if k.arch == target.arch]
    refusals = [heuristics.grid_refusal(k, dims.batch) for k in fitting]
    if fitting and all(refusals):
        return refusals[0] or ""
    fitting = [k for k, refusal in zip(fitting, refusals, strict=True) if refusal is None]
    if fitting:
        return satisfying(fitting, spec.policy.config, target)
    arches = sorted({k.arch for k in table})
    if target.arch not in arches:
        return f"scaled kernels exist for {', '.join(arches)}, this is {target.arch}"
    return (
        f"no kernel of {target.arch} for {dims.a_dtype} x {dims.b_dtype} applies scales of "
        f"{spec.a_scaling} and {spec.b_scaling}"
    )


def ranked(
    fitting: Sequence[Kernel], dims: ScaledDims, target: Target, splits: int | None = None
) -> list[tuple[Kernel, Candidate]]:
    """Kernels with every number of parts of K worth comparing, by predicted time.

    Args:
        fitting: The kernels.
        dims: The product's sizes.
        target: The GPU.
        splits: The only number of parts to try.
    """
    pairs = [(k, c) for k in fitting for c in candidates(k, dims, target, splits)]
    return sorted(pairs, key=lambda pair: heuristics.preference(pair[1]))


def order_of(kernel: Kernel, candidate: Candidate, dims: ScaledDims) -> tuple[str, int]:
    """Raster order and swizzle of a kernel, both run-time attributes."""
    raster_order, swizzle = heuristics.tile_order(candidate, as_dense_dims(dims), BYTES)
    # A grouped kernel with one group runs along it.
    return (raster_order if kernel.contraction == "scaled" else "heuristic"), swizzle


def ordered_by(config: KernelConfig | None, order: tuple[str, int]) -> tuple[str, int]:
    """Raster order and swizzle, as far as a configuration does not name others."""
    if config is None:
        return order
    return config.raster_order or order[0], config.swizzle or order[1]


def chosen_by(config: KernelConfig | None) -> str:
    """Who demanded the kernel, as part of the reason for it."""
    return "" if config is None else f"chosen by {config}: "


def as_tuned(found: Found, spec: Any, target: Target) -> Choice:
    """A tuned choice."""
    entry, out_dtype = found.entry, kernel_dtype(spec.out_dtype)
    how = entry.raster_order, entry.swizzle, entry.splits
    return Choice(found.kernel, out_dtype, *how, target.sm_count, found.reason)
