"""What a product of windows would get, for `jax_bwgemm.explain_program`."""

from __future__ import annotations

import functools
from typing import Any

import jax

from jax_bwgemm.dense.windowed import separate
from jax_bwgemm.product.explain import Explanation
from jax_bwgemm.product.program_explanation import explain_program


def explain(eqn: Any, device: Any) -> Explanation:
    """The decision for the product: that of one whose operands are copies of the windows."""
    function = functools.partial(separate, windowed=eqn.params["windowed"])
    traced = jax.make_jaxpr(function)(*(x.aval for x in eqn.invars))
    ((found, _),) = explain_program(traced, device=device).products
    return found
