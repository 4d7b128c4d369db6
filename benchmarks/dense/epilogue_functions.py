"""Functions after a product that differ in what they read and write: see bench_epilogues.py."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

# Shapes of operands, of an [m, n] product.
SHAPES = {"row": lambda m, n: (n,), "column": lambda m, n: (m, 1), "matrix": lambda m, n: (m, n)}


@dataclasses.dataclass(frozen=True)
class Function:
    """A function of a product's f32 sums and further operands.

    Attributes:
        call: The function. It returns the results.
        operands: Types and shapes, the latter of `SHAPES`.
    """

    call: Callable[..., Any]
    operands: tuple[tuple[str, str], ...]

    def types(self, m: int, n: int) -> list[jax.ShapeDtypeStruct]:
        """The operands', for an [m, n] product."""
        return [
            jax.ShapeDtypeStruct(SHAPES[shape](m, n), jnp.dtype(dtype))
            for dtype, shape in self.operands
        ]


def _matrices(*dtypes: str) -> tuple[tuple[str, str], ...]:
    return tuple((dtype, "matrix") for dtype in dtypes)


def _graph_layer(z, m, bias, scale, norm, mean, kept, mask):
    """The gradient within a layer of a graph network with a norm."""
    return jnp.where(kept > 0, (z + m) * scale + norm * mean + bias, 0) * mask


def _gate_and_up(z, gate, up):
    """Their gradients, from that of silu(gate) * up."""
    gate, up = gate.astype(z.dtype), up.astype(z.dtype)
    return jax.vjp(lambda gate, up: jax.nn.silu(gate) * up, gate, up)[1](z)


BF16, F32 = "bfloat16", "float32"
FUNCTIONS = {
    "gelu": Function(lambda z, b: jax.nn.gelu(z + b), ((BF16, "row"),)),
    "residual": Function(lambda z, r: z + r, _matrices(BF16)),
    "f32 residual": Function(lambda z, r: z + r, _matrices(F32)),
    "two matrices": Function(lambda z, a, b: z * a + b, _matrices(BF16, BF16)),
    "bf16 and f32": Function(lambda z, a, b: z * a + b, _matrices(BF16, F32)),
    "two of f32": Function(lambda z, a, b: z * a + b, _matrices(F32, F32)),
    "three matrices": Function(lambda z, a, b, c: z * a + b * c, _matrices(*[BF16] * 3)),
    "four matrices": Function(lambda z, a, b, c, d: z * a + b * c + d, _matrices(*[BF16] * 4)),
    "gate and up": Function(_gate_and_up, _matrices(BF16, BF16)),
    "graph layer": Function(
        _graph_layer,
        (
            (BF16, "matrix"), (F32, "row"), (F32, "column"), (F32, "matrix"), (F32, "column"),
            (BF16, "matrix"), (BF16, "column"),
        ),
    ),
    "two results": Function(
        lambda z, b, m: (jnp.maximum(z + b, 0), (z + b) * m), ((BF16, "row"), (BF16, "matrix"))
    ),
}  # fmt: skip
