"""A training step to copy: a Flax model whose products run through jax_bwgemm.

    python examples/train_step.py              # on every device of this machine

One line is special: `dot_general=jax_bwgemm.dot_general`. Everything else is what a data-parallel
Flax and optax program looks like anyway: the batch is sharded over all devices, the weights are
replicated, and XLA adds the one all-reduce that the gradients need.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax.training.train_state import TrainState
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import jax_bwgemm

Batch = dict[str, jax.Array]


class Classifier(nn.Module):
    """Two hidden layers over [batch, 64] pixels; weights in float32, products in `dtype`."""

    hidden: int = 512
    classes: int = 10
    dtype: Any = jnp.bfloat16
    dot_general: Callable = jax_bwgemm.dot_general

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        dense = functools.partial(nn.Dense, dtype=self.dtype, dot_general=self.dot_general)
        x = nn.relu(dense(self.hidden)(x))
        x = nn.relu(dense(self.hidden)(x))
        # The kernels read rows of a multiple of 16 bytes. 16 columns are one such row of bf16; 10
        # would make XLA run this layer and both its gradients instead.
        return dense(-(-self.classes // 8) * 8)(x)[:, : self.classes].astype(jnp.float32)


def create_state(
    model: nn.Module, seed: int, mesh: Mesh, learning_rate: float = 2e-3
) -> TrainState:
    """Initial weights and optimizer state, replicated over the mesh."""
    params = model.init(jax.random.key(seed), jnp.zeros((8, 64)))["params"]
    state = TrainState.create(apply_fn=model.apply, params=params, tx=optax.adamw(learning_rate))
    return jax.device_put(state, NamedSharding(mesh, P()))


def loss_fn(apply_fn: Callable, params: Any, batch: Batch) -> jax.Array:
    """Mean cross entropy of a batch {"x": [batch, 64], "y": [batch] of class numbers}."""
    logits = apply_fn({"params": params}, batch["x"])
    return optax.softmax_cross_entropy_with_integer_labels(logits, batch["y"]).mean()


# Donating the state lets XLA update the weights in place.
@functools.partial(jax.jit, donate_argnums=0)
def train_step(state: TrainState, batch: Batch) -> tuple[TrainState, jax.Array]:
    """One optimizer step; returns the new state and the loss before it."""
    loss, grads = jax.value_and_grad(loss_fn, argnums=1)(state.apply_fn, state.params, batch)
    return state.apply_gradients(grads=grads), loss


@jax.jit
def accuracy(state: TrainState, batch: Batch) -> jax.Array:
    """Fraction of a batch that is classified correctly."""
    logits = state.apply_fn({"params": state.params}, batch["x"])
    return jnp.mean(jnp.argmax(logits, axis=-1) == batch["y"])


def digits(seed: int = 0) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """scikit-learn's handwritten digits: 1497 to train on and 300 held out."""
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(seed).permutation(len(x))
    x, y = (x[order] / 8 - 1).astype(np.float32), y[order].astype(np.int32)
    return {"x": x[300:], "y": y[300:]}, {"x": x[:300], "y": y[:300]}


def batches(
    data: dict[str, np.ndarray], size: int, steps: int, mesh: Mesh, seed: int = 0
) -> Iterator[Batch]:
    """`steps` random batches, each split over the mesh along its first axis."""
    rng = np.random.default_rng(seed)
    for _ in range(steps):
        pick = rng.choice(len(data["x"]), size, replace=False)
        batch = {name: values[pick] for name, values in data.items()}
        yield jax.device_put(batch, NamedSharding(mesh, P("data")))


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch", type=int, default=512, help="rows, all devices together")
    args = parser.parse_args(argv)
    devices = jax.devices()
    if args.batch % len(devices):
        parser.error(f"--batch {args.batch} does not divide among {len(devices)} devices")
    mesh = Mesh(devices, ("data",))
    train, test = digits()
    state = create_state(Classifier(), 0, mesh)
    print(f"{len(devices)} x {devices[0].device_kind}, batches of {args.batch}", flush=True)
    for step, batch in enumerate(batches(train, args.batch, args.steps, mesh), start=1):
        state, loss = train_step(state, batch)
        if step == 1 or step % max(1, args.steps // 10) == 0:
            print(f"step {step:4d}  loss {float(loss):.4f}", flush=True)
    print(f"accuracy on {len(test['y'])} held-out digits: {float(accuracy(state, test)):.1%}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
