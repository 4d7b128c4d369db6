"""Demo section: a classifier of handwritten digits, all its products through this package.

Two comparisons at once. At every step the gradient at the current weights is computed three times:
through this package, through `jnp.matmul` in the same type, and in float32 at the highest
precision; the first may be at most twice as far from the third as the second is. And a twin of the
model is trained on `jnp.matmul` alone, from the same weights on the same batches: both must learn
the same thing.
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from jax_bwgemm.cli.sections import (
    LEFT_TRANSPOSED,
    RIGHT_TRANSPOSED,
    Check,
    Options,
    Section,
    what_runs,
)

Params = dict[str, jax.Array]
Matmul = Callable[[jax.Array, jax.Array], jax.Array]

BATCH, FEATURES, HIDDEN, CLASSES = 256, 64, 256, 10
# Ten columns of bf16 are 20 bytes, and TMA needs rows of a multiple of 16: the output layer has 16
# columns, of which six are cut off.
OUTPUTS = 16
LEARNING_RATE, MOMENTUM = 0.1, 0.9
# 300 held-out digits: how far apart the accuracies of two equally good runs may be.
ACCURACY_MARGIN = 0.03


def unavailable() -> str | None:
    """Why this section cannot run, or None."""
    if importlib.util.find_spec("sklearn") is None:
        return (
            "the digits data set comes with scikit-learn, which is not installed: "
            "pip install 'jax_bwgemm[demo]', or leave this section out with --sections transforms"
        )
    return None


def load_digits(seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Digits as (train x [1497, 64], train y, test x [300, 64], test y), x scaled to [-1, 1]."""
    from sklearn.datasets import load_digits as load

    x, y = load(return_X_y=True)
    order = np.random.default_rng(seed).permutation(len(x))
    x, y = (x[order] / 8.0 - 1.0).astype(np.float32), y[order].astype(np.int32)
    return x[300:], y[300:], x[:300], y[:300]


def init(seed: int) -> Params:
    """He-initialised weights of a 64-256-256-16 network in float32."""
    sizes = {"w1": (FEATURES, HIDDEN), "w2": (HIDDEN, HIDDEN), "w3": (HIDDEN, OUTPUTS)}
    keys = jax.random.split(jax.random.key(seed), len(sizes))
    return {
        name: jax.random.normal(key, shape) * (2 / shape[0]) ** 0.5
        for key, (name, shape) in zip(keys, sizes.items(), strict=True)
    }


def logits(matmul: Matmul, dtype: str, params: Params, x: jax.Array) -> jax.Array:
    """[batch, 10] scores in float32 from weights and inputs rounded to `dtype`."""
    w1, w2, w3 = (params[name].astype(dtype) for name in ("w1", "w2", "w3"))
    hidden = jax.nn.relu(matmul(x.astype(dtype), w1))
    hidden = jax.nn.relu(matmul(hidden, w2))
    return matmul(hidden, w3).astype(jnp.float32)[:, :CLASSES]


def loss(matmul: Matmul, dtype: str, params: Params, x: jax.Array, y: jax.Array) -> jax.Array:
    """Mean cross entropy."""
    scores = jax.nn.log_softmax(logits(matmul, dtype, params, x))
    return -jnp.mean(jnp.take_along_axis(scores, y[:, None], axis=1))


def products(options: Options) -> list[str]:
    """What runs each of the eight products of a step, on one line where all are alike."""
    found = {}
    layers = ((FEATURES, HIDDEN), (HIDDEN, HIDDEN), (HIDDEN, OUTPUTS))
    for number, (width_in, width_out) in enumerate(layers, start=1):
        x, w, dy = (BATCH, width_in), (width_in, width_out), (BATCH, width_out)
        found[f"layer {number}  x @ w   "] = what_runs(options, x, w)
        if number > 1:  # the inputs of the first layer are data and need no gradient
            found[f"layer {number}  dy @ w.T"] = what_runs(options, dy, w, RIGHT_TRANSPOSED)
        found[f"layer {number}  x.T @ dy"] = what_runs(options, x, dy, LEFT_TRANSPOSED)
    if len(set(found.values())) == 1:
        return [f"all {len(found)} products of a step run on {found.popitem()[1]}"]
    return [f"{name}  {text}" for name, text in found.items()]


