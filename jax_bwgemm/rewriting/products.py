"""A product of JAX's as this package's: traced in its place, or the reason why not."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from jax_bwgemm import compat, runtime
from jax_bwgemm.config import explicit_target, make_target
from jax_bwgemm.dense.api import dot_general, rounded_dot_general
from jax_bwgemm.grouped.api import ragged_dot_general
from jax_bwgemm.product.primitive import CONTRACTIONS
from jax_bwgemm.product.support import refusal
from jax_bwgemm.rewriting import policy
from jax_bwgemm.rewriting.uses import Uses

PRODUCTS = ("dot_general", "ragged_dot_general")
WHY = "a kernel takes it"


def replace(eqn: Any, uses: Uses, implementations: tuple[str, ...]) -> tuple[list[Any] | None, str]:
    """The equations that compute a product on our kernels, or None; and why.

    Args:
        eqn: An equation of one of `PRODUCTS`.
        uses: What reads its result.
        implementations: As the argument of `jax_bwgemm.dot_general`.
    """
    sizes = [size for x in eqn.invars[:2] for size in x.aval.shape]
    if not all(isinstance(size, int) for size in sizes):
        return None, "sizes are symbolic, and a kernel is selected by sizes"
    dense = eqn.primitive.name == "dot_general"
    if dense and (reason := policy.tiny(eqn)):
        return None, reason
    if not dense and eqn.params["group_offset"] is not None:
        return None, "it has a group_offset"
    names = tuple(name for name in implementations if name != "xla")
    # With "xla" in it nothing is refused while tracing.
    rounded = uses.rounded if dense else None
    traced = _trace(_ours(eqn, (*names, "xla"), rounded), eqn)
    found = next((e for e in traced.eqns if e.primitive in CONTRACTIONS), None)
    if found is None or found.params["spec"].policy.implementations[0] == "xla":
        return None, _refusal(eqn, found, names)
    if dense and uses.extra_passes:
        contraction, spec = CONTRACTIONS[found.primitive], found.params["spec"]
        dims = contraction.dims(spec, *(x.aval.shape for x in found.invars))
        target = explicit_target() or runtime.local_target().target or make_target("sm90")
        if reason := policy.loses(dims, spec.out_dtype, uses.extra_passes, target):
            return None, reason
    if "xla" not in implementations:
        traced = _trace(_ours(eqn, implementations, rounded), eqn)
    wanted, got = eqn.outvars[0].aval, traced.outvars[0].aval
    if got != wanted:
        return None, f"ours has the type {got}, not {wanted}"
    return _inlined(traced, eqn), WHY if rounded is None else f"{WHY}, which rounds to {rounded}"


def _ours(eqn: Any, implementations: tuple[str, ...], rounded: str | None) -> Callable[..., Any]:
    """This package's function for an equation.

    ``rounded``: the type that whatever reads the result rounds it to. The kernel does that instead;
    XLA drops the conversions there and back.
    """
    params = dict(eqn.params)
    params["implementation"] = implementations
    if eqn.primitive.name == "dot_general":
        if rounded is None:
            return functools.partial(dot_general, **params)
        product = functools.partial(rounded_dot_general, rounded_to=rounded, **params)
        return lambda lhs, rhs: product(lhs, rhs).astype(eqn.outvars[0].aval.dtype)
    del params["group_offset"]
    return functools.partial(ragged_dot_general, **params)


def _trace(ours: Callable[..., Any], eqn: Any) -> Any:
    """The jaxpr of one of our functions on an equation's operands, in the equation's context."""
    with compat.equation_context(eqn):
        jaxpr, constants = compat.trace(lambda *xs: [ours(*xs)], [x.aval for x in eqn.invars])
    assert not constants, "our products make their constants while they run"
    return jaxpr


def _refusal(eqn: Any, found: Any, names: tuple[str, ...]) -> str:
    """Why no kernel takes a product."""
    if found is None:
        types = " x ".join(x.aval.dtype.name for x in eqn.invars[:2])
        result = eqn.outvars[0].aval.dtype.name
        return f"no kernel multiplies {types} -> {result} like that (the log says more)"
    contraction, spec = CONTRACTIONS[found.primitive], found.params["spec"]
    avals = [x.aval for x in found.invars]
    dims = contraction.dims(spec, *(aval.shape for aval in avals))
    dtypes = [aval.dtype.name for aval in avals[:2]]
    reasons = [refusal(contraction, name, spec, dtypes, dims) for name in names]
    return next((reason for reason in reasons if reason), "only 'xla' is allowed")


def _inlined(traced: Any, eqn: Any) -> list[Any]:
    """A traced replacement's equations, reading the operands and writing the result of another's.

    They keep its place in the source and its names.
    """
    atoms = dict(zip(traced.invars, eqn.invars, strict=True))
    (result,) = traced.outvars
    atoms[result] = eqn.outvars[0]
    placed = []
    for one in traced.eqns:
        for v in one.outvars:
            if v not in atoms:
                atoms[v] = v
        placed.append(
            one.replace(
                invars=[x if hasattr(x, "val") else atoms[x] for x in one.invars],
                outvars=[atoms[v] for v in one.outvars],
                source_info=eqn.source_info,
            )
        )
    return placed
