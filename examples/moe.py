"""A mixture-of-experts layer to copy, trained on handwritten digits, on one device or several.

    python examples/moe.py                        # train on one device
    python examples/moe.py --check                # layer against a dense loop over the experts
    python examples/moe.py --devices 2 --check    # and experts spread over two devices

On a machine without GPUs, XLA_FLAGS=--xla_force_host_platform_device_count=2 makes two devices.

The layer is in moe_layer.py.
"""

from __future__ import annotations

import argparse
import collections
import functools
import re
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from moe_layer import (
    EXPERT_SHARDED,
    Params,
    dense_layer,
    expert_parallel,
    init_layer,
    moe_layer,
)

import jax_bwgemm

# --- The check ---

# Relative distances. In bf16, rounding alone makes three or four thousandths of each product.
BOUNDS = {"float32": 1e-5, "bfloat16": 2e-2, "float16": 2e-3}


def distance(got: Any, want: Any) -> float:
    """Relative distance of two arrays or trees of arrays."""
    pairs = list(zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True))
    pairs = [(np.asarray(g, np.float64), np.asarray(w, np.float64)) for g, w in pairs]
    above = sum(float(np.sum((g - w) ** 2)) for g, w in pairs)
    return (above / sum(float(np.sum(w**2)) for _, w in pairs)) ** 0.5


def value_and_gradients(layer: Callable, params: Params, x: jax.Array, dy: jax.Array) -> tuple:
    """Output of a layer, and gradients of sum(output * dy) + balance in (params, x)."""

    def loss(params: Params, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        y, balance = layer(params, x)
        return jnp.sum(y.astype(jnp.float32) * dy) + balance, y

    gradients, y = jax.grad(loss, argnums=(0, 1), has_aux=True)(params, x)
    return y, gradients


def collectives(text: str) -> dict[str, int]:
    """How many of each collective are in a compiled program's HLO text."""
    kinds = "all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute"
    return dict(collections.Counter(re.findall(rf" ({kinds})(?:-start)?\(", text)))


def check(args: argparse.Namespace, mesh: Mesh | None) -> bool:
    """Compares the layer with the dense loop, and expert-parallel with one device; prints both."""
    dtype = jnp.dtype(args.dtype)
    keys = jax.random.split(jax.random.key(args.seed), 3)
    params = init_layer(keys[0], args.width, args.hidden, args.experts)
    params = {k: v.astype(dtype).astype(jnp.float32) for k, v in params.items()}
    x = jax.random.normal(keys[1], (args.batch, args.width)).astype(dtype)
    dy = jax.random.normal(keys[2], (args.batch, args.width))
    layer = functools.partial(moe_layer, top_k=args.top_k, ragged_dot=args.ragged_dot)
    dense = functools.partial(dense_layer, top_k=args.top_k)
    run = jax.jit(value_and_gradients, static_argnums=0)
    one = run(layer, params, x, dy)
    right = [report("a dense loop", one, run(dense, params, x.astype(jnp.float32), dy), dtype)]
    if mesh is not None:
        spread = jax.device_put(
            params, {k: NamedSharding(mesh, s) for k, s in EXPERT_SHARDED.items()}
        )
        x, dy = jax.device_put((x, dy), NamedSharding(mesh, P()))
        parallel = expert_parallel(mesh, args.top_k, args.ragged_dot)
        compiled = run.lower(parallel, spread, x, dy).compile()
        right.append(report("one device", compiled(spread, x, dy), one, dtype))
        print(f"collectives, forward and backward: {collectives(compiled.as_text())}")
        forward = jax.jit(parallel).lower(spread, x).compile()
        print(f"collectives, forward: {collectives(forward.as_text())}")
    return all(right)


def report(what: str, got: tuple, want: tuple, dtype: Any) -> bool:
    """Prints how far a layer's output and gradients are from others; False if too far."""
    (y, (params, x)), (want_y, (want_params, want_x)) = got, want
    found = {"output": distance(y, want_y), "gradient of x": distance(x, want_x)}
    found |= {f"gradient of {n}": distance(params[n], want_params[n]) for n in params}
    bound = BOUNDS[dtype.name]
    right = all(value <= bound for value in found.values())  # False for NaN too
    print(f"relative distance to {what} (at most {bound:g}): {'ok' if right else 'TOO FAR'}")
    for name, value in found.items():
        print(f"  {name:20s} {value:.1e}")
    return right


# --- The training program ---


HELD_OUT_DIGITS = 300
TRAIN_DIGITS = 1797 - HELD_OUT_DIGITS


def digits(seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """scikit-learn's handwritten digits: x, y to train on and x, y held out."""
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(seed).permutation(len(x))
    x, y = (x[order] / 8 - 1).astype(np.float32), y[order].astype(np.int32)
    held_out = HELD_OUT_DIGITS
    return x[held_out:], y[held_out:], x[:held_out], y[:held_out]


def init_model(key: jax.Array, args: argparse.Namespace) -> dict[str, Any]:
    """Pixels -> width, one mixture-of-experts layer around a residual, width -> ten classes."""
    embed, layer, head = jax.random.split(key, 3)
    return {
        "embed": jax.random.normal(embed, (64, args.width)) / 8,
        "layer": init_layer(layer, args.width, args.hidden, args.experts),
        "head": jax.random.normal(head, (args.width, 10)) * args.width**-0.5,
    }


def loss_fn(model: dict, layer: Callable, dtype: Any, x: jax.Array, y: jax.Array) -> tuple:
    """Cross entropy plus 0.01 of the balance loss; and (cross entropy, balance, accuracy)."""
    hidden = jnp.tanh(x @ model["embed"])
    more, balance = layer(model["layer"], hidden.astype(dtype))
    scores = (hidden + more.astype(jnp.float32)) @ model["head"]
    entropy = -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(scores), y[:, None], axis=1))
    accuracy = jnp.mean(jnp.argmax(scores, axis=1) == y)
    return entropy + 0.01 * balance, (entropy, balance, accuracy)


