"""Lowering of the canonical grouped GEMM: choose an implementation for the device, then emit it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.interpreters import mlir

from jax_bwgemm import compat, runtime
from jax_bwgemm.config import Target
from jax_bwgemm.grouped import heuristics
from jax_bwgemm.grouped.batching import reduce_batch
from jax_bwgemm.grouped.local import bw_grouped_local_p, local_grouped
from jax_bwgemm.grouped.partition import partitioned_grouped
from jax_bwgemm.grouped.primitive import bw_grouped_contract_p, bw_grouped_rows_p
from jax_bwgemm.grouped.reference import grouped_reference
from jax_bwgemm.grouped.spec import GroupedDims, GroupedSpec, grouped_dims, out_shape
from jax_bwgemm.grouped.support import describe, kernel_table
from jax_bwgemm.product.implementations import PLATFORMS, log_once, refusal_error, target_here


@dataclasses.dataclass(frozen=True)
class GroupedCall:
    """One FFI call, fully decided.

    Attributes:
        implementation: ``"cutlass"`` or ``"emulator"``.
        selection: Kernel and run-time attributes, with reasons.
        target: The GPU it was selected for.
        dims: The problem's sizes.
        padded: Its sizes as the kernel sees them.
    """

    implementation: str
    selection: heuristics.GroupedSelection
    target: Target
    dims: GroupedDims
    padded: GroupedDims


def choose(
    name: str,
    platform: str,
    spec: GroupedSpec,
    dtype: str,
    dims: GroupedDims,
    *,
    padding_is_free: bool,
) -> GroupedCall | str:
    """Decides the FFI call of a kernel implementation for one device's operands.

    Args:
        name: ``"cutlass"`` or ``"emulator"``.
        platform: JAX platform being lowered for.
        spec: The problem.
        dtype: Type of both operands.
        dims: Its sizes on this device.
        padding_is_free: Whether unaligned problems are padded at any cost, because the user
            asked for nothing but kernels.

    Returns:
        The call, or the reason why this implementation cannot run here.
    """
    target = target_here(name, platform, spec.target)
    if isinstance(target, str):
        return target
    in_bytes, out_bytes = np.dtype(dtype).itemsize, np.dtype(spec.out_dtype).itemsize
    padded = heuristics.aligned_dims(dims, in_bytes, out_bytes)
    if not padding_is_free and (refused := heuristics.padding_refusal(dims, padded)):
        return refused
    selection = heuristics.select(spec, dtype, padded, target, kernel_table(name))
    if isinstance(selection, str):
        return selection
    return GroupedCall(name, selection, target, dims, padded)


def run_on_device(
    lhs: jax.Array,
    rhs: jax.Array,
    sizes: jax.Array,
    offset: jax.Array,
    spec: GroupedSpec,
    platform: str,
) -> jax.Array:
    """Emits one device's grouped GEMM by the first of ``spec.implementations`` that can run it.

    Raises:
        NotImplementedError: None can (several: an ExceptionGroup of these).
    """
    operands = (lhs, rhs, sizes, offset)
    dims = grouped_dims(spec, *(x.shape for x in operands))
    if dims.batch == 1:
        spec = dataclasses.replace(spec, reduce_batch=False)
    what = describe(spec, lhs.dtype.name, rhs.dtype.name, dims)
    refusals: list[tuple[str, str]] = []
    for name in spec.implementations:
        if name == "xla":
            for refused, reason in refusals:
                log_once(f"{what}: not {refused} ({reason}), using xla")
            return grouped_reference(*operands, spec)
        here = platform == PLATFORMS[name]
        if here and dims.empty:
            return jnp.zeros(out_shape(spec, dims), spec.out_dtype)
        if here and spec.reduce_batch:
            return reduce_batch(lambda *args: run_on_device(*args, platform), operands, spec)
        call = choose(
            name,
            platform,
            spec,
            lhs.dtype.name,
            dims,
            padding_is_free="xla" not in spec.implementations,
        )
        if isinstance(call, GroupedCall):
            selected = call.selection
            log_once(
                f"{what}: {name} {selected.kernel.name}, order {selected.order}, "
                f"swizzle {selected.swizzle}; {selected.reason}"
            )
            return emit(call, *operands, spec)
        refusals.append((name, call))
    raise refusal_error(what, refusals)


def emit(
    call: GroupedCall,
    lhs: jax.Array,
    rhs: jax.Array,
    sizes: jax.Array,
    offset: jax.Array,
    spec: GroupedSpec,
) -> jax.Array:
    """Emits a kernel call: pad, FFI call, slice; each only where needed."""
    dims, padded = call.dims, call.padded
    more_n, more_k = padded.n - dims.n, padded.k - dims.k
    lhs = _pad(lhs, 0, more_k)
    if spec.kind == "contract":
        rhs = _pad(rhs, 0, more_n)
    else:
        rhs = _pad(rhs, *((more_k, more_n) if spec.rhs_major == "n" else (more_n, more_k)))
    if call.implementation == "cutlass":
        target_name, workspace = runtime.GROUPED_TARGET, runtime.grouped_workspace_bytes
    else:
        target_name = runtime.EMULATED_GROUPED_TARGET
        workspace = runtime.emulated_grouped_workspace_bytes
    selected = call.selection
    scratch = workspace(
        selected.kernel.name,
        padded.m,
        padded.n,
        padded.k,
        padded.groups,
        padded.experts,
        padded.batch,
        call.target.sm_count,
    )
    out, _ = jax.ffi.ffi_call(
        target_name,
        (
            jax.ShapeDtypeStruct(out_shape(spec, padded), spec.out_dtype),
            jax.ShapeDtypeStruct((scratch,), jnp.uint8),
        ),
    )(
        lhs,
        rhs,
        sizes,
        offset,
        config={
            "kernel": selected.kernel.name,
            "order": selected.order,
            "swizzle": np.int64(selected.swizzle),
        },
    )
    return out[..., : dims.n] if spec.kind == "rows" else out[..., : dims.k, : dims.n]


def _pad(x: jax.Array, outer: int, inner: int) -> jax.Array:
    """Appends zeros to the last two dimensions."""
    if not outer and not inner:
        return x
    return jnp.pad(x, [(0, 0)] * (x.ndim - 2) + [(0, outer), (0, inner)])


def _lower_for(platform: str) -> mlir.LoweringRule:
    def local(*operands: jax.Array, spec: GroupedSpec) -> jax.Array:
        return run_on_device(*operands, spec, platform)

    return compat.without_types_of_axes(mlir.lower_fun(local, multiple_results=False))


def _lower_global(
    ctx: mlir.LoweringRuleContext, *operands: Any, spec: GroupedSpec
) -> Sequence[Any]:
    """Partitions over the mesh, unless the operands already are those of one device."""
    emit_with = partitioned_grouped
    if compat.is_manual(ctx):
        emit_with = local_grouped
        if automatic := compat.automatic_axes(ctx):
            # As for the dense GEMM: no custom partitioning inside of a group of devices.
            _refuse(spec, ctx.avals_in, f"mesh axes {automatic} are automatic inside shard_map")
            spec = dataclasses.replace(spec, implementations=("xla",))
    rule = mlir.lower_fun(lambda *args: emit_with(*args, spec), multiple_results=False)
    return compat.without_types_of_axes(rule)(ctx, *operands)


def _refuse(spec: GroupedSpec, operands: Sequence[Any], reason: str) -> None:
    """Leaves a grouped GEMM to XLA for a reason, if the user allows that.

    Raises:
        NotImplementedError: They do not (several kernel implementations: an ExceptionGroup).
    """
    dims = grouped_dims(spec, *(x.shape for x in operands))
    what = describe(spec, operands[0].dtype.name, operands[1].dtype.name, dims)
    if "xla" not in spec.implementations:
        raise refusal_error(what, [(name, reason) for name in spec.implementations])
    if spec.implementations[0] != "xla":
        log_once(f"{what}: not {spec.implementations[0]} ({reason}), using xla")


for _primitive in (bw_grouped_rows_p, bw_grouped_contract_p):
    compat.lower_with_devices(_primitive)
    mlir.register_lowering(_primitive, compat.keep_typed_sharding(_lower_global))
for _platform in ("cuda", "cpu"):
    mlir.register_lowering(bw_grouped_local_p, _lower_for(_platform), platform=_platform)
mlir.register_lowering(bw_grouped_local_p, _lower_for("another platform"))
