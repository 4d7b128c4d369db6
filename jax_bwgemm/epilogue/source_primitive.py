"""The primitive ``bw_quantize_source_p``: quantization of a function of arrays.

Where the quantizing kernel computes the function, what it returns is never in memory. Everywhere
else, and for every transformation, it is `separate`: the function by XLA, then `bw_quantize_p`.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import core
from jax.interpreters import ad, batching, mlir

from jax_bwgemm import compat, compat_transforms
from jax_bwgemm.compat import Primitive
from jax_bwgemm.config import Target, make_target
from jax_bwgemm.epilogue.hook import VERSION
from jax_bwgemm.epilogue.linkable import linkable_kernels
from jax_bwgemm.epilogue.linking import (
    SEVERAL_DEVICES,
    first_linked,
    linked_kernel,
    linker_refusal,
    only_platform,
    start_linking,
)
from jax_bwgemm.epilogue.primitive import place_of
from jax_bwgemm.epilogue.source_hook import SourceHook, SourcePart
from jax_bwgemm.product.implementations import PLATFORMS, log_once, target_here
from jax_bwgemm.product.primitive import EXPLAINED_BESIDE
from jax_bwgemm.scaled import derivatives
from jax_bwgemm.scaled.quantize_primitive import emit, quantized
from jax_bwgemm.scaled.quantize_spec import QuantizeSpec

bw_quantize_source_p = Primitive("bw_quantize_source")
bw_quantize_source_p.multiple_results = True
EXPLAINED_BESIDE[bw_quantize_source_p] = "jax_bwgemm.epilogue.source_explain"


@dataclasses.dataclass(frozen=True, repr=False)
class QuantizedSource:
    """What is computed: hashable, the primitive's only parameter.

    Operands are the arrays, then those of `QuantizeSpec.operand_names` but for x.

    Attributes:
        spec: The quantization.
        function: ``f(*arrays)``: x, [1, R, K].
        parts: The same for the kernel.
        arrays: How many.
        dtype: Name of x's type, of 16 bits.
        shape: Its shape.
    """

    spec: QuantizeSpec
    function: Callable[..., jax.Array]
    parts: tuple[SourcePart, ...]
    arrays: int
    dtype: str
    shape: tuple[int, ...]

    def __repr__(self) -> str:
        steps = "+".join(str(len(part.program.steps)) for part in self.parts)
        return f"<{self.spec.describe(self.shape, self.dtype)}, of {steps} steps>"

    def hook(self, arch: str) -> SourceHook:
        """The functions for a kernel."""
        spec = self.spec
        e5m2 = jnp.dtype(spec.dtype) == jnp.float8_e5m2
        return SourceHook(self.parts, self.dtype, arch, e5m2, spec.transposed, spec.stochastic)


def quantized_source(
    arrays: Sequence[jax.Array], rest: Sequence[jax.Array], source: QuantizedSource
) -> list[jax.Array]:
    """Binds the primitive."""
    return bw_quantize_source_p.bind(*compat.match_varying(*arrays, *rest), source=source)


def separate(*operands: jax.Array, source: QuantizedSource) -> list[jax.Array]:
    """The function by XLA, then the quantization by its own primitive."""
    arrays, rest = operands[: source.arrays], operands[source.arrays :]
    return list(quantized([source.function(*arrays), *rest], source.spec))


def source_refusal(source: QuantizedSource) -> str | None:
    """Why no kernel will compute the function in this process; None when one will."""
    if only_platform() is None:
        return SEVERAL_DEVICES
    if reason := linker_refusal():
        return reason
    reasons = []
    for name in source.spec.implementations:
        if name == "xla":
            continue
        platform = PLATFORMS[name]
        target = kernel_target(name, platform, source.spec.target)
        if isinstance(target, Target):
            return None
        reasons.append(target)
    return "; ".join(reasons) or "only 'xla' is allowed"


def kernel_target(name: str, platform: str, target: Target | None) -> Target | str:
    """The GPU whose kernel is linked, or why there is none."""
    if name == "emulator":
        target = target or make_target("sm90")  # that the emulator quantizes for by itself
    found = target_here(name, platform, target)
    if isinstance(found, str):
        return found
    if f"{found.arch}_quantize_bfloat16" not in linkable_kernels():
        return "this installation has no quantizing kernel that functions are linked into"
    return found


def _abstract_eval(*operands: core.ShapedArray, source: QuantizedSource) -> list[core.ShapedArray]:
    # Linking takes seconds: it begins now, for all of a program's kernels side by side.
    here = only_platform()
    for name in source.spec.implementations:
        if here is None or PLATFORMS.get(name) != here:
            continue
        target = kernel_target(name, here, source.spec.target)
        if isinstance(target, Target):
            hook = source.hook(target.arch)
            start_linking(hook.kernel, hook, ptx=name == "emulator")
            break
    plain = (core.ShapedArray(x.shape, x.dtype) == x.update(weak_type=False) for x in operands)
    if all(plain):
        spec = source.spec
        shapes = (spec.shape(name, source.shape) for name in spec.result_names)
        return [core.ShapedArray(s.shape, s.dtype) for s in shapes]
    return compat.result_avals(functools.partial(separate, source=source), *operands)


def _batch(
    operands: Sequence[jax.Array], axes: Sequence[int | None], *, source: QuantizedSource
) -> tuple[list[jax.Array], list[int]]:
    results = jax.vmap(functools.partial(separate, source=source), in_axes=tuple(axes))(*operands)
    return results, [0] * len(results)


def _lower(ctx: mlir.LoweringRuleContext, *operands: Any, source: QuantizedSource) -> Any:
    spec = source.spec
    target, platform, reason = place_of(ctx, spec.implementations, spec.target)

    def local(*xs: jax.Array) -> list[jax.Array]:
        if reason is not None:
            found: list[jax.Array] | str = reason
        else:
            found = first_linked(spec.implementations, platform, lambda name: attempt(name, xs))
        if not isinstance(found, str):
            return found
        log_once(f"{source}: the function is a pass of its own: {found}")
        return separate(*xs, source=source)

    def attempt(name: str, xs: Sequence[jax.Array]) -> list[jax.Array] | str:
        gpu = kernel_target(name, platform, target)
        if isinstance(gpu, str):
            return gpu
        hook = source.hook(gpu.arch)
        code = linked_kernel(hook.kernel, hook, ptx=name == "emulator")
        arrays, rest = xs[: source.arrays], xs[source.arrays :]
        given = {f"x{i}": x for i, x in enumerate(arrays)}
        given |= dict(zip(spec.operand_names[1:], rest, strict=True))
        words = [f"{jnp.dtype(x.dtype).name}:{x.size}" for x in arrays]
        config = {
            "kernel": hook.kernel,
            "source": code.code,
            "source_digest": code.digest,
            "source_version": np.int64(VERSION),
            "source_operands": " ".join(words),
        }
        return list(emit(name, given, source.shape, spec, config))

    rule = mlir.lower_fun(local, multiple_results=True)
    return rule(ctx, *operands)


compat.implement_by_jit(bw_quantize_source_p, "source")
bw_quantize_source_p.def_abstract_eval(_abstract_eval)
ad.primitive_jvps[bw_quantize_source_p] = derivatives.of_quantization
batching.primitive_batchers[bw_quantize_source_p] = _batch
compat_transforms.transform_as(bw_quantize_source_p, separate)
compat.lower_with_devices(bw_quantize_source_p)
mlir.register_lowering(bw_quantize_source_p, _lower)
