"""Products whose results are split along their columns become one for each part."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numerics import LINKED, normal

import jax_bwgemm as bw
from jax_bwgemm import config
from jax_bwgemm.product.jaxprs import equations
from jax_bwgemm.rewriting import splits

B, S, K, N = 4, 128, 64, 128
F32 = jnp.float32


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(splits, "_LAUNCH_BYTES", 0)
    monkeypatch.setattr(jax, "device_count", lambda: 1)


@pytest.fixture
def arrays() -> tuple[jax.Array, ...]:
    rng = np.random.default_rng(0)
    shapes = ((B, S, K), (K, 3 * N), (3 * N,), (N, 3))
    x, w, b, v = (jnp.asarray(normal(rng, s, "bfloat16")) for s in shapes)
    return x, w / 8, b, v


def widths(f: Callable[..., Any], *args: Any) -> list[int]:
    """Columns of the products."""
    with config.target("sm90"), config.linked_epilogues(False):
        jaxpr = jax.make_jaxpr(bw.accelerate(f))(*args)
    names = ("dot_general", "bw_gemm")
    return [e.outvars[0].aval.shape[-1] for e, _ in equations(jaxpr) if e.primitive.name in names]


def check(f: Callable[..., Any], *args: Any) -> None:
    got, want = jax.jit(bw.accelerate(f))(*args), jax.jit(f)(*args)
    for ours, theirs in zip(*map(jax.tree.leaves, (got, want)), strict=True):
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
        scale = max(float(jnp.max(jnp.abs(theirs.astype(F32)))), 1.0)
        ours, theirs = (np.asarray(y.astype(F32)) / scale for y in (ours, theirs))
        np.testing.assert_allclose(ours, theirs, rtol=4 * LINKED["rtol"], atol=LINKED["atol"])


def test_queries_keys_and_values(arrays) -> None:
    def heads(x: Any, w: Any, b: Any, v: Any) -> Any:
        q, k, v = (t.reshape(B, S, 2, N // 2) for t in jnp.split((x @ w + b) * 2, 3, axis=-1))
        return q, k, v

    assert widths(heads, *arrays) == [N] * 3
    check(heads, *arrays)
    stored = lambda *xs: [t.reshape(-1) @ t.reshape(-1) for t in heads(*xs)]  # noqa: E731
    check(jax.grad(lambda *xs: sum(stored(*xs)), (1, 2)), *arrays)


def test_parts_of_several_widths(arrays) -> None:
    x, w, *_ = arrays
    f = lambda x, w: jnp.split(jnp.einsum("bsk,nk->bsn", x, w.T), [N], axis=-1)  # noqa: E731
    assert widths(f, x, w) == [N, 2 * N]
    check(f, x, w)


@pytest.mark.parametrize("rows", [(256,), (2, 128), (1, 256)])
def test_factors_of_rows(arrays, rows: tuple[int, ...]) -> None:
    """A factor of each row is no row, however few rows there are: the product stays whole."""
    _, w, b, _ = arrays
    x = jnp.asarray(normal(np.random.default_rng(1), (*rows, K), "bfloat16"))

    def f(x: Any, w: Any, b: Any) -> Any:
        factors = jax.lax.broadcast_in_dim(x[..., 0], (*rows, 3 * N), range(len(rows)))
        return jnp.split((x @ w + b) * factors, 3, axis=-1)

    assert widths(f, x, w, b) == [3 * N]
    check(f, x, w, b)


@pytest.mark.parametrize("columns", [3 * N, 12 * N], ids=["narrower", "wider"])
def test_a_reshape_of_the_columns(arrays, columns: int) -> None:
    """Parts are then no columns of the product: split within heads, or of several rows."""
    x, w, *_ = arrays
    w = jnp.concatenate([w, w], axis=1)
    f = lambda x, w: jnp.split((x @ w).reshape(B, -1, columns), 3, -1)  # noqa: E731
    g = lambda x, w: [t[0].T @ t[0] for t in f(x, w)]  # noqa: E731
    for function in (f, g):
        assert 6 * N in widths(function, x, w)
        check(function, x, w)


def test_what_stays_whole(arrays, monkeypatch: pytest.MonkeyPatch) -> None:
    x, w, *_ = arrays
    halves = lambda y: jnp.split(y, 3, axis=-1)  # noqa: E731
    residual = jnp.ones((B, S, 3 * N), jnp.bfloat16)
    cases = [
        lambda x, w: [t + 1 for t in halves(x @ w)],  # passes split it
        lambda x, w: halves((x @ w) + residual),  # a matrix would be copied
        lambda x, w: jnp.split(x @ w, 2, axis=1),
        lambda x, w: jnp.split(x @ w, [96], axis=-1),  # no whole tiles
        lambda x, w: halves(x.astype(F32) @ w.astype(F32)),
        lambda x, w: halves(jnp.sort(x @ w)),
        lambda x, w: halves(x[:1, :8] @ w),  # more weights than results
    ]
    cases.append(lambda x, w: (lambda y: (halves(y), y))(x @ w))  # something reads all of it
    for i, f in enumerate(cases):
        assert widths(f, x, w) == [3 * N], i
        check(f, x, w)
    whole = lambda x, w: halves(x @ w)  # noqa: E731
    monkeypatch.setattr(jax, "device_count", lambda: 2)
    assert widths(whole, x, w) == [3 * N]
    monkeypatch.setattr(jax, "device_count", lambda: 1)
    monkeypatch.setattr(splits, "_LAUNCH_BYTES", 16e6)
    assert widths(whole, x, w) == [3 * N]


def test_parts_that_passes_read_too_stay_in_one_product(arrays) -> None:
    """Those passes split the result: memory has the parts without a copy."""
    x, w, *_ = arrays
    f = lambda x, w: [(t, t + 1) for t in jnp.split(x @ w, 3, axis=-1)]  # noqa: E731
    assert widths(f, x, w) == [3 * N]


def test_a_bias_with_dimensions_of_one_is_a_row(arrays) -> None:
    x, w, b, _ = arrays

    def f(x: Any, w: Any, b: Any) -> Any:
        return jnp.split(x @ w + jnp.broadcast_to(b[None, None], (B, S, 3 * N)), 3, axis=-1)

    assert widths(f, x, w, b) == [N] * 3
    check(f, x, w, b)
