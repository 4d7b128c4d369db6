"""A dense product's call as one canonical GEMM."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec
from jax.typing import DTypeLike

from jax_bwgemm import compat
from jax_bwgemm.config import Target, current_partial_sums, explicit_target
from jax_bwgemm.dense.arrangement import operand_entries, result_entries
from jax_bwgemm.dense.canonical import CanonicalPlan, canonicalize
from jax_bwgemm.dense.spec import GemmDims, GemmSpec
from jax_bwgemm.dense.tuning_config import TuningConfig
from jax_bwgemm.product.arguments import as_out_sharding, as_precision, as_preferred_type
from jax_bwgemm.product.dtypes import dot_dtype
from jax_bwgemm.product.implementations import as_implementations
from jax_bwgemm.product.spec import Policy
from jax_bwgemm.tuning import context as tuning_context

_INNER = "is sharded along an inner one of dimensions that a kernel takes as one"


@dataclasses.dataclass(frozen=True)
class Options:
    """The arguments shared by the public functions, normalised and hashable.

    ``rounded_to``: see `rounded_dot_general`.
    """

    precision: Any
    preferred_element_type: Any
    out_sharding: Any
    implementations: tuple[str, ...]
    config: TuningConfig | None
    target: Target | None
    tuning: tuning_context.Tuning | None
    partial_sums: str | None
    rounded_to: str | None = None


def make_options(
    precision: Any = None,
    preferred_element_type: DTypeLike | None = None,
    out_sharding: Any = None,
    implementation: str | Sequence[str] | None = None,
    config: TuningConfig | str | None = None,
) -> Options:
    """Normalises the shared arguments.

    Raises:
        TypeError: An argument of the wrong type.
        ValueError: An unknown implementation or precision, or a configuration for ``"xla"``.
    """
    implementations = as_implementations(implementation)
    config = TuningConfig.of(config, implementations)
    return Options(
        precision=as_precision(precision),
        preferred_element_type=as_preferred_type(preferred_element_type),
        out_sharding=as_out_sharding(out_sharding),
        implementations=implementations,
        config=config,
        target=explicit_target(),
        tuning=tuning_context.current(),
        partial_sums=current_partial_sums(),
    )


@dataclasses.dataclass(frozen=True)
class Problem:
    """A call as one canonical GEMM.

    Attributes:
        plan: How operands and result are reshaped (and, if need be, transposed).
        spec: The GEMM.
        dims: Its sizes.
        veto: Why no kernel may run the call as a whole, for reasons the GEMM does not show.
    """

    plan: CanonicalPlan
    spec: GemmSpec
    dims: GemmDims
    veto: str | None


def make_problem(lhs: Any, rhs: Any, labels: Any, options: Options, *, promotes: bool) -> Problem:
    """Canonicalises a call.

    Args:
        lhs: Left operand: an array or `jax.ShapeDtypeStruct`.
        rhs: Right operand, likewise.
        labels: A label for each dimension of lhs, rhs and result.
        options: The other arguments.
        promotes: Whether the result's type is by default that of jax.numpy's type promotion, not
            lax's.

    Raises:
        TypeError: Types that JAX does not multiply, or not under the dtype promotion in force.
    """
    sizes = {**dict(zip(labels[0], lhs.shape, strict=True))}
    sizes.update(zip(labels[1], rhs.shape, strict=True))
    plan = canonicalize(*labels, tuple(sorted(sizes.items())))
    preferred = options.preferred_element_type
    if promotes and preferred is None:
        preferred = jnp.result_type(lhs, rhs)
    spec = GemmSpec(
        a_major=plan.lhs.major,
        b_major=plan.rhs.major,
        out_dtype=options.rounded_to
        or dot_dtype(lhs.dtype, rhs.dtype, preferred, options.precision).name,
        policy=Policy(
            implementations=options.implementations,
            config=options.config,
            precision=options.precision,
            target=options.target,
            tuning=options.tuning,
            partial_sums=options.partial_sums,
        ),
    )
    a_batch, m, k = plan.lhs.shape if plan.lhs.major == "k" else _swap(plan.lhs.shape)
    b_batch, _, n = plan.rhs.shape if plan.rhs.major == "n" else _swap(plan.rhs.shape)
    batch = b_batch if a_batch == 1 else a_batch
    veto = _sharding_veto(lhs, rhs, plan, options.out_sharding)
    if veto is None and options.out_sharding is not None:
        spec = dataclasses.replace(spec, out_sharding=_canonical(options.out_sharding, plan))
    if getattr(lhs, "weak_type", False) and getattr(rhs, "weak_type", False):
        veto = "both operands are weakly typed"
    return Problem(plan, spec, GemmDims(m, n, k, batch, a_batch, b_batch), veto)


def _sharding_veto(lhs: Any, rhs: Any, plan: CanonicalPlan, out_sharding: Any) -> str | None:
    """Why sharding in types (explicit mesh axes) leaves a call to XLA; None when it does not.

    Merging dimensions is free in memory, but only the outermost of them may be sharded.
    """
    spec = getattr(out_sharding, "spec", out_sharding)
    if spec is not None and (spec.unreduced or spec.reduced):
        return f"the sums that out_sharding={spec} leaves open are XLA's"
    for name, operand, operand_plan in (("lhs", lhs, plan.lhs), ("rhs", rhs, plan.rhs)):
        if isinstance(operand, jax.ShapeDtypeStruct):
            continue
        sharding = compat.explicit_sharding(jax.typeof(operand))
        if sharding is None:
            continue
        if sharding.spec.unreduced or sharding.spec.reduced:
            return f"{name} is sharded as {sharding.spec}, with sums over mesh axes"
        if operand_entries(tuple(sharding.spec), operand.shape, operand_plan) is None:
            return f"{name}, explicitly sharded as {sharding.spec}, {_INNER}"
    if spec is not None and result_entries(spec, plan) is None:
        return f"the result, with out_sharding={spec}, {_INNER}"
    return None


def _canonical(out_sharding: Any, plan: CanonicalPlan) -> NamedSharding:
    """The sharding of [b, m, n] from that of the result."""
    if isinstance(out_sharding, PartitionSpec):
        mesh, spec = jax.sharding.get_abstract_mesh(), out_sharding
    else:
        mesh, spec = out_sharding.mesh.abstract_mesh, out_sharding.spec
    entries = result_entries(spec, plan)
    assert entries is not None, "other calls are left to XLA"
    return NamedSharding(mesh, PartitionSpec(*entries))


def _swap(shape: tuple[int, int, int]) -> tuple[int, int, int]:
    return shape[0], shape[2], shape[1]
