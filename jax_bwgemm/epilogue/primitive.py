"""Primitives of a product and an elementwise function of it; ``bw_gemm_epilogue_p``: a dense one.

Where a kernel takes the function, it is one call. Everywhere else, and for every transformation, it
is `separate`: the product's own primitive, then the function by XLA.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import core
from jax.interpreters import ad, batching, mlir

from jax_bwgemm import compat, compat_transforms, runtime
from jax_bwgemm.compat import Primitive
from jax_bwgemm.config import Target, explicit_target
from jax_bwgemm.epilogue.batching import batched, first_axis
from jax_bwgemm.epilogue.call import prepare_linked, run_linked
from jax_bwgemm.epilogue.fused import Fused
from jax_bwgemm.epilogue.linking import (
    SEVERAL_DEVICES,
    default_platform,
    linker_refusal,
    only_platform,
)
from jax_bwgemm.product.implementations import PLATFORMS, log_once
from jax_bwgemm.product.primitive import EXPLAINED_BY

bw_gemm_epilogue_p = Primitive("bw_gemm_epilogue")
bw_gemm_epilogue_p.multiple_results = True


def gemm_with_epilogue(
    a: jax.Array, b: jax.Array, operands: Sequence[jax.Array], fused: Fused
) -> list[jax.Array]:
    """Binds the primitive.

    Args:
        a: A as `gemm` takes it.
        b: B, likewise.
        operands: Arrays that broadcast to ``fused.shape``.
        fused: What is computed.
    """
    return bw_gemm_epilogue_p.bind(*compat.match_varying(a, b, *operands), fused=fused)


def separate(*operands: jax.Array, fused: Fused) -> list[jax.Array]:
    """The product by its own primitive, then the function by XLA."""
    factors, rest = fused.factors(operands)
    product = fused.product(*factors)
    results = fused.apply(product, factors, rest)
    return [*results, *fused.parts(product)] if fused.keeps_product else list(results)


def link_refusal(operands: Sequence[Any], fused: Fused) -> str | None:
    """Why the function will not be part of a kernel in this process; None when it will.

    Args:
        operands: The product's operands, or their types.
        fused: What is computed.
    """
    if only_platform() is None:
        return SEVERAL_DEVICES
    return kernel_refusal(operands, fused)


def kernel_refusal(operands: Sequence[Any], fused: Fused) -> str | None:
    """As `link_refusal`, of programs that XLA does not partition."""
    if reason := linker_refusal():
        return reason
    here = default_platform()
    reasons = []
    for name in fused.spec.policy.implementations:
        platform = PLATFORMS.get(name)
        if platform is None or (platform != here and explicit_target() is None):
            continue
        call = fused.choose(name, platform, operands)
        if not isinstance(call, str):
            return None
        reasons.append(call)
    return "; ".join(reasons) or f"no kernels for {here} are allowed"


def _abstract_eval(*operands: core.ShapedArray, fused: Fused) -> list[core.ShapedArray]:
    # Linking takes seconds: it begins now, for all of a program's products side by side.
    factors, _ = fused.factors(operands)
    implementations = fused.spec.policy.implementations
    for one in fused.attempts():
        more = one.program, one.result_types, one.form
        if prepare_linked(one.choose, factors, implementations, *more):
            break
    plain = (core.ShapedArray(x.shape, x.dtype) == x.update(weak_type=False) for x in operands)
    if all(plain):
        return [core.ShapedArray(shape, jnp.dtype(t)) for shape, t in fused.outputs]
    return compat.result_avals(functools.partial(separate, fused=fused), *operands)


def _jvp(
    primals: Sequence[jax.Array], tangents: Sequence[Any], *, fused: Fused, primitive: Primitive
) -> tuple[list[jax.Array], list[jax.Array]]:
    """The function's derivative at the rounded product, which is then a second result."""
    factors, operands = fused.factors(primals)
    moved, operand_tangents = fused.factors(tangents)
    kept = fused if fused.keeps_product else fused.with_product()
    results = primitive.bind(*compat.match_varying(*primals), fused=kept)
    product = fused.whole(results[-fused.products :])
    moving = fused.tangents(factors, moved)
    toward = sum(moving[1:], moving[0]) if moving else jnp.zeros_like(product)
    operand_tangents = [ad.instantiate_zeros(t) for t in operand_tangents]
    _, out = jax.jvp(
        lambda z, *xs: fused.apply(z, factors, xs),
        (product, *operands),
        (toward, *operand_tangents),
    )
    if fused.keeps_product:
        return results, [*out, *fused.parts(toward)]
    return results[: -fused.products], list(out)


