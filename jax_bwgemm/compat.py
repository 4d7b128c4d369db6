"""Private JAX names and branches on the JAX version: here and in ``compat_*.py``, nowhere else."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import core
from jax._src import dispatch as _dispatch

# `jax_backend.backends` and `Primitive` are public in jax.extend. Importing that package imports
# Pallas too, which takes half as long as importing this one.
from jax._src import xla_bridge as jax_backend  # noqa: F401
from jax._src.core import Primitive
from jax._src.core import auto_insert_reshard as _auto_insert_reshard
from jax._src.interpreters.mlir import lower_with_sharding_in_types
from jax._src.lax.lax import canonicalize_precision as _canonicalize_precision
from jax._src.sharding_impls import SPMDAxisContext
from jax._src.util import weakref_lru_cache  # noqa: F401
from jax.interpreters import mlir
from jax.sharding import AxisType, NamedSharding, PartitionSpec

DimensionNumbers = tuple[
    tuple[tuple[int, ...], tuple[int, ...]], tuple[tuple[int, ...], tuple[int, ...]]
]

# ``jax.jit(inline=INLINE)``: traced into the caller, no equation of its own. JAX 0.12 gave True
# another meaning.
INLINE: Any = jax.Inline.JAX_EARLY if hasattr(jax, "Inline") else True


def implement_by_jit(primitive: Primitive, *static: str) -> None:
    """Lets a primitive be evaluated outside of jit: compiled, under `jax.disable_jit` too.

    Args:
        primitive: The primitive.
        static: Its parameters.
    """
    compiled = jax.jit(primitive.bind, static_argnames=static)

    # Where NaNs are looked for, and with jit switched off, jit would call this function again.
    def implementation(*operands: Any, **params: Any) -> Any:
        nans, infs = jax.config.jax_debug_nans, jax.config.jax_debug_infs
        if not (jax.config.jax_disable_jit or nans or infs):
            return compiled(*operands, **params)
        with jax.disable_jit(False), jax.debug_nans(False), jax.debug_infs(False):
            results = compiled(*operands, **params)
        for x in jax.tree.leaves(results):
            if jnp.issubdtype(x.dtype, jnp.inexact):
                _check_special(primitive.name, x, nans=nans, infs=infs)
        return results

    primitive.def_impl(implementation)


def _check_special(name: str, x: jax.Array, *, nans: bool, infs: bool) -> None:
    """Raises what JAX does for its own operations."""
    for wanted, found, what in ((nans, jnp.isnan, "nan"), (infs, jnp.isinf, "inf")):
        if wanted and bool(found(x).any()):
            raise FloatingPointError(f"invalid value ({what}) encountered in {name}")


def compiled_outside(function: Callable[..., Any], *static: int) -> Callable[..., Any]:
    """A function that is one program where its arguments are arrays, not one for each operation.

    Within a trace it is part of that, without an equation of its own.

    Args:
        function: Of positional arguments.
        static: Positions of those that are not arrays.
    """
    compiled = jax.jit(function, static_argnums=static)

    @functools.wraps(function)
    def call(*args: Any) -> Any:
        traced = any(isinstance(leaf, core.Tracer) for leaf in jax.tree.leaves(args))
        return (function if traced else compiled)(*args)

    return call


def device_tiles(sharding: Any, rank: int) -> np.ndarray | None:
    """The devices of an array's tiles, by their places in the mesh; None if it is in one piece.

    Args:
        sharding: The array's.
        rank: Its dimensions. The result has one more where tiles are replicated.
    """
    hlo = sharding._to_xla_hlo_sharding(rank)
    if not hlo.is_tiled():
        return None
    return np.asarray(hlo.tile_assignment_devices()).reshape(hlo.tile_assignment_dimensions())


def devices_of(sharding: Any) -> tuple[jax.Device, ...]:
    """The devices of a sharding, in the order in which XLA counts them."""
    return tuple(sharding._device_assignment)


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


def match_varying(*operands: Any) -> tuple[Any, ...]:
    """Makes operands vary over the same manual mesh axes, as built-in binary primitives do.

    None stays None.

    Without this the gradient of a replicated operand under ``shard_map(check_vma=True)`` has the
    wrong type: the inserted cast is what transposes to the sum over the mesh axis.
    """
    alike = iter(_auto_insert_reshard(*(x for x in operands if x is not None)))
    return tuple(None if x is None else next(alike) for x in operands)


def zeros_like_varying(shape: Sequence[int], dtype: Any, operand: jax.Array) -> jax.Array:
    """Zeros that vary over an operand's manual mesh axes: what a loop that reads it begins with."""
    return match_varying(jax.numpy.zeros(shape, dtype), operand)[0]


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
    (aval,) = result_avals(reference, *operands)
    return aval


