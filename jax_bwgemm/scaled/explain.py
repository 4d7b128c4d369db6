"""Which implementation and kernel a scaled product would get, and why."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike, DTypeLike

from jax_bwgemm.config import Target
from jax_bwgemm.dense.tuning_config import TuningConfig
from jax_bwgemm.grouped.grouped_config import GroupedConfig
from jax_bwgemm.product.explain import ASKED_FOR, EMPTY, Explanation, locate
from jax_bwgemm.product.flops import flops_of
from jax_bwgemm.product.implementations import refusal_error
from jax_bwgemm.scaled.api import specification
from jax_bwgemm.scaled.conversions import as_operand
from jax_bwgemm.scaled.family import Family
from jax_bwgemm.scaled.primitive import DENSE
from jax_bwgemm.scaled.ragged import dims_of
from jax_bwgemm.scaled.ragged import specification as ragged_specification
from jax_bwgemm.scaled.ragged_primitive import RAGGED
from jax_bwgemm.scaled.selection import Choice


def explain_scaled_matmul(
    a: Any,
    b: Any,
    *,
    preferred_element_type: DTypeLike = jnp.bfloat16,
    accumulation: str = "promoted",
    implementation: str | Sequence[str] | None = None,
    config: TuningConfig | str | None = None,
    device: jax.Device | str | None = None,
) -> Explanation:
    """Says which implementation and kernel `scaled_matmul` would get, without running it.

    Args:
        a: As in `scaled_matmul`; the arrays of a `ScaledArray` may be `jax.ShapeDtypeStruct`.
        b: Likewise.
        preferred_element_type: As in `scaled_matmul`.
        accumulation: As in `scaled_matmul`.
        implementation: As in `scaled_matmul`.
        config: As in `scaled_matmul`.
        device: Where it would run: a JAX device, ``"cpu"``, ``"sm90"`` or ``"sm100"``. None means
            the explicit target (`jax_bwgemm.config.target`) if there is one, else JAX's default
            device.

    Returns:
        The decision with its reasons.

    Raises:
        TypeError, ValueError, NotImplementedError, ExceptionGroup: As the call itself.
    """
    a, b = as_operand(a, "scaled_matmul: a"), as_operand(b, "scaled_matmul: b")
    spec, dims = specification(a, b, preferred_element_type, accumulation, implementation, config)
    return explain_family(DENSE, spec, dims, device)


def explain_scaled_ragged_dot(
    a: Any,
    b: Any,
    group_sizes: ArrayLike,
    *,
    preferred_element_type: DTypeLike = jnp.bfloat16,
    accumulation: str = "promoted",
    group_offset: ArrayLike | None = None,
    num_groups: int | None = None,
    implementation: str | Sequence[str] | None = None,
    config: GroupedConfig | str | None = None,
    device: jax.Device | str | None = None,
) -> Explanation:
    """Says which implementation and kernel `scaled_ragged_dot` would get, without running it.

    Args:
        a: As in `scaled_ragged_dot`; the arrays of a `ScaledArray` may be `jax.ShapeDtypeStruct`.
        b: Likewise.
        group_sizes: As in `scaled_ragged_dot`, or a `jax.ShapeDtypeStruct`.
        preferred_element_type: As in `scaled_ragged_dot`.
        accumulation: As in `scaled_ragged_dot`.
        group_offset: As in `scaled_ragged_dot`.
        num_groups: As in `scaled_ragged_dot`.
        implementation: As in `scaled_ragged_dot`.
        config: As in `scaled_ragged_dot`.
        device: As in `explain_scaled_matmul`.

    Returns:
        The decision with its reasons.

    Raises:
        TypeError, ValueError, NotImplementedError, ExceptionGroup: As the call itself.
    """
    operands, spec = ragged_specification(
        a,
        b,
        group_sizes,
        preferred_element_type,
        accumulation,
        group_offset,
        num_groups,
        implementation,
        config,
    )
    return explain_family(RAGGED, spec, dims_of(operands, spec), device)


def explain(eqn: Any, device: jax.Device | str | None) -> Explanation:
    """The decision for an equation, for `jax_bwgemm.explain_program`."""
    family = next(f for f in (DENSE, RAGGED) if f.primitive is eqn.primitive)
    spec = eqn.params["spec"]
    dims = family.dims_of([x.aval for x in eqn.invars], spec)
    return explain_family(family, spec, dims, device)


def explain_family(
    family: Family, spec: Any, dims: Any, device: jax.Device | str | None
) -> Explanation:
    """The decision for a product of a family, of these sizes."""
    problem = dims.describe(spec)
    platform, target, reason = locate(device, spec.policy.target)
    rejected: list[tuple[str, str]] = []
    for name in family.viable_implementations(spec, dims, rejected):
        if name == "xla":
            why = rejected[-1][1] if rejected else ASKED_FOR
            return Explanation(problem, "xla", why, rejected=tuple(rejected), flops=flops_of(dims))
        if dims.empty:
            choice = reason or family.gpu(name, platform, spec, target)
            if isinstance(choice, Target):
                return Explanation(problem, name, EMPTY, rejected=tuple(rejected))
        else:
            choice = reason or family.choose(name, platform, spec, dims, target)
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
                flops=flops_of(dims),
            )
        rejected.append((name, choice))
    raise refusal_error(problem, rejected)
