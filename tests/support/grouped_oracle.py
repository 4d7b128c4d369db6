"""Grouped GEMMs by loops over groups in numpy, or by an einsum, and group sizes to try."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax_bwgemm.grouped import contraction as grouped_contraction


def bounds(sizes: Any, rows: int, offset: int, experts: int) -> list[tuple[int, int]]:
    """First and end row of the group of each of the matrices."""
    ends = [0]
    for size in sizes:
        ends.append(min(ends[-1] + max(int(size), 0), rows))
    first = min(max(int(offset), 0), len(sizes))
    groups = [(ends[g], ends[g + 1]) for g in range(len(sizes))]
    wanted = groups[first : first + experts]
    return wanted + [(0, 0)] * (experts - len(wanted))


def rows(lhs: Any, rhs: Any, sizes: Any, offset: int = 0) -> np.ndarray:
    """[M, K], [E, K, N] -> [M, N]."""
    lhs, rhs = np.asarray(lhs, np.float64), np.asarray(rhs, np.float64)
    out = np.zeros((lhs.shape[0], rhs.shape[2]))
    for e, (start, end) in enumerate(bounds(sizes, lhs.shape[0], offset, rhs.shape[0])):
        out[start:end] = lhs[start:end] @ rhs[e]
    return out


def contract(lhs: Any, rhs: Any, sizes: Any, offset: int, experts: int) -> np.ndarray:
    """[M, K], [M, N] -> [E, K, N]."""
    lhs, rhs = np.asarray(lhs, np.float64), np.asarray(rhs, np.float64)
    out = np.zeros((experts, lhs.shape[1], rhs.shape[1]))
    for e, (start, end) in enumerate(bounds(sizes, lhs.shape[0], offset, experts)):
        out[e] = lhs[start:end].T @ rhs[start:end]
    return out


def canonical(spec: Any, lhs: Any, rhs: Any, sizes: Any, offset: Any) -> np.ndarray:
    """The canonical grouped GEMM of a `GroupedSpec`, batches and all, in f64."""
    operands = [np.asarray(x, np.float64) for x in (lhs, rhs)]
    operands += [np.asarray(x, np.int64) for x in (sizes, offset)]
    batch = next((x.shape[0] for x in operands if x.shape[0] != 1), 1)
    results = []
    for b in range(batch):
        left, right, own, first = (x[b] if x.shape[0] != 1 else x[0] for x in operands)
        if spec.kind == "k-grouped":
            results.append(contract(left, right, own, first, spec.experts))
        else:
            right = right if spec.b_major == "n" else right.swapaxes(1, 2)
            results.append(rows(left, right, own, first))
    out = np.stack(results) if results else np.zeros((0,))
    return out.sum(0, keepdims=True) if spec.reduce_batch else out


def some_sizes(rng: np.random.Generator, rows: int, groups: int, kind: str) -> np.ndarray:
    """Group sizes of a kind: they sum to ``rows`` at most."""
    if groups == 0 or rows == 0:
        return np.zeros(groups, np.int32)
    if kind == "one":  # all rows in one group
        sizes = np.zeros(groups, np.int32)
        sizes[rng.integers(groups)] = rows
        return sizes
    if kind == "ones":
        return (np.arange(groups) < rows).astype(np.int32)
    if kind == "none":
        return np.zeros(groups, np.int32)
    if kind == "equal":
        return np.full(groups, rows // groups, np.int32)
    total = rows if kind == "full" else int(rng.integers(rows + 1))  # else "short": sum < M
    weights = rng.exponential(size=groups) ** 2  # a few large groups, many small or empty
    cuts = np.floor(np.cumsum(weights) / weights.sum() * total).astype(np.int32)
    cuts[-1] = total
    return np.diff(cuts, prepend=0).astype(np.int32)


KINDS = ("full", "short", "one", "ones", "none", "equal")


def dense(lhs: Any, rhs: Any, sizes: Any, offset: Any, spec: Any) -> jax.Array:
    """The canonical grouped GEMM in one einsum over all groups: quick to compile, for rules."""
    rows, groups = lhs.shape[1], sizes.shape[1]
    experts = rhs.shape[1] if spec.kind == "m-grouped" else spec.experts
    ends = jnp.cumsum(jnp.clip(sizes, 0, rows), axis=1)
    group = jnp.clip(offset, 0, groups)[:, None] + jnp.arange(experts)
    row = jnp.arange(rows)[:, None]
    inside = (row < ends[:, None]) & (row >= (ends - jnp.clip(sizes, 0, rows))[:, None])
    # [B, M, G] and [B, E, G] to [B, M, E]: which row belongs to which matrix.
    mask = jnp.einsum("bmg,beg->bme", *_batched(inside, group[:, :, None] == jnp.arange(groups)))
    subscripts = {
        ("m-grouped", "n"): "bmk,bekn,bme->bmn",
        ("m-grouped", "k"): "bmk,benk,bme->bmn",
        ("k-grouped", "n"): "bmk,bmn,bme->bekn",
    }[spec.kind, spec.b_major]
    out = jnp.einsum(subscripts, *_batched(lhs, rhs, mask), preferred_element_type=jnp.float32)
    out = out.sum(0, keepdims=True) if spec.reduce_batch else out
    return out.astype(spec.out_dtype)


def _batched(*operands: jax.Array) -> list[jax.Array]:
    """All with the batch of the largest, in f32."""
    batch = next((x.shape[0] for x in operands if x.shape[0] != 1), 1)
    return [jnp.broadcast_to(x, (batch, *x.shape[1:])).astype(jnp.float32) for x in operands]


@contextlib.contextmanager
def in_one_einsum() -> Iterator[None]:
    """On the CPU, grouped GEMMs are `dense`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(grouped_contraction, "grouped_reference", dense)
        jax.clear_caches()
        yield
    jax.clear_caches()
