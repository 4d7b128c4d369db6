"""Kernels of two products, on a GPU of compute capability 9.0."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gated_cases import EXACT, F32, FUNCTIONS, factors, operands, reference
from linked_cases import close, requires_linker
from numerics import LINKED

import jax_bwgemm as bw
from jax_bwgemm import config, runtime
from jax_bwgemm.epilogue.apply import Epilogue
from jax_bwgemm.epilogue.gated_layer import gated_product

pytestmark = [pytest.mark.sm90, requires_linker]

KERNELS = runtime.gated_kernels("cutlass") if runtime.extension() is not None else ()


@pytest.fixture(autouse=True)
def _linked() -> Any:
    with config.linked_epilogues(True):
        yield


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda k: k.name)
@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize(("m", "n", "k"), [(1000, 1512, 328), (40, 264, 1024)])
def test_every_kernel(kernel: Any, name: str, m: int, n: int, k: int) -> None:
    rng = np.random.default_rng(0)
    x, w = factors(rng, kernel.a_dtype, m, n, k, exact=name in EXACT)
    f, arrays = operands(rng, name, m, n)
    for weights in (w, (w[:, 0], w[:, 1])):

        def call(x: Any, weights: Any, *arrays: Any) -> Any:
            epilogue = Epilogue(f, "test")
            return gated_product(
                x, weights, epilogue, arrays, implementation="cutlass", config=kernel.name
            )

        lowered = jax.jit(call).lower(x, weights, *arrays)
        assert lowered.as_text().count("epilogue_digest") == 1
        got, want = lowered.compile()(x, weights, *arrays), reference(f, x, w, arrays)
        if name in EXACT:
            for ours, theirs in zip(*map(jax.tree.leaves, (got, want)), strict=True):
                np.testing.assert_array_equal(ours, theirs.astype(ours.dtype))
        else:
            close(got, want)


def test_gradients() -> None:
    keys = jax.random.split(jax.random.key(0), 3)
    x = jax.random.normal(keys[0], (2, 512, 512), jnp.bfloat16)
    w = jax.random.normal(keys[1], (512, 2, 1024), jnp.bfloat16) / 22
    bar = jax.random.normal(keys[2], (2, 512, 1024))

    def loss(f: Any) -> Any:
        return lambda x, w: jnp.vdot(f(x, w).astype(F32), bar)

    ours = jax.jit(
        jax.grad(loss(lambda x, w: bw.gated_linear_unit(x, w, activation="silu")), (0, 1))
    )

    def formula(x: Any, w: Any) -> Any:
        x, w = x.astype(F32), w.astype(F32)
        gate, up = (jnp.dot(x, w[:, i], precision="highest") for i in range(2))
        return jax.nn.silu(gate) * up

    got, want = ours(x, w), jax.grad(loss(formula), (0, 1))(x, w)
    for mine, theirs in zip(got, want, strict=True):
        scale = float(jnp.max(jnp.abs(theirs)))
        np.testing.assert_allclose(mine.astype(F32) / scale, theirs.astype(F32) / scale, **LINKED)
