"""The primitive of one device, which partitioning leaves behind. Never bound by users."""

from __future__ import annotations

from jax import core
from jax.extend.core import Primitive

from jax_bwgemm import compat
from jax_bwgemm.gemm.reference import gemm_reference
from jax_bwgemm.gemm.spec import GemmSpec, gemm_dims, out_shape

bw_gemm_local_p = Primitive("bw_gemm_local")


def gemm_result(
    lhs: core.ShapedArray, rhs: core.ShapedArray, *, spec: GemmSpec
) -> core.ShapedArray:
    """Abstract value of D, shared by both primitives."""
    shape = out_shape(spec, gemm_dims(spec, lhs.shape, rhs.shape))
    return compat.result_aval(
        lambda a, b: gemm_reference(a, b, spec), shape, spec.out_dtype, lhs, rhs
    )


bw_gemm_local_p.def_abstract_eval(gemm_result)
