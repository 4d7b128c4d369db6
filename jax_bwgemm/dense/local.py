"""The primitive of one device, which partitioning leaves behind. Never bound by users."""

from __future__ import annotations

import jax
from jax import core

from jax_bwgemm.compat import Primitive
from jax_bwgemm.dense.spec import GemmSpec, gemm_dims, out_shape

bw_gemm_local_p = Primitive("bw_gemm_local")


def _local_abstract_eval(
    lhs: core.ShapedArray, rhs: core.ShapedArray, *, spec: GemmSpec
) -> core.ShapedArray:
    # No sharding, no varying axes: both belong to the global primitive, whose type was checked.
    return core.ShapedArray(out_shape(spec, gemm_dims(spec, lhs.shape, rhs.shape)), spec.out_dtype)


bw_gemm_local_p.def_abstract_eval(_local_abstract_eval)


def local_gemm(lhs: jax.Array, rhs: jax.Array, spec: GemmSpec) -> jax.Array:
    """Binds the primitive of one device."""
    return bw_gemm_local_p.bind(lhs, rhs, spec=spec)
