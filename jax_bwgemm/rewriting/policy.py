"""Which products stay with XLA although a kernel can run them. Pure; the only place that decides.

There are seven reasons:

1. A tiny product costs a launch. XLA may compute it within one of its own passes.
2. A small product saves less than its custom call costs the host.
3. A product with a short K is bound by its result, which XLA's kernels write as fast as ours.
4. A kernel's batch dimension is the outermost. An operand with a batch behind its rows
   (`qhd,khd->hqk`) is transposed first. cuBLAS reads it as it lies, if one stride serves all
   dimensions of the batch, one all free and one all contracted ones. Otherwise XLA has a copy too,
   or one of Triton's kernels, which read any strides and are slower.
5. XLA fuses a bias, a residual or a ReLU into its own product. After a kernel that it cannot see
   into, they cost a pass of their own.
6. `Precision.HIGH` of f32 operands is TF32 in XLA: one product. Kernels that are asked for it make
   three of bf16 terms, which are more accurate and take longer.
7. By `Precision.HIGHEST` f32 operands with few columns or rows fill little of a kernel's tile.

In cases 4 and 5 the product stays with XLA unless the kernel's gain is predicted to exceed the
extra reading and writing. The comparison knows the bytes that are moved and the multiply-adds of
the product. It knows neither the launches of the passes nor how much faster the kernel is on this
shape. In cases 2, 3 and 5 a kernel that also computes what follows may take the product.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
from jax import lax

from jax_bwgemm.config import Target
from jax_bwgemm.dense.costs import (
    BYTES,
    BYTES_PER_CYCLE,
    MACS_PER_CYCLE,
    ceil_div,
    round_up,
)
from jax_bwgemm.product.implementations import f32_algorithm, of_operands

# Fewer multiply-adds than these are tiny.
MIN_MACS = 64**3
# A K of at most this many is short: that of low-rank updates.
SHORT_K = 32
# A product of 16-bit operands is small if it is predicted to take fewer cycles, about 5 us. But
# XLA's kernels are slow with few rows or columns of one matrix, at most this many, if tiles of that
# size fill at most half of the GPU: such products count as large (docs/steps.md, "Small
# steps").
SMALL_CYCLES = 8_450
FEW_ROWS = 128
# What XLA loses by operands that cuBLAS cannot read as they lie, as a share of the product's time:
# if free or contracted dimensions have several strides, and if the batch has.
STRIDED_ROWS, STRIDED_BATCH = 0.1, 0.45
# XLA's product of f32 operands by HIGHEST, without tensor cores: multiply-adds of a multiprocessor
# in a cycle, the share of them that is reached, rows and columns of the least tile, and cycles of a
# launch. Assumed, but for the share: 0.84 to 0.9 on large matrices (docs/decisions/constants.md).
F32_MACS, F32_SHARE, F32_TILE, F32_LAUNCH = 128, 0.85, 64, 2000


@dataclasses.dataclass(frozen=True)
class Copies:
    """Bytes of operands and result that a kernel needs transposed.

    Attributes:
        alone: Which cuBLAS reads and writes as they are.
        rows: Whose free or contracted dimensions have several strides.
        batch: Whose batch has several strides.
    """

    alone: int = 0
    rows: int = 0
    batch: int = 0


def tiny(eqn: Any) -> str | None:
    """Why a product is too small to be worth a launch; None when it is not.

    Args:
        eqn: An equation of a dense product of JAX's.
    """
    (contracted, _), _ = eqn.params["dimension_numbers"]
    lhs = eqn.invars[0].aval.shape
    macs = math.prod(eqn.outvars[0].aval.shape) * math.prod(lhs[d] for d in contracted)
    if macs >= MIN_MACS:
        return None
    return f"{macs} multiply-adds are fewer than {MIN_MACS}: XLA may compute it within a pass"


def short(dims: Any) -> str | None:
    """Why a dense product is better left to XLA unless a kernel also computes what follows it."""
    if dims.k > SHORT_K:
        return None
    return f"K is {dims.k}, at most {SHORT_K}: XLA writes the result as fast as a kernel would"


def small(types: tuple[str, str], dims: Any, cycles: float | None, target: Target) -> str | None:
    """Why a small dense product is better left to XLA unless a kernel also computes what follows.

    A custom call takes the host longer than one of XLA's own kernels, and these may take along what
    comes before and after.

    Args:
        types: The operands'.
        dims: Sizes of the product.
        cycles: What a kernel is predicted to take.
        target: The GPU.
    """
    if "float32" in types or cycles is None or cycles >= SMALL_CYCLES:
        return None
    if dims.b_batch == 1:
        rows = dims.m * dims.batch
        tiles = ceil_div(rows, FEW_ROWS) * ceil_div(dims.n, FEW_ROWS)
        if min(rows, dims.n) <= FEW_ROWS and tiles <= target.sm_count / 2:
            return None
    return (
        f"it is predicted to take {cycles:.0f} cycles, fewer than {SMALL_CYCLES}: a kernel would "
        "save less than its call costs the host"
    )


def tf32(types: tuple[str, str], precision: object) -> str | None:
    """Why a product is what XLA computes in less time, less accurately; None when it is not.

    Args:
        types: The operands'.
        precision: As `Policy.precision`.
    """
    named = any(isinstance(p, lax.DotAlgorithmPreset) for p in of_operands(precision))
    if set(types) != {"float32"} or f32_algorithm(precision) != "x3" or named:
        return None
    return "XLA computes precision=HIGH of float32 as TF32, in less time than kernels take for X3"


def slower(
    types: tuple[str, str], precision: object, dims: Any, cycles: float | None, target: Target
) -> str | None:
    """Why XLA computes a product of f32 by HIGHEST faster; None when it does not.

    A kernel's tile is 64 to 256 elements wide, whatever it computes. XLA's product is slow, but few
    columns (a router's experts) cost it no more than reading the operands.

    Args:
        types: The operands'.
        precision: As `Policy.precision`.
        dims: Sizes of the product: m, n, k and batch.
        cycles: What a kernel is predicted to take.
        target: The GPU.
    """
    if set(types) != {"float32"} or f32_algorithm(precision) != "highest" or cycles is None:
        return None
    macs = dims.batch * round_up(dims.m, F32_TILE) * round_up(dims.n, F32_TILE) * dims.k
    operands = dims.a_batch * dims.m * dims.k + dims.b_batch * dims.k * dims.n
    elements = operands + dims.batch * dims.m * dims.n
    moving = BYTES["float32"] * elements / BYTES_PER_CYCLE[target.arch]
    xla = max(macs / (F32_MACS * F32_SHARE * target.sm_count), moving) + F32_LAUNCH
    if cycles <= xla:
        return None
    return f"XLA is predicted to take {xla:.0f} cycles, a kernel {cycles:.0f}"


def loses(
    dims: Any, out_dtype: str, passes: int, copies: Copies, target: Target, gain: float
) -> str | None:
    """Why a dense product is better left to XLA because of what surrounds it; None otherwise.

    Args:
        dims: Sizes of the product: m, n, k and batch.
        out_dtype: Type of its result.
        passes: Extra readings and writings of the result: `Uses.extra_passes`.
        copies: What a kernel needs transposed.
        target: The GPU.
        gain: What the kernel saves over XLA's: `typical_gain`.
    """
    results = dims.batch * dims.m * dims.n
    product = results * dims.k / (MACS_PER_CYCLE[target.arch] * target.sm_count)

    def moving(size: int) -> float:
        return size / BYTES_PER_CYCLE[target.arch]

    extra = moving(passes * results * np.dtype(out_dtype).itemsize + 2 * copies.alone)
    extra += max(0.0, moving(2 * copies.rows) - STRIDED_ROWS * product)
    extra += max(0.0, moving(2 * copies.batch) - STRIDED_BATCH * product)
    saved = gain * product
    if extra <= saved:
        return None
    compared = f"(predicted {extra:.0f} cycles) would cost more than the kernel gains ({saved:.0f})"
    if transposed := copies.alone + copies.rows + copies.batch:
        return (
            f"transposing {transposed} bytes for a kernel {compared}; XLA's may read them as they "
            "are"
        )
    return (
        f"XLA takes the bias, residual or ReLU after it into the product; {passes} more "
        f"pass{'es' * (passes > 1)} over the result {compared}"
    )
