"""The public product of scaled operands: validate, then one batch of products."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from jax_bwgemm import compat
from jax_bwgemm.config import current_partial_sums, explicit_target
from jax_bwgemm.dense.validation import as_dtype
from jax_bwgemm.product.implementations import as_implementations
from jax_bwgemm.product.spec import Policy
from jax_bwgemm.scaled.conversions import as_operand
from jax_bwgemm.scaled.layouts import FLOAT32, layout_of, multipliable
from jax_bwgemm.scaled.primitive import DENSE
from jax_bwgemm.scaled.reference import scaled_reference
from jax_bwgemm.scaled.scaled_array import ScaledArray, check
from jax_bwgemm.scaled.spec import ACCUMULATIONS, ScaledDims, ScaledSpec

OUT_DTYPES = tuple(np.dtype(d) for d in (jnp.bfloat16, jnp.float16, jnp.float32))


def scaled_matmul(
    a: Any,
    b: Any,
    *,
    preferred_element_type: DTypeLike = jnp.bfloat16,
    accumulation: str = "promoted",
    implementation: str | Sequence[str] | None = None,
) -> jax.Array:
    """The product ``a @ b.mT`` of scaled operands, both with K last, as `jax.nn.scaled_matmul`.

    D[..., m, n] is the sum over k of a's value times its scale times b's value times its scale,
    accumulated in float32 and rounded once. Any two layouts can be multiplied. ``mxfp4`` is
    widened to ``mxfp8``, exactly. Scales of 128
    elements along K multiply sums of 128 products, those of whole rows the whole sum.

    It has no derivative: those of the values would be unscaled 8-bit numbers. `fp8_dot_general`
    is differentiable.

    Args:
        a: [..., M, K]. Also a qwix `QArray`, or a pair of values and scales as
            `jax.nn.scaled_matmul` takes them: see `as_scaled_array`.
        b: [..., N, K], likewise. Leading dimensions are those of a, or one of the two has none.
        preferred_element_type: Type of the result: bfloat16, float16 or float32.
        accumulation: ``"promoted"``: sums of at most 128 products are added in float32, since
            Hopper's FP8 accumulators keep 14 bits. ``"fast"``: the hardware's accumulators for all
            of K. Layouts with blocks of 128 along K are always promoted.
        implementation: As in `jax_bwgemm.matmul`.

    Returns:
        [..., M, N].

    Raises:
        TypeError: Operands that are none of these, shapes that do not fit together, or another
            result type. Differentiating also raises it.
        ValueError: An unknown accumulation or implementation.
        NotImplementedError: The named implementation cannot run the product.
        ExceptionGroup: Of NotImplementedError: none of several implementations can.
    """
    a, b = as_operand(a, "scaled_matmul: a"), as_operand(b, "scaled_matmul: b")
    spec, _ = specification(a, b, preferred_element_type, accumulation, implementation)

    def like(a: jax.Array, b: jax.Array) -> jax.Array:
        return jnp.matmul(a, jnp.swapaxes(b, -1, -2))

    def sharding() -> tuple[Any, ...]:
        wide = (jax.typeof(x.values).update(dtype=FLOAT32) for x in (a, b))
        return compat.spec_of(*compat.result_avals(like, *wide))

    return compat.in_automatic_axes(
        functools.partial(_without_derivative, spec=spec), sharding, a, b
    )


def within_derivative(a: ScaledArray, b: ScaledArray, **options: Any) -> jax.Array:
    """`scaled_matmul`, all its options given, for functions with a derivative of their own.

    Nothing wraps the primitive: policies of `jax.checkpoint` do not look into a custom_jvp.
    """
    a, b = as_operand(a, "a"), as_operand(b, "b")
    return _product(a, b, specification(a, b, **options)[0])


def specification(
    a: ScaledArray,
    b: ScaledArray,
    preferred_element_type: DTypeLike,
    accumulation: str,
    implementation: str | Sequence[str] | None,
) -> tuple[ScaledSpec, ScaledDims]:
    """Checks a call: what is static about it, and its sizes. Errors are those of the call."""
    implementations = as_implementations(implementation)
    out_dtype = check_product("scaled_matmul", a, b, preferred_element_type, accumulation)
    if a.ndim > 2 and b.ndim > 2 and a.shape[:-2] != b.shape[:-2]:
        raise TypeError(
            f"scaled_matmul: leading dimensions of a {a.shape} and b {b.shape} must be equal, or "
            "one of the two must have none"
        )
    batch = math.prod(a.shape[:-2] or b.shape[:-2])
    dims = ScaledDims(
        batch, a.shape[-2], b.shape[-2], a.shape[-1], np.dtype(a.dtype).name, np.dtype(b.dtype).name
    )
    policy = Policy(
        implementations=implementations,
        target=explicit_target(),
        partial_sums=current_partial_sums(),
    )
    spec = ScaledSpec(
        a_scaling=a.scaling,
        b_scaling=b.scaling,
        accumulation=accumulation,
        out_dtype=out_dtype.name,
        policy=policy,
    )
    return spec, dims


def check_product(
    function: str,
    a: ScaledArray,
    b: ScaledArray,
    preferred_element_type: DTypeLike,
    accumulation: str,
) -> np.dtype:
    """Checks what all scaled products ask of their arguments; returns the result's type."""
    for name, x in (("a", a), ("b", b)):
        check(x, f"{function} {name}")
    if accumulation not in ACCUMULATIONS:
        raise ValueError(
            f"{function}: accumulation must be 'promoted' or 'fast', got {accumulation!r}"
        )
    out_dtype = as_dtype(function, "preferred_element_type", preferred_element_type)
    if out_dtype not in OUT_DTYPES:
        raise TypeError(
            f"{function}: preferred_element_type must be bfloat16, float16 or float32, got "
            f"{out_dtype}"
        )
    if a.shape[-1] != b.shape[-1]:
        raise TypeError(
            f"{function} contracts the last dimensions of a {a.shape} and b {b.shape}: "
            f"{a.shape[-1]} and {b.shape[-1]} differ"
        )
    return out_dtype


