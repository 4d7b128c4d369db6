"""The primitive ``bw_quantize_p``: batching, partitioning and lowering. It has no derivative."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import core
from jax.interpreters import ad, batching, mlir

from jax_bwgemm import compat, runtime
from jax_bwgemm.compat import Primitive
from jax_bwgemm.product.devices import first_that_runs, for_devices, register_local
from jax_bwgemm.product.implementations import (
    log_once,
    target_here,
    viable,
)
from jax_bwgemm.product.primitive import EXPLAINED_BESIDE
from jax_bwgemm.product.spec import MAX_SIZE
from jax_bwgemm.product.targets import QUANTIZE_TARGETS, settled
from jax_bwgemm.scaled import derivatives
from jax_bwgemm.scaled.layouts import FLOAT32
from jax_bwgemm.scaled.quantize_partition import partitioned
from jax_bwgemm.scaled.quantize_reference import quantize_reference
from jax_bwgemm.scaled.quantize_spec import QuantizeSpec

bw_quantize_p = Primitive("bw_quantize")
bw_quantize_p.multiple_results = True
EXPLAINED_BESIDE[bw_quantize_p] = "jax_bwgemm.scaled.quantize_explain"
# The one-device primitive that partitioning produces.
bw_quantize_local_p = Primitive("bw_quantize_local")
bw_quantize_local_p.multiple_results = True

_X_DTYPES = tuple(np.dtype(d) for d in (jnp.bfloat16, jnp.float16, jnp.float32))


def quantized(operands: Sequence[jax.Array], spec: QuantizeSpec) -> tuple[jax.Array, ...]:
    """Quantizes [B, R, K] by the first implementation that can.

    Args:
        operands: Those of `QuantizeSpec.operand_names`.
        spec: What to compute.

    Returns:
        The results of `QuantizeSpec.result_names`.

    Raises:
        NotImplementedError: No implementation can run it (several: an ExceptionGroup of these).
    """
    names = viable_implementations(operands[0], spec)
    if names[0] == "xla":
        by_xla = functools.partial(quantize_reference, spec=spec)
        return derivatives.without(derivatives.of_quantization, by_xla)(*operands)
    spec = dataclasses.replace(spec, implementations=names)
    return tuple(bw_quantize_p.bind(*compat.match_varying(*operands), spec=spec))


def viable_implementations(x: Any, spec: QuantizeSpec) -> tuple[str, ...]:
    """Those left to try, knowing everything but the device. Reasons are logged once.

    Raises:
        NotImplementedError, ExceptionGroup: As `quantized`.
    """
    what = spec.describe(x.shape, x.dtype)
    return viable(spec.implementations, what, lambda name: refusal(name, spec, x), [])


def refusal(name: str, spec: QuantizeSpec, x: Any) -> str | None:
    """Why an implementation cannot quantize on any device; None when it may."""
    if not runtime.has_target(name, QUANTIZE_TARGETS[name]):
        return "jax_bwgemm was installed without kernels that quantize"
    if spec.layout.scale_dtype != FLOAT32:
        return f"kernels write f32 scales, not those of {spec.scaling}"
    if x.dtype not in _X_DTYPES:
        return f"kernels read bfloat16, float16 and float32, not {x.dtype}"
    if not all(isinstance(size, int) for size in x.shape):
        return "sizes are symbolic"
    if max(x.shape) > MAX_SIZE:
        return f"size {max(x.shape)} exceeds {MAX_SIZE}"
    return None


def emit(
    name: str,
    operands: Mapping[str, jax.Array],
    x_shape: tuple[int, ...],
    spec: QuantizeSpec,
    more: Mapping[str, Any],
) -> tuple[jax.Array, ...]:
    """The kernel's call.

    Args:
        name: The implementation.
        operands: By their roles.
        x_shape: Shape of what is quantized.
        spec: The quantization.
        more: What else the call's attribute has.
    """
    given = dict(operands)
    if spec.given_scales and spec.transposed and not spec.own_scales:
        given["t_scales"] = given["scales"]
    batch, rows, k = x_shape
    shapes = [spec.shape(result, x_shape) for result in spec.result_names]
    if spec.amax:  # the kernel's: of each of its tiles
        shapes[-1] = jax.ShapeDtypeStruct((batch, -(-rows // 128) * -(-k // 128)), FLOAT32)
    config: dict[str, Any] = {
        "operands": " ".join(given),
        "results": " ".join(spec.result_names),
        "scaling": spec.scaling,
        **more,
    }
    if spec.power_of_two:
        config["power_of_two"] = np.int64(1)
    if spec.epsilon:
        config["epsilon"] = np.float32(spec.epsilon)
    call = jax.ffi.ffi_call(QUANTIZE_TARGETS[name], shapes)
    results = settled(name, call(*given.values(), config=config))
    if spec.amax:
        bits = jax.lax.bitcast_convert_type(results[-1], jnp.int32)
        results[-1] = jax.lax.bitcast_convert_type(jnp.max(bits, 1), jnp.float32)
    return tuple(results)


def _shapes(operands: Sequence[Any], spec: QuantizeSpec) -> list[jax.ShapeDtypeStruct]:
    return [spec.shape(name, operands[0].shape) for name in spec.result_names]


def _abstract_eval(*operands: core.ShapedArray, spec: QuantizeSpec) -> list[core.ShapedArray]:
    plain = (core.ShapedArray(x.shape, x.dtype) == x.update(weak_type=False) for x in operands)
    if all(plain):
        return [core.ShapedArray(s.shape, s.dtype) for s in _shapes(operands, spec)]
    return compat.result_avals(lambda *args: quantize_reference(*args, spec=spec), *operands)


def _local_abstract_eval(*operands: core.ShapedArray, spec: QuantizeSpec) -> list[core.ShapedArray]:
    return [core.ShapedArray(s.shape, s.dtype) for s in _shapes(operands, spec)]


def _batch(
    operands: Sequence[jax.Array], axes: Sequence[int | None], *, spec: QuantizeSpec
) -> tuple[list[jax.Array], list[int]]:
    """Merges the new dimension into the batch."""
    size = next(x.shape[a] for x, a in zip(operands, axes, strict=True) if a is not None)

    def merged(x: jax.Array, axis: int | None) -> jax.Array:
        if axis is None:
            x = jnp.broadcast_to(x, (size, *x.shape))
        else:
            x = jnp.moveaxis(x, axis, 0)
        return x.reshape(size * x.shape[1], *x.shape[2:])

    found = quantized([merged(x, a) for x, a in zip(operands, axes, strict=True)], spec)
    matrices = next(n for d, n in enumerate(operands[0].shape) if d != axes[0])
    found = [x.reshape(size, matrices, *x.shape[1:]) for x in found]
    return found, [0] * len(found)


def _local(*operands_and_spec: Any) -> tuple[jax.Array, ...]:
    *operands, spec = operands_and_spec
    return tuple(bw_quantize_local_p.bind(*operands, spec=spec))


_partitioned = partitioned(_local)


def _lower(ctx: mlir.LoweringRuleContext, *operands: Any, spec: QuantizeSpec) -> Any:
    """Partitions over the mesh, unless the operands already are those of one device."""
    names, target = for_devices(
        ctx,
        spec.implementations,
        spec.target,
        lambda: spec.describe(ctx.avals_in[0].shape, ctx.avals_in[0].dtype),
    )
    given = dataclasses.replace(spec, implementations=names, target=target)
    function: Any = _partitioned(given)
    if compat.is_manual(ctx):
        function = functools.partial(bw_quantize_local_p.bind, spec=given)
        if compat.automatic_axes(ctx):  # XLA partitions the reference itself
            function = functools.partial(quantize_reference, spec=given)
    rule = mlir.lower_fun(function, multiple_results=True)
    return compat.without_types_of_axes(rule)(ctx, *operands)


def _run_on_device(
    platform: str, *operands: jax.Array, spec: QuantizeSpec
) -> tuple[jax.Array, ...]:
    what = spec.describe(operands[0].shape, operands[0].dtype)

    def attempt(name: str) -> tuple[jax.Array, ...] | str:
        target = target_here(name, platform, spec.target)
        if isinstance(target, str):
            return target
        if 0 in operands[0].shape:  # no kernel has anything to run
            return reference()
        log_once(f"{what}: {name}")
        given = dict(zip(spec.operand_names, operands, strict=True))
        return emit(name, given, operands[0].shape, spec, {})

    def reference() -> tuple[jax.Array, ...]:
        return quantize_reference(*operands, spec=spec)

    return first_that_runs(what, spec.implementations, attempt, reference)


compat.implement_by_jit(bw_quantize_p, "spec")
ad.primitive_jvps[bw_quantize_p] = derivatives.of_quantization
bw_quantize_p.def_abstract_eval(_abstract_eval)
bw_quantize_local_p.def_abstract_eval(_local_abstract_eval)
batching.primitive_batchers[bw_quantize_p] = _batch
compat.lower_with_devices(bw_quantize_p)
mlir.register_lowering(bw_quantize_p, _lower)
register_local(bw_quantize_local_p, lambda platform: functools.partial(_run_on_device, platform))
