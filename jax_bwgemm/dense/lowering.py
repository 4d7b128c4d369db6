"""Lowering of the canonical GEMM: choose an implementation for the device, then emit it."""

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
from jax_bwgemm.dense import heuristics
from jax_bwgemm.dense.local import bw_gemm_local_p, local_gemm
from jax_bwgemm.dense.partition import partitioned_gemm
from jax_bwgemm.dense.primitive import bw_gemm_p
from jax_bwgemm.dense.reference import gemm_reference
from jax_bwgemm.dense.selection import Selection, select
from jax_bwgemm.dense.spec import Folded, GemmDims, GemmSpec, fold, gemm_dims, out_shape
from jax_bwgemm.dense.support import describe, kernel_table
from jax_bwgemm.product.implementations import PLATFORMS, log_once, refusal_error, target_here


@dataclasses.dataclass(frozen=True)
class KernelCall:
    """One FFI call, fully decided.

    Attributes:
        implementation: ``"cutlass"`` or ``"emulator"``.
        selection: Kernel and run-time attributes, with reasons.
        target: The GPU it was selected for.
        folded: The problem as the kernel sees it, before padding.
        dims: Its sizes before padding.
        padded: Its sizes as the kernel sees them.
    """

    implementation: str
    selection: Selection
    target: Target
    folded: Folded
    dims: GemmDims
    padded: GemmDims


def choose(
    name: str,
    platform: str,
    spec: GemmSpec,
    dtype: str,
    lhs_shape: tuple[int, ...],
    rhs_shape: tuple[int, ...],
    *,
    padding_is_free: bool,
) -> KernelCall | str:
    """Decides the FFI call of a kernel implementation for one device's operands.

    Args:
        name: ``"cutlass"`` or ``"emulator"``.
        platform: JAX platform being lowered for.
        spec: The problem.
        dtype: Type of both operands.
        lhs_shape: Shape of A on this device.
        rhs_shape: Shape of B on this device.
        padding_is_free: Whether unaligned problems are padded at any cost, because the user
            asked for nothing but kernels.

    Returns:
        The call, or the reason why this implementation cannot run here.
    """
    target = target_here(name, platform, spec.target)
    if isinstance(target, str):
        return target
    folded = fold(spec, lhs_shape, rhs_shape)
    dims = gemm_dims(folded.spec, folded.lhs_shape, folded.rhs_shape)
    in_bytes, out_bytes = np.dtype(dtype).itemsize, np.dtype(spec.out_dtype).itemsize
    padded = heuristics.aligned_dims(folded.spec, dims, in_bytes, out_bytes)
    if not padding_is_free and (refused := heuristics.padding_refusal(dims, padded)):
        return refused
    selection = select(folded.spec, dtype, padded, target, kernel_table(name))
    if isinstance(selection, str):
        return selection
    return KernelCall(name, selection, target, folded, dims, padded)


def run_on_device(lhs: jax.Array, rhs: jax.Array, spec: GemmSpec, platform: str) -> jax.Array:
    """Emits one device's GEMM by the first of ``spec.implementations`` that can run it there.

    Raises:
        NotImplementedError: None can (several: an ExceptionGroup of these).
    """
    dims = gemm_dims(spec, lhs.shape, rhs.shape)
    what = describe(spec, lhs.dtype.name, rhs.dtype.name, dims)
    refusals: list[tuple[str, str]] = []
    for name in spec.implementations:
        if name == "xla":
            for refused, reason in refusals:
                log_once(f"{what}: not {refused} ({reason}), using xla")
            return gemm_reference(lhs, rhs, spec)
        if dims.empty and platform == PLATFORMS[name]:  # no kernel has anything to run
            return jnp.zeros(out_shape(spec, dims), spec.out_dtype)
        call = choose(
            name,
            platform,
            spec,
            lhs.dtype.name,
            lhs.shape,
            rhs.shape,
            padding_is_free="xla" not in spec.implementations,
        )
        if isinstance(call, KernelCall):
            selected = call.selection
            log_once(
                f"{what}: {name} {selected.kernel.name}, raster {selected.raster_order}, "
                f"swizzle {selected.swizzle}, splits {selected.splits}; {selected.reason}"
            )
            return emit(call, lhs, rhs, out_shape(spec, dims))
        refusals.append((name, call))
    raise refusal_error(what, refusals)


