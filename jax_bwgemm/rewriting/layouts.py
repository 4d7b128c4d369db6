"""What XLA is told of a product's results: that they are row-major, and not part of a loop."""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import Any

import jax
from jax import lax
from jax.experimental.layout import Layout, with_layout_constraint

from jax_bwgemm import compat_jaxpr
from jax_bwgemm.epilogue.fused import Fused
from jax_bwgemm.epilogue.primitive import bw_gemm_epilogue_p
from jax_bwgemm.epilogue.scaled_primitive import bw_scaled_epilogue_p
from jax_bwgemm.product.primitive import CONTRACTIONS
from jax_bwgemm.rewriting.dataflow import variables
from jax_bwgemm.scaled.primitive import bw_scaled_matmul_p

_OTHERS = (bw_gemm_epilogue_p, bw_scaled_matmul_p, bw_scaled_epilogue_p)


def in_rows(eqns: list[Any]) -> list[Any]:
    """The equations with results of products, of rank 3 and more, pinned to a row-major layout.

    A kernel's own arrays are row-major. XLA chooses the layout of arrays computed from them, and
    where a sum over the rows of a batch is among these (a condition's gradient, squeezing and
    exciting), it may exchange rows and columns of all of them: every kernel after that gets a copy.
    A result that the program transposes itself is left alone, since either layout may serve; so are
    all where there are several devices, over which XLA may yet partition the program.
    """
    if jax.device_count() != 1 or compat_jaxpr.runs_eagerly():
        return eqns  # eagerly a pin would commit arrays to their device
    readers: dict[Any, list[Any]] = collections.defaultdict(list)
    for eqn in eqns:
        for x in variables(eqn.invars):
            readers[x].append(eqn)
    pinned = set()
    for eqn in eqns:
        if eqn.primitive not in CONTRACTIONS and eqn.primitive not in _OTHERS:
            continue
        for v in eqn.outvars:
            while [e.primitive.name for e in readers[v]] == ["reshape"]:
                v = readers[v][0].outvars[0]
            transposed = any(e.primitive.name == "transpose" for e in readers[v])
            if v.aval.ndim > 2 and readers[v] and not transposed:
                pinned.add(v)
    return _through(eqns, pinned, _row_major)


def settled(eqns: list[Any], results: list[Any]) -> list[Any]:
    """The equations with barriers behind results of kernels that have several readers.

    As `product.targets.settled`, of the results that are not settled when a kernel's call is
    written: those of a linked epilogue but for the first.

    Args:
        eqns: The equations.
        results: What the program returns, or what a loop keeps.
    """
    reads = collections.Counter(
        x for xs in (*(e.invars for e in eqns), results) for x in variables(xs)
    )
    linked = (e for e in eqns if isinstance(e.params.get("fused"), Fused))
    several = {v for e in linked for v in e.outvars[1:] if reads[v] > 1}
    return _through(eqns, several, lax.optimization_barrier)


def _row_major(x: jax.Array) -> jax.Array:
    return with_layout_constraint(x, Layout(tuple(range(x.ndim))))


def _through(eqns: list[Any], values: set[Any], function: Callable[..., Any]) -> list[Any]:
    """The equations with a function, which is an identity, behind some of their results.

    In the order of the results: that of a set differs from process to process, and with it the
    program that is compiled.
    """
    found = []
    for eqn in eqns:
        names, identities = {}, []
        for v in [v for v in eqn.outvars if v in values]:
            with compat_jaxpr.equation_context(eqn):
                traced, _ = compat_jaxpr.trace(lambda x: [function(x)], [v.aval])
            (identity,) = traced.eqns
            names[v] = traced.invars[0]
            identities.append(identity.replace(outvars=[v], source_info=eqn.source_info))
        if names:
            eqn = eqn.replace(outvars=[names.get(v, v) for v in eqn.outvars])
        found += [eqn, *identities]
    return found
