"""A language model to copy: its head and cross-entropy are one function, its step plain optax.

    python examples/language_model.py

The model predicts the next character of NumPy's documentation. Where a Flax program would
multiply by the head and call `optax.softmax_cross_entropy_with_integer_labels`, this one hands the
last hidden layer and the head's matrix to `linear_softmax_cross_entropy_loss`: no array of f32
logits is made, and both gradients of the head are 16-bit products.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

import jax_bwgemm


class Model(nn.Module):
    """Characters [batch, length] to hidden layers [batch, length, width] and a head."""

    vocabulary: int
    width: int = 128
    context: int = 8
    dtype: Any = jnp.bfloat16

    @nn.compact
    def __call__(self, characters: jax.Array) -> tuple[jax.Array, jax.Array]:
        """The last hidden layer, [batch, length, width], and the head, [width, vocabulary]."""
        x = nn.Embed(self.vocabulary, self.width, dtype=self.dtype)(characters)
        # Each position sees the last `context` characters, itself included.
        padded = jnp.pad(x, ((0, 0), (self.context - 1, 0), (0, 0)))
        length = x.shape[1]
        x = jnp.concatenate([padded[:, i : i + length] for i in range(self.context)], -1)
        dense = lambda: nn.Dense(  # noqa: E731
            self.width, dtype=self.dtype, dot_general=jax_bwgemm.dot_general
        )
        x = nn.relu(dense()(x))
        x = x + nn.relu(dense()(x))
        head = self.param("head", nn.initializers.lecun_normal(), (self.width, self.vocabulary))
        return x, head.astype(self.dtype)


def loss_fn(model: Model, params: Any, characters: jax.Array, logits: str = "stored") -> jax.Array:
    """Mean cross-entropy of the next character, from [batch, length + 1] characters."""
    hidden, head = model.apply({"params": params}, characters[:, :-1])
    return jax_bwgemm.linear_softmax_cross_entropy_loss(
        hidden, characters[:, 1:], head, reduction="mean", logits=logits
    )


def optax_loss_fn(model: Model, params: Any, characters: jax.Array) -> jax.Array:
    """The same with f32 logits in memory, for comparison."""
    hidden, head = model.apply({"params": params}, characters[:, :-1])
    logits = jnp.dot(hidden, head, preferred_element_type=jnp.float32)
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, characters[:, 1:])
    return losses.mean()


def text() -> tuple[np.ndarray, int]:
    """Characters as numbers, and how many different ones there are, rounded up to 8.

    The text is NumPy's documentation of its own functions: every reader has it.
    """
    documents = [getattr(np, name).__doc__ or "" for name in sorted(np.__all__)]
    characters = np.array(list("\n".join(documents)))
    kinds, numbers = np.unique(characters, return_inverse=True)
    return numbers.astype(np.int32), -(-len(kinds) // 8) * 8


def train(steps: int, logits: str = "stored", seed: int = 0) -> list[float]:
    """The loss of every step."""
    numbers, vocabulary = text()
    model = Model(vocabulary)
    rng = np.random.default_rng(seed)
    params = model.init(jax.random.key(seed), jnp.zeros((1, 8), int))["params"]
    optimizer = optax.adamw(3e-3)
    state = optimizer.init(params)

    @jax.jit
    def step(params: Any, state: Any, batch: jax.Array) -> tuple[Any, Any, jax.Array]:
        loss, gradients = jax.value_and_grad(lambda p: loss_fn(model, p, batch, logits))(params)
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, loss

    losses = []
    for _ in range(steps):
        starts = rng.integers(0, len(numbers) - 65, 16)
        batch = np.stack([numbers[s : s + 65] for s in starts])
        params, state, loss = step(params, state, batch)
        losses.append(float(loss))
    return losses


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--logits", choices=("stored", "recomputed"), default="stored")
    args = parser.parse_args(argv)
    losses = train(args.steps, args.logits)
    for i in range(0, args.steps, 20):
        print(f"step {i:4}: {losses[i]:.3f} nats a character")
    print(f"last step: {losses[-1]:.3f}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