def train(args: argparse.Namespace, mesh: Mesh | None) -> float:
    """Trains by gradient descent with momentum; returns the accuracy on held-out digits."""
    layer = functools.partial(moe_layer, top_k=args.top_k, ragged_dot=args.ragged_dot)
    if mesh is not None:
        layer = expert_parallel(mesh, args.top_k, args.ragged_dot)
    loss = functools.partial(loss_fn, layer=layer, dtype=jnp.dtype(args.dtype))

    @functools.partial(jax.jit, donate_argnums=(0, 1))
    def step(model: dict, velocity: dict, x: jax.Array, y: jax.Array) -> tuple:
        gradient, figures = jax.grad(loss, has_aux=True)(model, x=x, y=y)
        velocity = jax.tree.map(lambda v, g: 0.9 * v + g, velocity, gradient)
        model = jax.tree.map(lambda p, v: p - args.learning_rate * v, model, velocity)
        return model, velocity, figures

    train_x, train_y, test_x, test_y = digits(args.seed)
    model = init_model(jax.random.key(args.seed), args)
    if mesh is not None:
        shardings = {"embed": P(), "head": P(), "layer": EXPERT_SHARDED}
        shardings = jax.tree.map(lambda s: NamedSharding(mesh, s), shardings)
        model = jax.device_put(model, shardings)
    velocity = jax.tree.map(jnp.zeros_like, model)
    rng = np.random.default_rng(args.seed)
    for number in range(1, args.steps + 1):
        pick = rng.choice(len(train_x), args.batch, replace=False)
        model, velocity, figures = step(model, velocity, train_x[pick], train_y[pick])
        if number == 1 or number == args.steps or number % max(1, args.steps // 10) == 0:
            entropy, balance, accuracy = map(float, figures)
            print(
                f"step {number:4d}  loss {entropy:.4f}  balance {balance:.3f}  "
                f"accuracy {accuracy:.3f}",
                flush=True,
            )
    _, (_, _, accuracy) = jax.jit(loss)(model, x=test_x, y=test_y)
    print(f"accuracy on {len(test_y)} held-out digits: {float(accuracy):.1%}")
    return float(accuracy)


def positive(text: str) -> int:
    """argparse type of a count."""
    if (value := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {value}")
    return value


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--check", action="store_true", help="compare the layer, do not train")
    parser.add_argument(
        "--devices", type=positive, default=1, help="number of devices to spread the experts over"
    )
    parser.add_argument("--steps", type=positive, default=150)
    parser.add_argument("--batch", type=positive, default=512, help="tokens")
    parser.add_argument("--experts", type=positive, default=8)
    parser.add_argument("--top-k", type=positive, default=2)
    parser.add_argument("--width", type=positive, default=64)
    parser.add_argument("--hidden", type=positive, default=128)
    parser.add_argument("--learning-rate", type=float, default=0.1)
    parser.add_argument("--dtype", choices=sorted(BOUNDS), default="bfloat16")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--implementation",
        choices=("auto", "cutlass", "emulator", "xla", "lax"),
        default="auto",
        help="what runs ragged_dot; lax is jax.lax.ragged_dot",
    )
    args = parser.parse_args(argv)
    if args.devices > len(jax.devices()):
        parser.error(f"--devices {args.devices}: this machine has {len(jax.devices())}")
    if args.experts % args.devices:
        parser.error(f"--experts {args.experts} do not divide among {args.devices} devices")
    if args.top_k > args.experts:
        parser.error(f"--top-k {args.top_k} of --experts {args.experts}")
    if not args.check and args.batch > TRAIN_DIGITS:
        parser.error(f"--batch {args.batch}: there are {TRAIN_DIGITS} digits to train on")
    if args.implementation == "lax" and args.devices > 1:
        parser.error("--implementation lax: jax.lax.ragged_dot has no group_offset")
    name = None if args.implementation == "auto" else args.implementation
    args.ragged_dot = functools.partial(jax_bwgemm.ragged_dot, implementation=name)
    if name == "lax":
        args.ragged_dot = lax.ragged_dot
    return args


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_args(argv)
    devices = jax.devices()[: args.devices]
    print(f"{len(devices)} x {devices[0].device_kind}, {args.experts} experts, {args.dtype}")
    mesh = Mesh(devices, ("experts",)) if args.devices > 1 else None
    if args.check:
        return 0 if check(args, mesh) else 1
    train(args, mesh)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
