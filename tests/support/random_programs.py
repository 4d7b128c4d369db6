"""Random programs: products of 16-bit operands in the surroundings that programs give them.

Values are small integers, weights signed permutations with few entries dropped, and functions
piecewise linear. So whatever computes a program, large differences are errors.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

Array = jax.Array
SIZES = (64, 96, 128, 192)
DEEPEST = 2


@dataclasses.dataclass
class Choices:
    """What a program is made of: the same choices for the same seed, however often it is traced.

    Attributes:
        rng: Decides.
        weights: The program's; None while their shapes are collected.
        made: Those made so far.
        depth: Of functions within functions.
    """

    rng: np.random.Generator
    weights: Sequence[Array] | None = None
    made: list[Array] = dataclasses.field(default_factory=list)
    depth: int = 0

    def weight(self, rows: int, columns: int) -> Array:
        """A matrix of at most one +-1 in each row and column."""
        if self.weights is not None:
            self.made.append(self.weights[len(self.made)])
            return self.made[-1]
        rng = np.random.default_rng((rows, columns, len(self.made)))
        w = np.zeros((rows, columns), np.float32)
        n = min(rows, columns)
        places = rng.permutation(rows)[:n], rng.permutation(columns)[:n]
        w[places] = rng.choice([-1, 1, 1, 0], n)
        self.made.append(jnp.asarray(w))
        return self.made[-1]

    def one_of(self, options: Sequence[Any]) -> Any:
        return options[self.rng.integers(len(options))]


def small(x: Array) -> Array:
    return jnp.clip(x, -2, 2)


# ---- Products: [..., K] to [..., N]


def plain(c: Choices, x: Array, w: Array) -> Array:
    return x @ w


def transposed_weight(c: Choices, x: Array, w: Array) -> Array:
    return jnp.einsum("...k,nk->...n", x, w.T)


def from_the_left(c: Choices, x: Array, w: Array) -> Array:
    rows = x.reshape(-1, x.shape[-1])
    return (w.T @ rows.T).T.reshape(*x.shape[:-1], w.shape[1])


def in_heads(c: Choices, x: Array, w: Array) -> Array:
    heads = w.reshape(w.shape[0], 4, -1)
    return jnp.einsum("...k,khn->...hn", x, heads).reshape(*x.shape[:-1], -1)


def through_a_narrow_one(c: Choices, x: Array, w: Array) -> Array:
    a, b = (c.weight(*shape).astype(x.dtype) for shape in ((w.shape[0], 32), (32, w.shape[1])))
    return jnp.einsum("...k,kr,rn->...n", x, a, b) + x @ w


def in_halves(c: Choices, x: Array, w: Array) -> Array:
    a, b = jnp.split(x @ jnp.concatenate([w, -w], -1), 2, -1)
    return jax.nn.relu(a) + small(b)


def of_transposes(c: Choices, x: Array, w: Array) -> Array:
    narrow = c.weight(w.shape[0], 32).astype(x.dtype)
    turned = jnp.swapaxes(x @ narrow, -1, -2)  # [..., 32, rows]
    return small(turned @ jnp.swapaxes(turned, -1, -2)).sum((-1, -2), keepdims=True) + x @ w


def along_both(c: Choices, x: Array, w: Array) -> Array:
    a, b = (c.weight(*shape).astype(x.dtype) for shape in ((w.shape[0], 32), (32, w.shape[1])))
    turned = jnp.swapaxes(x @ a @ b, -1, -2)  # a K of 32
    across = c.weight(turned.shape[-1], turned.shape[-1]).astype(x.dtype)
    return jnp.swapaxes(turned @ across, -1, -2) + x @ w


# ---- What surrounds them: same shape


def biased(c: Choices, x: Array) -> Array:
    return x + jnp.arange(x.shape[-1]).astype(x.dtype) % 2


def masked(c: Choices, x: Array) -> Array:
    return jnp.where(lax.broadcasted_iota(jnp.int32, x.shape, x.ndim - 1) % 3 == 0, x, -x)


def turned(c: Choices, x: Array) -> Array:
    y = jnp.swapaxes(x, -1, -2)
    w = c.weight(y.shape[-1], y.shape[-1]).astype(x.dtype)
    return jnp.swapaxes(jax.nn.relu(small(y @ w)), -1, -2)


def exchanged(c: Choices, x: Array) -> Array:
    a, b = jnp.split(x, 2, -1)
    return jnp.concatenate([b, jnp.abs(a)], -1)


def below_the_largest(c: Choices, x: Array) -> Array:
    return small(x - x.max(-1, keepdims=True))


def widened(c: Choices, x: Array) -> Array:
    return (x.astype(jnp.float32) * 0.5 + 1).astype(x.dtype)


def rolled(c: Choices, x: Array) -> Array:
    return jnp.roll(x, 1, -2)


PRODUCTS = (
    plain, transposed_weight, from_the_left, in_heads, through_a_narrow_one, in_halves,
    of_transposes, along_both,
)  # fmt: skip
POINTWISE = (
    lambda c, x: jax.nn.relu(x), lambda c, x: jnp.abs(x), lambda c, x: jnp.maximum(x, 0.5 * x),
    biased, masked, turned, exchanged, below_the_largest, widened, rolled,
)  # fmt: skip
WITHIN = ("jit", "checkpoint", "scan", "cond", "vmap", "custom_vjp", "twice")


def product(c: Choices, x: Array) -> Array:
    w = c.weight(x.shape[-1], c.one_of(SIZES)).astype(x.dtype)
    y = c.one_of(PRODUCTS)(c, x, w)
    return small(c.one_of(POINTWISE)(c, y))


def block(c: Choices, x: Array) -> Array:
    """A few operations, one after the other, some reading what is not the last."""
    before = [x]
    for _ in range(c.rng.integers(1, 4)):
        y, kind = before[-1], c.rng.random()
        if kind < 0.5:
            y = product(c, y)
        elif kind < 0.8 or c.depth == DEEPEST:
            y = small(c.one_of(POINTWISE)(c, y))
        else:
            y = within(c, y)
        same = [z for z in before if z.shape == y.shape]
        if same and c.rng.random() < 0.4:
            y = small(y + c.one_of(same))
        before.append(y)
    return before[-1]


def within(c: Choices, x: Array) -> Array:
    """A block inside of another function, with the shape that it was given."""
    kind, seed = c.one_of(WITHIN), int(c.rng.integers(1 << 30))

    def body(weights: Sequence[Array] | None, y: Array) -> tuple[Array, list[Array]]:
        inner = Choices(np.random.default_rng(seed), weights, depth=c.depth + 1)
        z = block(inner, y)
        z = z @ inner.weight(z.shape[-1], y.shape[-1]).astype(z.dtype)
        return small(z), inner.made

    shapes = jax.eval_shape(lambda: body(None, jnp.zeros(x.shape, x.dtype)))[1]
    weights = [c.weight(*w.shape) for w in shapes]

    def f(weights: Sequence[Array], y: Array) -> Array:
        return body(weights, y)[0]

    if kind == "jit":
        return jax.jit(f)(weights, x)
    if kind == "checkpoint":
        return jax.checkpoint(f)(weights, x)
    if kind == "scan":
        stacked = [jnp.stack([w, -w]) for w in weights]
        return lax.scan(lambda y, ws: (small(y + f(ws, y)), None), x, stacked)[0]
    if kind == "cond":
        return lax.cond(x[..., 0].sum() > 0, f, lambda ws, y: -f(ws, y), weights, x)
    if kind == "vmap":
        return small(jax.vmap(f, (None, 0))(weights, jnp.stack([x, -x])).sum(0))
    if kind == "twice":
        return small(f(weights, x) + f(weights, jax.nn.relu(f(weights, x))))
    own = jax.custom_vjp(f)
    own.defvjp(lambda ws, y: (f(ws, y), (ws, y)), lambda kept, ct: jax.vjp(f, *kept)[1](ct))
    return own(weights, x)


def program(seed: int, exact: bool = False) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """A function and its arguments: a forward pass, or gradients and results. exact: in f32."""
    rng = np.random.default_rng((seed, 1))
    dtype = rng.choice(["bfloat16", "bfloat16", "float16"])
    if exact:
        dtype = "float32"
    shape = ((256, 128), (2, 64, 128), (4, 32, 192))[rng.integers(3)]
    blocks, gradients = int(rng.integers(1, 4)), rng.random() < 0.7
    x = jnp.asarray(rng.integers(-2, 3, shape), dtype)

    def forward(weights: Sequence[Array] | None, x: Array) -> tuple[Array, list[Array]]:
        c, results = Choices(np.random.default_rng((seed, 2)), weights), []
        for _ in range(blocks):
            x = block(c, x)
            results.append(x)
        total = sum(y.astype(jnp.float32).sum() for y in results)
        return total, [*results, *c.made] if weights is None else results

    made = jax.eval_shape(lambda: forward(None, x))[1][blocks:]
    c = Choices(rng)
    weights = [c.weight(*w.shape) for w in made]
    if not gradients:
        return forward, (weights, x)
    return jax.value_and_grad(forward, (0, 1), has_aux=True), (weights, x)
