"""Grouped kernels with epilogues linked into them, on a GPU of compute capability 9.0."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from grouped_cases import families, row_tile
from grouped_linked_cases import (
    EPILOGUES,
    EXPERTS,
    F32,
    kernels,
    operands,
    product,
    reference,
    run,
)
from linked_cases import close_on_gpu, requires_linker
from numerics import LINKED, assert_exact, normal, small_integers

import jax_bwgemm as bw
from jax_bwgemm import config

pytestmark = [pytest.mark.sm90, requires_linker]

KERNELS = kernels("cutlass")
SIZES = {
    "uneven": (0, 1, 700, 17, 193, 385),
    "some rows of none": (64, 0, 0, 333, 5, 100),
    "one group": (0, 0, 1300, 0, 0, 0),
}


@pytest.fixture(autouse=True)
def _linked() -> Any:
    with config.linked_epilogues(True):
        yield


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda k: k.name)
@pytest.mark.parametrize("sizes", SIZES)
def test_integers(kernel: Any, sizes: str) -> None:
    """Rows of groups of all sizes are exact; of those of no group the product is zero."""
    rng = np.random.default_rng(0)
    a, b = product(rng, kernel, 1300, 264, 64, exact=True)
    factors = (a, b, jnp.asarray(SIZES[sizes], jnp.int32))
    biases = jnp.asarray(rng.integers(-4, 5, (EXPERTS, 264)), jnp.bfloat16)

    def f(z: Any, b: Any) -> Any:
        return jnp.maximum(z + b.astype(F32), -9.0)

    got = run(
        f, factors, (), (biases,), "cutlass",
        transposed=kernel.b_major == "k", config=kernel.name,
    )  # fmt: skip
    want = reference(f, factors, (), (biases,)).astype(got.dtype)
    np.testing.assert_array_equal(np.asarray(got, np.float32), np.asarray(want, np.float32))


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda k: k.name)
@pytest.mark.parametrize("name", EPILOGUES)
def test_every_epilogue(kernel: Any, name: str) -> None:
    rng = np.random.default_rng(1)
    a, b = product(rng, kernel, 1300, 520, 328)
    f, plain, of_groups = operands(rng, name, 1300, 520, kernel.a_dtype)
    factors = (a, b, jnp.asarray(SIZES["uneven"], jnp.int32))
    got = run(
        f, factors, plain, of_groups, "cutlass",
        transposed=kernel.b_major == "k", config=kernel.name,
    )  # fmt: skip
    close_on_gpu(got, jax.tree.leaves(reference(f, factors, plain, of_groups)))


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda k: k.name)
def test_integers_of_all_group_sizes(kernel: Any) -> None:
    m, n, k = 5 * row_tile(kernel) + 41, 520, 264

    def f(z: Any, w: Any, r: Any, q: Any) -> Any:
        return z * w + r.astype(F32), z - q.astype(F32), z + w

    rng = np.random.default_rng(1)
    a, b = product(rng, kernel, m, n, k, exact=True)
    shapes = ((m, 1), "float32"), ((m, n), kernel.out_dtype), ((m, n), kernel.out_dtype)
    plain = [jnp.asarray(small_integers(rng, *s)) for s in shapes]
    more = {"transposed": kernel.b_major == "k", "config": kernel.name}
    for name, sizes in families(kernel, m).items():
        got = run(f, (a, b, jnp.asarray(sizes)), plain, (), "cutlass", **more)
        for ours, theirs in zip(got, reference(f, (a, b, sizes), plain), strict=True):
            assert_exact(ours, np.asarray(theirs.astype(ours.dtype)), name)


@pytest.mark.parametrize("gated", [True, False])
@pytest.mark.parametrize("recompute", [True, False])
@pytest.mark.parametrize("tokens", [1000, 20])
def test_layer_of_experts(gated: bool, recompute: bool, tokens: int) -> None:
    """Values and gradients, of which a part is summed over columns, as without linking."""
    rng = np.random.default_rng(2)
    experts, k, h = 8, 512, 384
    up = (experts, k, 2, h) if gated else (experts, k, h)
    x, up, down = (
        jnp.asarray(normal(rng, s, "bfloat16")) * jnp.bfloat16(scale)
        for s, scale in (((tokens, k), 1), (up, k**-0.5), ((experts, h, k), h**-0.5))
    )
    chosen = jnp.asarray(rng.integers(0, experts, (tokens, 2)), jnp.int32)
    weights = jnp.asarray(rng.random((tokens, 2)), F32)

    def loss(x: Any, up: Any, down: Any, weights: Any) -> Any:
        y = bw.moe_mlp(x, up, down, chosen, weights, recompute=recompute)
        return jnp.sum(jnp.sin(y.astype(F32)))

    found = {}
    for linked in (True, False):
        jax.clear_caches()
        with config.linked_epilogues(linked):
            f = jax.jit(jax.value_and_grad(loss, (0, 1, 2, 3)))
            text = f.lower(x, up, down, weights).as_text()
            if tokens > 20 or not gated:  # else there is no kernel small enough
                assert ("epilogue_digest" in text) == linked
            found[linked] = f(x, up, down, weights)
    for ours, theirs in zip(*map(jax.tree.leaves, (found[True], found[False])), strict=True):
        scale = float(jnp.max(jnp.abs(theirs)))
        got, wanted = (x.astype(F32) / scale for x in (ours, theirs))
        np.testing.assert_allclose(got, wanted, rtol=LINKED["rtol"], atol=3 * LINKED["atol"])
