"""The only place that touches private JAX names or branches on the JAX version."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import jax
from jax import core
from jax._src import dispatch as _dispatch
from jax._src.core import auto_insert_reshard as _auto_insert_reshard
from jax._src.interpreters.mlir import lower_with_sharding_in_types
from jax._src.lax.lax import canonicalize_precision as _canonicalize_precision
from jax._src.sharding_impls import SPMDAxisContext
from jax.extend.core import Primitive
from jax.interpreters import mlir
from jax.sharding import AxisType, NamedSharding, PartitionSpec


def lower_with_devices(primitive: Primitive) -> None:
    """Declares that a primitive's lowering looks at the devices, as custom_partitioning's does."""
    _dispatch.prim_requires_devices_during_lowering.add(primitive)


def canonical_precision(precision: Any) -> Hashable:
    """A ``precision=`` argument as `jax.lax` passes it on, with the default precision in force.

    Returns:
        None, a pair of `jax.lax.Precision`, a `jax.lax.DotAlgorithm` or a
        `jax.lax.DotAlgorithmPreset`.

    Raises:
        ValueError: None of what JAX accepts.
    """
    return _canonicalize_precision(precision)


def match_varying(*operands: jax.Array) -> tuple[jax.Array, ...]:
    """Makes operands vary over the same manual mesh axes, as built-in binary primitives do.

    Without this the gradient of a replicated operand under ``shard_map(check_vma=True)`` has the
    wrong type: the inserted cast is what transposes to the sum over the mesh axis.
    """
    return tuple(_auto_insert_reshard(*operands))


def result_aval(
    reference: Callable[..., jax.Array],
    shape: tuple[int, ...],
    dtype: str,
    *operands: core.ShapedArray,
) -> core.ShapedArray:
    """Abstract value of a result of known shape and dtype, computed from its operands.

    Only explicit shardings and varying manual axes need the reference to be traced; everything
    else takes the cheap path.
    """
    plain = (core.ShapedArray(x.shape, x.dtype) == x.update(weak_type=False) for x in operands)
    if all(plain):
        return core.ShapedArray(shape, dtype)
    (aval,) = jax.make_jaxpr(reference)(*operands).out_avals
    return aval


def explicit_sharding(aval: core.ShapedArray) -> NamedSharding | None:
    """The sharding in an array's type, under a mesh with explicit axes; None otherwise."""
    sharding = aval.sharding
    mesh = sharding.mesh
    explicit = not mesh.empty and any(kind == AxisType.Explicit for kind in mesh.axis_types)
    return sharding if explicit else None


def cotangent_sharding(operand: core.ShapedArray) -> NamedSharding | None:
    """The sharding that an operand's cotangent must have in its type; None where types have none.

    An operand that was made outside of the mesh in context is replicated over it.
    """
    if not operand.sharding.mesh.empty:
        return explicit_sharding(operand)
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or AxisType.Explicit not in mesh.axis_types:
        return None
    return NamedSharding(mesh, PartitionSpec(*[None] * operand.ndim))


def keep_typed_sharding(rule: mlir.LoweringRule) -> mlir.LoweringRule:
    """A lowering rule that also tells the compiler the sharding in its result's type."""

    def lower(ctx: mlir.LoweringRuleContext, *operands: Any, **params: Any) -> Any:
        (result,) = rule(ctx, *operands, **params)
        return [lower_with_sharding_in_types(ctx, result, ctx.avals_out[0])]

    return lower


def cupti_collector() -> Any | None:
    """jaxlib's collector of kernel times through CUPTI; None where this jaxlib has none."""
    from jax.experimental.mosaic.gpu import profiler  # slow to import

    library = profiler.mosaic_gpu_lib
    return None if library is None else library._mosaic_gpu_ext


def automatic_axes(ctx: mlir.LoweringRuleContext) -> tuple[str, ...]:
    """Mesh axes of size above 1 that a partly manual ``shard_map`` leaves to the compiler.

    Empty outside of shard_map and when every axis is manual.
    """
    context = ctx.module_context.axis_context
    if not isinstance(context, SPMDAxisContext) or not context.manual_axes:
        return ()
    shape = context.mesh.shape
    return tuple(a for a in shape if a not in context.manual_axes and shape[a] > 1)


def is_manual(ctx: mlir.LoweringRuleContext) -> bool:
    """Whether a lowering happens inside of shard_map: operands are one device's."""
    context = ctx.module_context.axis_context
    return isinstance(context, SPMDAxisContext) and bool(context.manual_axes)


def without_types_of_axes(rule: mlir.LoweringRule) -> mlir.LoweringRule:
    """A lowering rule that sees operands of plain types: no shardings, no varying axes.

    For rules made of loops, whose carried values would have to have the operands' types.
    """

    def lower(ctx: mlir.LoweringRuleContext, *operands: Any, **params: Any) -> Any:
        plain = [core.ShapedArray(x.shape, x.dtype) for x in ctx.avals_in]
        with jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((), ())):
            return rule(ctx.replace(avals_in=plain), *operands, **params)

    return lower
