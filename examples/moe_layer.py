"""A mixture-of-experts layer to copy; moe.py beside it trains one and checks it.

Rows of all tokens are sorted by expert with one argsort, and two ragged products do the rest: no
capacity, no dropped token, no padding, and group sizes never leave the device.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

import jax_bwgemm

Params = dict[str, jax.Array]
RaggedDot = Callable[..., jax.Array]
Product = Callable[[jax.Array, jax.Array], jax.Array]


def init_layer(key: jax.Array, width: int, hidden: int, experts: int) -> Params:
    """Weights of gated MLPs in float32; gate and up are one matrix, [width, 2 hidden]."""
    router, into, out = jax.random.split(key, 3)
    return {
        "router": jax.random.normal(router, (width, experts)) * width**-0.5,
        "w_in": jax.random.normal(into, (experts, width, 2 * hidden)) * width**-0.5,
        "w_out": jax.random.normal(out, (experts, hidden, width)) * hidden**-0.5,
    }


def exact_product(x: jax.Array, router: jax.Array) -> jax.Array:
    """Scores as XLA computes them in float32."""
    return jnp.dot(x.astype(jnp.float32), router, precision="highest")


def route(
    router: jax.Array, x: jax.Array, top_k: int, product: Product = exact_product
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """Chooses `top_k` experts for each token of x [tokens, width].

    Args:
        router: [width, experts], float32.
        x: Tokens.
        top_k: Experts for each token.
        product: Of x and router, float32.

    Returns:
        Their weights, [tokens, top_k] float32, which sum to 1; their numbers, [tokens, top_k]; how
        often each was chosen, [experts]; and the load-balancing loss, which is 1 when tokens
        spread evenly over the experts.
    """
    scores = product(x, router)
    shares = jax.nn.softmax(scores)
    weights, experts = lax.top_k(shares, top_k)
    # Counted by comparing: thousands of atomic additions to a few counters would be slower.
    sizes = jnp.sum(experts.reshape(-1, 1) == jnp.arange(router.shape[1]), axis=0)
    balance = router.shape[1] * jnp.sum(sizes / experts.size * shares.mean(axis=0))
    return weights / weights.sum(axis=1, keepdims=True), experts, sizes, balance


def _permute(x: jax.Array, order: jax.Array) -> jax.Array:
    """x[order], told to be a permutation: its gradient then needs no atomic additions."""
    return x.at[order].get(unique_indices=True, mode="promise_in_bounds")


def moe_layer(
    params: Params,
    x: jax.Array,
    *,
    top_k: int,
    ragged_dot: RaggedDot = jax_bwgemm.ragged_dot,
    axis: str | None = None,
) -> tuple[jax.Array, jax.Array]:
    """Mixture of experts: every token through its `top_k` experts.

    Args:
        params: As `init_layer` makes them; products are in x's type.
        x: Tokens, [tokens, width].
        top_k: Experts for each token.
        ragged_dot: The grouped product, `jax.lax.ragged_dot`'s signature.
        axis: Inside `jax.shard_map`, the mesh axis over which "w_in" and "w_out" are sharded by
            expert; everything else is on every device.

    Returns:
        [tokens, width] in x's type, and the load-balancing loss.
    """
    weights, experts, sizes, balance = route(params["router"], x, top_k)
    order = jnp.argsort(experts.reshape(-1))
    place = jnp.zeros_like(order).at[order].set(jnp.arange(order.size), unique_indices=True)
    w_in, w_out = (params[name].astype(x.dtype) for name in ("w_in", "w_out"))
    if axis is not None:
        # Sizes stay global: this device's first matrix belongs to that group. Rows of the other
        # devices' groups come out as zeros.
        first = lax.axis_index(axis) * w_in.shape[0]
        ragged_dot = functools.partial(ragged_dot, group_offset=first)

    rows = _permute(jnp.repeat(x, top_k, axis=0), order)
    gate, up = jnp.split(ragged_dot(rows, w_in, sizes), 2, axis=1)
    rows = ragged_dot(jax.nn.silu(gate) * up, w_out, sizes)
    by_token = _permute(rows, place).reshape(*weights.shape, -1)
    y = jnp.sum(by_token.astype(jnp.float32) * weights[..., None], axis=1)
    return (y if axis is None else lax.psum(y, axis)).astype(x.dtype), balance


def fused_layer(
    params: Params, x: jax.Array, *, top_k: int, implementation: str | None = None
) -> tuple[jax.Array, jax.Array]:
    """`moe_layer` as one call, `jax_bwgemm.moe_mlp`, with fewer passes over the rows.

    The router's product reads x as it is. With x in bfloat16 the router is split into two terms:
    the scores' errors are about 2e-5 of their root mean square.
    """
    scores = functools.partial(
        jax_bwgemm.matmul, precision="high", preferred_element_type=jnp.float32
    )
    weights, experts, _, balance = route(params["router"], x, top_k, scores)
    w_in, w_out = (params[name].astype(x.dtype) for name in ("w_in", "w_out"))
    stacked = w_in.reshape(*w_in.shape[:2], 2, -1)
    y = jax_bwgemm.moe_mlp(x, stacked, w_out, experts, weights, implementation=implementation)
    return y, balance


def dense_layer(params: Params, x: jax.Array, *, top_k: int) -> tuple[jax.Array, jax.Array]:
    """The same layer as a loop over the experts, each seeing all tokens: what it is checked by."""
    weights, experts, _, balance = route(params["router"], x, top_k)
    y = jnp.zeros(x.shape, jnp.float32)
    for expert, (w_in, w_out) in enumerate(zip(params["w_in"], params["w_out"], strict=True)):
        gate, up = jnp.split(jnp.dot(x, w_in, precision="highest"), 2, axis=1)
        out = jnp.dot(jax.nn.silu(gate) * up, w_out, precision="highest")
        y += out * jnp.sum(jnp.where(experts == expert, weights, 0), axis=1, keepdims=True)
    return y.astype(x.dtype), balance


EXPERT_SHARDED = {"router": P(), "w_in": P("experts"), "w_out": P("experts")}


def expert_parallel(mesh: Mesh, top_k: int, ragged_dot: RaggedDot) -> Callable:
    """`moe_layer` with the experts' matrices spread over the mesh axis "experts".

    Each device computes the groups of its own matrices; one all-reduce adds the tokens' parts.
    """
    return jax.shard_map(
        functools.partial(moe_layer, top_k=top_k, ragged_dot=ragged_dot, axis="experts"),
        mesh=mesh,
        in_specs=(EXPERT_SHARDED, P()),
        out_specs=(P(), P()),
    )
