"""Grouped scaled operands for tests, and what their products are."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from scaled_cases import exact_operand, formula_values

import jax_bwgemm as bw

SIZES = (0, 130, 1, 65, 0, 70)


def exact_pair(
    kind: str,
    scalings: tuple[str, str],
    shape: tuple[int, int, int],
    groups: int,
    dtypes: tuple[str | None, str | None] = (None, None),
) -> tuple[bw.ScaledArray, bw.ScaledArray]:
    """A and B for M, N, K = shape whose products are exact; B has scales of every matrix."""
    rng = np.random.default_rng(0)
    m, n, k = shape
    if kind == "k-grouped":
        shapes = ((k, m), (n, m))
        operands = zip(shapes, scalings, dtypes, strict=True)
        a, b = (exact_operand(rng, *operand) for operand in operands)
        return a, b
    a = exact_operand(rng, (m, k), scalings[0], dtypes[0])
    matrices = [exact_operand(rng, (n, k), scalings[1], dtypes[1]) for _ in range(groups)]
    return a, jax.tree.map(lambda *leaves: jnp.asarray(np.stack(leaves)), *matrices)


def expected(
    a: bw.ScaledArray, b: bw.ScaledArray, sizes: Sequence[int], offset: int = 0
) -> np.ndarray:
    """The grouped products in f64."""
    m_grouped = b.ndim == 3
    left = formula_values(a)
    rows = a.shape[0 if m_grouped else 1]
    ends = np.minimum(np.cumsum(np.maximum(sizes, 0)), rows)
    spans = [slice(*s) for s in zip(np.concatenate([[0], ends[:-1]]), ends, strict=True)][offset:]
    if not m_grouped:
        right = formula_values(b)
        return np.stack([left[:, s] @ right[:, s].T for s in spans])
    out = np.zeros((rows, b.shape[1]))
    b = jax.tree.map(np.asarray, b)  # whose parts are no programs
    for matrix, span in zip(range(b.shape[0]), spans, strict=False):
        one = jax.tree.map(lambda leaf, matrix=matrix: leaf[matrix], b)
        out[span] = left[span] @ formula_values(one).T
    return out
