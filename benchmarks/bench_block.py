"""A transformer block, forward and backward: every product through this package, or all jnp.matmul.

    python bench_block.py

A single product is not what a user waits for. XLA fuses neighbouring element-wise work into its
own products and not into ours; this measures the whole step, with both arms identical but for the
function that multiplies. Attention is written with batched products, so those go through the
package too; `--attention shared` leaves the attention core to `jax.nn.dot_product_attention` in
both arms.
"""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from common import options, report, timing


@dataclasses.dataclass(frozen=True)
class Block:
    """Sizes of the block."""

    batch: int
    sequence: int
    width: int
    heads: int
    hidden: int

    @property
    def forward_flops(self) -> int:
        """Multiplies and adds of all products of one forward pass (attention not halved)."""
        tokens = self.batch * self.sequence
        weights = 4 * self.width**2 + 3 * self.width * self.hidden
        return 2 * tokens * weights + 4 * tokens * self.sequence * self.width


def init(block: Block, dtype: str, seed: int) -> dict[str, jax.Array]:
    """Weights with variance 1/fan-in; norm scales of one."""
    shapes = {
        "qkv": (block.width, 3 * block.width),
        "out": (block.width, block.width),
        "gate_up": (block.width, 2 * block.hidden),
        "down": (block.hidden, block.width),
    }
    keys = jax.random.split(jax.random.key(seed), len(shapes))
    weights = {
        name: (jax.random.normal(key, shape) * shape[0] ** -0.5).astype(dtype)
        for key, (name, shape) in zip(keys, shapes.items(), strict=True)
    }
    return weights | {"norm1": jnp.ones(block.width, dtype), "norm2": jnp.ones(block.width, dtype)}


def _norm(x: jax.Array, scale: jax.Array) -> jax.Array:
    wide = x.astype(jnp.float32)
    return (wide * jax.lax.rsqrt(jnp.mean(wide**2, -1, keepdims=True) + 1e-6)).astype(
        x.dtype
    ) * scale


