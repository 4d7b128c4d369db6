"""f32 operands as sums of bf16 terms in memory, for GPUs whose kernels multiply 16-bit operands.

A product of sums is a sum of products, which one product with more of K computes. Of x = low + high
and B in bf16:

    x @ B = [low, high] @ [B]
                          [B]

Small products come first, as in the kernels that split in registers (``cc/sm90/split.h``), whose
terms these are. Where K is ragged, the terms lie beside each other in a dimension of the result,
which then is added up.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jax_bwgemm.config import Target, make_target
from jax_bwgemm.product.contraction import Contraction
from jax_bwgemm.product.dtypes import operand_types
from jax_bwgemm.product.implementations import (
    F32_TERMS,
    f32_algorithm,
    of_types,
    precision_refusal,
)
from jax_bwgemm.product.kernels import Kernel
from jax_bwgemm.product.spec import ProductSpec

BF16, F32 = "bfloat16", "float32"
# Pairs (term of A, term of B) that are multiplied, by the number of terms of either operand.
_OF_BOTH = {2: ((1, 0), (0, 1), (0, 0)), 3: ((2, 0), (0, 2), (1, 1), (1, 0), (0, 1), (0, 0))}
_MOST = 3.3895313892515355e38  # bf16's largest


@dataclasses.dataclass(frozen=True)
class Terms:
    """A product whose operands are terms of another one's.

    Attributes:
        spec: The product of the terms.
        counts: Terms of A and of B; 1: it is bf16 already.
        pairs: Which term of A meets which of B, side by side.
        axes: Where they lie in A and in B; None: that operand is there once.
        result_axis: Where their results lie, to be added up; None: the product has done so.
        out_dtype: Type of the result.
    """

    spec: ProductSpec
    counts: tuple[int, int]
    pairs: tuple[tuple[int, int], ...]
    axes: tuple[int | None, int | None]
    result_axis: int | None
    out_dtype: Any

    def __str__(self) -> str:
        split = [f"{name} in {n}" for name, n in zip("AB", self.counts, strict=True) if n > 1]
        return f"{' and '.join(split)} bf16 terms in memory, {len(self.pairs)} side by side"

    def shapes(self, shapes: Sequence[Sequence[int]]) -> list[tuple[int, ...]]:
        """The operands' shapes, from those of the product that is split."""
        found = [list(shape) for shape in shapes]
        for shape, axis in zip(found, self.axes, strict=False):
            if axis is not None:
                shape[axis] *= len(self.pairs)
        return [tuple(shape) for shape in found]

    def operands(self, a: jax.Array, b: jax.Array, *rest: jax.Array) -> list[jax.Array]:
        """The operands, from those of the product that is split."""
        both = min(self.counts) > 1
        found = []
        for i, (x, axis) in enumerate(zip((a, b), self.axes, strict=True)):
            terms = split(x, self.counts[i], both=both)
            beside = [terms[pair[i]] for pair in self.pairs]
            found.append(terms[0] if axis is None else jnp.concatenate(beside, axis))
        return [*found, *rest]

    def result(self, out: jax.Array) -> jax.Array:
        """The result of the product that is split, from that of the terms."""
        if self.result_axis is None:
            return out
        parts = jnp.split(out, len(self.pairs), self.result_axis)
        return sum(parts[1:], parts[0]).astype(self.out_dtype)


def split(x: jax.Array, count: int, *, both: bool) -> list[jax.Array]:
    """bf16 terms of an array, the largest first, each what rounding left of those before.

    Args:
        x: float32, or of bfloat16 if ``count`` is 1.
        count: Terms.
        both: Whether the other operand is split too. An infinite value is infinite in the last
            term, with its sign. In those before it is bf16's largest number, or 1 in the first if
            both are split: the other's low terms, which may have another sign, meet only that.
    """
    if count == 1:
        return [x]
    infinite = jnp.isinf(x)
    rest = jnp.where(infinite, jnp.sign(x), x) if both else x
    found = []
    for i in range(count):
        last = i == count - 1
        given = rest if last else jnp.clip(rest, -_MOST, _MOST)
        if both and last:
            given = jnp.where(infinite, x, given)
        # Not a conversion to bf16 and back: XLA may drop that pair and keep the full precision.
        term = lax.reduce_precision(given, exponent_bits=8, mantissa_bits=7)
        rest = rest - term
        found.append(term.astype(jnp.bfloat16))
    return found


def terms_refusal(
    contraction: Contraction,
    spec: ProductSpec,
    dtypes: Sequence[str],
    table: Sequence[Kernel],
    reason: str,
) -> str | None:
    """Why kernels of 16-bit operands cannot take f32 ones on any GPU either; None when some may.

    Args:
        contraction: The family of products.
        spec: The product.
        dtypes: Types of A and B, as a kernel would get them.
        table: The kernels of this build.
        reason: Why none takes them as they are.
    """
    for arch in sorted({k.arch for k in table}):
        terms = in_terms(contraction, spec, dtypes, make_target(arch))
        if terms is not None and of_types(table, (BF16, BF16, str(np.dtype(terms.spec.out_dtype)))):
            return None
    return reason


def unmeasured(spec: ProductSpec, dtypes: Sequence[str], target: Target) -> str | None:
    """Why a GPU's kernels are not asked for the accuracy of f32 sums; None else.

    Args:
        spec: The product.
        dtypes: Types of A and B, as a kernel would get them.
        target: The GPU.
    """
    if target.arch != "sm100" or set(dtypes) != {F32}:
        return None
    if f32_algorithm(spec.policy.precision) != "highest":
        return None
    return (
        f"precision=HIGHEST of float32 operands is left to XLA on {target.arch}, whose kernels' "
        "sums have not been measured against float32's"
    )


def in_terms(
    contraction: Contraction, spec: ProductSpec, dtypes: Sequence[str], target: Target
) -> Terms | None:
    """The product of terms that computes a product with f32 operands; None: a kernel takes it.

    ``HIGHEST`` promises the accuracy of f32 sums, which nobody has measured on SM100. Grouped
    products of two f32 operands have no kernels on any GPU.

    Args:
        contraction: The family of products.
        spec: The product.
        dtypes: Types of A and B, as a kernel would get them.
        target: The GPU.
    """
    if target.arch != "sm100" or sorted(set(dtypes)) not in ([F32], [BF16, F32]):
        return None
    if BF16 in dtypes:
        if precision_refusal(spec.policy.precision, operand_types(*dtypes)):
            return None
        counts = (2, 1) if dtypes[0] == F32 else (1, 2)
        pairs = tuple((i, 0) if counts[0] > 1 else (0, i) for i in (1, 0))
    else:
        algorithm = f32_algorithm(spec.policy.precision)
        if algorithm in (None, "highest") or contraction.operands != 2:
            return None
        count = F32_TERMS[algorithm]
        counts, pairs = (count, count), _OF_BOTH[count]
    names, out = contraction.operand_names(spec)[:2], contraction.out_names(spec)
    if "k" not in out:
        axes = (names[0].index("k"), names[1].index("k"))
        return Terms(spec, counts, pairs, axes, None, spec.out_dtype)
    # A group's part of a ragged K begins anywhere, so the terms' results are computed apart.
    which = counts.index(2)
    letter = "kn"[which]
    axis = names[which].index(letter)
    return Terms(
        dataclasses.replace(spec, out_dtype=F32),
        counts,
        pairs,
        (axis, None) if which == 0 else (None, axis),
        out.index(letter),
        spec.out_dtype,
    )
