"""What a product with an epilogue would get, for `jax_bwgemm.explain_program`."""

from __future__ import annotations

import dataclasses
from typing import Any

from jax_bwgemm.dense.contraction import DENSE
from jax_bwgemm.epilogue.call import choose_linked
from jax_bwgemm.product.explain import Explanation, explain_product, place
from jax_bwgemm.product.flops import flops_of
from jax_bwgemm.product.implementations import PLATFORMS


def explain(eqn: Any, device: Any) -> Explanation:
    """The product's decision, and whether its kernel takes the epilogue along."""
    a, b, *rest = (x.aval for x in eqn.invars)
    fused = eqn.params["fused"]
    platform, spec, reason = place(fused.spec, device)
    for name in spec.policy.implementations:
        if reason is None and PLATFORMS.get(name) == platform:
            call = choose_linked(
                name,
                platform,
                spec,
                fused.program,
                fused.result_types,
                (a, b),
                fused.surroundings,
            )
            if isinstance(call, str):
                reason = call
                break
            selected = call.selection
            dims = DENSE.dims(spec, a.shape, b.shape)
            return Explanation(
                f"{spec.describe([a.dtype.name, b.dtype.name], dims)}, and an epilogue of "
                f"{len(rest)} operands",
                name,
                f"{selected.reason}; the epilogue is linked into the kernel",
                selected.kernel.name,
                raster_order=selected.raster_order,
                swizzle=selected.swizzle,
                splits=selected.splits,
                flops=flops_of(dims),
            )
    found = explain_product(DENSE, fused.spec, (a, b), device)
    why = reason or f"no kernels for {platform} are allowed"
    return dataclasses.replace(
        found, reason=f"{found.reason}; the epilogue is a pass of XLA's: {why}"
    )
