"""The primitive ``bw_scaled_matmul_p``: batching and lowering. It has no derivative."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import core
from jax.interpreters import batching, mlir

from jax_bwgemm import compat, runtime
from jax_bwgemm.compat import Primitive
from jax_bwgemm.config import Target, make_target
from jax_bwgemm.product import targets
from jax_bwgemm.product.implementations import (
    PLATFORMS,
    log_once,
    refusal_error,
    target_here,
    viable,
    without,
)
from jax_bwgemm.product.kernels import Kernel
from jax_bwgemm.product.local import binder
from jax_bwgemm.product.partition import partitioned
from jax_bwgemm.scaled.contraction import SCALED
from jax_bwgemm.scaled.reference import scaled_reference
from jax_bwgemm.scaled.scaled_array import ScaledArray
from jax_bwgemm.scaled.selection import Choice, refusal, select
from jax_bwgemm.scaled.spec import ScaledDims, ScaledSpec

bw_scaled_matmul_p = Primitive("bw_scaled_matmul")
# That of one device, which partitioning leaves behind.
bw_scaled_matmul_local_p = Primitive("bw_scaled_matmul_local")


def product(operands: Sequence[jax.Array], spec: ScaledSpec) -> jax.Array:
    """A batch of scaled products by the first implementation that can.

    Args:
        operands: A [B or 1, M, K], B [B or 1, N, K], and the scales of both, each of whose first
            dimension is B or 1.
        spec: What to compute.

    Returns:
        [B, M, N].

    Raises:
        NotImplementedError: No implementation can run it (several: an ExceptionGroup of these).
    """
    dims = dims_of(operands)
    names = viable_implementations(spec, dims, [])
    spec = spec.with_policy(implementations=names)
    if names[0] == "xla":
        return reference(*operands, spec=spec)
    return bw_scaled_matmul_p.bind(*compat.match_varying(*operands), spec=spec)


def dims_of(operands: Sequence[Any]) -> ScaledDims:
    """Sizes of a batch of products."""
    a, b, *_ = operands
    batch = max(x.shape[0] for x in operands)
    return ScaledDims(
        batch, a.shape[1], b.shape[1], a.shape[2], jnp.dtype(a.dtype).name, jnp.dtype(b.dtype).name
    )


def table_of(implementation: str) -> tuple[Kernel, ...]:
    """The kernels of an implementation."""
    if implementation == "cutlass":
        return runtime.scaled_kernels()
    return runtime.emulated_scaled_kernels()


def viable_implementations(
    spec: ScaledSpec, dims: ScaledDims, rejected: list[tuple[str, str]]
) -> tuple[str, ...]:
    """Those left to try, knowing everything but the device. Reasons are logged once."""

    def refuse(name: str) -> str | None:
        table = table_of(name)
        if not table:
            return "jax_bwgemm was installed without kernels for scaled operands"
        return refusal(table, spec, dims)

    return viable(spec.policy.implementations, dims.describe(spec), refuse, rejected)


def choose(
    name: str,
    platform: str,
    spec: ScaledSpec,
    dims: ScaledDims,
    target: Target | None,
) -> Choice | str:
    """The kernel of an implementation on a platform, or why it has none there.

    Args:
        name: ``"cutlass"`` or ``"emulator"``.
        platform: JAX platform being lowered for.
        spec: The product.
        dims: Its sizes.
        target: The GPU, if it is known; the emulator's is else an SM90.
    """
    if target is None and name == "emulator":
        target = make_target("sm90")
    found = target_here(name, platform, target)
    return found if isinstance(found, str) else select(table_of(name), spec, dims, found)


def reference(*operands: jax.Array, spec: ScaledSpec) -> jax.Array:
    """The batch of products by XLA."""

    def one(a: jax.Array, b: jax.Array, a_scales: jax.Array, b_scales: jax.Array) -> jax.Array:
        return scaled_reference(
            ScaledArray(a, a_scales, spec.a_scaling),
            ScaledArray(b, b_scales, spec.b_scaling),
            spec.out_dtype,
            spec.accumulation,
        )

    if all(x.shape[0] == 1 for x in operands):
        return one(*(x[0] for x in operands))[None]
    axes = tuple(None if x.shape[0] == 1 else 0 for x in operands)
    shared = [x[0] if axis is None else x for x, axis in zip(operands, axes, strict=True)]
    return jax.vmap(one, in_axes=axes)(*shared)


def _emit(name: str, choice: Choice, operands: Sequence[jax.Array], spec: ScaledSpec) -> jax.Array:
    dims = dims_of(operands)
    workspace = 0
    if choice.splits > 1:
        sizes = {"m": dims.m, "n": dims.n, "k": dims.k, "batch": dims.batch}
        workspace = runtime.kernel_workspace_bytes(
            name, choice.kernel.name, **sizes, splits=choice.splits, sm_count=choice.sm_count
        )
    out = targets.call_kernel(
        name,
        choice.kernel.name,
        dict(zip(("a", "b", "a_scales", "b_scales"), operands, strict=True)),
        jax.ShapeDtypeStruct((dims.batch, dims.m, dims.n), choice.out_dtype),
        workspace,
        a_scaling=spec.a_scaling,
        b_scaling=spec.b_scaling,
        raster_order=choice.raster_order,
        swizzle=choice.swizzle,
        splits=choice.splits,
    )
    return out.astype(spec.out_dtype)


def _abstract_eval(*operands: core.ShapedArray, spec: ScaledSpec) -> core.ShapedArray:
    dims = dims_of(operands)
    return compat.result_aval(
        lambda *args: reference(*args, spec=spec),
        (dims.batch, dims.m, dims.n),
        spec.out_dtype,
        *operands,
    )


def _batch(
    operands: Sequence[jax.Array], axes: Sequence[int | None], *, spec: ScaledSpec
) -> tuple[jax.Array, int]:
    """Merges the new dimension into the batch; what all share stays of batch 1."""
    size = next(x.shape[a] for x, a in zip(operands, axes, strict=True) if a is not None)
    inner = max(x.shape[0 if a != 0 else 1] for x, a in zip(operands, axes, strict=True))

    def merged(x: jax.Array, axis: int | None) -> jax.Array:
        if axis is None:
            if x.shape[0] == 1:
                return x
            x = jnp.broadcast_to(x, (size, *x.shape))
        else:
            x = jnp.moveaxis(x, axis, 0)
            x = jnp.broadcast_to(x, (size, inner, *x.shape[2:]))
        return x.reshape(size * inner, *x.shape[2:])

    out = product([merged(x, a) for x, a in zip(operands, axes, strict=True)], spec)
    return out.reshape(size, inner, *out.shape[1:]), 0


def _for_devices(ctx: mlir.LoweringRuleContext, spec: ScaledSpec) -> ScaledSpec:
    """The product for the GPUs that a program is lowered for, if they are known.

    Raises:
        NotImplementedError: No kernel is for all of these, and XLA is not allowed.
    """
    policy = spec.policy
    found = runtime.common_target(compat.lowering_devices(ctx))
    if policy.target is not None or "cutlass" not in policy.implementations or found is None:
        return spec
    if found.target is None:
        return _without(("cutlass",), ctx, spec, found.reason)
    return spec.with_policy(target=found.target)


def _without(
    refused: Sequence[str], ctx: mlir.LoweringRuleContext, spec: ScaledSpec, reason: str
) -> ScaledSpec:
    """For a program that some implementations cannot run.

    Raises:
        NotImplementedError: There are no others (several refused: an ExceptionGroup).
    """
    what = dims_of(ctx.avals_in).describe(spec)
    return spec.with_policy(
        implementations=without(spec.policy.implementations, refused, what, reason)
    )


def _lower(ctx: mlir.LoweringRuleContext, *operands: Any, spec: ScaledSpec) -> Any:
    """Partitions over the mesh, unless the operands already are those of one device."""
    spec = _for_devices(ctx, spec)
    function: Any = _partitioned
    if compat.is_manual(ctx):
        function = _local
        if automatic := compat.automatic_axes(ctx):  # as in product.lowering
            reason = f"mesh axes {automatic} are automatic inside shard_map"
            spec = _without(tuple(PLATFORMS), ctx, spec, reason)
    rule = mlir.lower_fun(lambda *args: function(*args, spec), multiple_results=False)
    return compat.without_types_of_axes(rule)(ctx, *operands)


def _lower_local(platform: str) -> mlir.LoweringRule:
    def on_device(*operands: jax.Array, spec: ScaledSpec) -> jax.Array:
        dims = dims_of(operands)
        what = dims.describe(spec)
        refusals: list[tuple[str, str]] = []
        for name in spec.policy.implementations:
            if name == "xla":
                for other, reason in refusals:
                    log_once(f"{what}: not {other} ({reason}), using xla")
                return reference(*operands, spec=spec)
            # A device's part may be one that no kernel computes.
            choice: Choice | str | None = refusal(table_of(name), spec, dims)
            if choice is None:
                choice = choose(name, platform, spec, dims, spec.policy.target)
            if isinstance(choice, Choice):
                log_once(f"{what}: {name} {choice}")
                return _emit(name, choice, operands, spec)
            refusals.append((name, choice))
        raise refusal_error(what, refusals)

    return compat.without_types_of_axes(mlir.lower_fun(on_device, multiple_results=False))


def _local_abstract_eval(*operands: core.ShapedArray, spec: ScaledSpec) -> core.ShapedArray:
    dims = dims_of(operands)
    return core.ShapedArray((dims.batch, dims.m, dims.n), spec.out_dtype)


_local = binder(bw_scaled_matmul_local_p)
_partitioned = partitioned(SCALED, _local)

bw_scaled_matmul_p.def_impl(jax.jit(bw_scaled_matmul_p.bind, static_argnames=("spec",)))
bw_scaled_matmul_p.def_abstract_eval(_abstract_eval)
bw_scaled_matmul_local_p.def_abstract_eval(_local_abstract_eval)
batching.primitive_batchers[bw_scaled_matmul_p] = _batch
compat.lower_with_devices(bw_scaled_matmul_p)
mlir.register_lowering(bw_scaled_matmul_p, compat.keep_typed_sharding(_lower))
for _platform in sorted(set(PLATFORMS.values())):
    mlir.register_lowering(bw_scaled_matmul_local_p, _lower_local(_platform), platform=_platform)
mlir.register_lowering(bw_scaled_matmul_local_p, _lower_local("another platform"))
