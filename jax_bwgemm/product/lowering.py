"""Lowering of a product: choose an implementation for the device, then emit it."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.interpreters import mlir

from jax_bwgemm import compat
from jax_bwgemm.compat import Primitive
from jax_bwgemm.product.contraction import Contraction, KernelCall
from jax_bwgemm.product.devices import first_that_runs, for_devices, register_local
from jax_bwgemm.product.dtypes import narrowest_bytes, operand_types
from jax_bwgemm.product.ffi import emit
from jax_bwgemm.product.implementations import (
    PLATFORMS,
    log_once,
    rounded_types,
    target_here,
)
from jax_bwgemm.product.local import binder
from jax_bwgemm.product.partition import partitioned
from jax_bwgemm.product.spec import MAX_SIZE, ProductSpec
from jax_bwgemm.product.terms import BF16, Terms, in_terms, unmeasured
from jax_bwgemm.product.windows import NONE, Windows


def choose(
    contraction: Contraction,
    name: str,
    platform: str,
    spec: ProductSpec,
    dtypes: Sequence[str],
    shapes: Sequence[Sequence[int]],
) -> KernelCall | str:
    """Decides the FFI call of a kernel implementation for one device's operands.

    Where the user asked for nothing but kernels, unaligned problems are padded at any cost.

    Args:
        contraction: The family of products.
        name: ``"cutlass"`` or ``"emulator"``.
        platform: JAX platform being lowered for.
        spec: The problem.
        dtypes: Types of A and B, as the kernel gets them.
        shapes: The operands' shapes on this device.

    Returns:
        The call, or the reason why this implementation cannot run here.

    Raises:
        NotImplementedError: The kernel that the user's configuration leads to refuses these sizes.
    """
    target = target_here(name, platform, spec.policy.target)
    if isinstance(target, str):
        return target
    if refused := unmeasured(spec, dtypes, target):
        return refused
    if terms := in_terms(contraction, spec, dtypes, target):
        return _choose_in_terms(contraction, name, platform, terms, shapes)
    folded, dims, padded = _aligned(contraction, spec, dtypes, shapes)
    types = operand_types(*dtypes)
    if not spec.policy.only_kernels and (refused := contraction.padding_refusal(dims, padded)):
        return refused
    table = contraction.kernels(name)
    selection = contraction.select(folded.spec, types, padded, target, table)
    if isinstance(selection, str):
        return selection
    call = KernelCall(name, selection, target, folded, dims, padded)
    try:
        return dataclasses.replace(call, ffi=contraction.ffi_call(call))
    except ValueError as refused:  # the compiled code's own checks of sizes
        reason = f"kernel {selection.kernel.name!r} refuses these sizes: {refused}"
        if spec.policy.config is None:
            return reason
        raise NotImplementedError(
            f"{spec.policy.config} cannot be satisfied: {reason}"
        ) from refused


def padding_refusal(
    contraction: Contraction,
    spec: ProductSpec,
    dtypes: Sequence[str],
    shapes: Sequence[Sequence[int]],
) -> str | None:
    """Why a problem is not worth padding for a kernel; None if it is, or needs none.

    Args:
        contraction: The family of products.
        spec: The problem.
        dtypes: As in `choose`.
        shapes: As in `choose`.
    """
    _, dims, padded = _aligned(contraction, spec, dtypes, shapes)
    return contraction.padding_refusal(dims, padded)


def _aligned(
    contraction: Contraction,
    spec: ProductSpec,
    dtypes: Sequence[str],
    shapes: Sequence[Sequence[int]],
) -> tuple[Any, Any, Any]:
    """The folded problem, its sizes, and those that kernels can address."""
    folded = contraction.fold(spec, shapes)
    dims = contraction.dims(folded.spec, *folded.shapes)
    in_bytes = narrowest_bytes(operand_types(*dtypes))
    out_bytes = np.dtype(spec.out_dtype).itemsize
    return folded, dims, contraction.aligned_dims(folded.spec, dims, in_bytes, out_bytes)


def _choose_in_terms(
    contraction: Contraction,
    name: str,
    platform: str,
    terms: Terms,
    shapes: Sequence[Sequence[int]],
) -> KernelCall | str:
    """As `choose`, of a product whose operands are terms."""
    inner = terms.shapes(shapes)
    size = contraction.largest(terms.spec, contraction.dims(terms.spec, *inner))
    if size > MAX_SIZE:
        return f"{terms}: size {size} exceeds {MAX_SIZE}"
    call = choose(contraction, name, platform, terms.spec, (BF16, BF16), inner)
    return call if isinstance(call, str) else dataclasses.replace(call, terms=terms)


def run_on_device(
    contraction: Contraction,
    operands: tuple[jax.Array, ...],
    spec: ProductSpec,
    platform: str,
    windows: Windows = NONE,
) -> jax.Array:
    """Emits one device's product by the first of its implementations that can run it there.

    Args:
        contraction: The family of products.
        operands: The device's.
        spec: The problem.
        platform: JAX platform being lowered for.
        windows: Larger arrays that operands are copies of, and that the result belongs to.

    Returns:
        The product, or the whole array that it belongs to.

    Raises:
        NotImplementedError: None can (several: an ExceptionGroup of these).
    """
    shapes = [x.shape for x in operands]
    dims = contraction.dims(spec, *shapes)
    if dims.batch == 1:
        spec = dataclasses.replace(spec, reduce_batch=False)
    dtypes = [x.dtype.name for x in operands[:2]]
    what = spec.describe(dtypes, dims)
    rounded = rounded_types(dtypes, spec.policy.precision)

    def again(*operands_and_spec: Any) -> jax.Array:
        *inner, one = operands_and_spec
        return run_on_device(contraction, tuple(inner), one, platform)

    def attempt(name: str) -> jax.Array | str:
        if platform == PLATFORMS[name]:
            if dims.empty:  # no kernel has anything to run
                return windows.written(jnp.zeros(contraction.out_shape(spec, dims), spec.out_dtype))
            rewritten = contraction.rewrite(again, operands, spec)
            if rewritten is not None:
                return windows.written(rewritten)
        call = choose(contraction, name, platform, spec, rounded, shapes)
        if isinstance(call, str):
            return call
        log_once(f"{what}: {name} {call.selection}{f', {call.terms}' if call.terms else ''}")
        inputs = [x.astype(dtype) for x, dtype in zip(operands[:2], rounded, strict=True)]
        inputs += operands[2:]
        if call.terms is None:
            # Rounding makes new arrays, without windows.
            same = list(rounded) == dtypes
            own = windows if same else dataclasses.replace(windows, operands={})
            return emit(contraction, call, inputs, contraction.out_shape(spec, dims), own)
        inputs = call.terms.operands(*inputs)
        inner = contraction.dims(call.terms.spec, *(x.shape for x in inputs))
        out = emit(contraction, call, inputs, contraction.out_shape(call.terms.spec, inner))
        return windows.written(call.terms.result(out))

    def reference() -> jax.Array:
        return windows.written(contraction.reference(windows.ordered(operands), spec))

    return first_that_runs(what, spec.policy.implementations, attempt, reference)


def register(contraction: Contraction, primitive: Primitive, local: Primitive) -> None:
    """Registers the lowering rules of a primitive and of the one-device primitive it becomes.

    Several primitives may become the same one.
    """
    local_bind = binder(local)
    partitioned_bind = partitioned(contraction, local_bind)

    def lower(ctx: mlir.LoweringRuleContext, *operands: Any, spec: ProductSpec) -> Sequence[Any]:
        """Partitions over the mesh, unless the operands already are those of one device."""

        def what() -> str:
            dims = contraction.dims(spec, *(x.shape for x in ctx.avals_in))
            return spec.describe([x.dtype.name for x in ctx.avals_in[:2]], dims)

        names, target = for_devices(ctx, spec.policy.implementations, spec.policy.target, what)
        given = spec.with_policy(implementations=names, target=target)
        bind = local_bind if compat.is_manual(ctx) else partitioned_bind
        rule = mlir.lower_fun(lambda *args: bind(*args, given), multiple_results=False)
        return compat.without_types_of_axes(rule)(ctx, *operands)

    compat.lower_with_devices(primitive)
    mlir.register_lowering(primitive, compat.keep_typed_sharding(lower))

    def on_device(platform: str, *operands: jax.Array, spec: ProductSpec) -> jax.Array:
        return run_on_device(contraction, operands, spec, platform)

    register_local(local, lambda platform: functools.partial(on_device, platform))