def result_avals(function: Callable[..., Any], *operands: core.ShapedArray) -> list[Any]:
    """Abstract values of a function's results: shardings and varying axes included."""
    return list(jax.make_jaxpr(function)(*operands).out_avals)


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


def has_explicit_axes() -> bool:
    """Whether types of arrays have shardings here."""
    mesh = jax.sharding.get_abstract_mesh()
    return not mesh.empty and AxisType.Explicit in mesh.axis_types


def may_be_partitioned() -> bool:
    """Whether XLA may yet divide what is traced here over several devices."""
    mesh = jax.sharding.get_abstract_mesh()
    manual = not mesh.empty and all(kind == AxisType.Manual for kind in mesh.axis_types)
    return jax.device_count() != 1 and not manual


def of_no_mesh() -> Any:
    """Context manager: the types of what is traced name no mesh.

    With the user's mesh in context a scalar's type names it: JAX puts `reshard` before it meets an
    array of no mesh, and shardings into what one device computes.
    """
    return jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((), ()))


def spec_of(x: Any) -> tuple[Any, ...]:
    """How the type of an array (or the type given) is sharded, for each dimension."""
    aval = x if isinstance(x, core.ShapedArray) else jax.typeof(x)
    spec = aval.sharding.spec
    return (*spec, *[None] * (aval.ndim - len(spec)))


def in_automatic_axes(
    f: Callable[..., jax.Array], spec: Callable[[], Sequence[Any]], *operands: Any
) -> jax.Array:
    """``f(*operands)``, with XLA choosing the shardings within f where mesh axes are explicit.

    Args:
        f: Of arrays and None, which are all that it reads.
        spec: The sharding of its result, called only where axes are explicit. An axis counts where
            it is named first.
        operands: Its operands.
    """
    if not has_explicit_axes():
        return f(*operands)
    mesh = jax.sharding.get_abstract_mesh()
    kinds = zip(mesh.axis_names, mesh.axis_types, strict=True)
    explicit = tuple(name for name, kind in kinds if kind == AxisType.Explicit)
    named: set[str] = set()
    dimensions = []
    for axes in spec():
        wanted = axes if isinstance(axes, tuple) else () if axes is None else (axes,)
        fresh = tuple(name for name in wanted if name not in named)
        named.update(fresh)
        dimensions.append(fresh or None)
    out_sharding = NamedSharding(mesh, PartitionSpec(*dimensions))
    return jax.sharding.auto_axes(f, axes=explicit, out_sharding=out_sharding)(*operands)


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


def lowering_devices(ctx: mlir.LoweringRuleContext) -> tuple[jax.Device, ...]:
    """The devices a program is lowered for; empty where JAX does not know them yet."""
    context = ctx.module_context.axis_context
    if isinstance(context, SPMDAxisContext):
        mesh = context.mesh
        return tuple(mesh.devices.flat) if isinstance(mesh, jax.sharding.Mesh) else ()
    return tuple(getattr(context, "device_assignment", None) or ())


def default_device() -> jax.Device:
    """The device that JAX computes on when nothing says otherwise."""
    chosen = jax.config.jax_default_device
    if isinstance(chosen, str):  # a platform
        return jax.local_devices(backend=chosen)[0]
    return jax.local_devices()[0] if chosen is None else chosen


def is_manual(ctx: mlir.LoweringRuleContext) -> bool:
    """Whether a lowering happens inside of shard_map: operands are one device's."""
    context = ctx.module_context.axis_context
    return isinstance(context, SPMDAxisContext) and bool(context.manual_axes)


def is_partitioned(ctx: mlir.LoweringRuleContext) -> bool:
    """Whether XLA divides what is lowered over several devices."""
    several = not is_manual(ctx) and len(lowering_devices(ctx)) > 1
    return several or bool(automatic_axes(ctx))


def without_types_of_axes(rule: mlir.LoweringRule) -> mlir.LoweringRule:
    """A lowering rule that sees operands of plain types: no shardings, no varying axes.

    For rules made of loops, whose carried values would have to have the operands' types.
    """

    def lower(ctx: mlir.LoweringRuleContext, *operands: Any, **params: Any) -> Any:
        plain = [core.ShapedArray(x.shape, x.dtype) for x in ctx.avals_in]
        with of_no_mesh():
            return rule(ctx.replace(avals_in=plain), *operands, **params)

    return lower


def static_arguments(jitted: Any) -> tuple[tuple[int, ...], tuple[str, ...]] | None:
    """Positions and names of a jitted function's static arguments; None if its jit is not JAX's."""
    info = getattr(jitted, "_jit_info", None)
    return None if info is None else (tuple(info.static_argnums), tuple(info.static_argnames))
