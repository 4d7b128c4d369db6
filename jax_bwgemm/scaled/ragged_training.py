"""`fp8_ragged_dot`: a `jax.lax.ragged_dot` whose three products have low precision."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike, DTypeLike

from jax_bwgemm import compat
from jax_bwgemm.grouped.groups import as_int32, first_group
from jax_bwgemm.grouped.validation import (
    check_offset,
    check_ragged_dot,
    check_size_values,
    check_sizes,
    check_static_groups,
)
from jax_bwgemm.product.arguments import as_array
from jax_bwgemm.product.implementations import as_implementations
from jax_bwgemm.scaled.layouts import multipliable
from jax_bwgemm.scaled.ragged_layer import RaggedLayer, multiply_ragged, multiply_ragged_delayed
from jax_bwgemm.scaled.recipes import Recipe, as_recipe
from jax_bwgemm.scaled.training import Fp8Function, result_dtype

_NAME = "fp8_ragged_dot"


def fp8_ragged_dot(
    recipe: str | Recipe = "blockwise",
    *,
    implementation: str | Sequence[str] | None = None,
) -> Fp8RaggedDot:
    """A function like `jax.lax.ragged_dot` that multiplies in 8 or 4 bits, gradients included.

    The grouped form of `fp8_dot_general`: rows of experts times matrices of experts. The call
    quantizes the operands, the backward pass the cotangent; both gradients are grouped products of
    quantized operands.

    Args:
        recipe: ``"per_tensor"`` (of rhs each matrix has a scale), ``"per_tensor_delayed"``,
            ``"blockwise"``, ``"blockwise_2d"``, ``"mxfp8"``, ``"nvfp4"``, or a `Recipe` whose
            layouts can be multiplied with each other.
        implementation: As in `jax_bwgemm.matmul`, of the three products.

    Returns:
        A hashable function of lhs, rhs and group sizes; see `Fp8RaggedDot.__call__`.

    Raises:
        ValueError: An unknown recipe or implementation, or a recipe of several layouts of which
            one has scales of 8 bits.
        TypeError: An implementation that is not a name.
    """
    found = as_recipe(recipe)
    if not multipliable(found.lhs, found.rhs, found.gradient):
        raise ValueError(
            f"{_NAME} takes recipes with f32 scales, or with one layout, got {found.lhs!r}, "
            f"{found.rhs!r} and {found.gradient!r}"
        )
    return Fp8RaggedDot(found, as_implementations(implementation))


@dataclasses.dataclass(frozen=True)
class Fp8RaggedDot(Fp8Function):
    """What `fp8_ragged_dot` returns. Instances are compared by value.

    Attributes:
        recipe: Layouts and types.
        implementations: Names to try in order.
    """

    def __call__(
        self,
        lhs: ArrayLike,
        rhs: ArrayLike,
        group_sizes: ArrayLike,
        preferred_element_type: DTypeLike | None = None,
        group_offset: ArrayLike | None = None,
        *,
        amax_history: jax.Array | None = None,
        key: jax.Array | None = None,
    ) -> jax.Array:
        """Rows in consecutive groups, each multiplied by its group's matrix.

        It has a reverse-mode derivative, once, and no forward-mode one. Rows of no group are zero
        in the result and have zero gradients, but are quantized like the others: numbers there
        take part in the scales.

        Args:
            lhs: Rows [M, K], bfloat16, float16 or float32: the activations.
            rhs: Matrices [E, K, N], likewise: the weights.
            group_sizes: As in `jax_bwgemm.ragged_dot`, [G].
            preferred_element_type: Type of the result, one of these three; None is that of
                `jax.lax.ragged_dot`. Gradients have their operand's type.
            group_offset: As in `jax_bwgemm.ragged_dot`.
            amax_history: As of `Fp8DotGeneral`, of recipes with delayed scaling.
            key: As of `Fp8DotGeneral`, of recipes whose gradients depend on random numbers.

        Returns:
            [M, N].

        Raises:
            TypeError: Not arrays, other types, shapes that do not fit together, or no
                ``amax_history`` or key where the recipe needs one.
            ValueError: Group sizes or an offset known to be out of range, or an ``amax_history``
                or key that the recipe has no use for.
            NotImplementedError: An implementation that cannot run it.
            ExceptionGroup: Of NotImplementedError: none of several implementations can.
        """
        lhs, rhs = as_array(_NAME, "lhs", lhs), as_array(_NAME, "rhs", rhs)
        out_dtype = result_dtype(_NAME, lhs, rhs, preferred_element_type)
        check_ragged_dot(lhs.shape, rhs.shape, _NAME)
        sizes = as_array(_NAME, "group_sizes", group_sizes)
        check_static_groups(_NAME, sizes.shape, rhs.shape[0])
        has_offset = group_offset is not None
        check_sizes(_NAME, sizes.shape, sizes.dtype, (), rhs.shape[0], has_offset=has_offset)
        if isinstance(group_sizes, np.ndarray):
            check_size_values(_NAME, group_sizes, lhs.shape[0])
        if has_offset:
            check_offset(_NAME, group_offset, sizes.shape[0])
        offset = as_int32(jnp.asarray(group_offset)) if has_offset else first_group()
        layer = RaggedLayer(
            self.recipe, self.implementations, out_dtype.name, lhs.dtype.name, rhs.dtype.name
        )
        key = self.check_key(_NAME, key)
        if self.recipe.history:
            amax_history = self.check_history(amax_history)
        elif amax_history is not None:
            raise ValueError(f"{_NAME}: {self.recipe} keeps no amax_history")

        def product(lhs: Any, rhs: Any, sizes: Any, offset: Any, history: Any, key: Any) -> Any:
            # The history stays as it is: `layer.next_history`.
            lhs, rhs, sizes, offset, key, _ = compat.match_varying(
                lhs, rhs, sizes, offset, key, history
            )
            if history is not None:
                return multiply_ragged_delayed(layer, lhs, rhs, sizes, offset, history)
            return multiply_ragged(layer, lhs, rhs, sizes, offset, key)

        return compat.in_automatic_axes(
            product,
            lambda: (compat.spec_of(lhs)[0], compat.spec_of(rhs)[-1]),
            *(lhs, rhs, sizes, offset, amax_history, key),
        )
