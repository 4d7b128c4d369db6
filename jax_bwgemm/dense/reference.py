"""The XLA implementation of the canonical GEMM: CPU lowering, fallback and test oracle."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec

from jax_bwgemm.dense.spec import GemmSpec
from jax_bwgemm.product.dtypes import product_dtype


def gemm_reference(lhs: jax.Array, rhs: jax.Array, spec: GemmSpec) -> jax.Array:
    """Computes the canonical GEMM with `jax.lax.dot_general`.

    Args:
        lhs: A, [B or 1, M, K] or [B or 1, K, M] by ``spec.a_major``; any dtype.
        rhs: B, [B or 1, K, N] or [B or 1, N, K] by ``spec.b_major``; any dtype.
        spec: What to compute; its implementations and configuration are ignored.

    Returns:
        D, [B, M, N], or [1, M, N] when ``spec.reduce_batch``, of ``spec.out_dtype``.
    """
    wide = product_dtype(lhs.dtype, rhs.dtype, jnp.dtype(spec.out_dtype))
    lhs_k = 2 if spec.a_major == "k" else 1
    rhs_k = 1 if spec.b_major == "n" else 2

    out_spec = None if spec.out_sharding is None else tuple(spec.out_sharding.spec)

    def dot(
        a: jax.Array,
        b: jax.Array,
        contract: tuple,
        batch: tuple = ((), ()),
        order: tuple[int, ...] = (0, 1, 2),
    ) -> jax.Array:
        sharding = None
        if out_spec is not None:
            spec_in_order = PartitionSpec(*(out_spec[i] for i in order))
            sharding = NamedSharding(spec.out_sharding.mesh, spec_in_order)
        return lax.dot_general(
            a,
            b,
            (contract, batch),
            precision=spec.policy.precision,
            preferred_element_type=wide,
            out_sharding=sharding,
        ).astype(spec.out_dtype)

    if spec.reduce_batch:
        return dot(lhs, rhs, ((0, lhs_k), (0, rhs_k)), order=(1, 2))[None]
    if lhs.shape[0] == rhs.shape[0]:
        return dot(lhs, rhs, ((lhs_k,), (rhs_k,)), ((0,), (0,)))
    if rhs.shape[0] == 1:
        return dot(lhs, lax.squeeze(rhs, (0,)), ((lhs_k,), (rhs_k - 1,)))
    out = dot(lax.squeeze(lhs, (0,)), rhs, ((lhs_k - 1,), (rhs_k,)), order=(1, 0, 2))
    return lax.transpose(out, (1, 0, 2))
