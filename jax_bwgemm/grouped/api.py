"""The public functions: validate and normalise the arguments."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike, DTypeLike

from jax_bwgemm.config import current_partial_sums, explicit_target
from jax_bwgemm.dense.api import dot_general
from jax_bwgemm.epilogue.apply import Epilogue, apply_epilogue
from jax_bwgemm.grouped.call import RaggedCall, run
from jax_bwgemm.grouped.grouped_config import GroupedConfig
from jax_bwgemm.grouped.validation import (
    Mode,
    as_experts,
    as_ragged_numbers,
    as_representative,
    check_meaning,
    check_offset,
    check_ragged,
    check_ragged_dot,
    check_size_values,
    check_sizes,
    check_static_groups,
    sizes_prefix,
)
from jax_bwgemm.grouped.with_epilogue import (
    After,
    EpilogueOperands,
    run_linked,
    run_with_epilogue,
)
from jax_bwgemm.product.arguments import (
    as_array,
    as_operands,
    as_out_sharding,
    as_precision,
    as_preferred_type,
)
from jax_bwgemm.product.dtypes import dot_dtype
from jax_bwgemm.product.implementations import SYMBOLIC, as_implementations, log_once, refusal_error
from jax_bwgemm.tuning import context as tuning_context

_RAGGED_DOT = lax.RaggedDotDimensionNumbers((((1,), (1,)), ((), ())), (0,), (0,))


def ragged_dot(
    lhs: ArrayLike,
    rhs: ArrayLike,
    group_sizes: ArrayLike,
    precision: Any = None,
    preferred_element_type: DTypeLike | None = None,
    group_offset: ArrayLike | None = None,
    out_sharding: Any = None,
    *,
    implementation: str | Sequence[str] | None = None,
    config: GroupedConfig | str | None = None,
    representative_group_sizes: Sequence[int] | None = None,
    epilogue: Callable[..., Any] | None = None,
    epilogue_operands: Sequence[ArrayLike] = (),
    epilogue_group_operands: Sequence[ArrayLike] = (),
) -> Any:
    """Rows in consecutive groups, each multiplied by its group's matrix.

    The semantics of `jax.lax.ragged_dot`, with a ``group_offset`` that works. Group sizes stay on
    the device. Sizes known while tracing (numpy arrays) are checked; those on the device are taken
    as they are: negative ones count as 0, and groups end at the last row of lhs.

    The kernels multiply bf16 by bf16 or f16 by f16 exactly and accumulate in f32. They also
    multiply f32 by bf16, with two bf16 terms of the f32 operand (docs/accuracy.md). Gradients are
    grouped products too, also those of an f32 result of bf16 operands, whose cotangent is f32.

    Args:
        lhs: Rows, [M, K]: first those of group 0, then those of group 1, and so on.
        rhs: Matrices, [E, K, N].
        group_sizes: Rows of each group, [G], any integer type. G is E unless there is an offset.
        precision: As in `jax.lax.ragged_dot`. The kernels satisfy every `jax.lax.Precision`, with
            an f32 operand all but HIGHEST. ``BF16_BF16_F32`` rounds f32 operands to bf16.
        preferred_element_type: Type of the result; None means the operands' promoted type.
        group_offset: Integer scalar: ``rhs[e]`` is the matrix of group ``group_offset + e``. Rows
            of other groups give zeros. One on the device is clamped into [0, G].
        out_sharding: As in `jax.lax.ragged_dot`, for meshes with explicit axes. Only needed if the
            contracted dimension is sharded in both operands.
        implementation: ``"cutlass"``, ``"emulator"``, ``"xla"``, a sequence of these tried in
            order, or None: cutlass where device and problem are supported, otherwise xla, with
            the reason logged once (logger ``jax_bwgemm``, INFO).
        config: Constraints on the kernel, or a kernel's name. Not applied to gradients.
        representative_group_sizes: G integers known while tracing, typical for the program: the
            kernel is chosen for these. None means equal groups.
        epilogue: An elementwise function ``f(product, *epilogue_operands,
            *epilogue_group_operands)`` of the product, which it gets as float32:
            docs/epilogues.md. None: the product as it is.
        epilogue_operands: Arrays that broadcast to the product's shape.
        epilogue_group_operands: Arrays of shape [E] or [E, N]. The function gets those of each
            row's matrix, as an array that broadcasts to the product's shape; zeros for rows of no
            group.

    Returns:
        [M, N]. Rows past the last group are zero. With an epilogue, what it returns: a pytree of
        arrays of this shape, floating-point ones rounded to the product's type. Rows of no group
        have the epilogue's value at a product of zero.

    Raises:
        TypeError: Not arrays, wrong ranks or types, sizes that do not fit together, or epilogue
            operands that do not fit.
        EpilogueError: A NotImplementedError: the epilogue is not elementwise.
        ValueError: Group sizes or offset known to be out of range, unknown implementation, or a
            configuration that is impossible or for another kind of problem.
        NotImplementedError: The named implementation cannot run the problem, or no kernel of
            this build satisfies ``config``.
        ExceptionGroup: Of NotImplementedError: none of several implementations can.
    """
    lhs, rhs = as_array("ragged_dot", "lhs", lhs), as_array("ragged_dot", "rhs", rhs)
    check_ragged_dot(lhs.shape, rhs.shape)
    operands = EpilogueOperands(
        as_operands("ragged_dot", "epilogue_operands", epilogue_operands),
        as_operands("ragged_dot", "epilogue_group_operands", epilogue_group_operands),
    )
    after = None if epilogue is None else After(Epilogue(epilogue, "ragged_dot"), operands)
    if after is None and (count := len(operands.plain) + len(operands.of_groups)):
        raise TypeError(f"ragged_dot: {count} epilogue operands and no epilogue")
    return _ragged(
        "ragged_dot",
        lhs,
        rhs,
        group_sizes,
        _RAGGED_DOT,
        precision=precision,
        preferred_element_type=preferred_element_type,
        group_offset=group_offset,
        out_sharding=out_sharding,
        implementation=implementation,
        config=config,
        representative_group_sizes=representative_group_sizes,
        after=after,
    )


def ragged_dot_with_epilogue(
    lhs: jax.Array,
    rhs: jax.Array,
    group_sizes: jax.Array,
    numbers: lax.RaggedDotDimensionNumbers | None,
    after: After,
    **arguments: Any,
) -> Any:
    """`ragged_dot_general` of [M, K] with groups of rows, and an epilogue as `ragged_dot` has it.

    Args:
        lhs: [M, K].
        rhs: As in `ragged_dot`, or with its last two dimensions in the other order.
        group_sizes: [G].
        numbers: As in `ragged_dot_general`; None is `ragged_dot`.
        after: The epilogue.
        **arguments: Of `ragged_dot_general`: precision, group_offset, implementation.
    """
    numbers = _RAGGED_DOT if numbers is None else numbers
    name = after.epilogue.caller
    return _ragged(name, lhs, rhs, group_sizes, numbers, after=after, **arguments)


def rounded_ragged_dot_general(
    lhs: jax.Array,
    rhs: jax.Array,
    group_sizes: jax.Array,
    ragged_dot_dimension_numbers: lax.RaggedDotDimensionNumbers,
    rounded_to: str,
    **arguments: Any,
) -> jax.Array:
    """`ragged_dot_general` whose result is rounded once, as `dense.api.rounded_dot_general`'s is.

    Args:
        lhs: As in `ragged_dot_general`.
        rhs: As in `ragged_dot_general`.
        group_sizes: As in `ragged_dot_general`.
        ragged_dot_dimension_numbers: As in `ragged_dot_general`; not a batch that is ragged.
        rounded_to: Name of the result's type.
        **arguments: The other arguments of `ragged_dot_general`.
    """
    numbers, name = ragged_dot_dimension_numbers, "ragged_dot_general"
    return _ragged(name, lhs, rhs, group_sizes, numbers, rounded_to=rounded_to, **arguments)


def ragged_dot_general(
    lhs: ArrayLike,
    rhs: ArrayLike,
    group_sizes: ArrayLike,
    ragged_dot_dimension_numbers: lax.RaggedDotDimensionNumbers,
    precision: Any = None,
    preferred_element_type: DTypeLike | None = None,
    group_offset: ArrayLike | None = None,
    out_sharding: Any = None,
    *,
    num_groups: int | None = None,
    implementation: str | Sequence[str] | None = None,
    config: GroupedConfig | str | None = None,
    representative_group_sizes: Sequence[int] | None = None,
) -> jax.Array:
    """Ragged dot product with the semantics of `jax.lax.ragged_dot_general`, in its three modes.

    Ragged non-contracting dimension: `ragged_dot`, with any batch and free dimensions. Contracting:
    one product for each group, over its part of the contracted dimension (the gradient of the
    matrices). Batch: `jax_bwgemm.dot_general`; group sizes do not matter, as in lax.

    Operands are transposed only where their dimensions do not already lie in the kernels' order.

    Args:
        lhs: Array.
        rhs: Array.
        group_sizes: Integers, [G], or [batch..., outer..., G] where outer dimensions are those of
            lhs before the ragged one, of the same kind (free, contracting, or batch).
        ragged_dot_dimension_numbers: As in `jax.lax.ragged_dot_general`.
        precision: As in `ragged_dot`.
        preferred_element_type: As in `ragged_dot`.
        group_offset: As in `ragged_dot`. With a contracting ragged dimension, element e of the
            result belongs to group ``group_offset + e``.
        num_groups: With a contracting ragged dimension: how many groups the result has. None means
            all G. Elements that belong to no group are zero.
        out_sharding: As in `ragged_dot`.
        implementation: As in `ragged_dot`.
        config: As in `ragged_dot`.
        representative_group_sizes: As in `ragged_dot`.

    Returns:
        [batch..., lhs free..., rhs free...], preceded by the groups if the ragged dimension is a
        contracting one.

    Raises:
        TypeError, ValueError, NotImplementedError, ExceptionGroup: As `ragged_dot`; and TypeError
            for dimension numbers that are malformed or do not fit the shapes, ValueError for an
            argument that has no meaning in the mode.
    """
    name = "ragged_dot_general"
    return _ragged(
        name,
        as_array(name, "lhs", lhs),
        as_array(name, "rhs", rhs),
        group_sizes,
        ragged_dot_dimension_numbers,
        precision=precision,
        preferred_element_type=preferred_element_type,
        group_offset=group_offset,
        num_groups=num_groups,
        out_sharding=out_sharding,
        implementation=implementation,
        config=config,
        representative_group_sizes=representative_group_sizes,
    )


def _ragged(
    function: str,
    lhs: jax.Array,
    rhs: jax.Array,
    group_sizes: ArrayLike,
    ragged_numbers: lax.RaggedDotDimensionNumbers,
    *,
    precision: Any = None,
    preferred_element_type: DTypeLike | None = None,
    group_offset: ArrayLike | None = None,
    num_groups: int | None = None,
    out_sharding: Any = None,
    implementation: str | Sequence[str] | None = None,
    config: GroupedConfig | str | None = None,
    representative_group_sizes: Sequence[int] | None = None,
    after: After | None = None,
    rounded_to: str | None = None,
) -> Any:
    """The product; with `after`, which only products of rank 2 have, that function of it."""
    implementations = as_implementations(implementation)
    config = GroupedConfig.of(config, implementations)
    precision = as_precision(precision)
    preferred_element_type = as_preferred_type(preferred_element_type)
    out_sharding = as_out_sharding(out_sharding)
    numbers, ragged, group = as_ragged_numbers(ragged_numbers)
    sizes = as_array(function, "group_sizes", group_sizes)
    if _symbolic(function, lhs, rhs, implementations, group_offset):
        if after is not None and after.only_linked:
            return None
        product = lax.ragged_dot_general(
            lhs,
            rhs,
            sizes,
            ragged_numbers,
            precision=precision,
            preferred_element_type=preferred_element_type,
            out_sharding=out_sharding,
        )
        if after is None:
            return product
        rows = after.operands.rows(sizes, None, product)
        return apply_epilogue(after.epilogue, product, rows)
    mode = check_ragged(lhs.shape, rhs.shape, numbers, ragged, group)
    if mode is not Mode.BATCH:
        check_static_groups(function, sizes.shape, None)
    check_sizes(
        function,
        sizes.shape,
        sizes.dtype,
        sizes_prefix(mode, lhs.shape, numbers, ragged),
        None if group is None else rhs.shape[group],
        has_offset=group_offset is not None,
    )
    if isinstance(group_sizes, np.ndarray):
        check_size_values(function, group_sizes, lhs.shape[ragged])
    given = {"num_groups": num_groups, "group_offset": group_offset, "config": config}
    check_meaning(function, mode, given)
    if mode is Mode.BATCH:
        return dot_general(
            lhs,
            rhs,
            numbers,
            precision=precision,
            preferred_element_type=preferred_element_type,
            out_sharding=out_sharding,
            implementation=implementation,
        )
    groups = sizes.shape[-1]
    if group_offset is not None:
        check_offset(function, group_offset, groups)
        group_offset = jnp.asarray(group_offset)
    representative = as_representative(
        function, representative_group_sizes, groups, lhs.shape[ragged]
    )
    call = RaggedCall(
        mode=mode,
        numbers=numbers,
        ragged=ragged,
        group=group,
        experts=as_experts(function, num_groups, groups) if group is None else rhs.shape[group],
        out_dtype=dot_dtype(lhs.dtype, rhs.dtype, preferred_element_type, precision).name,
        precision=precision,
        out_sharding=out_sharding,
        implementations=implementations,
        config=config,
        representative=representative,
        target=explicit_target(),
        tuning=tuning_context.current(),
        partial_sums=current_partial_sums(),
    )
    if rounded_to is not None:
        sums = call.partial_sums or call.out_dtype
        call = dataclasses.replace(call, out_dtype=rounded_to, partial_sums=sums)
    return _run(function, lhs, rhs, sizes, group_offset, call, after)


def _run(
    function: str,
    lhs: jax.Array,
    rhs: jax.Array,
    sizes: jax.Array,
    group_offset: jax.Array | None,
    call: RaggedCall,
    after: After | None,
) -> Any:
    """A checked product, and what follows it."""
    if after is None:
        return run(lhs, rhs, sizes, group_offset, call)
    if after.only_linked:
        return run_linked(lhs, rhs, sizes, group_offset, call, after)
    operands, (_, contracted) = after.operands, call.numbers[0]
    operands.check(function, call.experts, rhs.shape[-1] if contracted == (1,) else rhs.shape[1])
    return run_with_epilogue(lhs, rhs, sizes, group_offset, operands, call, after.epilogue)


def _symbolic(
    function: str,
    lhs: jax.Array,
    rhs: jax.Array,
    implementations: tuple[str, ...],
    group_offset: ArrayLike | None,
) -> bool:
    """Whether a size is symbolic (jax.export), which leaves nothing to select a kernel by.

    Raises:
        NotImplementedError: It is, and only kernels were allowed (several: an ExceptionGroup), or
            there is an offset, which lax does not implement.
    """
    if all(isinstance(size, int) for size in (*lhs.shape, *rhs.shape)):
        return False
    what = f"{function} of symbolic shapes {lhs.shape} and {rhs.shape}"
    if "xla" not in implementations:
        raise refusal_error(what, [(name, SYMBOLIC) for name in implementations])
    if group_offset is not None:
        raise NotImplementedError(f"{what} cannot have a group_offset")
    log_once(f"{what}: using jax.lax.{function}, because {SYMBOLIC}")
    return True
