"""Which kernel computes a grouped scaled product, or why none does: explicit > tuned > by rule."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from jax_bwgemm.config import Target
from jax_bwgemm.grouped.heuristics import SWIZZLE, SWIZZLE_MIN_OPERAND_BYTES, tile_extents
from jax_bwgemm.product.kernels import Kernel
from jax_bwgemm.scaled import tuned
from jax_bwgemm.scaled.fit import kernel_dtype, satisfying, scales_fit, types_fit
from jax_bwgemm.scaled.ragged_costs import evaluate
from jax_bwgemm.scaled.ragged_spec import ScaledRaggedDims, ScaledRaggedSpec
from jax_bwgemm.scaled.selection import WHERE, Choice, as_tuned, chosen_by, ordered_by

# k-grouped: contracted rows of an average group up to which a ping-pong tile is chosen, which is
# stored while the next one is multiplied. With more rows, a larger tile reuses more. See
# docs/decisions/low_precision.md.
PINGPONG_ROWS = 6144
# How long a column of a tile of 128 takes, over one of the widest. From the same page.
NARROW_TILE, NARROW_PINGPONG_TILE = 1.13, 1.06


def refusal(table: Sequence[Kernel], spec: ScaledRaggedSpec, dims: ScaledRaggedDims) -> str | None:
    """Why no kernel can run a product on any GPU; None when one may."""
    if dims.empty:
        return None
    of_kind = [k for k in table if k.kind == spec.kind]
    fitting = [k for k in of_kind if types_fit(k, spec, dims)]
    if not fitting:
        pairs = sorted({f"{k.a_dtype} x {k.b_dtype}" for k in of_kind})
        return f"{spec.kind} kernels exist for {', '.join(pairs)}"
    if not any(scales_fit(k, spec) for k in fitting):
        return (
            f"no {spec.kind} kernel for {dims.a_dtype} x {dims.b_dtype} applies scales of "
            f"{spec.a_scaling} and {spec.b_scaling}"
        )
    out = np.dtype(kernel_dtype(spec.out_dtype)).itemsize
    contracted = ("K", dims.k) if spec.m_grouped else ("M", dims.m)
    bits = 4 if spec.a_scaling == "nvfp4" else 8
    for (name, size), bits_each in ((contracted, bits), (("N", dims.n), 8 * out)):
        multiple = 128 // bits_each
        if size % multiple:
            return f"{name}={size} is not a multiple of {multiple}, which TMA needs"
    return None


def select(
    table: Sequence[Kernel], spec: ScaledRaggedSpec, dims: ScaledRaggedDims, target: Target
) -> Choice | str:
    """The kernel for a product that `refusal` has nothing against, or why a GPU has none.

    Raises:
        TuningMissError: There is no tuned entry, and the policy on a miss is ``"error"``.
    """
    fitting = kernels_for(table, spec, dims, target)
    if isinstance(fitting, str):
        return fitting
    if spec.policy.config is None:
        found = tuned.find_tuned_grouped(spec, dims, target, fitting)
        if found is not None:
            return as_tuned(found, spec, target)
    return by_rule(fitting, spec, dims, target)


def fitting_kernels(
    table: Sequence[Kernel], spec: ScaledRaggedSpec, dims: ScaledRaggedDims
) -> list[Kernel]:
    """The kernels of any GPU that have a product's kind, types and use of scales."""
    return [
        k for k in table if k.kind == spec.kind and types_fit(k, spec, dims) and scales_fit(k, spec)
    ]


def kernels_for(
    table: Sequence[Kernel], spec: ScaledRaggedSpec, dims: ScaledRaggedDims, target: Target
) -> list[Kernel] | str:
    """The kernels that a GPU has for a product, or why it has none."""
    fitting = [k for k in fitting_kernels(table, spec, dims) if k.arch == target.arch]
    if fitting:
        return satisfying(fitting, spec.policy.config, target)
    return (
        f"no {spec.kind} kernel for {target.arch} applies scales of {spec.a_scaling} and "
        f"{spec.b_scaling} to {dims.a_dtype} x {dims.b_dtype}"
    )


def by_rule(
    fitting: Sequence[Kernel], spec: ScaledRaggedSpec, dims: ScaledRaggedDims, target: Target
) -> Choice:
    """The kernel of those that fit.

    m-grouped: the one with the shortest predicted time. k-grouped: by the number of contracted
    rows, by how often scales are applied, and by the width of tiles.
    """
    if spec.m_grouped:
        kernel = min(fitting, key=lambda k: (evaluate(k, spec, dims, target).cycles, k.name))
    else:
        short = dims.m <= PINGPONG_ROWS * dims.experts

        def columns(k: Kernel) -> float:
            """Of all tiles of a row of tiles, those of narrow ones counting more."""
            _, width = tile_extents(k)
            narrow = NARROW_PINGPONG_TILE if k.schedule == "pingpong" else NARROW_TILE
            wide = max(k.tile_m, k.tile_n) > 128
            return -(-dims.n // width) * width * (1.0 if wide else narrow)

        def rank(k: Kernel) -> tuple[object, ...]:
            return (k.schedule == "pingpong") != short, k.scales == "rows", columns(k), k.name

        kernel = min(fitting, key=rank)
    operands = dims.k * (dims.m + dims.experts * dims.n)
    swizzle = SWIZZLE if operands >= SWIZZLE_MIN_OPERAND_BYTES else 1
    config = spec.policy.config
    raster_order, swizzle = ordered_by(config, ("heuristic", swizzle))
    swapped = ", operands swapped" if kernel.swap_ab else ""
    tiles = f"tiles of {kernel.tile_m}x{kernel.tile_n}{swapped}"
    why = f"{WHERE[kernel.scales]}; {chosen_by(config)}{tiles}"
    out_dtype = kernel_dtype(spec.out_dtype)
    return Choice(kernel, out_dtype, raster_order, swizzle, 1, target.sm_count, why)
