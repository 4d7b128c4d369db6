"""A Flax (linen) model as it is, with `accelerate` around its training step.

    python examples/accelerate_linen.py

One line is special: `@jax_bwgemm.accelerate`. The model never mentions this package.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Sequence

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from flax.training.train_state import TrainState

import jax_bwgemm


class Mlp(nn.Module):
    """Residual blocks over [rows, width]."""

    width: int
    layers: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        for _ in range(self.layers):
            h = nn.LayerNorm(dtype=x.dtype)(x)
            h = nn.gelu(nn.Dense(4 * self.width, dtype=x.dtype)(h))
            x = x + nn.Dense(self.width, dtype=x.dtype)(h)
        return x


def create_state(width: int, layers: int, seed: int = 0) -> TrainState:
    """Initial weights (float32) and optimizer state."""
    model = Mlp(width, layers)
    params = model.init(jax.random.key(seed), jnp.zeros((8, width), jnp.bfloat16))["params"]
    return TrainState.create(apply_fn=model.apply, params=params, tx=optax.adamw(3e-3))


@functools.partial(jax.jit, donate_argnums=0)
@jax_bwgemm.accelerate
def train_step(state: TrainState, x: jax.Array, y: jax.Array) -> tuple[TrainState, jax.Array]:
    """One optimizer step on rows x and their targets y; the new state and the loss before it."""

    def loss_fn(params: dict) -> jax.Array:
        out = state.apply_fn({"params": params}, x)
        return jnp.mean((out.astype(jnp.float32) - y) ** 2)

    loss, grads = jax.value_and_grad(loss_fn)(state.params)
    return state.apply_gradients(grads=grads), loss


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
    state = create_state(args.width, args.layers)
    explained = jax_bwgemm.explain_program(train_step, state, *batch(args.width, args.rows, 0))
    rewritten = sum(one.times for one in explained.rewrites if one.rewritten)
    print(f"{rewritten} of {sum(one.times for one in explained.rewrites)} products rewritten")
    for step in range(args.steps):
        state, loss = train_step(state, *batch(args.width, args.rows, step))
        if step % max(1, args.steps // 5) == 0 or step == args.steps - 1:
            print(f"step {step:4d}  loss {float(loss):.4f}", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
