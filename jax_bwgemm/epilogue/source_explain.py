"""What a quantization of a function of arrays would get, for `jax_bwgemm.explain_program`."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax

from jax_bwgemm.config import Target
from jax_bwgemm.epilogue.source_primitive import kernel_target
from jax_bwgemm.product.explain import Explanation
from jax_bwgemm.product.implementations import PLATFORMS
from jax_bwgemm.scaled.quantize_explain import explain_quantization, place


def explain(eqn: Any, device: jax.Device | str | None) -> Explanation:
    """The quantization's decision, and whether its kernel computes the function."""
    source = eqn.params["source"]
    platform, target, why = place(source.spec, device)
    arrays = f"{source.arrays} array{'s' * (source.arrays != 1)}"
    problem = f"{source.spec.describe(source.shape, source.dtype)}, computed from {arrays}"
    for name in source.spec.implementations:
        if why is None and PLATFORMS.get(name) == platform:
            found = kernel_target(name, platform, target)
            if isinstance(found, Target):
                kernel = source.hook(found.arch).kernel
                return Explanation(problem, name, f"{kernel} computes x on its way")
            why = found
    why = why or f"no kernels for {platform} are allowed"
    found = explain_quantization(source.spec, source.shape, source.dtype, device)
    return dataclasses.replace(
        found, problem=problem, reason=f"{found.reason}; x is a pass of XLA's: {why}"
    )
