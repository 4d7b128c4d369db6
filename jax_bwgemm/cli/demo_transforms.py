"""Demo section: jit, vmap, grad and jvp of `matmul`, each against float64."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax_bwgemm.cli.sections import Check, Options, Section, relative_error, what_runs

# Multiples of 8, so that every row can be addressed by TMA, but of no tile size: the kernels' edge
# handling takes part.
M, N, K, BATCH = 264, 136, 200, 3

Function = Callable[..., Any]


def _pullback(matmul: Function, a: jax.Array, b: jax.Array, w: jax.Array) -> tuple:
    """Both gradients of sum(w * (a @ b))."""
    return jax.vjp(matmul, a, b)[1](w)


def _curvature(matmul: Function, a: jax.Array, b: jax.Array, da: jax.Array) -> jax.Array:
    """Forward over reverse: derivative along da of the gradient of sum((a @ b)^2) / 2 in a."""

    def gradient(x: jax.Array) -> jax.Array:
        product, pull = jax.vjp(lambda y: matmul(y, b), x)
        return pull(product)[0]

    return jax.jvp(gradient, (a,), (da,))[1]


def _cases(matmul: Function, x: dict[str, jax.Array]) -> dict[str, Callable[[], Any]]:
    """Name -> the jitted computation on this matmul."""
    a, b, w, da, db, stack = (x[name] for name in ("a", "b", "w", "da", "db", "stack"))
    pair = ((a, b), (da, db))
    weights = jnp.broadcast_to(w, (BATCH, M, N))
    return {
        "jit": lambda: jax.jit(matmul)(a, b),
        "vmap, one operand": lambda: jax.jit(jax.vmap(matmul, (0, None)))(stack, b),
        "grad": lambda: jax.jit(lambda: _pullback(matmul, a, b, w))(),
        "vmap of grad": lambda: jax.jit(
            lambda: jax.vmap(lambda s, v: _pullback(matmul, s, b, v)[1])(stack, weights)
        )(),
        "jvp": lambda: jax.jit(lambda: jax.jvp(matmul, *pair)[1])(),
        "jvp of grad": lambda: jax.jit(lambda: _curvature(matmul, a, b, da))(),
    }


def _references(x: dict[str, np.ndarray]) -> dict[str, Any]:
    """The same by hand, in float64."""
    a, b, w, da, db, stack = (x[name] for name in ("a", "b", "w", "da", "db", "stack"))
    return {
        "jit": a @ b,
        "vmap, one operand": stack @ b,
        "grad": (w @ b.T, a.T @ w),
        "vmap of grad": stack.transpose(0, 2, 1) @ w,
        "jvp": da @ b + a @ db,
        "jvp of grad": da @ b @ b.T,
    }


def _worst(got: Any, want: Any) -> float:
    leaves = zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True)
    return max(relative_error(g, w) for g, w in leaves)


def _integers(options: Options) -> Check:
    """Small integers are exact in every type and order of summation: no error is allowed."""
    rng = np.random.default_rng(options.seed)
    a, b = rng.integers(-4, 5, (M, K)), rng.integers(-4, 5, (K, N))
    operands = [jnp.asarray(v, options.dtype) for v in (a, b)]
    product = jax.jit(lambda p, q: options.matmul(p, q, preferred_element_type=jnp.float32))
    got = np.asarray(product(*operands), np.float64)
    return Check("integers, float32 result", float(np.abs(got - a @ b).max()), None, 0.0)


def run(options: Options, say: Callable[[str], None]) -> Sequence[Check]:
    """Runs every transformation on this package and on jnp.matmul."""
    say(f"a [{M}, {K}] @ b [{K}, {N}] in {options.dtype}, reference in float64")
    say(f"runs on {what_runs(options, (M, K), (K, N))}")
    shapes = {"a": (M, K), "b": (K, N), "w": (M, N), "da": (M, K), "db": (K, N)}
    shapes["stack"] = (BATCH, M, K)
    keys = jax.random.split(jax.random.key(options.seed), len(shapes))
    inputs = {
        name: jax.random.normal(key, shape).astype(options.dtype)
        for key, (name, shape) in zip(keys, shapes.items(), strict=True)
    }
    exact = _references({name: np.asarray(v, np.float64) for name, v in inputs.items()})
    ours, theirs = _cases(options.matmul, inputs), _cases(jnp.matmul, inputs)
    checks = [_integers(options)]
    for name, want in exact.items():
        errors = _worst(ours[name](), want), _worst(theirs[name](), want)
        checks.append(Check.against_xla(name, *errors))
        say(f"  {name}: error {errors[0]:.2e}, XLA's {errors[1]:.2e}")
    return checks


SECTION = Section("transforms", "Transformations of matmul", lambda: None, run)