def emit(
    call: KernelCall, lhs: jax.Array, rhs: jax.Array, shape: tuple[int, int, int]
) -> jax.Array:
    """Emits a kernel call: fold, pad, FFI call, slice, unfold; each only where needed."""
    folded, dims, padded = call.folded, call.dims, call.padded
    lhs = lhs if folded.lhs_perm is None else lhs.transpose(folded.lhs_perm)
    rhs = rhs if folded.rhs_perm is None else rhs.transpose(folded.rhs_perm)
    lhs = lhs.reshape(folded.lhs_shape)
    rhs = rhs.reshape(folded.rhs_shape)
    if padded != dims:
        more_m, more_n, more_k = padded.m - dims.m, padded.n - dims.n, padded.k - dims.k
        lhs = _pad(lhs, (more_m, more_k) if folded.spec.lhs_major == "k" else (more_k, more_m))
        rhs = _pad(rhs, (more_k, more_n) if folded.spec.rhs_major == "n" else (more_n, more_k))
    if call.implementation == "cutlass":
        target_name, workspace = runtime.GEMM_TARGET, runtime.workspace_bytes
    else:
        target_name, workspace = runtime.EMULATED_GEMM_TARGET, runtime.emulated_workspace_bytes
    selected = call.selection
    order: dict[str, int | str] = {}
    if selected.kernel.stream_k:  # the other kernels' workspace has nothing to do with the order
        order = {
            "raster_order": selected.raster_order,
            "swizzle": selected.swizzle,
            "decomposition": selected.decomposition,
        }
    scratch = workspace(
        selected.kernel.name,
        padded.m,
        padded.n,
        padded.k,
        padded.batch,
        selected.splits,
        call.target.sm_count,
        **order,
    )
    config = {
        "kernel": selected.kernel.name,
        "raster_order": selected.raster_order,
        "swizzle": np.int64(selected.swizzle),
        "splits": np.int64(selected.splits),
    }
    # Left out where it says nothing: what has no stream-K kernel runs in versions before these.
    if selected.decomposition != "heuristic":
        config["decomposition"] = selected.decomposition
    out, _ = jax.ffi.ffi_call(
        target_name,
        (
            jax.ShapeDtypeStruct((padded.batch, padded.m, padded.n), folded.spec.out_dtype),
            jax.ShapeDtypeStruct((scratch,), jnp.uint8),
        ),
    )(
        lhs,
        rhs,
        config=config,
    )
    return out[:, : dims.m, : dims.n].reshape(shape)


def _pad(x: jax.Array, more: tuple[int, int]) -> jax.Array:
    return jnp.pad(x, ((0, 0), (0, more[0]), (0, more[1]))) if any(more) else x


def _lower_for(platform: str) -> mlir.LoweringRule:
    def local(lhs: jax.Array, rhs: jax.Array, *, spec: GemmSpec) -> jax.Array:
        return run_on_device(lhs, rhs, spec, platform)

    return mlir.lower_fun(local, multiple_results=False)


def _lower_global(
    ctx: mlir.LoweringRuleContext, lhs: Any, rhs: Any, *, spec: GemmSpec
) -> Sequence[Any]:
    """Partitions over the mesh, unless the operands already are those of one device."""
    emit_with = partitioned_gemm
    if compat.is_manual(ctx):
        emit_with = local_gemm
        if automatic := compat.automatic_axes(ctx):
            # XLA partitions such regions in groups of devices: a custom partitioning would have
            # to speak of these groups, and one in terms of the whole mesh makes XLA abort.
            _refuse(spec, ctx.avals_in, f"mesh axes {automatic} are automatic inside shard_map")
            emit_with = gemm_reference
    rule = mlir.lower_fun(lambda a, b: emit_with(a, b, spec), multiple_results=False)
    return rule(ctx, lhs, rhs)


def _refuse(spec: GemmSpec, operands: Sequence[Any], reason: str) -> None:
    """Leaves a GEMM to XLA for a reason, if the user allows that.

    Raises:
        NotImplementedError: They do not (several kernel implementations: an ExceptionGroup).
    """
    lhs, rhs = operands
    dims = gemm_dims(spec, lhs.shape, rhs.shape)
    what = describe(spec, lhs.dtype.name, rhs.dtype.name, dims)
    if "xla" not in spec.implementations:
        raise refusal_error(what, [(name, reason) for name in spec.implementations])
    log_once(f"{what}: not {spec.implementations[0]} ({reason}), using xla")


compat.lower_with_devices(bw_gemm_p)
mlir.register_lowering(bw_gemm_p, compat.keep_typed_sharding(_lower_global))
mlir.register_lowering(bw_gemm_local_p, _lower_for("cuda"), platform="cuda")
mlir.register_lowering(bw_gemm_local_p, _lower_for("cpu"), platform="cpu")
mlir.register_lowering(bw_gemm_local_p, _lower_for("another platform"))
