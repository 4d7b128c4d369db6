"""What the primitives of all products have in common: binding, their result's type, registration.

Differentiation and batching differ: `jax_bwgemm.dense.primitive`, `jax_bwgemm.grouped.primitive`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
from jax import core
from jax.interpreters import batching

from jax_bwgemm import compat, compat_checkpoint, compat_transforms
from jax_bwgemm.compat import Primitive
from jax_bwgemm.product import lowering
from jax_bwgemm.product.contraction import Contraction
from jax_bwgemm.product.spec import ProductSpec
from jax_bwgemm.product.support import viable_implementations

# The family of products that each primitive stands for.
CONTRACTIONS: dict[Primitive, Contraction] = {}
# For primitives that are more than a product: the module whose `explain` describes an equation.
EXPLAINED_BY: dict[Primitive, str] = {}
# The same of primitives that are no products.
EXPLAINED_BESIDE: dict[Primitive, str] = {}
# For JAX's own products, by name: the module whose `refusal_of_equation` says why one is not ours.
REFUSED_BY: dict[str, str] = {}


def prepare(
    contraction: Contraction, operands: tuple[jax.Array, ...], spec: Any
) -> tuple[tuple[jax.Array, ...], Any]:
    """Operands and specification to bind: of axes that vary alike, and what is viable.

    Raises:
        NotImplementedError: No implementation can run it (several: an ExceptionGroup of these).
        TypeError: The operands do not fit together.
    """
    dims = contraction.dims(spec, *(x.shape for x in operands))
    if dims.batch == 1:
        spec = dataclasses.replace(spec, reduce_batch=False)
    dtypes = [x.dtype.name for x in operands[:2]]
    viable = viable_implementations(contraction, spec, dtypes, dims)
    return compat.match_varying(*operands), spec.with_policy(implementations=viable)


def register(
    contraction: Contraction,
    primitive: Primitive,
    local: Primitive,
    *,
    batch: Callable[..., Any],
    dot_numbers: Callable[..., compat.DimensionNumbers],
) -> None:
    """Registers everything but the rules of differentiation, which must be there already.

    Args:
        contraction: The family of products.
        primitive: The primitive.
        local: The primitive of one device.
        batch: The batching rule.
        dot_numbers: Dimension numbers of such a product by ``lax.dot_general``, from the operands'
            types and the specification: for checkpoint policies.
    """

    def abstract_eval(*operands: core.ShapedArray, spec: ProductSpec) -> core.ShapedArray:
        dims = contraction.dims(spec, *(x.shape for x in operands))
        return compat.result_aval(
            lambda *args: contraction.typed_like(args, spec),
            contraction.out_shape(spec, dims),
            spec.out_dtype,
            *operands,
        )

    compat.implement_by_jit(primitive, "spec")
    primitive.def_abstract_eval(abstract_eval)
    batching.primitive_batchers[primitive] = batch
    lowering.register(contraction, primitive, local)
    compat_checkpoint.checkpoint_as_dot(primitive, dot_numbers)
    compat_transforms.check_nans(primitive)
    compat_transforms.taylor_bilinear(primitive)
    CONTRACTIONS[primitive] = contraction
