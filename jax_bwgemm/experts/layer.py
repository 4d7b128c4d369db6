"""`moe_mlp`: tokens through their experts, from the router's choice to the weighted sum."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jax_bwgemm import compat
from jax_bwgemm.epilogue.activations import as_activation
from jax_bwgemm.epilogue.linear import Activation
from jax_bwgemm.experts.mlp import check_layers, check_weights, grouped_mlp
from jax_bwgemm.experts.routing import combine, dispatch, sort_by_expert
from jax_bwgemm.grouped.validation import as_experts, check_offset
from jax_bwgemm.product.arguments import as_array, as_flag

_CALLER = "moe_mlp"


def moe_mlp(
    x: ArrayLike,
    up: ArrayLike,
    down: ArrayLike,
    experts: ArrayLike,
    weights: ArrayLike,
    *,
    activation: Activation = "silu",
    recompute: bool = False,
    num_experts: int | None = None,
    group_offset: ArrayLike | None = None,
    precision: Any = None,
    implementation: str | Sequence[str] | None = None,
) -> jax.Array:
    """The weighted sum of what each token's experts make of it: no capacity, no dropped token.

    Rows of all tokens are sorted by expert and go through `grouped_mlp`, which applies the weights.
    Reading rows in and out are gathers, in the backward pass too.

    Args:
        x: Tokens, [T, K].
        up: [E, K, H], or [E, K, 2, H], gate first: as in `grouped_mlp`.
        down: [E, H, N].
        experts: The experts of each token, [T, k], integers. A token gets nothing from one that is
            not in [0, num_experts).
        weights: Their weights, [T, k], float32, bfloat16 or float16.
        activation: As in `linear`.
        recompute: As in `grouped_mlp`.
        num_experts: How many experts there are, if those here are only some; None means E.
        group_offset: The number of the first expert here, as in `ragged_dot`. Tokens get nothing
            from experts that are elsewhere.
        precision: As in `ragged_dot`.
        implementation: As in `ragged_dot`.

    Returns:
        [T, N] in x's type, summed in float32.

    Raises:
        TypeError: Not arrays, shapes or types that do not fit together, or an activation of the
            wrong type.
        ValueError: ``num_experts`` without ``group_offset`` or the other way round, or less than E,
            an unknown activation, or what `ragged_dot` raises.
        NotImplementedError: What `ragged_dot` raises.
        ExceptionGroup: Of NotImplementedError: none of several implementations can.
    """
    x, up = as_array(_CALLER, "x", x), as_array(_CALLER, "up", up)
    experts = as_array(_CALLER, "experts", experts)
    weights = as_array(_CALLER, "weights", weights)
    down = as_array(_CALLER, "down", down)
    check_layers(_CALLER, "x", x, up, down)
    if experts.ndim != 2 or experts.shape[:1] != x.shape[:1]:
        raise TypeError(
            f"{_CALLER}: experts must be [T, k] for x [T, K], got {experts.shape} and {x.shape}"
        )
    if not jnp.issubdtype(experts.dtype, jnp.integer):
        raise TypeError(f"{_CALLER}: experts must be integers, got {experts.dtype}")
    check_weights(_CALLER, "weights", weights, experts.shape)
    if (num_experts is None) != (group_offset is None):
        raise ValueError(f"{_CALLER}: num_experts and group_offset must be given together")
    count = as_experts(_CALLER, num_experts, up.shape[0], name="num_experts")
    if count < up.shape[0]:
        raise ValueError(
            f"{_CALLER}: num_experts={count} is less than the {up.shape[0]} matrices of up and down"
        )
    if group_offset is not None:
        check_offset(_CALLER, group_offset, count)
        group_offset = as_array(_CALLER, "group_offset", group_offset)

    recompute = as_flag(_CALLER, "recompute", recompute)
    rows = experts.size, down.shape[1]
    function = as_activation(_CALLER, activation, rows, elementwise=False)

    def layer(
        x: jax.Array, up: jax.Array, down: jax.Array, experts: Any, weights: Any, offset: Any
    ) -> jax.Array:
        order, place, sizes = sort_by_expert(experts, count)
        rows = grouped_mlp(
            dispatch(x, order, place),
            up,
            down,
            sizes,
            row_weights=_permuted(weights.reshape(-1), order),
            activation=function,
            recompute=recompute,
            group_offset=offset,
            precision=precision,
            implementation=implementation,
        )
        return combine(rows, order, place)

    return compat.in_automatic_axes(
        layer,
        lambda: (compat.spec_of(x)[0], compat.spec_of(down)[-1]),
        *(x, up, down, experts, weights, group_offset),
    )


def _permuted(x: jax.Array, order: jax.Array) -> jax.Array:
    """x[order], told to be a permutation: its gradient then needs no atomic additions."""
    return x.at[order].get(unique_indices=True, mode="promise_in_bounds")
