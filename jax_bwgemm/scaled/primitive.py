"""The primitive ``bw_scaled_matmul_p``: batching and lowering. It has no derivative."""

from __future__ import annotations

import dataclasses
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
)
from jax_bwgemm.product.kernels import Kernel
from jax_bwgemm.scaled.reference import scaled_reference
from jax_bwgemm.scaled.scaled_array import ScaledArray
from jax_bwgemm.scaled.selection import Choice, refusal, select
from jax_bwgemm.scaled.spec import ScaledDims, ScaledSpec

bw_scaled_matmul_p = Primitive("bw_scaled_matmul")


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
    spec = dataclasses.replace(spec, implementations=names)
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

    return viable(spec.implementations, dims.describe(spec), refuse, rejected)


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


def _target(ctx: mlir.LoweringRuleContext, spec: ScaledSpec, name: str) -> Target | str | None:
    """The GPU that a program is lowered for, if it is known, or why it can have no kernel."""
    devices = compat.lowering_devices(ctx)
    if compat.is_manual(ctx):
        automatic = compat.automatic_axes(ctx)
        if automatic:
            return f"mesh axes {automatic} are automatic inside shard_map"
    elif len(devices) > 1:
        return (
            f"XLA divides this program among {len(devices)} devices: use jax.shard_map, whose "
            "products are one device's"
        )
    found = runtime.common_target(devices)
    if spec.target is not None or name != "cutlass" or found is None:
        return spec.target
    return found.reason if found.target is None else found.target


def _lower(platform: str) -> mlir.LoweringRule:
    def rule(ctx: mlir.LoweringRuleContext, *operands: Any, spec: ScaledSpec) -> Any:
        dims = dims_of(ctx.avals_in)
        what = dims.describe(spec)
        refusals: list[tuple[str, str]] = []
        for name in spec.implementations:
            if name == "xla":
                for other, reason in refusals:
                    log_once(f"{what}: not {other} ({reason}), using xla")
                function = reference
                break
            target = _target(ctx, spec, name)
            choice = (
                target if isinstance(target, str) else choose(name, platform, spec, dims, target)
            )
            if isinstance(choice, Choice):
                log_once(f"{what}: {name} {choice}")

                def function(
                    *args: jax.Array, spec: ScaledSpec, name: str = name, choice: Choice = choice
                ) -> jax.Array:
                    return _emit(name, choice, args, spec)

                break
            refusals.append((name, choice))
        else:
            raise refusal_error(what, refusals)
        lowered = compat.without_types_of_axes(mlir.lower_fun(function, multiple_results=False))
        return lowered(ctx, *operands, spec=spec)

    return rule


bw_scaled_matmul_p.def_impl(jax.jit(bw_scaled_matmul_p.bind, static_argnames=("spec",)))
bw_scaled_matmul_p.def_abstract_eval(_abstract_eval)
batching.primitive_batchers[bw_scaled_matmul_p] = _batch
compat.lower_with_devices(bw_scaled_matmul_p)
for _platform in sorted(set(PLATFORMS.values())):
    mlir.register_lowering(bw_scaled_matmul_p, _lower(_platform), platform=_platform)
mlir.register_lowering(bw_scaled_matmul_p, _lower("another platform"))
