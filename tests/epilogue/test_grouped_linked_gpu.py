"""Grouped kernels with epilogues linked into them, on a GPU of compute capability 9.0."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
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


@pytest.mark.parametrize("recompute", [False, True])
def test_grouped_mlp(recompute: bool) -> None:
    """Value and gradients of gated experts, linked and as passes of XLA's."""
    rng = np.random.default_rng(2)
    rows, width, hidden = 1300, 256, 384
    x, up, down = (
        jnp.asarray(rng.normal(size=s) * s[-2] ** -0.5 if len(s) > 2 else rng.normal(size=s))
        .astype(jnp.bfloat16)
        for s in ((rows, width), (EXPERTS, width, 2 * hidden), (EXPERTS, hidden, width))
    )  # fmt: skip
    up = up.reshape(EXPERTS, width, 2, hidden)
    sizes = jnp.asarray(SIZES["uneven"], jnp.int32)
    weights = jnp.asarray(rng.uniform(size=rows), jnp.float32)

    def loss(x: Any, up: Any, down: Any, weights: Any) -> Any:
        y = bw.grouped_mlp(
            x, up, down, sizes, row_weights=weights, recompute=recompute, implementation="cutlass"
        )
        return jnp.sum(y.astype(F32) ** 2)

    steps = jax.value_and_grad(loss, (0, 1, 2, 3))
    got = jax.jit(steps)(x, up, down, weights)
    with config.linked_epilogues(False):
        want = jax.jit(lambda *a: steps(*a))(x, up, down, weights)
    for ours, theirs in zip(*map(jax.tree.leaves, (got, want)), strict=True):
        scale = float(jnp.max(jnp.abs(theirs.astype(F32))))
        np.testing.assert_allclose(
            np.asarray(ours, np.float32) / scale, np.asarray(theirs, np.float32) / scale, atol=2**-6
        )
