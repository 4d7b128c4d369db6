"""Trains a small language model in bfloat16 and in each low-precision recipe, from one beginning.

    python examples/low_precision.py                      # all recipes, minutes on a CPU
    python examples/low_precision.py --quick              # a tiny model, seconds each
    python examples/low_precision.py --picture losses.png # needs matplotlib

A decoder-only transformer predicts the next character of NumPy's documentation. All its linear
layers are products of `fp8_dot_general`; attention, embedding and head stay in bfloat16. Every run
has the same parameters and batches to begin with, so that what differs is the precision.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from language_model import text

import jax_bwgemm

RECIPES = ("per_tensor", "per_tensor_delayed", "blockwise", "blockwise_2d", "mxfp8", "nvfp4")
# Losses are compared by their mean over so many last steps.
LAST = 20


@dataclasses.dataclass(frozen=True)
class Size:
    """Of model and batches."""

    width: int = 256
    layers: int = 4
    heads: int = 4
    length: int = 128
    batch: int = 16


QUICK = Size(width=128, layers=2, heads=2, length=64, batch=8)

Dot = Callable[..., jax.Array]


def init(key: jax.Array, size: Size, vocabulary: int) -> dict[str, Any]:
    """Parameters: float32, weights as [inputs, outputs]."""
    d = size.width
    shapes = {"qkv": (d, 3 * d), "out": (d, d), "up": (d, 4 * d), "down": (4 * d, d)}

    def matrices(key: jax.Array) -> dict[str, jax.Array]:
        keys = jax.random.split(key, len(shapes))
        return {
            name: jax.random.normal(k, s) * s[0] ** -0.5
            for k, (name, s) in zip(keys, shapes.items(), strict=True)
        }

    keys = jax.random.split(key, size.layers + 2)
    return {
        "embedding": jax.random.normal(keys[0], (vocabulary, d)) * 0.02,
        "positions": jax.random.normal(keys[1], (size.length, d)) * 0.02,
        "layers": [matrices(k) for k in keys[2:]],
    }


def normalized(x: jax.Array) -> jax.Array:
    wide = x.astype(jnp.float32)
    return (wide * jax.lax.rsqrt(jnp.mean(wide**2, -1, keepdims=True) + 1e-6)).astype(x.dtype)


def loss_fn(
    params: Any, state: Any, characters: jax.Array, key: jax.Array | None, dot: Dot, size: Size
) -> jax.Array:
    """Mean cross-entropy of the next character.

    Args:
        params: As `init` makes them.
        state: For each layer what each of its products keeps from step to step, by name.
        characters: [batch, length + 1].
        key: Random key, of a recipe whose gradients depend on one.
        dot: Multiplies activations by weights.
        size: The model's.
    """

    def linear(x: jax.Array, layer: int, name: str) -> jax.Array:
        w = params["layers"][layer][name].astype(x.dtype)
        kept = dict(state[layer][name])
        if key is not None:
            kept["key"] = jax.random.fold_in(key, 16 * layer + sorted(state[layer]).index(name))
        return dot(x, w, (((2,), (0,)), ((), ())), **kept)

    embedding = params["embedding"].astype(jnp.bfloat16)
    x = embedding[characters[:, :-1]] + params["positions"].astype(jnp.bfloat16)
    for layer in range(size.layers):
        q, k, v = (
            part.reshape(*x.shape[:2], size.heads, -1)
            for part in jnp.split(linear(normalized(x), layer, "qkv"), 3, -1)
        )
        attended = jax.nn.dot_product_attention(q, k, v, is_causal=True)
        x = x + linear(attended.reshape(x.shape), layer, "out")
        x = x + linear(jax.nn.gelu(linear(normalized(x), layer, "up")), layer, "down")
    logits = jnp.dot(normalized(x), embedding.T, preferred_element_type=jnp.float32)
    return optax.softmax_cross_entropy_with_integer_labels(logits, characters[:, 1:]).mean()


def new_state(dot: Dot, recipe: str, params: Any) -> list[dict[str, Any]]:
    """What `loss_fn` passes to each product besides its operands: amax histories or nothing."""
    delayed = recipe.endswith("delayed")
    return [
        {name: {"amax_history": dot.new_history()} if delayed else {} for name in layer}
        for layer in params["layers"]
    ]


def train(recipe: str, steps: int, size: Size, seed: int = 0) -> list[float]:
    """The loss of every step; the recipe ``"bfloat16"`` is the model without quantization."""
    numbers, vocabulary = text()
    plain = recipe == "bfloat16"
    dot: Any = jax.lax.dot_general if plain else jax_bwgemm.fp8_dot_general(recipe)
    params = init(jax.random.key(seed), size, vocabulary)
    state = new_state(dot, recipe, params)
    optimizer = optax.adamw(optax.warmup_cosine_decay_schedule(0, 2e-3, steps // 10, steps))
    moments = optimizer.init(params)

    @functools.partial(jax.jit, donate_argnums=(0, 1, 2))
    def step(params: Any, state: Any, moments: Any, batch: jax.Array, number: int) -> Any:
        key = None if plain or not dot.recipe.needs_key else jax.random.key(number)
        # The gradient of an amax history is the next history.
        loss, (gradients, state) = jax.value_and_grad(loss_fn, (0, 1))(
            params, state, batch, key, dot, size
        )
        updates, moments = optimizer.update(gradients, moments, params)
        return optax.apply_updates(params, updates), state, moments, loss

    rng = np.random.default_rng(seed)
    losses = []
    for number in range(steps):
        starts = rng.integers(0, len(numbers) - size.length - 1, size.batch)
        batch = np.stack([numbers[s : s + size.length + 1] for s in starts])
        params, state, moments, loss = step(params, state, moments, batch, number)
        losses.append(float(loss))
    return losses


def draw(losses: dict[str, list[float]], path: str) -> None:
    """Saves the losses as curves, smoothed over LAST steps."""
    from matplotlib.figure import Figure

    axes = (figure := Figure(figsize=(7, 4))).subplots()
    for name, values in losses.items():
        axes.plot(np.convolve(values, np.ones(LAST) / LAST, "valid"), label=name)
    axes.set(xlabel="step", ylabel="nats a character")
    axes.legend()
    figure.savefig(path, dpi=150)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--recipes", nargs="+", choices=RECIPES, default=RECIPES)
    parser.add_argument("--steps", type=int, help="default: 500, quick: 100")
    parser.add_argument("--quick", action="store_true", help="a tiny model")
    parser.add_argument("--picture", metavar="FILE", help="draw the losses")
    args = parser.parse_args(argv)
    steps = args.steps or (100 if args.quick else 500)
    losses: dict[str, list[float]] = {}
    for name in ("bfloat16", *args.recipes):
        losses[name] = train(name, steps, QUICK if args.quick else Size())
        mean = np.mean(losses[name][-LAST:])
        ratio = mean / np.mean(losses["bfloat16"][-LAST:])
        print(f"{name:20} {mean:.4f} nats a character, {ratio - 1:+.2%} of bfloat16's", flush=True)
    if args.picture:
        draw(losses, args.picture)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
