"""The primitives ``bw_grouped_rows_p`` and ``bw_grouped_contract_p`` and their rules.

Both are bilinear in lhs and rhs, and each one's transposes are the other or itself, so every order
of differentiation, and batching of it, closes. Rows of no group are zero in every derivative, as
``rows`` writes zeros for them and ``contract`` does not read them. Lowering is registered by
lowering.py.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import core
from jax.interpreters import ad, batching
from jax.sharding import NamedSharding, PartitionSpec

from jax_bwgemm import compat
from jax_bwgemm.compat import Primitive
from jax_bwgemm.dense.reference import gemm_reference
from jax_bwgemm.dense.spec import GemmSpec
from jax_bwgemm.grouped.batching import batch_grouped
from jax_bwgemm.grouped.spec import GroupedSpec, grouped_dims, out_shape, transpose_spec
from jax_bwgemm.grouped.support import viable_implementations

bw_grouped_rows_p = Primitive("bw_grouped_rows")
bw_grouped_contract_p = Primitive("bw_grouped_contract")
_PRIMITIVES = {"rows": bw_grouped_rows_p, "contract": bw_grouped_contract_p}


def grouped(
    lhs: jax.Array, rhs: jax.Array, sizes: jax.Array, offset: jax.Array, spec: GroupedSpec
) -> jax.Array:
    """Computes the canonical grouped GEMM by the first of ``spec.implementations`` that can.

    A problem that only XLA can run becomes the primitive too: its rules are better than those of
    the loop it is lowered to.

    Args:
        lhs: A, [B or 1, M, K].
        rhs: B, [B or 1, E, K, N] or [B or 1, E, N, K] by ``spec.rhs_major``; of kind
            ``"contract"`` [B or 1, M, N].
        sizes: Group sizes, [B or 1, G], int32.
        offset: The group of the first matrix, [B or 1], int32.
        spec: The problem.

    Returns:
        D, [B, M, N]; of kind ``"contract"`` [B, E, K, N]. B is 1 when ``spec.reduce_batch``.

    Raises:
        NotImplementedError: No implementation can run it (several: an ExceptionGroup of these).
        TypeError: The operands do not fit together.
    """
    dims = grouped_dims(spec, lhs.shape, rhs.shape, sizes.shape, offset.shape)
    if dims.batch == 1:
        spec = dataclasses.replace(spec, reduce_batch=False)
    viable = viable_implementations(spec, lhs.dtype.name, rhs.dtype.name, dims)
    spec = dataclasses.replace(spec, implementations=viable)
    operands = compat.match_varying(lhs, rhs, sizes, offset)
    return _PRIMITIVES[spec.kind].bind(*operands, spec=spec)


def _typed_like(
    lhs: jax.Array, rhs: jax.Array, sizes: jax.Array, offset: jax.Array, *, spec: GroupedSpec
) -> jax.Array:
    """A dense computation whose result has D's type. Only traced: for shardings in types."""
    dims = grouped_dims(spec, lhs.shape, rhs.shape, sizes.shape, offset.shape)
    if spec.out_sharding is not None:
        replicated = NamedSharding(spec.out_sharding.mesh, PartitionSpec())
        lhs, rhs = (jax.sharding.reshard(x, replicated) for x in (lhs, rhs))
    if spec.kind == "rows":
        dense = GemmSpec("k", spec.rhs_major, spec.out_dtype)
        out = gemm_reference(lhs, jnp.sum(rhs, axis=1), dense)
    else:
        out = gemm_reference(lhs, rhs, GemmSpec("m", "n", spec.out_dtype))
        out = jnp.repeat(out[:, None], dims.experts, axis=1)
    if spec.reduce_batch:
        out = jnp.sum(out, axis=0, keepdims=True)
    elif out.shape[0] != dims.batch:
        out = jnp.repeat(out, dims.batch, axis=0)
    return out if spec.out_sharding is None else jax.sharding.reshard(out, spec.out_sharding)


def _abstract_eval(*operands: core.ShapedArray, spec: GroupedSpec) -> core.ShapedArray:
    dims = grouped_dims(spec, *(x.shape for x in operands))
    return compat.result_aval(
        functools.partial(_typed_like, spec=spec), out_shape(spec, dims), spec.out_dtype, *operands
    )


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
# mixed (f32 x bf16 -> bf16): no kernel multiplies that, and rounding the cotangent would lower
# precision, so `grouped` hands it to XLA, or refuses it if only kernels were allowed.


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
            left, right = (cotangent, rhs) if spec.kind == "rows" else (rhs, cotangent)
        else:
            swapped = spec.kind == "rows" and spec.rhs_major == "k"
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
    contract = ((2,), (2 if spec.rhs_major == "n" else 3,)) if spec.kind == "rows" else ((1,), (1,))
    if spec.reduce_batch:
        return ((0, *contract[0]), (0, *contract[1])), ((), ())
    batched = lhs.shape[0] == rhs.shape[0] != 1
    return contract, (((0,), (0,)) if batched else ((), ()))


for _primitive in _PRIMITIVES.values():
    _primitive.def_impl(jax.jit(_primitive.bind, static_argnames=("spec",)))
    _primitive.def_abstract_eval(_abstract_eval)
    ad.defjvp(_primitive, _jvp_lhs, _jvp_rhs, None, None)
    ad.primitive_transposes[_primitive] = _transpose
    batching.primitive_batchers[_primitive] = _batch
    compat.checkpoint_as_dot(_primitive, _dot_numbers)
    compat.check_nans(_primitive)
    compat.taylor_bilinear(_primitive)
