"""Training steps of small transformers in plain JAX: what users write, no product of ours in it."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

Dot = Callable[..., jax.Array]
Weights = dict[str, Any]
LEARNING_RATE = 1e-3


@dataclasses.dataclass(frozen=True)
class Model:
    """Sizes of a decoder. Gated ones (Llama's) have RMS norms, SiLU and no biases; others GELU."""

    name: str
    batch: int
    sequence: int
    width: int
    hidden: int
    layers: int
    vocabulary: int
    heads: int
    gated: bool

    @property
    def step_flops(self) -> int:
        """Multiplies and adds of a step's products, without those of attention."""
        layer = 4 * self.width**2 + (3 if self.gated else 2) * self.width * self.hidden
        weights = self.layers * layer + self.width * self.vocabulary
        return 6 * self.batch * self.sequence * weights

    @property
    def tiny(self) -> Model:
        """The same with few elements, for rehearsals."""
        return dataclasses.replace(
            self, batch=2, sequence=32, width=64, hidden=96, layers=1, vocabulary=128, heads=4
        )


MODELS = (
    Model("gpt2-124m", 16, 1024, 768, 3072, 12, 50304, 12, gated=False),
    Model("vit-l-like", 64, 256, 1024, 4096, 8, 1024, 16, gated=False),
    Model("llama-1b-like", 4, 2048, 2048, 8192, 6, 128256, 16, gated=True),
    Model("llama-8b-layers", 2, 4096, 4096, 14336, 2, 32000, 32, gated=True),
)


def init(model: Model, dtype: str, seed: int) -> Weights:
    """Weights with variance 1/fan-in, norm scales of one, biases of zero."""
    keys = iter(jax.random.split(jax.random.key(seed), 2 + 5 * model.layers))

    def matrix(rows: int, columns: int) -> jax.Array:
        return (jax.random.normal(next(keys), (rows, columns)) * rows**-0.5).astype(dtype)

    def layer() -> Weights:
        sizes = {
            "qkv": (model.width, 3 * model.width),
            "out": (model.width, model.width),
            "up": (model.width, model.hidden),
            "down": (model.hidden, model.width),
        }
        made: Weights = {name: matrix(*size) for name, size in sizes.items()}
        if model.gated:
            made["gate"] = matrix(model.width, model.hidden)
        else:
            made |= {f"{name} bias": jnp.zeros(size[1], dtype) for name, size in sizes.items()}
        return made | {name: jnp.ones(model.width, dtype) for name in ("norm1", "norm2")}

    return {
        "embedding": matrix(model.vocabulary, model.width),
        "head": matrix(model.width, model.vocabulary),
        "layers": [layer() for _ in range(model.layers)],
    }


def _norm(model: Model, x: jax.Array, scale: jax.Array | float) -> jax.Array:
    wide = x.astype(jnp.float32)
    if not model.gated:
        wide = wide - wide.mean(-1, keepdims=True)
    return (wide * lax.rsqrt(jnp.mean(wide**2, -1, keepdims=True) + 1e-5)).astype(x.dtype) * scale


def _project(dot: Dot, weights: Weights, name: str, x: jax.Array) -> jax.Array:
    """A linear layer, with a bias where the model has them."""
    y = dot(x, weights[name])
    bias = weights.get(f"{name} bias")
    return y if bias is None else y + bias


def _forward(
    model: Model, dot: Dot, attention: str, weights: Weights, tokens: jax.Array
) -> jax.Array:
    """Last hidden states, [batch, sequence, width]."""
    x = weights["embedding"][tokens]
    for layer in weights["layers"]:
        h = _project(dot, layer, "qkv", _norm(model, x, layer["norm1"]))
        split = (model.batch, model.sequence, model.heads, model.width // model.heads)
        q, k, v = (t.reshape(split) for t in jnp.split(h, 3, axis=-1))
        h = jax.nn.dot_product_attention(q, k, v, is_causal=True, implementation=attention)
        x = x + _project(dot, layer, "out", h.reshape(x.shape))
        h = _norm(model, x, layer["norm2"])
        up = _project(dot, layer, "up", h)
        h = jax.nn.silu(dot(h, layer["gate"])) * up if model.gated else jax.nn.gelu(up)
        x = x + _project(dot, layer, "down", h)
    return x


def make_step(
    model: Model,
    dot: Dot,
    attention: str,
    logits: str | None,
    head_loss: Callable[[jax.Array, jax.Array, jax.Array], jax.Array] | None = None,
    change: Callable[[Callable[..., jax.Array]], Callable[..., jax.Array]] | None = None,
) -> Callable[[Weights, jax.Array], tuple[jax.Array, Weights]]:
    """A step: loss of predicting the next token, gradients of all weights, SGD.

    Args:
        model: Sizes.
        dot: The product of [..., K] and [K, N]; takes ``preferred_element_type``.
        attention: ``implementation`` of `jax.nn.dot_product_attention`.
        logits: Type of the last product's result; None is the weights'.
        head_loss: The last product and the loss as one function of rows, labels and the last
            weights, instead of both.
        change: What is differentiated instead of the loss, made of it.
    """

    def loss(weights: Weights, tokens: jax.Array) -> jax.Array:
        x = _norm(model, _forward(model, dot, attention, weights, tokens), 1.0)
        labels = jnp.roll(tokens, -1, 1)
        if head_loss is not None:
            return head_loss(x.reshape(-1, x.shape[-1]), labels.reshape(-1), weights["head"])
        with jax.named_scope("head"):
            scores = dot(x, weights["head"], preferred_element_type=logits).astype(jnp.float32)
        wanted = jnp.take_along_axis(scores, labels[..., None], -1)[..., 0]
        return jnp.mean(jax.nn.logsumexp(scores, -1) - wanted)

    def step(weights: Weights, tokens: jax.Array) -> tuple[jax.Array, Weights]:
        function = loss if change is None else change(loss)
        value, gradients = jax.value_and_grad(function)(weights, tokens)
        update = lambda w, g: w - jnp.asarray(LEARNING_RATE, w.dtype) * g  # noqa: E731
        return value, jax.tree.map(update, weights, gradients)

    return step


def dot_by(dot_general: Callable[..., jax.Array]) -> Dot:
    """The last dimension of x with the first of w, by a function like `jax.lax.dot_general`."""

    @functools.wraps(dot_general)
    def dot(x: jax.Array, w: jax.Array, preferred_element_type: str | None = None) -> jax.Array:
        numbers = (((x.ndim - 1,), (0,)), ((), ()))
        return dot_general(x, w, numbers, preferred_element_type=preferred_element_type)

    return dot
