"""Language models as they are written elsewhere: with scan, remat, dropout, einsum, experts."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from models.program import (
    Program,
    Sizes,
    Tree,
    keys,
    layer_norm,
    matrix,
    rms_norm,
    token_loss,
)

BF16 = jnp.bfloat16


def _tokens(key: jax.Array, s: Sizes) -> jax.Array:
    return jax.random.randint(key, (s.batch, s.length), 0, s.vocabulary)


def _heads(x: jax.Array, s: Sizes) -> jax.Array:
    return x.reshape(*x.shape[:-1], s.heads, -1)


def _attention(q: jax.Array, k: jax.Array, v: jax.Array, causal: bool) -> jax.Array:
    return jax.nn.dot_product_attention(q, k, v, is_causal=causal)


# Gemma-like: layers in a scan with checkpoints, tied embeddings, GeGLU, capped logits, f32 weights.


def _gemma_init(key: jax.Array, s: Sizes) -> Tree:
    k = keys(key)
    n = s.layers
    return {
        "embedding": matrix(next(k), s.vocabulary, s.width) * s.vocabulary**0.5 * 0.02,
        "layers": {
            "qkv": matrix(next(k), n, s.width, 3 * s.width),
            "out": matrix(next(k), n, s.width, s.width),
            "gate": matrix(next(k), n, s.width, s.hidden),
            "up": matrix(next(k), n, s.width, s.hidden),
            "down": matrix(next(k), n, s.hidden, s.width),
            "norm1": jnp.ones((n, s.width)),
            "norm2": jnp.ones((n, s.width)),
        },
    }


def _gemma_loss(weights: Tree, tokens: jax.Array, key: jax.Array, s: Sizes) -> jax.Array:
    weights = jax.tree.map(lambda w: w.astype(BF16), weights)

    @jax.checkpoint
    def layer(x: jax.Array, p: Tree) -> tuple[jax.Array, None]:
        q, k, v = jnp.split(rms_norm(x, p["norm1"]) @ p["qkv"], 3, axis=-1)
        h = _attention(_heads(q, s), _heads(k, s), _heads(v, s), causal=True)
        x = x + h.reshape(x.shape) @ p["out"]
        h = rms_norm(x, p["norm2"])
        return x + (jax.nn.gelu(h @ p["gate"]) * (h @ p["up"])) @ p["down"], None

    x, _ = lax.scan(layer, weights["embedding"][tokens], weights["layers"])
    logits = x @ weights["embedding"].T
    logits = 30.0 * jnp.tanh(logits.astype(jnp.float32) / 30.0)
    return token_loss(logits[:, :-1], tokens[:, 1:])


# Layers in a scan that keeps what the backward pass needs, with stacked bf16 weights, as Llama has.


def _scan_init(key: jax.Array, s: Sizes) -> Tree:
    k = keys(key)
    layers = {name: matrix(next(k), s.layers, s.width, s.width) for name in ("q", "k", "v", "out")}
    layers |= {name: matrix(next(k), s.layers, s.width, s.hidden) for name in ("gate", "up")}
    layers["down"] = matrix(next(k), s.layers, s.hidden, s.width)
    layers |= {name: jnp.ones((s.layers, s.width)) for name in ("norm1", "norm2")}
    return {
        "embedding": matrix(next(k), s.vocabulary, s.width),
        "layers": layers,
        "head": matrix(next(k), s.width, s.vocabulary),
    }


def _scan_loss(weights: Tree, tokens: jax.Array, key: jax.Array, s: Sizes) -> jax.Array:
    def layer(x: jax.Array, p: Tree) -> tuple[jax.Array, None]:
        h = rms_norm(x, p["norm1"])
        q, k, v = (_heads(h @ p[name], s) for name in ("q", "k", "v"))
        x = x + _attention(q, k, v, causal=True).reshape(x.shape) @ p["out"]
        h = rms_norm(x, p["norm2"])
        return x + (jax.nn.silu(h @ p["gate"]) * (h @ p["up"])) @ p["down"], None

    x, _ = lax.scan(layer, weights["embedding"][tokens], weights["layers"])
    logits = rms_norm(x, jnp.ones(s.width, x.dtype)) @ weights["head"]
    return token_loss(logits[:, :-1], tokens[:, 1:])


# BERT-like: norms after the sums, biases, dropout, masked tokens.


def _bert_init(key: jax.Array, s: Sizes) -> Tree:
    k = keys(key)

    def dense(rows: int, columns: int) -> Tree:
        return {"w": matrix(next(k), rows, columns), "b": jnp.zeros(columns)}

    def layer() -> Tree:
        names = ("q", "k", "v", "out")
        made: dict[str, Any] = {name: dense(s.width, s.width) for name in names}
        made |= {"up": dense(s.width, s.hidden), "down": dense(s.hidden, s.width)}
        return made | {"norm1": jnp.ones(s.width), "norm2": jnp.ones(s.width)}

    return {
        "embedding": matrix(next(k), s.vocabulary, s.width) * s.vocabulary**0.5 * 0.02,
        "layers": [layer() for _ in range(s.layers)],
        "head": dense(s.width, s.vocabulary),
    }


def _bert_batch(key: jax.Array, s: Sizes) -> Tree:
    tokens = _tokens(key, s)
    masked = jax.random.bernoulli(jax.random.fold_in(key, 1), 0.15, tokens.shape)
    return {"tokens": tokens, "masked": masked}


def _bert_loss(weights: Tree, data: Tree, key: jax.Array, s: Sizes) -> jax.Array:
    k = keys(key)

    def dense(p: Tree, x: jax.Array) -> jax.Array:
        return x @ p["w"] + p["b"]

    def dropout(x: jax.Array) -> jax.Array:
        return jnp.where(jax.random.bernoulli(next(k), 0.9, x.shape), x / 0.9, 0).astype(x.dtype)

    x = weights["embedding"][jnp.where(data["masked"], 0, data["tokens"])]
    for p in weights["layers"]:
        h = _attention(*(_heads(dense(p[name], x), s) for name in "qkv"), causal=False)
        x = layer_norm(x + dropout(dense(p["out"], h.reshape(x.shape))), p["norm1"])
        h = jax.nn.gelu(dense(p["up"], x), approximate=False)
        x = layer_norm(x + dropout(dense(p["down"], h)), p["norm2"])
    scores = jax.nn.log_softmax(dense(weights["head"], x).astype(jnp.float32))
    wanted = jnp.take_along_axis(scores, data["tokens"][..., None], -1)[..., 0]
    masked = data["masked"].astype(jnp.float32)
    return -jnp.sum(wanted * masked) / jnp.sum(masked)


# T5-like: encoder and decoder by einsum over heads, attention written out, ReLU, z-loss.


def _t5_init(key: jax.Array, s: Sizes) -> Tree:
    k = keys(key)
    size = s.width // s.heads

    def attention() -> Tree:
        made = {name: matrix(next(k), s.width, s.heads * size) for name in "qkv"}
        made = {name: w.reshape(s.width, s.heads, size) for name, w in made.items()}
        return made | {"out": matrix(next(k), s.width, s.width).reshape(s.heads, size, s.width)}

    def block(cross: bool) -> Tree:
        made = {"self": attention(), "up": matrix(next(k), s.width, s.hidden)}
        made |= {"down": matrix(next(k), s.hidden, s.width), "norm": jnp.ones((3, s.width))}
        return made | {"cross": attention()} if cross else made

    return {
        "embedding": matrix(next(k), s.vocabulary, s.width) * s.vocabulary**0.5,
        "encoder": [block(False) for _ in range(s.layers)],
        "decoder": [block(True) for _ in range(s.layers)],
        "head": matrix(next(k), s.width, s.vocabulary),
    }


def _t5_loss(weights: Tree, data: Tree, key: jax.Array, s: Sizes) -> jax.Array:
    def attend(p: Tree, x: jax.Array, memory: jax.Array, mask: jax.Array | None) -> jax.Array:
        q = jnp.einsum("btd,dhk->bthk", x, p["q"])
        k = jnp.einsum("btd,dhk->bthk", memory, p["k"])
        v = jnp.einsum("btd,dhk->bthk", memory, p["v"])
        scores = jnp.einsum("bqhk,bthk->bhqt", q, k).astype(jnp.float32)
        if mask is not None:
            scores = jnp.where(mask, scores, -1e9)
        h = jnp.einsum("bhqt,bthk->bqhk", jax.nn.softmax(scores).astype(BF16), v)
        return jnp.einsum("bqhk,hkd->bqd", h, p["out"])

    def mlp(p: Tree, x: jax.Array) -> jax.Array:
        return jax.nn.relu(rms_norm(x, p["norm"][2]) @ p["up"]) @ p["down"]

    x = weights["embedding"][data["tokens"]]
    for p in weights["encoder"]:
        h = rms_norm(x, p["norm"][0])
        x = x + attend(p["self"], h, h, None)
        x = x + mlp(p, x)
    memory, y = x, weights["embedding"][data["wanted"]]
    causal = jnp.tril(jnp.ones((s.length, s.length), bool))
    for p in weights["decoder"]:
        h = rms_norm(y, p["norm"][0])
        y = y + attend(p["self"], h, h, causal)
        y = y + attend(p["cross"], rms_norm(y, p["norm"][1]), memory, None)
        y = y + mlp(p, y)
    logits = jnp.einsum("btd,dv->btv", y, weights["head"], preferred_element_type=jnp.float32)
    lse = jax.nn.logsumexp(logits, axis=-1)
    return token_loss(logits[:, :-1], data["wanted"][:, 1:]) + 1e-4 * jnp.mean(lse**2)


def _t5_batch(key: jax.Array, s: Sizes) -> Tree:
    return {"tokens": _tokens(key, s), "wanted": _tokens(jax.random.fold_in(key, 1), s)}


# Mixture of experts by ragged_dot.


def _moe_init(key: jax.Array, s: Sizes) -> Tree:
    k = keys(key)
    return {
        "embedding": matrix(next(k), s.vocabulary, s.width) * s.vocabulary**0.5 * 0.02,
        "layers": [
            {
                "router": matrix(next(k), s.width, s.experts),
                "gate": matrix(next(k), s.experts, s.width, s.hidden),
                "up": matrix(next(k), s.experts, s.width, s.hidden),
                "down": matrix(next(k), s.experts, s.hidden, s.width),
                "norm": jnp.ones(s.width),
            }
            for _ in range(s.layers)
        ],
        "head": matrix(next(k), s.width, s.vocabulary),
    }


def _moe_loss(weights: Tree, tokens: jax.Array, key: jax.Array, s: Sizes) -> jax.Array:
    def experts(p: Tree, x: jax.Array) -> jax.Array:
        shares, chosen = lax.top_k(jax.nn.softmax((x @ p["router"]).astype(jnp.float32)), s.top)
        order = jnp.argsort(chosen.reshape(-1), stable=True)
        sizes = jnp.bincount(chosen.reshape(-1), length=s.experts).astype(jnp.int32)
        rows = x[order // s.top]
        h = jax.nn.silu(lax.ragged_dot(rows, p["gate"], sizes))
        h = lax.ragged_dot(h * lax.ragged_dot(rows, p["up"], sizes), p["down"], sizes)
        h = h * shares.reshape(-1)[order][:, None].astype(h.dtype)
        return jnp.zeros_like(x).at[order // s.top].add(h)

    x = weights["embedding"][tokens].reshape(-1, s.width)
    for p in weights["layers"]:
        x = x + experts(p, rms_norm(x, p["norm"]))
    logits = (x @ weights["head"]).reshape(s.batch, s.length, -1)
    return token_loss(logits[:, :-1], tokens[:, 1:])


_SMALL = Sizes(batch=2, length=16, width=64, hidden=96, layers=2, vocabulary=128)

PROGRAMS = (
    Program(
        "gemma-like",
        Sizes(batch=4, length=2048, width=2304, hidden=9216, layers=4, vocabulary=65536, heads=18),
        Sizes(_SMALL, heads=4),
        _gemma_init,
        _tokens,
        _gemma_loss,
        master="float32",
        adam=True,
    ),
    Program(
        "scan",
        Sizes(batch=4, length=2048, width=2048, hidden=8192, layers=8, vocabulary=32000, heads=16),
        Sizes(_SMALL, heads=4),
        _scan_init,
        _tokens,
        _scan_loss,
    ),
    Program(
        "bert-like",
        Sizes(batch=32, length=512, width=1024, hidden=4096, layers=6, vocabulary=30528, heads=16),
        Sizes(_SMALL, heads=4),
        _bert_init,
        _bert_batch,
        _bert_loss,
    ),
    Program(
        "t5-like",
        Sizes(batch=16, length=512, width=1024, hidden=4096, layers=4, vocabulary=32128, heads=16),
        Sizes(_SMALL, heads=4),
        _t5_init,
        _t5_batch,
        _t5_loss,
    ),
    Program(
        "experts",
        Sizes(
            batch=8,
            length=1024,
            width=2048,
            hidden=1024,
            layers=2,
            vocabulary=32000,
            experts=32,
            top=4,
        ),
        Sizes(_SMALL, experts=4, top=2),
        _moe_init,
        _tokens,
        _moe_loss,
    ),
)