def distance(got: Params, want: Params) -> jax.Array:
    """Relative distance of two gradients, as one vector each."""
    pairs = zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True)
    above = sum(jnp.sum((g - w) ** 2) for g, w in pairs)
    return jnp.sqrt(above / sum(jnp.sum(w**2) for w in jax.tree.leaves(want)))


def make_step(matmul: Matmul, dtype: str) -> Callable:
    """A jitted step of the model and its twin, with both gradient errors at the model's weights."""
    exact = functools.partial(jnp.matmul, precision="highest")

    def descend(params: Params, velocity: Params, gradient: Params) -> tuple[Params, Params]:
        velocity = jax.tree.map(lambda v, g: MOMENTUM * v + g, velocity, gradient)
        return jax.tree.map(lambda p, v: p - LEARNING_RATE * v, params, velocity), velocity

    @jax.jit
    def step(model: tuple, twin: tuple, x: jax.Array, y: jax.Array) -> tuple:
        ours, gradient = jax.value_and_grad(loss, 2)(matmul, dtype, model[0], x, y)
        same = jax.grad(loss, 2)(jnp.matmul, dtype, model[0], x, y)
        true = jax.grad(loss, 2)(exact, "float32", model[0], x, y)
        theirs, twin_gradient = jax.value_and_grad(loss, 2)(jnp.matmul, dtype, twin[0], x, y)
        errors = distance(gradient, true), distance(same, true)
        model, twin = descend(*model, gradient), descend(*twin, twin_gradient)
        return model, twin, (ours, theirs, *errors)

    return step


def run(options: Options, say: Callable[[str], None]) -> Sequence[Check]:
    """Trains the model and its twin side by side."""
    train_x, train_y, test_x, test_y = load_digits(options.seed)
    say(
        f"{FEATURES}-{HIDDEN}-{HIDDEN}-{CLASSES} network on {len(train_x)} digits, batches of "
        f"{BATCH}, products in {options.dtype}, {options.steps} steps"
    )
    for line in products(options):
        say(f"  {line}")
    params = init(options.seed)
    model = twin = (params, jax.tree.map(jnp.zeros_like, params))
    step = make_step(options.matmul, options.dtype)
    rng = np.random.default_rng(options.seed)
    history = []
    say("  step    loss  loss on jnp.matmul  gradient error  XLA's gradient error")
    for number in range(1, options.steps + 1):
        pick = rng.choice(len(train_x), BATCH, replace=False)
        model, twin, figures = step(model, twin, train_x[pick], train_y[pick])
        history.append([float(f) for f in figures])
        if number == 1 or number == options.steps or number % max(1, options.steps // 10) == 0:
            ours, theirs, error, same = history[-1]
            say(f"  {number:4d}  {ours:6.4f}  {theirs:18.4f}  {error:14.2e}  {same:20.2e}")

    def accuracy(matmul: Matmul, params: Params) -> float:
        scores = logits(matmul, options.dtype, params, jnp.asarray(test_x))
        return float(np.mean(np.argmax(np.asarray(scores), axis=1) == test_y))

    ours, theirs = accuracy(options.matmul, model[0]), accuracy(jnp.matmul, twin[0])
    say(f"  accuracy on {len(test_y)} held-out digits: {ours:.1%}, on jnp.matmul {theirs:.1%}")
    errors = np.asarray(history)[:, 2:]
    # Of a single step, rounding may leave XLA's error several times smaller than ours, by chance.
    finite = np.isfinite(history).all()
    median, largest = (f(errors, axis=0) if finite else (np.inf, 0.0) for f in (np.median, np.max))
    return [
        Check.against_xla(f"gradient, median error of {options.steps} steps", *median),
        Check.against_xla(f"gradient, largest error of {options.steps} steps", *largest),
        Check("accuracy against the twin's", abs(ours - theirs), None, ACCURACY_MARGIN),
        Check("last loss over first", history[-1][0] / history[0][0], None, 0.9),
    ]


SECTION = Section("training", "A digit classifier, step by step", unavailable, run)
