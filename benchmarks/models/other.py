"""Models that are no language models: vision, diffusion, recommendation, recurrent, contrastive."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
from jax import lax
from models.program import Program, Sizes, Tree, keys, layer_norm, matrix, token_loss


def _labelled(key: jax.Array, s: Sizes, *shape: int) -> Tree:
    return {
        "x": jax.random.normal(key, (s.batch, *shape), jnp.bfloat16),
        "y": jax.random.randint(jax.random.fold_in(key, 1), (s.batch,), 0, s.classes),
    }


# MLP-Mixer: products along tokens and along channels.


def _mixer_init(key: jax.Array, s: Sizes) -> Tree:
    k = keys(key)

    def mlp(width: int, hidden: int) -> Tree:
        made = {"up": matrix(next(k), width, hidden), "down": matrix(next(k), hidden, width)}
        return made | {"up bias": jnp.zeros(hidden), "down bias": jnp.zeros(width)}

    layers = [
        {"tokens": mlp(s.tokens, s.mixed), "channels": mlp(s.width, s.hidden)}
        for _ in range(s.layers)
    ]
    return {
        "stem": matrix(next(k), s.patch, s.width),
        "layers": layers,
        "head": matrix(next(k), s.width, s.classes),
    }


def _mixer_loss(weights: Tree, data: Tree, key: jax.Array, s: Sizes) -> jax.Array:
    def mlp(p: Tree, x: jax.Array) -> jax.Array:
        h = jax.nn.gelu(jnp.matmul(x, p["up"]) + p["up bias"])
        return jnp.matmul(h, p["down"]) + p["down bias"]

    x = data["x"] @ weights["stem"]
    for p in weights["layers"]:
        x = x + mlp(p["tokens"], layer_norm(x).swapaxes(1, 2)).swapaxes(1, 2)
        x = x + mlp(p["channels"], layer_norm(x))
    return token_loss(layer_norm(x).mean(1) @ weights["head"], data["y"])


# DiT-like: a transformer whose norms are scaled and shifted by a condition; mean squared error.


def _dit_init(key: jax.Array, s: Sizes) -> Tree:
    k = keys(key)
    layers = [
        {
            "condition": matrix(next(k), s.width, 6 * s.width),
            "qkv": matrix(next(k), s.width, 3 * s.width),
            "out": matrix(next(k), s.width, s.width),
            "up": matrix(next(k), s.width, 4 * s.width),
            "down": matrix(next(k), 4 * s.width, s.width),
        }
        for _ in range(s.layers)
    ]
    ends = {"stem": matrix(next(k), s.patch, s.width), "head": matrix(next(k), s.width, s.patch)}
    return {**ends, "layers": layers, "time": matrix(next(k), s.width, s.width)}


def _dit_batch(key: jax.Array, s: Sizes) -> Tree:
    more = jax.random.split(key, 3)
    return {
        "x": jax.random.normal(more[0], (s.batch, s.tokens, s.patch), jnp.bfloat16),
        "noise": jax.random.normal(more[1], (s.batch, s.tokens, s.patch), jnp.bfloat16),
        "time": jax.random.uniform(more[2], (s.batch,)),
    }


def _dit_loss(weights: Tree, data: Tree, key: jax.Array, s: Sizes) -> jax.Array:
    angles = data["time"][:, None] * jnp.geomspace(1.0, 1000.0, s.width // 2)
    c = jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], -1).astype(jnp.bfloat16)
    c = jax.nn.silu(c @ weights["time"])
    t = data["time"][:, None, None].astype(jnp.bfloat16)
    x = (data["x"] * (1 - t) + data["noise"] * t) @ weights["stem"]
    for p in weights["layers"]:
        parts = jnp.split((jax.nn.silu(c) @ p["condition"])[:, None], 6, axis=-1)
        shift1, scale1, gate1, shift2, scale2, gate2 = parts
        h = (layer_norm(x) * (1 + scale1) + shift1) @ p["qkv"]
        split = (s.batch, s.tokens, s.heads, s.width // s.heads)
        q, k, v = (z.reshape(split) for z in jnp.split(h, 3, axis=-1))
        h = jax.nn.dot_product_attention(q, k, v).reshape(x.shape)
        x = x + gate1 * (h @ p["out"])
        h = layer_norm(x) * (1 + scale2) + shift2
        x = x + gate2 * (jax.nn.gelu(h @ p["up"]) @ p["down"])
    error = (layer_norm(x) @ weights["head"]).astype(jnp.float32) - data["noise"]
    return jnp.mean(error**2)


# ConvNeXt-like: depthwise convolutions with products over channels.


def _convolution_init(key: jax.Array, s: Sizes) -> Tree:
    k = keys(key)
    layers = [
        {
            "filter": jax.random.normal(next(k), (7, 7, 1, s.width)) / 7,
            "up": matrix(next(k), s.width, 4 * s.width),
            "down": matrix(next(k), 4 * s.width, s.width),
            "scale": jnp.full(s.width, 0.1),
        }
        for _ in range(s.layers)
    ]
    stem, head = matrix(next(k), 48, s.width), matrix(next(k), s.width, s.classes)
    return {"stem": stem, "layers": layers, "head": head}


def _convolution_loss(weights: Tree, data: Tree, key: jax.Array, s: Sizes) -> jax.Array:
    x = data["x"] @ weights["stem"]
    numbers = ("NHWC", "HWIO", "NHWC")
    for p in weights["layers"]:
        h = lax.conv_general_dilated(
            x, p["filter"], (1, 1), "SAME", dimension_numbers=numbers, feature_group_count=s.width
        )
        x = x + p["scale"] * (jax.nn.gelu(layer_norm(h) @ p["up"]) @ p["down"])
    return token_loss(x.mean((1, 2)) @ weights["head"], data["y"])


# A recurrent network: LSTM cells in a scan.


def _lstm_init(key: jax.Array, s: Sizes) -> Tree:
    k = keys(key)
    cell = lambda: {  # noqa: E731
        "x": matrix(next(k), s.width, 4 * s.width),
        "h": matrix(next(k), s.width, 4 * s.width),
        "b": jnp.zeros(4 * s.width),
    }
    return {
        "embedding": matrix(next(k), s.classes, s.width) * s.classes**0.5,
        "cells": [cell() for _ in range(s.layers)],
        "head": matrix(next(k), s.width, s.classes),
    }


def _lstm_loss(weights: Tree, tokens: jax.Array, key: jax.Array, s: Sizes) -> jax.Array:
    def run(p: Tree, x: jax.Array) -> jax.Array:
        def cell(carry: Tree, now: jax.Array) -> tuple[Tree, jax.Array]:
            h, c = carry
            i, f, g, o = jnp.split(now + h @ p["h"], 4, axis=-1)
            c = jax.nn.sigmoid(f + 1) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
            h = jax.nn.sigmoid(o) * jnp.tanh(c)
            return (h, c), h

        zero = jnp.zeros(x.shape[1:], x.dtype)
        return lax.scan(cell, (zero, zero), x @ p["x"] + p["b"])[1]

    x = weights["embedding"][tokens.T]
    for p in weights["cells"]:
        x = run(p, x)
    return token_loss((x @ weights["head"])[:-1], tokens.T[1:])


# Contrastive: two towers mapped over examples, a square of logits in f32.


def _towers_init(key: jax.Array, s: Sizes) -> Tree:
    k = keys(key)

    def tower() -> Tree:
        sizes = [s.patch, *[s.hidden] * s.layers, s.width]
        return [matrix(next(k), a, b) for a, b in itertools.pairwise(sizes)]

    return {"left": tower(), "right": tower(), "temperature": jnp.asarray(2.0)}


def _towers_loss(weights: Tree, data: Tree, key: jax.Array, s: Sizes) -> jax.Array:
    def tower(ws: Tree, x: jax.Array) -> jax.Array:
        for w in ws[:-1]:
            x = jax.nn.relu(x @ w)
        x = (x @ ws[-1]).astype(jnp.float32)
        return x / jnp.linalg.norm(x)

    left = jax.vmap(lambda x: tower(weights["left"], x))(data["left"])
    right = jax.vmap(lambda x: tower(weights["right"], x))(data["right"])
    logits = jnp.exp(weights["temperature"].astype(jnp.float32)) * (left @ right.T)
    labels = jnp.arange(s.batch)
    return (token_loss(logits, labels) + token_loss(logits.T, labels)) / 2


def _towers_batch(key: jax.Array, s: Sizes) -> Tree:
    a, b = jax.random.normal(key, (2, s.batch, s.patch), jnp.bfloat16)
    return {"left": a, "right": b}


# Recommendation: embeddings, pairwise products of them, a perceptron; binary cross-entropy.


def _clicks_init(key: jax.Array, s: Sizes) -> Tree:
    k = keys(key)
    pairs = s.tables * (s.tables - 1) // 2
    sizes = [s.width + pairs, s.hidden, s.hidden, s.hidden // 2, 1]
    return {
        "tables": jax.random.normal(next(k), (s.tables, s.rows, s.width)),
        "dense": [matrix(next(k), 16, s.hidden), matrix(next(k), s.hidden, s.width)],
        "top": [
            {"w": matrix(next(k), a, b), "b": jnp.zeros(b)} for a, b in itertools.pairwise(sizes)
        ],
    }


def _clicks_batch(key: jax.Array, s: Sizes) -> Tree:
    more = jax.random.split(key, 3)
    return {
        "dense": jax.random.normal(more[0], (s.batch, 16), jnp.bfloat16),
        "ids": jax.random.randint(more[1], (s.batch, s.tables), 0, s.rows),
        "clicked": jax.random.bernoulli(more[2], 0.3, (s.batch,)),
    }


def _clicks_loss(weights: Tree, data: Tree, key: jax.Array, s: Sizes) -> jax.Array:
    first, second = weights["dense"]
    dense = jax.nn.relu(jax.nn.relu(data["dense"] @ first) @ second)
    found = jax.vmap(lambda table, ids: table[ids], in_axes=(0, 1), out_axes=1)(
        weights["tables"], data["ids"]
    )
    products = jnp.einsum("bid,bjd->bij", found, found)
    rows, columns = jnp.triu_indices(s.tables, 1)
    x = jnp.concatenate([dense, products[:, rows, columns]], axis=-1)
    for p in weights["top"][:-1]:
        x = jax.nn.relu(x @ p["w"] + p["b"])
    logit = (x @ weights["top"][-1]["w"] + weights["top"][-1]["b"]).astype(jnp.float32)[:, 0]
    return jnp.mean(jax.nn.softplus(logit) - data["clicked"] * logit)


PROGRAMS = (
    Program(
        "mixer",
        Sizes(
            batch=128,
            tokens=256,
            mixed=512,
            patch=768,
            width=1024,
            hidden=4096,
            layers=6,
            classes=1000,
        ),
        Sizes(batch=2, tokens=16, mixed=32, patch=48, width=64, hidden=96, layers=1, classes=64),
        _mixer_init,
        lambda key, s: _labelled(key, s, s.tokens, s.patch),
        _mixer_loss,
    ),
    Program(
        "dit-like",
        Sizes(batch=32, tokens=256, patch=64, width=1152, layers=6, heads=16),
        Sizes(batch=2, tokens=16, patch=64, width=64, layers=1, heads=4),
        _dit_init,
        _dit_batch,
        _dit_loss,
    ),
    Program(
        "convolutions",
        Sizes(batch=64, side=28, width=384, layers=6, classes=1000),
        Sizes(batch=2, side=8, width=64, layers=1, classes=64),
        _convolution_init,
        lambda key, s: _labelled(key, s, s.side, s.side, 48),
        _convolution_loss,
    ),
    Program(
        "lstm",
        Sizes(batch=256, length=64, width=1024, layers=2, classes=16384),
        Sizes(batch=8, length=8, width=64, layers=1, classes=128),
        _lstm_init,
        lambda key, s: jax.random.randint(key, (s.batch, s.length), 0, s.classes),
        _lstm_loss,
    ),
    Program(
        "towers",
        Sizes(batch=8192, patch=1024, hidden=4096, layers=3, width=768),
        Sizes(batch=64, patch=64, hidden=96, layers=1, width=64),
        _towers_init,
        _towers_batch,
        _towers_loss,
    ),
    Program(
        "clicks",
        Sizes(batch=16384, tables=26, rows=10000, width=128, hidden=1024),
        Sizes(batch=64, tables=4, rows=100, width=64, hidden=64),
        _clicks_init,
        _clicks_batch,
        _clicks_loss,
        master="float32",
    ),
)
