"""`explain_scaled_matmul`: which implementation and kernel a scaled product would get, and why."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from jax_bwgemm import compat, runtime
from jax_bwgemm.config import DEFAULT_SM_COUNT, Target, make_target
from jax_bwgemm.product.explain import Explanation
from jax_bwgemm.product.implementations import refusal_error
from jax_bwgemm.scaled.api import specification
from jax_bwgemm.scaled.primitive import choose, viable_implementations
from jax_bwgemm.scaled.scaled_array import ScaledArray
from jax_bwgemm.scaled.selection import Choice


def explain_scaled_matmul(
    a: ScaledArray,
    b: ScaledArray,
    *,
    preferred_element_type: DTypeLike = jnp.bfloat16,
    accumulation: str = "promoted",
    implementation: str | Sequence[str] | None = None,
    device: jax.Device | str | None = None,
) -> Explanation:
    """Says which implementation and kernel `scaled_matmul` would get, without running it.

    Args:
        a: As in `scaled_matmul`; the arrays may be `jax.ShapeDtypeStruct`.
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
    spec, dims = specification(a, b, preferred_element_type, accumulation, implementation)
    problem = dims.describe(spec)
    platform, target = _place(device, spec.target)
    rejected: list[tuple[str, str]] = []
    for name in viable_implementations(spec, dims, rejected):
        if name == "xla":
            reason = rejected[-1][1] if rejected else "asked for"
            return Explanation(problem, "xla", reason, rejected=tuple(rejected))
        choice = target if isinstance(target, str) else choose(name, platform, spec, dims, target)
        if isinstance(choice, Choice):
            return Explanation(
                problem,
                name,
                choice.why,
                kernel=choice.kernel.name,
                rejected=tuple(rejected),
                raster_order="heuristic",
                swizzle=choice.swizzle,
                splits=1,
            )
        rejected.append((name, choice))
    raise refusal_error(problem, rejected)


def _place(
    device: jax.Device | str | None, explicit: Target | None
) -> tuple[str, Target | str | None]:
    """Platform and GPU, or why kernels cannot run on that GPU."""
    if isinstance(device, str):
        if device == "cpu":
            return "cpu", explicit
        if device in DEFAULT_SM_COUNT:
            return "cuda", make_target(device)
        known = ", ".join(["cpu", *DEFAULT_SM_COUNT])
        raise ValueError(f"unknown device {device!r}: give a jax.Device or one of {known}")
    if device is None:
        if explicit is not None:
            return "cuda", explicit
        device = compat.default_device()
    if device.platform != "gpu":
        return device.platform, explicit
    found = runtime.device_target(device)
    return "cuda", found.reason if found.target is None else found.target
