"""The public product of scaled operands: validate, then one batch of products."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike, DTypeLike

from jax_bwgemm import compat
from jax_bwgemm.config import current_partial_sums, explicit_target
from jax_bwgemm.dense.tuning_config import TuningConfig
from jax_bwgemm.epilogue.apply import Epilogue
from jax_bwgemm.product.arguments import as_dtype, as_operands
from jax_bwgemm.product.implementations import as_implementations
from jax_bwgemm.product.spec import Policy, common_batch
from jax_bwgemm.scaled import derivatives
from jax_bwgemm.scaled.conversions import as_operand
from jax_bwgemm.scaled.layouts import FLOAT32
from jax_bwgemm.scaled.product import computed_by_kernel, scaled_product
from jax_bwgemm.scaled.scaled_array import ScaledArray, check
from jax_bwgemm.scaled.spec import ACCUMULATIONS, ScaledDims, ScaledSpec
from jax_bwgemm.scaled.with_epilogue import product_with_epilogue
from jax_bwgemm.tuning import context as tuning_context

OUT_DTYPES = tuple(np.dtype(d) for d in (jnp.bfloat16, jnp.float16, jnp.float32))


def scaled_matmul(
    a: Any,
    b: Any,
    *,
    preferred_element_type: DTypeLike = jnp.bfloat16,
    accumulation: str = "promoted",
    implementation: str | Sequence[str] | None = None,
    config: TuningConfig | str | None = None,
    epilogue: Callable[..., Any] | None = None,
    epilogue_operands: Sequence[ArrayLike] = (),
) -> Any:
    """The product ``a @ b.mT`` of scaled operands, both with K last, as `jax.nn.scaled_matmul`.

    D[..., m, n] is the sum over k of a's value times its scale times b's value times its scale,
    accumulated in float32 and rounded once. Any two layouts can be multiplied. ``mxfp4`` is widened
    to ``mxfp8``, exactly. Scales of 128 elements along K multiply sums of 128 products, those of
    whole rows the whole sum.

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
        config: As in `jax_bwgemm.matmul`.
        epilogue: As in `jax_bwgemm.matmul`. It can be differentiated, with respect to its operands.
        epilogue_operands: As in `jax_bwgemm.matmul`.

    Returns:
        [..., M, N]. With an epilogue what that returns, a pytree of arrays of this shape,
        floating-point ones rounded to the result type.

    Raises:
        TypeError: Operands that are none of these, shapes that do not fit together, another
            result type, or epilogue operands that do not fit. Differentiating a or b also raises
            it.
        EpilogueError: A NotImplementedError: the epilogue is not elementwise.
        ValueError: An unknown accumulation or implementation, or a configuration that is impossible
            or for another kind of problem.
        NotImplementedError: The named implementation cannot run the product, or no kernel of this
            build satisfies ``config``.
        ExceptionGroup: Of NotImplementedError: none of several implementations can.
    """
    a, b = as_operand(a, "scaled_matmul: a"), as_operand(b, "scaled_matmul: b")
    spec, dims = specification(a, b, preferred_element_type, accumulation, implementation, config)
    operands = as_operands("scaled_matmul", "epilogue_operands", epilogue_operands)
    if operands and epilogue is None:
        raise TypeError(f"scaled_matmul: {len(operands)} epilogue_operands and no epilogue")

    def like(a: jax.Array, b: jax.Array) -> jax.Array:
        return jnp.matmul(a, jnp.swapaxes(b, -1, -2))

    def sharding() -> tuple[Any, ...]:
        wide = (jax.typeof(x.values).update(dtype=FLOAT32) for x in (a, b))
        return compat.spec_of(*compat.result_avals(like, *wide))

    def product() -> jax.Array:
        return compat.in_automatic_axes(functools.partial(_product, spec, dims), sharding, a, b)

    if epilogue is None:
        return product()
    after = Epilogue(epilogue, "scaled_matmul")
    return product_with_epilogue(a, b, spec, dims, operands, after, product)


def _product(spec: ScaledSpec, dims: ScaledDims, a: ScaledArray, b: ScaledArray) -> jax.Array:
    """The product, which has no derivative: a primitive says so itself, XLA's has to be told."""
    if computed_by_kernel(a, b, spec, dims):
        return scaled_product(a, b, spec)
    by_xla = derivatives.without(derivatives.of_product, lambda a, b: scaled_product(a, b, spec))
    return by_xla(a, b)


def within_derivative(a: ScaledArray, b: ScaledArray, **options: Any) -> jax.Array:
    """`scaled_matmul`, all its options given, for functions with a derivative of their own.

    Policies of `jax.checkpoint` see XLA's products, which they would not within a custom_jvp.
    """
    a, b = as_operand(a, "a"), as_operand(b, "b")
    return scaled_product(a, b, specification(a, b, **options)[0])


def specification(
    a: ScaledArray,
    b: ScaledArray,
    preferred_element_type: DTypeLike,
    accumulation: str,
    implementation: str | Sequence[str] | None,
    config: TuningConfig | str | None = None,
) -> tuple[ScaledSpec, ScaledDims]:
    """Checks a call: what is static about it, and its sizes. Errors are those of the call."""
    implementations = as_implementations(implementation)
    out_dtype = check_product("scaled_matmul", a, b, preferred_element_type, accumulation)
    if a.ndim > 2 and b.ndim > 2 and a.shape[:-2] != b.shape[:-2]:
        raise TypeError(
            f"scaled_matmul: leading dimensions of a {a.shape} and b {b.shape} must be equal, or "
            "one of the two must have none"
        )
    batches = math.prod(a.shape[:-2]), math.prod(b.shape[:-2])
    types = np.dtype(a.dtype).name, np.dtype(b.dtype).name
    dims = ScaledDims(
        common_batch(batches), a.shape[-2], b.shape[-2], a.shape[-1], *types, *batches
    )
    policy = Policy(
        implementations=implementations,
        config=TuningConfig.of(config, implementations),
        target=explicit_target(),
        tuning=tuning_context.current(),
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
