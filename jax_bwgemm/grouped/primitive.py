"""The primitives ``bw_m_grouped_p`` and ``bw_k_grouped_p`` and their rules.

Both are bilinear in A and B, and each one's transposes are the other or itself, so every order of
differentiation, and batching of it, closes. Rows of no group are zero in every derivative, as the
m-grouped product writes zeros for them and the k-grouped one does not read them. What they share
with the dense one is registered by `jax_bwgemm.product.primitive`.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
from jax import core
from jax.interpreters import ad

from jax_bwgemm import compat
from jax_bwgemm.compat import Primitive
from jax_bwgemm.grouped.batching import batch_grouped
from jax_bwgemm.grouped.contraction import GROUPED
from jax_bwgemm.grouped.spec import (
    K_GROUPED,
    M_GROUPED,
    GroupedSpec,
    grouped_dims,
    transpose_spec,
)
from jax_bwgemm.product.local import local_primitive
from jax_bwgemm.product.primitive import prepare, register

bw_m_grouped_p = Primitive("bw_m_grouped")
bw_k_grouped_p = Primitive("bw_k_grouped")
bw_grouped_local_p = local_primitive("bw_grouped_local", GROUPED)
_PRIMITIVES = {M_GROUPED: bw_m_grouped_p, K_GROUPED: bw_k_grouped_p}


def grouped(
    lhs: jax.Array, rhs: jax.Array, sizes: jax.Array, offset: jax.Array, spec: GroupedSpec
) -> jax.Array:
    """Computes the canonical grouped GEMM by the first of ``spec.policy.implementations`` that can.

    A problem that only XLA can run becomes the primitive too: its rules are better than those of
    the loop it is lowered to.

    Args:
        lhs: A, [B or 1, M, K].
        rhs: B, [B or 1, E, K, N] or [B or 1, E, N, K] by ``spec.b_major``; k-grouped
            [B or 1, M, N].
        sizes: Group sizes, [B or 1, G], int32.
        offset: The group of the first matrix, [B or 1], int32.
        spec: The problem.

    Returns:
        D, [B, M, N]; k-grouped [B, E, K, N]. B is 1 when ``spec.reduce_batch``.

    Raises:
        NotImplementedError: No implementation can run it (several: an ExceptionGroup of these).
        TypeError: The operands do not fit together.
    """
    operands, spec = prepare(GROUPED, (lhs, rhs, sizes, offset), spec)
    return _PRIMITIVES[spec.kind].bind(*operands, spec=spec)


def _jvp_lhs(
    tangent: jax.Array, lhs: Any, rhs: Any, sizes: Any, offset: Any, *, spec: GroupedSpec
) -> jax.Array:
    del lhs
    return grouped(tangent, rhs, sizes, offset, spec)


def _jvp_rhs(
    tangent: jax.Array, lhs: Any, rhs: Any, sizes: Any, offset: Any, *, spec: GroupedSpec
) -> jax.Array:
    del rhs
    return grouped(lhs, tangent, sizes, offset, spec)


# D has the cotangent's dtype. When D is f32 and the operands are 16 bit, the transposed GEMM is
# mixed (f32 x bf16 -> bf16): rounding the cotangent would lower precision. Where no kernel
# multiplies that, `grouped` hands it to XLA, or refuses it if only kernels were allowed.


def _transpose(
    cotangent: Any, lhs: Any, rhs: Any, sizes: jax.Array, offset: jax.Array, *, spec: GroupedSpec
) -> tuple[Any, Any, None, None]:
    side = "lhs" if ad.is_undefined_primal(lhs) else "rhs"
    operand = (lhs if side == "lhs" else rhs).aval
    if isinstance(cotangent, ad.Zero):
        result: Any = ad.Zero(operand)
    else:
        shapes = (x.aval if ad.is_undefined_primal(x) else x for x in (lhs, rhs, sizes, offset))
        dims = grouped_dims(spec, *(x.shape for x in shapes))
        transposed = transpose_spec(spec, side, operand.shape[0], dims, operand.dtype.name)
        # Under explicit mesh axes a cotangent must have its operand's sharding.
        sharding = compat.cotangent_sharding(operand)
        transposed = dataclasses.replace(transposed, out_sharding=sharding)
        if side == "lhs":
            left, right = (cotangent, rhs) if spec.kind == M_GROUPED else (rhs, cotangent)
        else:
            swapped = spec.kind == M_GROUPED and spec.b_major == "k"
            left, right = (cotangent, lhs) if swapped else (lhs, cotangent)
        result = grouped(left, right, sizes, offset, transposed)
    return (result, None, None, None) if side == "lhs" else (None, result, None, None)


def _batch(
    operands: tuple[jax.Array, ...], axes: tuple[int | None, ...], *, spec: GroupedSpec
) -> tuple[jax.Array, int]:
    return batch_grouped(grouped, operands, axes, spec)


def _dot_numbers(
    lhs: core.ShapedArray, rhs: core.ShapedArray, *_: core.ShapedArray, spec: GroupedSpec
) -> compat.DimensionNumbers:
    """Dimension numbers of one group's product; the batch is one if both operands have it."""
    contract = (
        ((2,), (2 if spec.b_major == "n" else 3,)) if spec.kind == M_GROUPED else ((1,), (1,))
    )
    if spec.reduce_batch:
        return ((0, *contract[0]), (0, *contract[1])), ((), ())
    batched = lhs.shape[0] == rhs.shape[0] != 1
    return contract, (((0,), (0,)) if batched else ((), ()))


for _primitive in _PRIMITIVES.values():
    ad.defjvp(_primitive, _jvp_lhs, _jvp_rhs, None, None)
    ad.primitive_transposes[_primitive] = _transpose
    register(GROUPED, _primitive, bw_grouped_local_p, batch=_batch, dot_numbers=_dot_numbers)
