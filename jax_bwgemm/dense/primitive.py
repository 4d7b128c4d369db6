"""The primitive ``bw_gemm_p`` and its rules, in the order of a lax primitive.

Bilinear: its jvp is itself, and its transposes are itself with other majors, so every order of
differentiation, and batching of it, closes. What it shares with the grouped ones is registered by
`jax_bwgemm.product.primitive`.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
from jax import core
from jax.interpreters import ad
from jax.sharding import NamedSharding

from jax_bwgemm import compat
from jax_bwgemm.compat import Primitive
from jax_bwgemm.dense.batching import batch_gemm
from jax_bwgemm.dense.contraction import DENSE
from jax_bwgemm.dense.reference import gemm_reference
from jax_bwgemm.dense.spec import GemmSpec, a_transpose_spec, b_transpose_spec, gemm_dims
from jax_bwgemm.product.local import local_primitive
from jax_bwgemm.product.primitive import REFUSED_BY, prepare, register

bw_gemm_p = Primitive("bw_gemm")
bw_gemm_local_p = local_primitive("bw_gemm_local", DENSE)


def gemm(lhs: jax.Array, rhs: jax.Array, spec: GemmSpec) -> jax.Array:
    """Computes the canonical GEMM by the first of ``spec.policy.implementations`` that can.

    A problem that only XLA can run never becomes the primitive, so that XLA sees an ordinary dot.

    Args:
        lhs: A, [B or 1, M, K] or [B or 1, K, M] by ``spec.a_major``.
        rhs: B, [B or 1, K, N] or [B or 1, N, K] by ``spec.b_major``.
        spec: The problem.

    Returns:
        D, [B, M, N], or [1, M, N] when ``spec.reduce_batch``.

    Raises:
        NotImplementedError: No implementation can run it (several: an ExceptionGroup of these).
        TypeError: The operands do not fit together.
    """
    operands, spec = prepare(DENSE, (lhs, rhs), spec)
    if spec.policy.implementations[0] == "xla":
        return gemm_reference(*operands, spec)
    return bw_gemm_p.bind(*operands, spec=spec)


# D has the cotangent's dtype. When D is f32 and the operands are 16 bit, the transposed GEMM is
# mixed (f32 x bf16 -> bf16). Rounding the cotangent would lower precision: where no kernel
# multiplies such operands, `gemm` hands it to XLA, or refuses it if only kernels were allowed.


def _shard_like(transposed: GemmSpec, operand: core.ShapedArray) -> GemmSpec:
    """Under explicit mesh axes a cotangent must have its operand's sharding (and has its order)."""
    return dataclasses.replace(transposed, out_sharding=compat.cotangent_sharding(operand))


def _gemm_transpose_lhs(
    cotangent: jax.Array, lhs: Any, rhs: jax.Array, *, spec: GemmSpec
) -> jax.Array:
    dims = gemm_dims(spec, lhs.aval.shape, rhs.shape)
    transposed = a_transpose_spec(spec, dims.a_batch, dims, lhs.aval.dtype.name)
    transposed = _shard_like(transposed, lhs.aval)
    operands = (cotangent, rhs) if spec.a_major == "k" else (rhs, cotangent)
    return gemm(*operands, transposed)


def _gemm_transpose_rhs(
    cotangent: jax.Array, lhs: jax.Array, rhs: Any, *, spec: GemmSpec
) -> jax.Array:
    dims = gemm_dims(spec, lhs.shape, rhs.aval.shape)
    transposed = b_transpose_spec(spec, dims.b_batch, dims, rhs.aval.dtype.name)
    transposed = _shard_like(transposed, rhs.aval)
    operands = (lhs, cotangent) if spec.b_major == "n" else (cotangent, lhs)
    return gemm(*operands, transposed)


ad.defbilinear(bw_gemm_p, _gemm_transpose_lhs, _gemm_transpose_rhs)


def _gemm_batch(
    operands: tuple[jax.Array, jax.Array],
    axes: tuple[int | None, int | None],
    *,
    spec: GemmSpec,
) -> tuple[jax.Array, int]:
    # Merging the mapped dimension with a sharded one has no sharding in types.
    sharded = any(map(_inner_sharded, operands, axes))
    if spec.out_sharding is not None:
        # D of sharded operands has the sharding that was asked for, not the one that follows.
        sharded |= any(map(_inner_sharded, operands, (-1 if a is None else a for a in axes)))
        sharded |= _any_sharded(spec.out_sharding)
    if not spec.policy.only_kernels and sharded:
        mapped = jax.vmap(lambda a, b: gemm_reference(a, b, spec), in_axes=axes)
        return mapped(*operands), 0
    if not sharded:  # D's type then follows from the mapped dimension's
        spec = dataclasses.replace(spec, out_sharding=None)
    return batch_gemm(gemm, *operands, *axes, spec)


def _inner_sharded(x: jax.Array, mapped_axis: int | None) -> bool:
    """Whether a mapped operand is explicitly sharded along another dimension than the mapped.

    Args:
        x: The operand.
        mapped_axis: The mapped dimension; None where there is none and the answer is no; -1 where
            any dimension counts.
    """
    sharding = compat.explicit_sharding(jax.typeof(x))
    if mapped_axis is None or sharding is None:
        return False
    return _any_sharded(sharding, besides=mapped_axis)


def _any_sharded(sharding: NamedSharding, besides: int = -1) -> bool:
    return any(e is not None for i, e in enumerate(tuple(sharding.spec)) if i != besides)


def _dot_numbers(
    lhs: core.ShapedArray, rhs: core.ShapedArray, *, spec: GemmSpec
) -> compat.DimensionNumbers:
    """Dimension numbers of the same product by ``lax.dot_general``."""
    lhs_k = 2 if spec.a_major == "k" else 1
    rhs_k = 1 if spec.b_major == "n" else 2
    if spec.reduce_batch:
        return ((0, lhs_k), (0, rhs_k)), ((), ())
    batched = lhs.shape[0] == rhs.shape[0] != 1
    return ((lhs_k,), (rhs_k,)), (((0,), (0,)) if batched else ((), ()))


REFUSED_BY["dot_general"] = "jax_bwgemm.dense.explain"
register(DENSE, bw_gemm_p, bw_gemm_local_p, batch=_gemm_batch, dot_numbers=_dot_numbers)
