"""Whether one kernel computes two products and a function of both, and what that choice loses."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

import jax_bwgemm as bw
from jax_bwgemm.config import make_target
from jax_bwgemm.dense.spec import GemmSpec
from jax_bwgemm.epilogue.gated_call import GatedProblem, choose_gated
from jax_bwgemm.epilogue.tracing import trace_epilogue
from jax_bwgemm.product.spec import Policy

DATA = pathlib.Path(__file__).resolve().parents[1] / "costs" / "gated" / "h200.json"
PAIR = "pair"  # two products; the second takes the function, or a pass of XLA's does


def chosen(m: int, n: int, k: int, keeps_products: bool) -> str:
    """The tile of one kernel on an H200, or `PAIR`, of SiLU of a pair of weights.

    Args:
        m, n, k: Sizes of either product.
        keeps_products: Whether both are results, too.
    """

    def function(gate: jax.Array, up: jax.Array) -> tuple[jax.Array, ...]:
        hidden = jax.nn.silu(gate) * up.astype(jnp.float32)
        return (hidden, gate, up) if keeps_products else (hidden,)

    up = jax.ShapeDtypeStruct((m, n), jnp.bfloat16)
    program = trace_epilogue(function, (m, n), (up,)).program
    policy = Policy(implementations=("cutlass",), target=make_target("sm90"))
    spec = GemmSpec(a_major="k", b_major="n", out_dtype="bfloat16", policy=policy)
    problem = GatedProblem(spec, program, ("bfloat16",) * len(program.results), stacked=False)
    shapes = (1, m, k), (1, k, n), (1, k, n)
    factors = [jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in shapes]
    with bw.config.linked_epilogues(True):
        call = choose_gated("cutlass", "cuda", problem, factors)
    if isinstance(call, str):
        return PAIR
    kernel = call.selection.kernel
    return f"{kernel.tile_m}x{kernel.tile_n}"


def load() -> list[dict[str, Any]]:
    """Recorded problems: ``shape``, ``keeps_products`` and ``us``, microseconds by tile and way.

    `PAIR` has no time where bench_gated.py could not ask for it.
    """
    return json.loads(DATA.read_text(encoding="utf-8"))


def regret(shape: tuple[int, int, int], keeps_products: bool, us: Mapping[str, float]) -> float:
    """The time of the choice over that of the fastest way to compute the same."""
    return us[chosen(*shape, keeps_products)] / min(us.values())
