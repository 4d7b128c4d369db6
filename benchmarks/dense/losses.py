"""The problems of `bench_loss.py`, named once, and what their logits are compared with.

A problem is x [rows, width] by weights [width, vocabulary].
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp


@dataclasses.dataclass(frozen=True)
class LossProblem:
    """Sizes of the last layer of a language model; what a model has them stands behind."""

    rows: int
    width: int
    vocabulary: int

    def __str__(self) -> str:
        return f"{self.rows},{self.width},{self.vocabulary}"

    @property
    def product_flops(self) -> int:
        return 2 * self.rows * self.width * self.vocabulary


PROBLEMS = (
    LossProblem(8192, 4096, 128256),  # Llama 3
    LossProblem(16384, 2560, 151936),  # Qwen 3
    LossProblem(4096, 2048, 50304),  # GPT-2, padded
    LossProblem(2048, 5120, 201088),  # GPT-OSS
)
SMALL = (LossProblem(24, 16, 96), LossProblem(16, 8, 40))


def as_written(preferred: Any) -> Callable[..., jax.Array]:
    """The loss as users write it, in XLA: logits of type `preferred`; None is the operands'."""

    def loss(x: jax.Array, labels: jax.Array, weights: jax.Array) -> jax.Array:
        logits = jnp.dot(x, weights, preferred_element_type=preferred).astype(jnp.float32)
        picked = jnp.take_along_axis(logits, labels[:, None], 1)[:, 0]
        return jnp.mean(jax.nn.logsumexp(logits, -1) - picked)

    return loss


def in_chunks(x: jax.Array, labels: jax.Array, weights: jax.Array) -> jax.Array:
    """The loss in XLA, 1024 rows of f32 logits at a time, computed again in the backward pass."""
    rows = x.shape[0]
    size = max(d for d in range(1, min(1024, rows) + 1) if rows % d == 0)

    @jax.checkpoint
    def chunk(weights: jax.Array, part: tuple[jax.Array, jax.Array]) -> jax.Array:
        return as_written(jnp.float32)(*part, weights)

    parts = x.reshape(-1, size, x.shape[1]), labels.reshape(-1, size)
    step = lambda total, part: (total + chunk(weights, part), None)  # noqa: E731
    return jax.lax.scan(step, jnp.zeros((), jnp.float32), parts)[0] * size / rows


def gradient_errors(got: Any, want: Any) -> float:
    """Largest error of any gradient, over the root of the mean square of the exact ones."""

    def error(a: jax.Array, b: jax.Array) -> float:
        a, b = a.astype(jnp.float32), b.astype(jnp.float32)
        return float(jnp.max(jnp.abs(a - b)) / jnp.sqrt(jnp.mean(b**2)))

    return max(map(error, jax.tree.leaves(got), jax.tree.leaves(want)))
