"""The one-device primitive that partitioning produces. Users never bind it."""

from __future__ import annotations

from collections.abc import Callable

import jax
from jax import core

from jax_bwgemm.compat import Primitive
from jax_bwgemm.product.contraction import Contraction
from jax_bwgemm.product.spec import ProductSpec


def local_primitive(name: str, contraction: Contraction) -> Primitive:
    """Makes the primitive of one device for a family of products."""
    primitive = Primitive(name)

    def abstract_eval(*operands: core.ShapedArray, spec: ProductSpec) -> core.ShapedArray:
        # No sharding, no varying axes: both belong to the global primitive, whose type was checked.
        dims = contraction.dims(spec, *(x.shape for x in operands))
        return core.ShapedArray(contraction.out_shape(spec, dims), spec.out_dtype)

    primitive.def_abstract_eval(abstract_eval)
    return primitive


def binder(primitive: Primitive) -> Callable[..., jax.Array]:
    """A function of operands and specification that binds the primitive."""

    def bind(*operands_and_spec: object) -> jax.Array:
        *operands, spec = operands_and_spec
        return primitive.bind(*operands, spec=spec)

    return bind
