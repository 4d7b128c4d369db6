"""Row-major layouts for what is computed from a product's result."""

from __future__ import annotations

import collections
from typing import Any

import jax
from jax.experimental.layout import Layout, with_layout_constraint

from jax_bwgemm import compat_jaxpr
from jax_bwgemm.epilogue.primitive import bw_gemm_epilogue_p
from jax_bwgemm.product.primitive import CONTRACTIONS


def in_rows(eqns: list[Any]) -> list[Any]:
    """The equations with results of products, of rank 3 and more, pinned to a row-major layout.

    A kernel's own arrays are row-major. XLA chooses the layout of arrays computed from them, and
    where a sum over the rows of a batch is among these (a condition's gradient, squeezing and
    exciting), it may exchange rows and columns of all of them: every kernel after that gets a copy.
    A result that the program transposes itself is left alone, since either layout may serve; so are
    all where there are several devices, over which XLA may yet partition the program.
    """
    if jax.device_count() != 1:
        return eqns
    readers: dict[Any, list[Any]] = collections.defaultdict(list)
    for eqn in eqns:
        for x in eqn.invars:
            if not hasattr(x, "val"):
                readers[x].append(eqn)
    pinned = set()
    for eqn in eqns:
        if eqn.primitive not in CONTRACTIONS and eqn.primitive is not bw_gemm_epilogue_p:
            continue
        for v in eqn.outvars:
            while [e.primitive.name for e in readers[v]] == ["reshape"]:
                v = readers[v][0].outvars[0]
            transposed = any(e.primitive.name == "transpose" for e in readers[v])
            if v.aval.ndim > 2 and readers[v] and not transposed:
                pinned.add(v)
    found = []
    for eqn in eqns:
        if pinned.isdisjoint(eqn.outvars):
            found.append(eqn)
        else:
            found += _pinned(eqn, [v for v in eqn.outvars if v in pinned])
    return found


def _pinned(eqn: Any, results: list[Any]) -> list[Any]:
    """An equation, and those that pin some of its results."""
    names, constraints = {}, []
    for v in results:
        row_major = Layout(tuple(range(v.aval.ndim)))
        with compat_jaxpr.equation_context(eqn):
            traced, _ = compat_jaxpr.trace(
                lambda x, row_major=row_major: [with_layout_constraint(x, row_major)], [v.aval]
            )
        (constraint,) = traced.eqns
        names[v] = traced.invars[0]
        constraints.append(constraint.replace(outvars=[v], source_info=eqn.source_info))
    return [eqn.replace(outvars=[names.get(v, v) for v in eqn.outvars]), *constraints]
