"""A training step of a model as a user writes it: what the files beside this one register."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

Tree = Any
SGD_RATE, ADAM_RATE = 1e-3, 1e-5


class Sizes(dict[str, int]):
    """Sizes by name, as attributes."""

    def __getattr__(self, name: str) -> int:
        return self[name]


@dataclasses.dataclass(frozen=True)
class Program:
    """A model: how its weights are made, its loss and a batch of its data.

    Attributes:
        name: Of the model.
        sizes: Named sizes; ``small`` replaces some for rehearsals.
        init: Weights, from a key and the sizes.
        batch: Data, from a key and the sizes.
        loss: Mean loss, from weights, data, a key (dropout) and the sizes.
        master: Type of the weights that the optimizer holds; the loss casts them to bf16 itself.
        adam: Adam in place of SGD.
    """

    name: str
    sizes: Sizes
    small: Sizes
    init: Callable[[jax.Array, Any], Tree]
    batch: Callable[[jax.Array, Any], Tree]
    loss: Callable[[Tree, Tree, jax.Array, Any], jax.Array]
    master: str = "bfloat16"
    adam: bool = False

    def build(self, small: bool, seed: int) -> tuple[Callable[..., Any], Tree, Tree]:
        """A step ``(loss, state) = step(state, data)``, its state and data."""
        sizes = Sizes(self.sizes | (self.small if small else {}))
        key = jax.random.key(seed)
        weights = jax.tree.map(lambda w: w.astype(self.master), self.init(key, sizes))
        state = {"weights": weights, "step": jnp.zeros((), jnp.int32)}
        if self.adam:
            moments = jax.tree.map(lambda w: jnp.zeros(w.shape, jnp.float32), weights)
            state |= {"mean": moments, "square": moments}

        def step(state: Tree, data: Tree) -> tuple[jax.Array, Tree]:
            dropout = jax.random.fold_in(jax.random.key(seed), state["step"])
            loss = lambda weights: self.loss(weights, data, dropout, sizes)  # noqa: E731
            value, gradients = jax.value_and_grad(loss)(state["weights"])
            return value, (_adam if self.adam else _sgd)(state, gradients)

        return step, state, self.batch(jax.random.fold_in(key, 1), sizes)


def _sgd(state: Tree, gradients: Tree) -> Tree:
    update = lambda w, g: w - jnp.asarray(SGD_RATE, w.dtype) * g.astype(w.dtype)  # noqa: E731
    weights = jax.tree.map(update, state["weights"], gradients)
    return {"weights": weights, "step": state["step"] + 1}


def _adam(state: Tree, gradients: Tree) -> Tree:
    count = state["step"] + 1
    gradients = jax.tree.map(lambda g: g.astype(jnp.float32), gradients)
    mean = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, state["mean"], gradients)
    square = jax.tree.map(lambda s, g: 0.999 * s + 0.001 * g * g, state["square"], gradients)
    scale = ADAM_RATE * jnp.sqrt(1 - 0.999**count) / (1 - 0.9**count)

    def update(w: jax.Array, m: jax.Array, s: jax.Array) -> jax.Array:
        return (w.astype(jnp.float32) - scale * m / (jnp.sqrt(s) + 1e-8)).astype(w.dtype)

    weights = jax.tree.map(update, state["weights"], mean, square)
    return {"weights": weights, "step": count, "mean": mean, "square": square}


def keys(key: jax.Array) -> Any:
    """As many keys as are asked for, by ``next``."""
    while True:
        key, one = jax.random.split(key)
        yield one


def matrix(key: jax.Array, *shape: int) -> jax.Array:
    """Normal numbers of variance one over the size that a product contracts, the last but one."""
    return jax.random.normal(key, shape, jnp.float32) * shape[-2] ** -0.5


def layer_norm(x: jax.Array, scale: jax.Array | None = None) -> jax.Array:
    """Layer norm over the last dimension, in f32."""
    wide = x.astype(jnp.float32)
    wide = wide - wide.mean(-1, keepdims=True)
    y = (wide * jax.lax.rsqrt((wide * wide).mean(-1, keepdims=True) + 1e-6)).astype(x.dtype)
    return y if scale is None else y * scale


def rms_norm(x: jax.Array, scale: jax.Array) -> jax.Array:
    """Root-mean-square norm over the last dimension, in f32."""
    wide = x.astype(jnp.float32)
    y = wide * jax.lax.rsqrt((wide * wide).mean(-1, keepdims=True) + 1e-6)
    return y.astype(x.dtype) * scale


def token_loss(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """Mean cross-entropy of integer labels."""
    scores = jax.nn.log_softmax(logits.astype(jnp.float32))
    return -jnp.mean(jnp.take_along_axis(scores, labels[..., None], axis=-1))
