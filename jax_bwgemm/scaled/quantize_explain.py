"""Which implementation a quantization would get, for `jax_bwgemm.explain_program`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

from jax_bwgemm.config import Target
from jax_bwgemm.product.explain import ASKED_FOR, Explanation, locate
from jax_bwgemm.product.implementations import refusal_error, target_here
from jax_bwgemm.scaled.quantize_primitive import refusal
from jax_bwgemm.scaled.quantize_spec import QuantizeSpec

NOTHING = "an empty matrix runs no kernel: there are no values to write"


def explain(eqn: Any, device: jax.Device | str | None) -> Explanation:
    """The decision for an equation."""
    x = eqn.invars[0].aval
    return explain_quantization(eqn.params["spec"], x.shape, x.dtype, device)


def place(
    spec: QuantizeSpec, device: jax.Device | str | None
) -> tuple[str, Target | None, str | None]:
    """Where it would run, as `locate` says."""
    return locate(device, spec.target, emulated=spec.implementations[0] == "emulator")


def explain_quantization(
    spec: QuantizeSpec, shape: Sequence[int], dtype: Any, device: jax.Device | str | None
) -> Explanation:
    """The decision for a quantization of [B, R, K].

    Raises:
        NotImplementedError: No implementation can run it (several: an ExceptionGroup of these).
    """
    problem = spec.describe(shape, dtype)
    platform, target, reason = place(spec, device)
    rejected: list[tuple[str, str]] = []
    for name in spec.implementations:
        if name == "xla":
            why = rejected[-1][1] if rejected else ASKED_FOR
            return Explanation(problem, "xla", why, rejected=tuple(rejected))
        x = jax.ShapeDtypeStruct(shape, dtype)
        found = refusal(name, spec, x) or reason or target_here(name, platform, target)
        if isinstance(found, Target):
            written = ", ".join(spec.result_names)
            why = NOTHING if 0 in shape else f"one kernel reads x once and writes {written}"
            return Explanation(problem, name, why, rejected=tuple(rejected))
        rejected.append((name, found))
    raise refusal_error(problem, rejected)
