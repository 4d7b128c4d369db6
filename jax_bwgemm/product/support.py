"""What is known at trace time: which implementations can run a product, and why others cannot."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jax_bwgemm.product import implementations
from jax_bwgemm.product.contraction import Contraction, Dims
from jax_bwgemm.product.spec import MAX_SIZE, ProductSpec
from jax_bwgemm.product.terms import terms_refusal


def viable_implementations(
    contraction: Contraction,
    spec: ProductSpec,
    dtypes: Sequence[str],
    dims: Dims,
    *,
    veto: str | None = None,
    rejected: list[tuple[str, str]] | None = None,
) -> tuple[str, ...]:
    """The implementations of ``spec`` left to try, knowing everything but the device.

    Reasons for skipping one are logged once. ``"xla"`` runs everything, so it ends the list.

    Args:
        contraction: The family of products.
        spec: The problem.
        dtypes: Names of A's and B's types.
        dims: Its sizes.
        veto: A reason against every kernel that the problem itself does not show.
        rejected: Where (name, reason) of each that is skipped is appended.

    Raises:
        NotImplementedError: The only implementation asked for cannot run the problem, or no
            kernel of this build satisfies the configuration.
        ExceptionGroup: Of NotImplementedError: several were asked for and none can.
        ValueError: The configuration names a kernel for another kind of problem.
    """
    return implementations.viable(
        spec.policy.implementations,
        spec.describe(dtypes, dims),
        lambda name: veto or refusal(contraction, name, spec, dtypes, dims),
        [] if rejected is None else rejected,
    )


def refusal(
    contraction: Contraction, name: str, spec: ProductSpec, dtypes: Sequence[str], dims: Dims
) -> str | None:
    """Why a kernel implementation cannot run a problem on any device; None when it may.

    Raises:
        NotImplementedError: No kernel of this build satisfies the configuration: asking for a
            particular kernel never falls back silently.
        ValueError: The configuration names a kernel for another kind of problem.
    """
    if not all(isinstance(size, int) for size in dims.extents.values()):
        return implementations.SYMBOLIC
    config = spec.policy.config
    table = contraction.kernels(name)
    if not table:
        return implementations.missing_kernels(name, config, contraction.missing)
    types = (*implementations.rounded_types(dtypes, spec.policy.precision), spec.out_dtype)
    if config is not None:
        layout = _layout(spec)
        implementations.check_config(
            config,
            table,
            [k for k in implementations.of_types(table, types) if _layout(k) == layout],
            lambda k: (
                f"multiplies {k.in_dtype} into {k.out_dtype} with {_layout(k)}, but the problem "
                f"is {types[0]} x {types[1]} -> {types[2]} with {layout}"
            ),
        )
    if (reason := implementations.types_refusal(table, types, spec.policy.precision)) and (
        reason := terms_refusal(contraction, spec, types[:2], table, reason)
    ):
        return reason
    too_large = contraction.largest(spec, dims)
    if too_large > MAX_SIZE:
        return f"size {too_large} exceeds {MAX_SIZE}"
    return None


def _layout(x: Any) -> str:
    """Majors and kind of a specification or a kernel, in words."""
    majors = f"majors {x.majors}"
    return majors if x.kind == "dense" else f"{majors}, {x.kind}"
