"""What tests of `accelerate` count: kernel calls and XLA's products in a program for CUDA."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jax_bwgemm as bw
from jax_bwgemm import runtime

SIZE = 512


def square() -> jax.Array:
    """A signed permutation in bf16: products of such are exact, in any order of summation."""
    rng = np.random.default_rng(0)
    columns = np.concatenate([[0], 1 + rng.permutation(SIZE - 1)])
    x = np.zeros((SIZE, SIZE), np.float32)
    x[np.arange(SIZE), columns] = rng.choice([-1, 1], SIZE)
    x[0, 0] = 1
    return jnp.asarray(x, jnp.bfloat16)


def counts(f: Callable[..., Any], *args: Any) -> tuple[int, int]:
    """How many kernel calls and dot products a program has on SM90, functions counted once."""
    with bw.config.target("sm90"):
        text = jax.jit(f).trace(*args).lower(lowering_platforms=("cuda",)).as_text()
    calls = re.findall(r"custom_call @bwgemm\.product", text)
    return len(calls), len(re.findall(r"stablehlo\.dot_general", text))


def has_all_majors() -> bool:
    """Whether this build has bf16 kernels of every storage order, as gradients need."""
    table = [k for k in runtime.kernels() if k.arch == "sm90" and k.in_dtype == "bfloat16"]
    majors = {k.a_major + k.b_major for k in table if k.out_dtype == "bfloat16"}
    return majors == {"kn", "kk", "mn", "mk"}
