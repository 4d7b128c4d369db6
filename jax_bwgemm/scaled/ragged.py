"""`scaled_ragged_dot`: products of scaled operands whose rows or contraction are grouped."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike, DTypeLike

from jax_bwgemm import compat
from jax_bwgemm.config import current_partial_sums, explicit_target
from jax_bwgemm.epilogue.apply import Epilogue
from jax_bwgemm.grouped.grouped_config import GroupedConfig
from jax_bwgemm.grouped.groups import as_int32, first_group
from jax_bwgemm.grouped.spec import K_GROUPED, M_GROUPED
from jax_bwgemm.grouped.validation import (
    as_experts,
    check_offset,
    check_size_values,
    check_sizes,
    check_static_groups,
)
from jax_bwgemm.grouped.with_epilogue import EpilogueOperands
from jax_bwgemm.product.arguments import as_array, as_operands
from jax_bwgemm.product.implementations import as_implementations
from jax_bwgemm.product.spec import Policy
from jax_bwgemm.scaled import derivatives
from jax_bwgemm.scaled.api import check_product
from jax_bwgemm.scaled.conversions import as_operand
from jax_bwgemm.scaled.layouts import multipliable
from jax_bwgemm.scaled.product import global_scales
from jax_bwgemm.scaled.ragged_primitive import RAGGED
from jax_bwgemm.scaled.ragged_spec import ScaledRaggedDims, ScaledRaggedSpec
from jax_bwgemm.scaled.ragged_with_epilogue import by_xla, linked
from jax_bwgemm.scaled.scaled_array import ScaledArray
from jax_bwgemm.tuning import context as tuning_context

_NAME = "scaled_ragged_dot"


def scaled_ragged_dot(
    a: Any,
    b: Any,
    group_sizes: ArrayLike,
    *,
    preferred_element_type: DTypeLike = jnp.bfloat16,
    accumulation: str = "promoted",
    group_offset: ArrayLike | None = None,
    num_groups: int | None = None,
    implementation: str | Sequence[str] | None = None,
    config: GroupedConfig | str | None = None,
    epilogue: Callable[..., Any] | None = None,
    epilogue_operands: Sequence[ArrayLike] = (),
    epilogue_group_operands: Sequence[ArrayLike] = (),
) -> Any:
    """Grouped products of scaled operands, whose last dimension is contracted.

    Two forms, by b's rank. With a matrix of b for each group, rows of a are in consecutive groups:
    the product of a layer of experts and, with the transposed matrices, the gradient of its input.
    With one matrix b, what is contracted is in groups: ``D[g] = a[:, group g] @ b[:, group g].T``,
    the gradient of the matrices.

    In the second form blocks of scales are counted from the first column, whatever the groups: two
    groups may share a block's scale. So `quantize`, which knows no groups, writes both forms'
    operands in one pass, and nothing is padded.

    It has no derivative: `fp8_ragged_dot` has.

    Args:
        a: [M, K], rows of group 0 first. Second form: [K, M], columns of group 0 first. Also what
            `as_scaled_array` takes.
        b: [E, N, K], likewise; E is the number of groups unless there is an offset. ``"tensor"``
            is one scale, or one for each matrix, and so are global scales. Second form: [N, M].
            Both operands have f32 scales, or both the same layout; ``mxfp4`` counts as ``mxfp8``,
            which it is widened to, exactly.
        group_sizes: Rows of each group, [G], integers. On the device, negative ones count as 0 and
            groups end at row M.
        preferred_element_type: Type of the result: bfloat16, float16 or float32.
        accumulation: As in `scaled_matmul`.
        group_offset: Integer scalar: b's first matrix, or the result's, is that of this group.
        num_groups: Second form: matrices of the result. None means all G.
        implementation: As in `jax_bwgemm.matmul`.
        config: As in `jax_bwgemm.ragged_dot`.
        epilogue: First form: as in `jax_bwgemm.ragged_dot`. It can be differentiated, with respect
            to its operands.
        epilogue_operands: As in `jax_bwgemm.ragged_dot`.
        epilogue_group_operands: Likewise.

    Returns:
        [M, N], rows of no group zero. With an epilogue what that returns, a pytree of arrays of
        this shape, floating-point ones of the product's type. Second form: [G, K, N], zeros for
        groups without rows.

    Raises:
        TypeError: Operands that are none of these, shapes or layouts that do not fit together,
            another result type, or epilogue operands that do not fit. Differentiating a or b also
            raises it.
        ValueError: An unknown accumulation or implementation, sizes or an offset known to be out
            of range, ``num_groups`` in the first form or an epilogue in the second, or a
            configuration that is impossible or for another kind of problem.
        EpilogueError: A NotImplementedError: the epilogue is not elementwise.
        NotImplementedError: The named implementation cannot run the product, or no kernel of this
            build satisfies ``config``.
        ExceptionGroup: Of NotImplementedError: none of several implementations can.
    """
    operands, spec = specification(
        a,
        b,
        group_sizes,
        preferred_element_type,
        accumulation,
        group_offset,
        num_groups,
        implementation,
        config,
    )

    def sharding() -> tuple[Any, ...]:
        rows, columns = (compat.spec_of(x.values) for x in operands[:2])
        return (rows[0], columns[1]) if spec.m_grouped else (None, rows[0], columns[0])

    after = EpilogueOperands(
        as_operands(_NAME, "epilogue_operands", epilogue_operands),
        as_operands(_NAME, "epilogue_group_operands", epilogue_group_operands),
    )
    count = len(after.plain) + len(after.of_groups)
    if count and epilogue is None:
        raise TypeError(f"{_NAME}: {count} epilogue operands and no epilogue")
    if epilogue is not None and not spec.m_grouped:
        raise ValueError(f"{_NAME} has an epilogue only where b has a matrix for each group")
    _, b, sizes, offset = operands
    function = None if epilogue is None else Epilogue(epilogue, _NAME)
    if function is not None:
        after.check(_NAME, *b.shape[:2])
        results = linked(_canonical(*operands), after, spec, function)
        if results is not None:
            return results
    product = compat.in_automatic_axes(
        lambda *operands: _without_derivative(operands, spec), sharding, *operands
    )
    return product if function is None else by_xla(function, product, sizes, offset, after)


def within_derivative(
    a: ScaledArray, b: ScaledArray, group_sizes: jax.Array, **options: Any
) -> jax.Array:
    """`scaled_ragged_dot`, all its options given, where a derivative is known: see `api`."""
    return _product(*specification(a, b, group_sizes, **options))


def specification(
    a: Any,
    b: Any,
    group_sizes: ArrayLike,
    preferred_element_type: DTypeLike,
    accumulation: str,
    group_offset: ArrayLike | None,
    num_groups: int | None,
    implementation: str | Sequence[str] | None,
    config: GroupedConfig | str | None = None,
) -> tuple[tuple[Any, ...], ScaledRaggedSpec]:
    """Checks a call: A, B, sizes and offset, and what is static about it."""
    implementations = as_implementations(implementation)
    a, b = as_operand(a, f"{_NAME}: a"), as_operand(b, f"{_NAME}: b")
    out_dtype = check_product(_NAME, a, b, preferred_element_type, accumulation)
    if not multipliable(a.scaling, b.scaling):
        raise TypeError(
            f"{_NAME} multiplies f32 scales, or one layout with scales of 8 bits, got scaling "
            f"{a.scaling!r} and {b.scaling!r}"
        )
    if a.ndim != 2 or b.ndim not in (2, 3):
        raise TypeError(
            f"{_NAME} requires a [M, K] and b [E, N, K], or a [K, M] and b [N, M], got shapes "
            f"{a.shape} and {b.shape}"
        )
    sizes: Any = group_sizes
    if not isinstance(sizes, jax.ShapeDtypeStruct):  # a type suffices to explain a call
        sizes = as_array(_NAME, "group_sizes", sizes)
    rows = a.shape[0] if b.ndim == 3 else a.shape[1]
    experts = b.shape[0] if b.ndim == 3 else None
    check_static_groups(_NAME, sizes.shape, experts)
    check_sizes(_NAME, sizes.shape, sizes.dtype, (), experts, has_offset=group_offset is not None)
    if isinstance(group_sizes, np.ndarray):
        check_size_values(_NAME, group_sizes, rows)
    if group_offset is not None:
        check_offset(_NAME, group_offset, sizes.shape[0])
    if num_groups is not None and experts is not None:
        raise ValueError(f"{_NAME} num_groups has no meaning where b has a matrix for each group")
    spec = ScaledRaggedSpec(
        kind=K_GROUPED if experts is None else M_GROUPED,
        experts=as_experts(_NAME, num_groups, sizes.shape[0]) if experts is None else 0,
        a_scaling=a.scaling,
        b_scaling=b.scaling,
        accumulation=accumulation,
        out_dtype=out_dtype.name,
        policy=Policy(
            implementations=implementations,
            config=GroupedConfig.of(config, implementations),
            target=explicit_target(),
            tuning=tuning_context.current(),
            partial_sums=current_partial_sums(),
        ),
    )
    offset = first_group() if group_offset is None else jnp.asarray(group_offset)
    return (a, b, sizes, offset), spec


def dims_of(operands: Sequence[Any], spec: ScaledRaggedSpec) -> ScaledRaggedDims:
    """Sizes of a checked call, whose arrays may be `jax.ShapeDtypeStruct`."""
    shapes = jax.eval_shape(_canonical, *operands)
    return RAGGED.dims_of(shapes, spec)


@functools.partial(jax.jit, inline=compat.INLINE)
def _canonical(
    a: ScaledArray, b: ScaledArray, sizes: jax.Array, offset: jax.Array
) -> tuple[jax.Array, ...]:
    """The primitive's operands: a batch of one."""
    b_scales = b.scales
    if b.ndim == 3 and b_scales.ndim == 0:
        b_scales = jnp.broadcast_to(b_scales, b.shape[:1])
    alpha = jnp.broadcast_to(global_scales(a, b), b.shape[:-2])
    arrays = (a.values, b.values, as_int32(sizes), as_int32(offset), a.scales, b_scales, alpha)
    return tuple(x[None] for x in arrays)


def _product(operands: tuple[Any, ...], spec: ScaledRaggedSpec) -> jax.Array:
    return RAGGED.product(_canonical(*operands), spec)[0]


_without_derivative = jax.custom_jvp(_product, nondiff_argnums=(1,))
_without_derivative.defjvp(derivatives.of_grouped_product)
