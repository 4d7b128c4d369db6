"""What two products and a function of both would get, for `jax_bwgemm.explain_program`."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax

from jax_bwgemm.config import links_epilogues
from jax_bwgemm.dense.contraction import DENSE
from jax_bwgemm.dense.spec import GemmSpec
from jax_bwgemm.epilogue.gated import Gated
from jax_bwgemm.epilogue.gated_call import choose_gated
from jax_bwgemm.epilogue.gated_pair import pair_refusal
from jax_bwgemm.product.explain import Explanation, explain_product, place
from jax_bwgemm.product.flops import flops_of
from jax_bwgemm.product.implementations import PLATFORMS


def explain(eqn: Any, device: Any) -> Explanation:
    """The decision for the kernel of both, or for the products without it."""
    gated = eqn.params["gated"]
    problem = gated.problem
    factors = [x.aval for x in eqn.invars[: 1 + problem.matrices]]
    a, b = factors[:2]
    if problem.stacked:
        b = jax.ShapeDtypeStruct((1, b.shape[0], 2 * b.shape[2]), b.dtype)
    platform, spec, reason = place(problem.spec, device)
    problem = dataclasses.replace(problem, spec=spec)
    for name in spec.policy.implementations:
        if reason is None and PLATFORMS.get(name) == platform:
            call = choose_gated(name, platform, problem, factors)
            if isinstance(call, str):
                reason = call
                break
            selected = call.selection
            dims = DENSE.dims(spec, a.shape, (1, call.dims.k, call.dims.n // 2))
            return Explanation(
                f"two products of {spec.describe([a.dtype.name, b.dtype.name], dims)}, and a "
                "function of both",
                name,
                f"{selected.reason}; the function is linked into the kernel",
                selected.kernel.name,
                raster_order=selected.raster_order,
                swizzle=selected.swizzle,
                flops=2 * flops_of(dims),
            )
    reason = f"not one kernel: {reason or f'no kernels for {platform}'}"
    stacked = problem.stacked
    if stacked and _is_a_pair(factors, gated, spec, platform):
        k, _, n = factors[1].shape
        stacked, b = False, jax.ShapeDtypeStruct((1, k, n), b.dtype)
        reason = f"the second has the function linked into the kernel; {reason}"
    found = explain_product(DENSE, problem.spec, (a, b), device)
    return dataclasses.replace(
        found,
        problem=found.problem if stacked else f"two products of {found.problem}",
        flops=found.flops if stacked else 2 * found.flops,
        reason=f"{found.reason}; {reason}",
    )


def _is_a_pair(factors: Sequence[Any], gated: Gated, spec: GemmSpec, platform: str) -> bool:
    """Whether stacked matrices are multiplied one after the other: see `gated_pair`."""
    fused = dataclasses.replace(gated.of_pair, spec=spec)
    return links_epilogues() and pair_refusal(factors, fused, platform) is None