def _transpose(
    cotangents: Sequence[Any], *operands: Any, fused: Fused
) -> list[jax.Array | ad.Zero | None]:
    """Of a function that is linear in the operands that are not known, after the product."""
    unknown = [ad.is_undefined_primal(x) for x in operands]

    def linear(*wanted: jax.Array) -> list[jax.Array]:
        rest = iter(wanted)
        whole = [next(rest) if u else x for u, x in zip(unknown, operands, strict=True)]
        return separate(*whole, fused=fused)

    # A linear function's derivative is itself, anywhere.
    zeros = [
        ad.instantiate_zeros(ad.Zero(x.aval)) for x, u in zip(operands, unknown, strict=True) if u
    ]
    results, pulled = jax.vjp(linear, *zeros)
    given = [
        np.zeros(r.shape, jax.dtypes.float0)
        if not jnp.issubdtype(r.dtype, jnp.inexact)
        else ad.instantiate_zeros(c)
        for r, c in zip(results, cotangents, strict=True)
    ]
    found = iter(pulled(given))
    return [next(found) if u else None for u in unknown]


def _batch(
    operands: Sequence[jax.Array], axes: Sequence[int | None], *, fused: Fused
) -> tuple[list[jax.Array], list[int]]:
    # vmap passes an operand that is not mapped with axis None.
    results = jax.vmap(functools.partial(separate, fused=fused), in_axes=tuple(axes))(*operands)
    return results, [0] * len(results)


def _batch_dense(
    operands: Sequence[jax.Array], axes: Sequence[int | None], *, fused: Fused
) -> tuple[list[jax.Array], list[int]]:
    moved = [first_axis(x, d) for x, d in zip(operands, axes, strict=True)]
    mapped = [d is not None for d in axes]
    size = next(x.shape[0] for x, own in zip(moved, mapped, strict=True) if own)
    if size == 1:
        one = [x[0] if own else x for x, own in zip(moved, mapped, strict=True)]
        results = gemm_with_epilogue(*one[:2], one[2:], fused)
        return [x[None] for x in results], [0] * len(results)
    found = batched(moved, mapped, fused) if isinstance(size, int) else None
    if found is None:
        return _batch(operands, axes, fused=fused)
    (a, b, *rest), more = found
    return gemm_with_epilogue(a, b, rest, more), [0] * len(more.outputs)


def one_device(ctx: mlir.LoweringRuleContext, spec: Any) -> tuple[Any, str, str | None]:
    """The product as lowered for one device, the platform, and why no epilogue is linked here.

    The last is None where one may be.
    """
    policy = spec.policy
    target, platform, reason = place_of(ctx, policy.implementations, policy.target)
    return spec.with_policy(target=target), platform, reason


def place_of(
    ctx: mlir.LoweringRuleContext, implementations: Sequence[str], target: Target | None
) -> tuple[Target | None, str, str | None]:
    """The GPU and the platform that a program is lowered for, and why nothing is linked here.

    The last is None where something may be.
    """
    platforms = ctx.module_context.platforms
    if compat.is_partitioned(ctx):
        return target, platforms[0], "XLA partitions this program"
    if len(platforms) != 1:
        return target, platforms[0], "the program is lowered for several platforms"
    if target is None and "cutlass" in implementations:
        found = runtime.common_target(compat.lowering_devices(ctx))
        if found is not None and found.target is not None:
            target = found.target
    return target, platforms[0], None


def _lower(ctx: mlir.LoweringRuleContext, *operands: Any, fused: Fused) -> Sequence[Any]:
    spec, platform, reason = one_device(ctx, fused.spec)
    fused = dataclasses.replace(fused, spec=spec)

    def local(*xs: jax.Array) -> list[jax.Array]:
        refusals = []
        what, _ = fused.describe(fused.factors(xs)[0])
        for one in fused.attempts() if reason is None else ():
            linked = run_linked(
                one.choose,
                one.roles,
                xs,
                spec.policy.implementations,
                one.program,
                one.result_types,
                one.shape,
                platform,
                form=one.form,
                batch_dims=one.batch_dims,
                arrange=one.arrange,
            )
            if isinstance(linked, str):
                refusals.append(linked)
            elif one is fused:
                return linked
            else:
                log_once(f"{what}: sums are passes of their own: {refusals[0]}")
                return fused.completed(linked)
        if refusals:
            log_once(f"{what}: the epilogue is a pass of its own: {refusals[-1]}")
        return separate(*xs, fused=fused)

    rule = mlir.lower_fun(local, multiple_results=True)
    return rule(ctx, *operands)


def register(primitive: Primitive) -> None:
    """Registers the rules of a primitive whose only parameter is a `Fused`."""
    EXPLAINED_BY[primitive] = "jax_bwgemm.epilogue.explain"
    compat.implement_by_jit(primitive, "fused")
    primitive.def_abstract_eval(_abstract_eval)
    ad.primitive_jvps[primitive] = functools.partial(_jvp, primitive=primitive)
    ad.primitive_transposes[primitive] = _transpose
    batching.primitive_batchers[primitive] = _batch
    compat_transforms.transform_as(primitive, separate)
    compat.lower_with_devices(primitive)
    mlir.register_lowering(primitive, _lower)


register(bw_gemm_epilogue_p)
batching.primitive_batchers[bw_gemm_epilogue_p] = _batch_dense
