"""The public functions: read the arguments, then multiply."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.typing import ArrayLike, DTypeLike

from jax_bwgemm.dense.problem import make_options
from jax_bwgemm.dense.products import dot_product, jitted_dot_general, matmul_product
from jax_bwgemm.dense.tuning_config import TuningConfig
from jax_bwgemm.dense.validation import as_dimension_numbers
from jax_bwgemm.dense.with_epilogue import product_with_epilogue
from jax_bwgemm.epilogue.apply import (
    Epilogue,
)
from jax_bwgemm.product.arguments import as_array, as_operands


def matmul(
    a: ArrayLike,
    b: ArrayLike,
    *,
    precision: Any = None,
    preferred_element_type: DTypeLike | None = None,
    out_sharding: Any = None,
    implementation: str | Sequence[str] | None = None,
    config: TuningConfig | str | None = None,
    epilogue: Callable[..., Any] | None = None,
    epilogue_operands: Sequence[ArrayLike] = (),
) -> Any:
    """Matrix product with the semantics of `jax.numpy.matmul`, on the tensor cores.

    The kernels multiply bf16 by bf16, f16 by f16, and float32 operands as sums of 16-bit terms
    (docs/accuracy.md). They accumulate in f32 and round the result once. Gradients are products of
    the same kind and precision. With ``preferred_element_type=float32`` the cotangent is float32.
    If no kernel multiplies it, XLA computes the backward pass, or ``implementation="cutlass"``
    refuses it.

    Args:
        a: Array of shape ``(K,)`` or ``(..., M, K)``.
        b: Array of shape ``(K,)`` or ``(..., K, N)``; leading dimensions broadcast with a's.
        precision: As in `jax.numpy.matmul`. With 16-bit operands the kernels satisfy every
            `jax.lax.Precision`, with two f32 operands ``HIGH`` and ``HIGHEST``: docs/accuracy.md.
        preferred_element_type: Type of the result; None means the operands' promoted type.
        out_sharding: As in `jax.numpy.matmul`.
        implementation: ``"cutlass"``, ``"emulator"``, ``"xla"``, a sequence of these tried in
            order, or None: cutlass where device and problem are supported, otherwise xla, with
            the reason logged once (logger ``jax_bwgemm``, INFO).
        config: Constraints on the kernel, or a kernel's name. Not applied to gradients.
        epilogue: An elementwise function ``f(product, *epilogue_operands)`` of the product, which
            it gets as float32: docs/epilogues.md. None: the product as it is.
        epilogue_operands: Arrays that broadcast to the product's shape.

    Returns:
        Array of shape ``(..., M, N)``, without M or N for 1-D operands. With an epilogue what that
        returns, a pytree of arrays of this shape, floating-point ones rounded to the product's
        type.

    Raises:
        TypeError: Not arrays, contracted sizes differ, or epilogue operands that do not fit.
        ValueError: Rank 0, batches that do not broadcast, unknown implementation, or a
            configuration that is impossible or for another kind of problem.
        NotImplementedError: The named implementation cannot run the problem, or no kernel of
            this build satisfies ``config``.
        EpilogueError: A NotImplementedError: the epilogue is not elementwise.
        ExceptionGroup: Of NotImplementedError: none of several implementations can.
    """
    a, b = as_array("matmul", "a", a), as_array("matmul", "b", b)
    options = make_options(precision, preferred_element_type, out_sharding, implementation, config)
    operands = as_operands("matmul", "epilogue_operands", epilogue_operands)
    if epilogue is not None:
        after = Epilogue(epilogue, "matmul")
        return product_with_epilogue(a, b, None, operands, options, after)
    if operands:
        raise TypeError(f"matmul: {len(operands)} epilogue_operands and no epilogue")
    return matmul_product(a, b, options)


def dot_general(
    lhs: ArrayLike,
    rhs: ArrayLike,
    dimension_numbers: Any,
    precision: Any = None,
    preferred_element_type: DTypeLike | None = None,
    *,
    out_sharding: Any = None,
    implementation: str | Sequence[str] | None = None,
    config: TuningConfig | str | None = None,
) -> jax.Array:
    """General dot product with the semantics of `jax.lax.dot_general`, on the tensor cores.

    Fits ``flax.linen.Dense(dot_general=...)`` and ``flax.nnx.Linear(dot_general=...)``. Where the
    batch, row, column and contracted dimensions lie together in memory, no operand is copied: a
    transpose is a flag of the kernel. Otherwise as few elements as possible are transposed first.
    For types and gradients see `matmul`.

    Args:
        lhs: Array.
        rhs: Array.
        dimension_numbers: ``((lhs_contracting, rhs_contracting), (lhs_batch, rhs_batch))``, each an
            int or a sequence of ints; or None: the last dimension of lhs with the first of rhs.
        precision: As in `jax.lax.dot_general`; what kernels satisfy: see `matmul`.
        preferred_element_type: Type of the result; None means the operands' promoted type.
        out_sharding: As in `jax.lax.dot_general`.
        implementation: As in `matmul`.
        config: As in `matmul`.

    Returns:
        Array with the batch dimensions, then lhs's free ones, then rhs's.

    Raises:
        TypeError: Not arrays, or dimension numbers that are malformed or do not fit the shapes.
        ValueError: Unknown implementation, or a configuration that is impossible or for another
            kind of problem.
        NotImplementedError: The named implementation cannot run the problem, or no kernel of
            this build satisfies ``config``.
        ExceptionGroup: Of NotImplementedError: none of several implementations can.
    """
    lhs, rhs = as_array("dot_general", "lhs", lhs), as_array("dot_general", "rhs", rhs)
    numbers = as_dimension_numbers(dimension_numbers, lhs.shape, rhs.shape)
    options = make_options(precision, preferred_element_type, out_sharding, implementation, config)
    return dot_product(lhs, rhs, numbers, options)


def dot_general_with_epilogue(
    lhs: jax.Array,
    rhs: jax.Array,
    dimension_numbers: Any,
    epilogue: Epilogue,
    operands: Sequence[jax.Array] = (),
    **arguments: Any,
) -> Any:
    """`dot_general` with an epilogue as `matmul` takes one.

    Args:
        lhs: As in `dot_general`.
        rhs: As in `dot_general`.
        dimension_numbers: As in `dot_general`.
        epilogue: The function of the product and of ``operands``.
        operands: Arrays that broadcast to the product's shape.
        **arguments: The other arguments of `dot_general`.

    Returns:
        What the function returns, floating-point arrays rounded to the product's type.
    """
    numbers = as_dimension_numbers(dimension_numbers, lhs.shape, rhs.shape)
    options = make_options(**arguments)
    return product_with_epilogue(lhs, rhs, numbers, tuple(operands), options, epilogue)


def rounded_dot_general(
    lhs: jax.Array, rhs: jax.Array, dimension_numbers: Any, rounded_to: str, **arguments: Any
) -> jax.Array:
    """`dot_general` whose result is rounded once, to a type that may be narrower than an operand's.

    ``dot_general(...).astype(rounded_to)`` has the same values. Devices exchange parts of a sharded
    sum in the type that they have there.

    Args:
        lhs: As in `dot_general`.
        rhs: As in `dot_general`.
        dimension_numbers: As in `dot_general`.
        rounded_to: Name of the result's type.
        **arguments: The other arguments of `dot_general`, ``preferred_element_type`` among them.
    """
    numbers = as_dimension_numbers(dimension_numbers, lhs.shape, rhs.shape)
    options = make_options(**arguments)
    sums = options.partial_sums or str(options.preferred_element_type)
    options = dataclasses.replace(options, rounded_to=rounded_to, partial_sums=sums)
    return jitted_dot_general(lhs, rhs, numbers, options)
