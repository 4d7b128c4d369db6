"""What a product with an epilogue would get, for `jax_bwgemm.explain_program`."""

from __future__ import annotations

import dataclasses
from typing import Any

from jax_bwgemm.epilogue.scaled_primitive import FusedOfScaled
from jax_bwgemm.product.explain import Explanation, explain_product, place
from jax_bwgemm.product.flops import flops_of
from jax_bwgemm.product.implementations import PLATFORMS
from jax_bwgemm.scaled.explain import explain_family


def explain(eqn: Any, device: Any) -> Explanation:
    """The product's decision, and whether its kernel computes the epilogue."""
    fused = eqn.params["fused"]
    factors, rest = fused.factors([x.aval for x in eqn.invars])
    platform, spec, reason = place(fused.spec, device)
    here = dataclasses.replace(fused, spec=spec)
    for name in spec.policy.implementations:
        if reason is None and PLATFORMS.get(name) == platform:
            calls = [one.choose(name, platform, factors) for one in here.attempts()]
            call = next((c for c in calls if not isinstance(c, str)), calls[-1])
            if isinstance(call, str):
                reason = call
                break
            sums = ", but for its sums" if call is not calls[0] else ""
            selected = call.selection
            what, dims = here.describe(factors)
            return Explanation(
                f"{what}, and an epilogue of {len(rest)} operand{'s' * (len(rest) != 1)}",
                name,
                f"{selected.reason}; the epilogue is linked into the kernel{sums}",
                selected.kernel.name,
                raster_order=selected.raster_order,
                swizzle=selected.swizzle,
                splits=selected.splits,
                flops=flops_of(dims),
            )
    if isinstance(fused, FusedOfScaled):
        _, dims = fused.describe(factors)
        found = explain_family(fused.family, fused.spec, dims, device)
    else:
        found = explain_product(fused.contraction, fused.spec, factors, device)
    why = reason or f"no kernels for {platform} are allowed"
    return dataclasses.replace(
        found, reason=f"{found.reason}; the epilogue is a pass of XLA's: {why}"
    )