def _attention(matmul: Callable, q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    """Causal attention over [batch, heads, sequence, head width] as two batched products."""
    length = q.shape[2]
    scores = matmul(q, k.swapaxes(-1, -2)).astype(jnp.float32) * q.shape[-1] ** -0.5
    scores = jnp.where(jnp.tril(jnp.ones((length, length), bool)), scores, -1e30)
    return matmul(jax.nn.softmax(scores, axis=-1).astype(q.dtype), v)


def forward(
    block: Block, matmul: Callable, shared_attention: bool, weights: dict, x: jax.Array
) -> jax.Array:
    """Pre-norm attention and gated MLP on x [batch, sequence, width]."""
    batch, length, width = x.shape
    qkv = matmul(_norm(x, weights["norm1"]), weights["qkv"])
    q, k, v = jnp.split(qkv.reshape(batch, length, 3 * block.heads, -1), 3, axis=2)
    if shared_attention:
        mixed = jax.nn.dot_product_attention(q, k, v, is_causal=True)
    else:
        q, k, v = (t.transpose(0, 2, 1, 3) for t in (q, k, v))
        mixed = _attention(matmul, q, k, v).transpose(0, 2, 1, 3)
    x = x + matmul(mixed.reshape(batch, length, width), weights["out"])
    gate, up = jnp.split(matmul(_norm(x, weights["norm2"]), weights["gate_up"]), 2, axis=-1)
    return x + matmul(jax.nn.silu(gate) * up, weights["down"])


def parse_args(argv: Sequence[str] | None):
    parser = options.parser(__doc__.split("\n", 1)[0])
    parser.add_argument("--batch", type=options.positive, default=4)
    parser.add_argument("--sequence", type=options.positive, default=2048)
    parser.add_argument("--width", type=options.positive, default=4096)
    parser.add_argument("--heads", type=options.positive, default=32)
    parser.add_argument("--hidden", type=options.positive, default=14336)
    parser.add_argument("--attention", choices=("matmul", "shared"), default="matmul")
    parser.add_argument("--rounds", type=options.positive, default=7)
    args = parser.parse_args(argv)
    if args.small:
        args.batch, args.sequence, args.width, args.heads, args.hidden = 2, 32, 64, 4, 96
        args.rounds = 2
    if args.width % args.heads:
        parser.error(f"--width {args.width} is not a multiple of --heads {args.heads}")
    return args


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_args(argv)
    block = Block(args.batch, args.sequence, args.width, args.heads, args.hidden)
    if args.dry_run:
        print(f"{block}: {3 * block.forward_flops / 1e12:.2f} TFLOP forward and backward")
        return 0
    platform = options.prepare(args)
    import jax_bwgemm

    out = report.Report(args.out, "bench_block")
    weights = init(block, args.dtype, args.seed)
    x_key, y_key = jax.random.split(jax.random.key(args.seed + 1))
    shape = (block.batch, block.sequence, block.width)
    x = jax.random.normal(x_key, shape).astype(args.dtype)
    target = jax.random.normal(y_key, shape).astype(args.dtype)
    ours = functools.partial(jax_bwgemm.matmul, implementation=options.implementation_of(args))
    arms = {"bwgemm": ours, "xla": jnp.matmul}
    steps = {}
    for name, matmul in arms.items():

        def loss(weights, x, matmul=matmul):
            y = forward(block, matmul, args.attention == "shared", weights, x)
            return jnp.mean(jnp.square((y - target).astype(jnp.float32)))

        steps[f"{name} forward"] = jax.jit(loss)
        steps[name] = jax.jit(jax.value_and_grad(loss, argnums=(0, 1)))
    found = []
    for name, step in steps.items():
        compiled = step.lower(weights, x).compile()
        found.append(
            timing.Candidate(name, lambda _, f=compiled: f(weights, x), jax.block_until_ready)
        )
    error = _gradient_distance(*(found[i].call(0) for i in (1, 3)))
    for candidate in found:
        timing.warm_up(candidate, 0.0 if args.small else 0.2)
    burst = 1 if args.small else 3
    walls = timing.interleave(timing.WallTimer(), found, rounds=args.rounds, burst=burst)
    kernels = [None] * len(found)
    if platform == "gpu":
        times = timing.interleave(timing.CuptiTimer(), found, rounds=3, burst=1)
        kernels = [report.summarise(t.times_us)["median_us"] for t in times]
    rows = []
    for candidate, wall, kernel in zip(found, walls, kernels, strict=True):
        impl, _, part = candidate.name.partition(" ")
        flops = block.forward_flops * (1 if part else 3)
        stats = report.summarise(wall.times_us)
        rows.append(
            out.add(
                "block",
                impl=impl,
                what=part or "forward+backward",
                block=dataclasses.asdict(block),
                attention=args.attention,
                dtype=args.dtype,
                method="wall",
                kernel_us=kernel,
                tflops=flops / stats["median_us"] / 1e6,
                gradient_distance=error,
                **stats,
            )
        )
    out.close()
    print(report.table(rows, ("what", "impl", "median_us", "kernel_us", "tflops", "spread")))
    print(f"xla step time over bwgemm step time: {rows[3]['median_us'] / rows[1]['median_us']:.3f}")
    print(f"squared relative distance of the gradients of both arms: {error:.2e}")
    # Two chains of half a dozen bf16 products each round differently; 1e-3 is 3 % in norm.
    if not error <= 1e-3:
        print(f"error: the gradients of both arms differ by {error:.2e}", file=sys.stderr)
        return 1
    return 0


def _gradient_distance(ours: tuple, theirs: tuple) -> float:
    """Squared relative distance between two gradient trees."""
    pairs = zip(jax.tree.leaves(ours[1]), jax.tree.leaves(theirs[1]), strict=True)
    above = below = 0.0
    for got, want in pairs:
        got, want = got.astype(jnp.float32), want.astype(jnp.float32)
        above += float(jnp.sum((got - want) ** 2))
        below += float(jnp.sum(want**2))
    return above / below


if __name__ == "__main__":
    sys.exit(main())
