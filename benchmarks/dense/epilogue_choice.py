"""Which kernel a function after a product is linked into, and what that choice loses."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from dense.epilogue_functions import FUNCTIONS, Function

from jax_bwgemm.config import make_target
from jax_bwgemm.dense.spec import GemmSpec
from jax_bwgemm.epilogue.call import choose_linked
from jax_bwgemm.epilogue.tracing import trace_epilogue
from jax_bwgemm.product.spec import Policy

DATA = pathlib.Path(__file__).resolve().parents[1] / "costs" / "epilogues"
# The product, and a pass of XLA's.
APART = "apart"


def chosen(m: int, n: int, k: int, function: Function, dtype: str = "bfloat16") -> str:
    """A kernel on an H200 without the types and majors in its name, or `APART`.

    Args:
        m, n, k: Sizes of the product.
        function: What follows it.
        dtype: Type of its operands and of all results.
    """
    traced = trace_epilogue(function.call, (m, n), function.types(m, n)).program
    policy = Policy(implementations=("cutlass",), target=make_target("sm90"))
    spec = GemmSpec(a_major="k", b_major="n", out_dtype=dtype, policy=policy)
    factors = [jax.ShapeDtypeStruct(s, jnp.dtype(dtype)) for s in ((1, m, k), (1, k, n))]
    results = (dtype,) * len(traced.results)
    call = choose_linked("cutlass", "cuda", spec, traced, results, factors)
    return APART if isinstance(call, str) else label(call.selection.kernel.name)


def label(kernel: str) -> str:
    """A kernel's name without architecture, types and majors."""
    return kernel.split("_", 4)[4]


def load() -> list[dict[str, Any]]:
    """Recorded problems: ``shape``, ``function`` and ``us``, microseconds by label and `APART`."""
    found = []
    for path in sorted(DATA.glob("*.json")):
        found += json.loads(path.read_text(encoding="utf-8"))["problems"]
    return found


def regret(shape: tuple[int, int, int], function: str, us: Mapping[str, float]) -> float:
    """The time of the choice over that of the fastest way to compute the same."""
    return us[chosen(*shape, FUNCTIONS[function])] / min(us.values())