def _product(a: ScaledArray, b: ScaledArray, spec: ScaledSpec) -> jax.Array:
    batch = a.shape[:-2] or b.shape[:-2]
    if not multipliable(a.scaling, b.scaling):
        return _by_xla(a, b, spec)
    parts = [_rank3(x) for x in (a, b)]
    operands = [part for pair in zip(*parts, strict=True) for part in pair]
    operands.append(global_scales(a, b).reshape(-1))
    out = DENSE.product(operands, spec)
    return jnp.broadcast_to(out, (math.prod(batch), *out.shape[1:])).reshape(*batch, *out.shape[1:])


_without_derivative = jax.custom_jvp(_product, nondiff_argnums=(2,))


@_without_derivative.defjvp
def _no_derivative(*args: Any) -> NoReturn:
    del args
    raise TypeError(
        "scaled_matmul is not differentiable: the derivatives of its values would be unscaled "
        "8-bit numbers. Use fp8_dot_general"
    )


def global_scales(a: ScaledArray, b: ScaledArray) -> jax.Array:
    """Their product, of the leading dimensions' shape, or () if all elements have the same."""
    alpha = jnp.ones((), FLOAT32)
    for x in (a, b):
        if x.global_scale is not None:
            alpha = alpha * x.global_scale
    return alpha


def _rank3(x: ScaledArray) -> tuple[jax.Array, jax.Array]:
    """Values and scales with one leading dimension for all; scales that all share have 1."""
    batch = x.ndim - 2
    values = x.values.reshape(math.prod(x.shape[:batch]), *x.shape[batch:])
    if x.scales.ndim == 0:
        return values, x.scales.reshape(1)
    return values, x.scales.reshape(values.shape[0], *x.scales.shape[batch:])


def _by_xla(a: ScaledArray, b: ScaledArray, spec: ScaledSpec) -> jax.Array:
    """The product of layouts that no kernel has, whose scales may come with a global one."""
    batch = math.prod(a.shape[:-2] or b.shape[:-2])
    sizes = (a.shape[-2], b.shape[-2], a.shape[-1], a.dtype.name, b.dtype.name)
    DENSE.viable_implementations(spec, ScaledDims(batch, *sizes), [])
    one = functools.partial(
        scaled_reference, out_dtype=spec.out_dtype, accumulation=spec.accumulation
    )
    for _ in range(max(a.ndim, b.ndim) - 2):
        one = jax.vmap(one, in_axes=(_axes(a), _axes(b)))
    return one(a, b)


def _axes(x: ScaledArray) -> Any:
    """What of an operand has the leading dimensions, for `jax.vmap`."""
    if x.ndim == 2:
        return None
    whole_array = layout_of(x.scaling).block_rows is None and x.scales.ndim == 0
    one_global = x.global_scale is not None and x.global_scale.ndim > 0
    made = (0, None if whole_array else 0, 0 if one_global else None)
    return ScaledArray.tree_unflatten(x.scaling, made)
