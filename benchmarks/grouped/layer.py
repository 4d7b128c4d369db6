"""The whole mixture-of-experts layer, forward and backward, on this package and on lax.

The layer is examples/moe_layer.py: routing, sorting, two ragged products, combination. Both arms
run that same code and differ in `ragged_dot` only. `bench_grouped.py --layer` runs this.
"""

from __future__ import annotations

import argparse
import functools
import pathlib
import sys
import time
from typing import Any

import jax
import jax.numpy as jnp
from common import options, report, timing
from grouped.problems import Problem, top_k
from jax import lax

# Squared relative distance of all gradients together: two chains of bf16 products round apart.
BOUND = 1e-3


def flops(problem: Problem) -> int:
    """Of both products and their gradients: the second product has half the first one's."""
    return 9 * problem.m * problem.n * problem.k


def layer_code() -> Any:
    """The module examples/moe_layer.py."""
    folder = str(pathlib.Path(__file__).resolve().parents[2] / "examples")
    if folder not in sys.path:
        sys.path.append(folder)
    import moe_layer

    return moe_layer


def make_inputs(problem: Problem, dtype: Any, seed: int) -> tuple[dict, jax.Array, jax.Array]:
    """Weights (matrices in `dtype`), tokens, and what the output should be."""
    tokens = problem.m // top_k(problem)

    @jax.jit
    def draw(key: jax.Array) -> tuple[dict, jax.Array, jax.Array]:
        weights, x, target = jax.random.split(key, 3)
        params = layer_code().init_layer(weights, problem.k, problem.n // 2, problem.groups)
        params |= {name: params[name].astype(dtype) for name in ("w_in", "w_out")}
        shape = (tokens, problem.k)
        return params, jax.random.normal(x, shape, dtype), jax.random.normal(target, shape, dtype)

    return draw(jax.random.key(seed))


def make_step(problem: Problem, ragged_dot: Any) -> Any:
    """`step_of` of the layer with these products."""
    code = layer_code()
    return step_of(functools.partial(code.moe_layer, top_k=top_k(problem), ragged_dot=ragged_dot))


def step_of(layer: Any) -> Any:
    """A jitted step: (weights, x, target) -> loss and gradients of weights and x.

    As in a model, the cotangent of y is not known before y: else XLA computes what is between the
    products of the forward pass together with its gradient.
    """

    def loss(params: dict, x: jax.Array, target: jax.Array) -> jax.Array:
        y, balance = layer(params, x)
        return jnp.mean(jnp.square(y.astype(jnp.float32) - target)) + 0.01 * balance

    return jax.jit(jax.value_and_grad(loss, argnums=(0, 1)))


@jax.jit
def distance(got: Any, want: Any) -> jax.Array:
    """Squared relative distance of two trees; each leaf counts the same."""
    leaves = zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True)
    pairs = [(g.astype(jnp.float32), w.astype(jnp.float32)) for g, w in leaves]
    return jnp.max(jnp.stack([jnp.sum((g - w) ** 2) / jnp.sum(w**2) for g, w in pairs]))


def run(
    problem: Problem, args: argparse.Namespace, platform: str, out: report.Report
) -> list[dict]:
    """Measures one layer on both arms; returns its rows."""
    import jax_bwgemm

    begin = time.perf_counter()
    dtype = jnp.dtype(args.dtype)
    inputs = make_inputs(problem, dtype, args.seed)
    ours = functools.partial(jax_bwgemm.ragged_dot, implementation=options.implementation_of(args))
    exact = functools.partial(jax_bwgemm.ragged_dot, implementation="xla")
    want = make_step(problem, exact)(*inputs)
    arms = {"bwgemm": ours} | ({"xla": lax.ragged_dot} if "xla" in args.peers else {})
    rows, found = [], []
    for name, product in arms.items():
        row: dict[str, Any] = {
            "shape": problem.name,
            "top_k": top_k(problem),
            "dtype": str(dtype),
            "impl": name,
            "method": "wall",
        }
        rows.append(row)
        try:
            compiled = make_step(problem, product).lower(*inputs).compile()
            row["temp_bytes"] = compiled.memory_analysis().temp_size_in_bytes
            row["distance"] = float(distance(compiled(*inputs), want))
            candidate = timing.Candidate(
                name, lambda _, f=compiled: f(*inputs), jax.block_until_ready
            )
            timing.warm_up(candidate, 0.0 if args.small else 0.05)
        except Exception as error:  # one arm must not cost the other its turn
            row["status"] = f"error: {report.one_line(error)}"
            continue
        if not row["distance"] <= BOUND:  # NaN is wrong too
            row["status"] = f"wrong: gradients are {row['distance']:.1e} off, {BOUND:.0e} may be"
            row["distance"] = str(row["distance"])
            continue
        row["status"] = "ok"
        found.append((row, candidate))
    del want
    candidates = [candidate for _, candidate in found]
    burst = 1 if args.small else 3
    walls = timing.interleave(timing.WallTimer(), candidates, rounds=args.rounds, burst=burst)
    for (row, _), wall in zip(found, walls, strict=True):
        row |= report.summarise(wall.times_us)
        row["tflops"] = flops(problem) / row["median_us"] / 1e6
    if platform == "gpu":
        times = timing.interleave(timing.CuptiTimer(), candidates, rounds=3, burst=1)
        for (row, _), measured in zip(found, times, strict=True):
            row["kernel_us"] = report.summarise(measured.times_us)["median_us"]
            row["kernels"] = measured.kernels
    for row in rows:
        out.add("layer", **row)
    text = "  ".join(f"{r['impl']} {r.get('median_us', 0):.0f}us {r['status']}" for r in rows)
    out.progress(f"  layer {problem.name:24s} {text}  [{time.perf_counter() - begin:.1f}s]")
    return rows


def summary(rows: list[dict]) -> str:
    """A table of both arms and lax's step time over this package's, problem by problem."""
    columns = ("shape", "top_k", "impl", "median_us", "kernel_us", "tflops", "spread", "status")
    lines = [f"layer, forward and backward\n{report.table(rows, columns)}"]
    times: dict[str, dict[str, dict]] = {}
    for row in rows:
        times.setdefault(row["shape"], {})[row["impl"]] = row
    for shape, arms in times.items():
        if len(arms) == 2 and all(r["status"] == "ok" for r in arms.values()):
            ratio = arms["xla"]["median_us"] / arms["bwgemm"]["median_us"]
            lines.append(f"layer {shape}: xla step time over bwgemm step time: {ratio:.3f}")
    return "\n".join(lines)
