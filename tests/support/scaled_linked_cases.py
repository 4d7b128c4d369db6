"""Scaled kernels with an epilogue in them: one kernel, one function, and what it has to give."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numerics import normal
from scaled_cases import exact_operand, formula_product

import jax_bwgemm as bw
from jax_bwgemm import runtime
from jax_bwgemm.epilogue.linkable import linkable_kernels
from jax_bwgemm.product.kernels import Kernel

F32 = jnp.float32
# Layouts of A and B, by what a kernel does with scales.
LAYOUTS = {
    "sums": [("tensor", "tensor"), ("row", "row"), ("tensor", "row")],
    "blocks": [("1x128", "128x128"), ("row", "tensor")],
    "mma": [("mxfp8", "mxfp8")],
}


def kernels(implementation: str) -> list[Kernel]:
    """Those that epilogues are linked into."""
    table = (
        runtime.scaled_kernels()
        if implementation == "cutlass"
        else runtime.emulated_scaled_kernels()
    )
    return [k for k in table if k.name in linkable_kernels()]


def operand(rng: np.random.Generator, rows: int, k: int, scaling: str, dtype: str) -> Any:
    """Small integers with scales of about 1 / sqrt(k)."""
    x = exact_operand(rng, (rows, k), scaling, dtype)
    scales = x.scales.astype(F32) * np.float32(2.0 ** -int(np.log2(k) / 4))
    return bw.ScaledArray(x.values, scales.astype(x.scales.dtype), scaling)


def run(
    kernel: Kernel,
    layouts: tuple[str, str],
    sizes: tuple[int, int, int],
    f: Callable[..., Any],
    arrays: Sequence[jax.Array],
    implementation: str,
    sm_count: int | None = None,
) -> tuple[Any, Any]:
    """What a kernel with an epilogue gives, and the function of the exact product."""
    rng = np.random.default_rng(0)
    m, n, k = sizes
    a = operand(rng, m, k, layouts[0], kernel.a_dtype)
    b = operand(rng, n, k, layouts[1], kernel.b_dtype)

    def call(a: Any, b: Any, *arrays: Any) -> Any:
        return bw.scaled_matmul(
            a,
            b,
            accumulation="fast" if kernel.scales == "sums" else "promoted",
            implementation=implementation,
            config=kernel.name,
            epilogue=f,
            epilogue_operands=arrays,
        )

    with bw.config.target(kernel.arch, sm_count):
        lowered = jax.jit(call).lower(a, b, *arrays)
    assert kernel.name in lowered.as_text()
    assert lowered.as_text().count("epilogue_digest") == 1
    want = jax.jit(f)(jnp.asarray(formula_product(a, b), F32), *arrays)
    return lowered.compile()(a, b, *arrays), want


def bias_gelu_residual(z: jax.Array, b: jax.Array, r: jax.Array) -> tuple[jax.Array, jax.Array]:
    """An activation and its argument, a row and a matrix of the product's type."""
    z = z + b.astype(F32)
    return jax.nn.gelu(z) + r.astype(F32), z


def gradient(z: jax.Array, h: jax.Array, s: jax.Array) -> tuple[jax.Array, jax.Array]:
    """A gradient and its sum over rows; a column."""
    g = z * jnp.tanh(h.astype(F32)) * s
    return g, jnp.sum(g, 0)


def arrays_of(name: str, m: int, n: int) -> tuple[Callable[..., Any], list[jax.Array]]:
    """A function and its operands."""
    rng = np.random.default_rng(1)
    shapes: dict[str, tuple[Callable[..., Any], list[tuple[tuple[int, ...], str]]]] = {
        "activation": (bias_gelu_residual, [((n,), "bfloat16"), ((m, n), "bfloat16")]),
        "gradient": (gradient, [((m, n), "bfloat16"), ((m, 1), "float32")]),
    }
    f, types = shapes[name]
    return f, [jnp.asarray(normal(rng, shape, dtype)) for shape, dtype in types]
