"""A Flax (nnx) model as it is, with `accelerate` around its training step.

    python examples/accelerate_nnx.py

One line is special: `@jax_bwgemm.accelerate`. Model and optimizer are changed in place, as ever.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import optax
from flax import nnx

import jax_bwgemm


class Block(nnx.Module):
    """A gated layer with dropout and a residual, over [rows, width]."""

    def __init__(self, width: int, rngs: nnx.Rngs) -> None:
        linear = lambda i, o: nnx.Linear(i, o, dtype=jnp.bfloat16, rngs=rngs)  # noqa: E731
        self.norm = nnx.RMSNorm(width, dtype=jnp.bfloat16, rngs=rngs)
        self.gate, self.up = linear(width, 4 * width), linear(width, 4 * width)
        self.down = linear(4 * width, width)
        self.dropout = nnx.Dropout(0.05, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        h = self.norm(x)
        return x + self.down(self.dropout(nnx.silu(self.gate(h)) * self.up(h)))


class Model(nnx.Module):
    """Some blocks."""

    def __init__(self, width: int, layers: int, rngs: nnx.Rngs) -> None:
        self.blocks = nnx.List([Block(width, rngs) for _ in range(layers)])

    def __call__(self, x: jax.Array) -> jax.Array:
        for block in self.blocks:
            x = block(x)
        return x


@nnx.jit
@jax_bwgemm.accelerate
def train_step(model: Model, optimizer: nnx.Optimizer, x: jax.Array, y: jax.Array) -> jax.Array:
    """One optimizer step on rows x and their targets y; returns the loss before it."""

    def loss_fn(model: Model) -> jax.Array:
        return jnp.mean((model(x).astype(jnp.float32) - y) ** 2)

    loss, grads = nnx.value_and_grad(loss_fn)(model)
    optimizer.update(model, grads)
    return loss


def batch(width: int, rows: int, step: int) -> tuple[jax.Array, jax.Array]:
    """Random rows, and what the model is to make of them: their neighbours' difference."""
    x = jax.random.normal(jax.random.key(step), (rows, width), jnp.bfloat16)
    return x, (jnp.roll(x, 1, axis=1) - x).astype(jnp.float32)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--rows", type=int, default=256)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--layers", type=int, default=2)
    args = parser.parse_args(argv)
    model = Model(args.width, args.layers, nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adamw(3e-3), wrt=nnx.Param)
    first = batch(args.width, args.rows, 0)
    explained = jax_bwgemm.explain_program(train_step, model, optimizer, *first)
    rewritten = sum(one.times for one in explained.rewrites if one.rewritten)
    print(f"{rewritten} of {sum(one.times for one in explained.rewrites)} products rewritten")
    for step in range(args.steps):
        loss = train_step(model, optimizer, *batch(args.width, args.rows, step))
        if step % max(1, args.steps // 5) == 0 or step == args.steps - 1:
            print(f"step {step:4d}  loss {float(loss):.4f}", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
