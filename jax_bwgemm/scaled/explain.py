"""`explain_scaled_matmul`: which implementation and kernel a scaled product would get, and why."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from jax_bwgemm.product.explain import Explanation, locate
from jax_bwgemm.product.implementations import refusal_error
from jax_bwgemm.scaled.api import specification
from jax_bwgemm.scaled.conversions import as_scaled_array
from jax_bwgemm.scaled.primitive import choose, viable_implementations
from jax_bwgemm.scaled.selection import Choice


def explain_scaled_matmul(
    a: Any,
    b: Any,
    *,
    preferred_element_type: DTypeLike = jnp.bfloat16,
    accumulation: str = "promoted",
    implementation: str | Sequence[str] | None = None,
    device: jax.Device | str | None = None,
) -> Explanation:
    """Says which implementation and kernel `scaled_matmul` would get, without running it.

    Args:
        a: As in `scaled_matmul`; the arrays of a `ScaledArray` may be `jax.ShapeDtypeStruct`.
        b: Likewise.
        preferred_element_type: As in `scaled_matmul`.
        accumulation: As in `scaled_matmul`.
        implementation: As in `scaled_matmul`.
        device: Where it would run: a JAX device, ``"cpu"``, ``"sm90"`` or ``"sm100"``. None means
            the explicit target (`jax_bwgemm.config.target`) if there is one, else JAX's default
            device.

    Returns:
        The decision with its reasons.

    Raises:
        TypeError, ValueError, NotImplementedError, ExceptionGroup: As the call itself.
    """
    a, b = as_scaled_array(a, "scaled_matmul: a"), as_scaled_array(b, "scaled_matmul: b")
    spec, dims = specification(a, b, preferred_element_type, accumulation, implementation)
    problem = dims.describe(spec)
    platform, target, reason = locate(device, spec.policy.target)
    rejected: list[tuple[str, str]] = []
    for name in viable_implementations(spec, dims, rejected):
        if name == "xla":
            why = rejected[-1][1] if rejected else "asked for"
            return Explanation(problem, "xla", why, rejected=tuple(rejected))
        choice = reason or choose(name, platform, spec, dims, target)
        if isinstance(choice, Choice):
            return Explanation(
                problem,
                name,
                choice.why,
                kernel=choice.kernel.name,
                rejected=tuple(rejected),
                raster_order=choice.raster_order,
                swizzle=choice.swizzle,
                splits=choice.splits,
            )
        rejected.append((name, choice))
    raise refusal_error(problem, rejected)
