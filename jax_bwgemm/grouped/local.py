"""The primitive of one device, which partitioning leaves behind. Never bound by users."""

from __future__ import annotations

import jax
from jax import core

from jax_bwgemm.compat import Primitive
from jax_bwgemm.grouped.spec import GroupedSpec, grouped_dims, out_shape

bw_grouped_local_p = Primitive("bw_grouped_local")


def _local_abstract_eval(*operands: core.ShapedArray, spec: GroupedSpec) -> core.ShapedArray:
    # No sharding, no varying axes: both belong to the global primitive, whose type was checked.
    dims = grouped_dims(spec, *(x.shape for x in operands))
    return core.ShapedArray(out_shape(spec, dims), spec.out_dtype)


bw_grouped_local_p.def_abstract_eval(_local_abstract_eval)


def local_grouped(
    lhs: jax.Array, rhs: jax.Array, sizes: jax.Array, offset: jax.Array, spec: GroupedSpec
) -> jax.Array:
    """Binds the primitive of one device."""
    return bw_grouped_local_p.bind(lhs, rhs, sizes, offset, spec=spec)
