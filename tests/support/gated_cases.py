"""What tests of kernels of two products share: functions of both, operands, references."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from emulator_cases import requires_emulator
from linked_cases import requires_linker
from numerics import normal, small_integers

import jax_bwgemm as bw
from jax_bwgemm import runtime

F32 = jnp.float32

KERNELS = runtime.gated_kernels("emulator")
BF16 = [k for k in KERNELS if k.a_dtype == "bfloat16"]
requires_gated = [
    *requires_emulator,
    requires_linker,
    pytest.mark.skipif(not BF16, reason="no kernels of two products were built"),
]

# name -> (function, (shape, type) of every operand; "m" and "n" stand for sizes)
FUNCTIONS: dict[str, tuple[Callable[..., Any], list[tuple[tuple[Any, ...], str]]]] = {
    "silu": (lambda gate, up: jax.nn.silu(gate) * up.astype(F32), []),
    "gelu, both products": (
        lambda gate, up: (jax.nn.gelu(gate) * up.astype(F32), gate, up),
        [],
    ),
    "biases": (
        lambda gate, up, b, c: jax.nn.gelu(gate + b.astype(F32)) * (up.astype(F32) + c),
        [(("n",), "bfloat16"), (("n",), "float32")],
    ),
    "of every shape": (
        lambda gate, up, s, r, c, m: (
            jnp.maximum(gate * s, up.astype(F32) + r.astype(F32)),
            gate * c,
            up.astype(F32) * m.astype(F32),
            gate - jax.lax.broadcasted_iota(jnp.int32, gate.shape, 0).astype(F32),
        ),
        [((), "float32"), (("n",), "bfloat16"), (("m", 1), "float32"), (("m", "n"), "bfloat16")],
    ),
}
# Functions and operands whose every step is exact on small integers.
EXACT = ("of every shape",)


def operands(
    rng: np.random.Generator, name: str, m: int, n: int
) -> tuple[Callable[..., Any], list[jax.Array]]:
    """A function of both products, and arrays for it."""
    function, types = FUNCTIONS[name]
    sizes = {"m": m, "n": n, 1: 1}
    made = small_integers if name in EXACT else normal
    arrays = [jnp.asarray(made(rng, tuple(sizes[x] for x in shape), t)) for shape, t in types]
    return function, arrays


def factors(
    rng: np.random.Generator, dtype: str, m: int, n: int, k: int, *, exact: bool = False
) -> tuple[jax.Array, jax.Array]:
    """x [M, K] and stacked weights [K, 2, N]."""
    made = small_integers if exact else normal
    x, w = (jnp.asarray(made(rng, shape, dtype)) for shape in ((m, k), (k, 2, n)))
    return x, w if exact else w * jnp.asarray(k**-0.5, w.dtype)


def reference(function: Callable[..., Any], x: Any, w: Any, arrays: list[Any]) -> Any:
    """In f32, of the exact products."""
    gate, up = (jnp.dot(x.astype(F32), w[:, i].astype(F32), precision="highest") for i in range(2))
    return function(gate, up, *arrays)


def forms(w: jax.Array) -> tuple[Any, Any]:
    """Stacked weights, and the pair."""
    return w, (w[:, 0], w[:, 1])


def layer(x: Any, weights: Any, **more: Any) -> Any:
    # Of the gradients' products a build may have no kernels.
    more.setdefault("implementation", ("emulator", "xla"))
    return bw.gated_linear_unit(x, weights, activation="silu", **more)


def formula(x: Any, w: Any) -> Any:
    gate, up = (x.astype(F32) @ w[..., i, :].astype(F32) for i in (0, 1))
    return jax.nn.silu(gate) * up
