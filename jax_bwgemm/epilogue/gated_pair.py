"""Stacked weights [K, 2, N] as a pair: two products that read their columns in place.

The first has no epilogue. The second has the function linked in, and reads the first's result.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax

from jax_bwgemm.dense import heuristics
from jax_bwgemm.dense.contraction import DENSE
from jax_bwgemm.dense.spec import GemmDims
from jax_bwgemm.epilogue.call import prepare_linked, run_linked
from jax_bwgemm.epilogue.contraction import LINKABLE_DENSE
from jax_bwgemm.epilogue.costs import linked_cycles, pass_cycles
from jax_bwgemm.epilogue.fused import Fused
from jax_bwgemm.product.implementations import PLATFORMS
from jax_bwgemm.product.lowering import choose, run_on_device
from jax_bwgemm.product.windows import Window, Windows, Within


def run_pair(operands: Sequence[jax.Array], fused: Fused, platform: str) -> list[jax.Array] | str:
    """Emits one device's products, or says why one product and a pass are better.

    Args:
        operands: A, the stacked matrices and the function's other operands.
        fused: The first product and the function ``f(gate, up, *operands)``. If it keeps the
            product, both products are returned as well, last.
        platform: JAX platform being lowered for.
    """
    a, stacked, *rest = operands
    if reason := pair_refusal((a, stacked), fused, platform):
        return reason
    k, _, n = stacked.shape
    whole = stacked.reshape(k, 2 * n)
    gate, up = (Within(whole, Window(first, n)) for first in (0, n))

    def columns(within: Within) -> jax.Array:
        return within.window.of(within.whole)[None]

    ups = run_on_device(DENSE, (a, columns(up)), fused.spec, platform, Windows({"b": up}))
    ups = ups.reshape(fused.shape)
    results = run_linked(
        fused.choose,
        fused.roles,
        [a, columns(gate), ups, *rest],
        fused.spec.policy.implementations,
        fused.program,
        fused.result_types,
        fused.shape,
        platform,
        windows=Windows({"b": gate}),
    )
    if isinstance(results, str):
        return results
    return [*results, ups] if fused.keeps_product else results


def prepare_pair(factors: Sequence[Any], fused: Fused, platform: str) -> None:
    """Begins to link what `run_pair` will need if the program runs on this process's only device.

    Args:
        factors: Types of A and the stacked matrices.
        fused: As of `run_pair`.
        platform: The device's.
    """
    if pair_refusal(factors, fused, platform) is None:
        given = factors[0], _columns(factors[1])
        more = fused.program, fused.result_types, fused.form
        prepare_linked(fused.choose, given, fused.spec.policy.implementations, *more)


def pair_refusal(factors: Sequence[Any], fused: Fused, platform: str) -> str | None:
    """Why stacked matrices are not multiplied as a pair; None where they are.

    Args:
        factors: A and the stacked matrices, or their types.
        fused: The first product and what its kernel returns.
        platform: JAX platform being lowered for.
    """
    a, stacked = factors
    k, _, n = stacked.shape
    if n * stacked.dtype.itemsize % 16 != 0:
        return "row pitches are not multiples of 16 bytes"
    for name in fused.spec.policy.implementations:
        if PLATFORMS.get(name) != platform:
            continue
        types = a.dtype.name, stacked.dtype.name
        both = choose(DENSE, name, platform, fused.spec, types, (a.shape, (1, k, 2 * n)))
        if isinstance(both, str):
            return both
        linked = fused.choose(name, platform, (a, _columns(stacked)))
        if isinstance(linked, str):
            return linked
        if linked.padded != linked.dims or linked.dims.batch != 1 or any(linked.folded.perms):
            return "row pitches are not multiples of 16 bytes, or the product is a batch"
        pair, one = _cycles(name, fused, linked.dims, linked.target, types[0])
        if pair < one:
            return None
        return (
            f"a pair is predicted to take {pair:.0f} cycles, one product and a pass over it "
            f"{one:.0f}"
        )
    return f"no kernels for {platform} are allowed"


def _columns(stacked: Any) -> jax.ShapeDtypeStruct:
    """Either matrix, as a product takes it."""
    k, _, n = stacked.shape
    return jax.ShapeDtypeStruct((1, k, n), stacked.dtype)


def _cycles(
    name: str, fused: Fused, dims: GemmDims, target: Any, dtype: str
) -> tuple[float, float]:
    """Predicted cycles of a pair, and of one product of all columns with a pass over it.

    dims: Of either product.
    """
    spec, program, types = fused.spec, fused.program, fused.result_types

    def plain(dims: GemmDims) -> float:
        usable, _ = heuristics.rank(DENSE.kernels(name), spec, dtype, dims, target)
        return usable[0].cycles if usable else float("inf")

    usable, _ = heuristics.rank(LINKABLE_DENSE.kernels(name), spec, dtype, dims, target)
    linked = min(linked_cycles(c, program, types, dims, target) for c in usable)
    # What is a product itself is there before the pass.
    pairs = zip(program.results, types, strict=True)
    computed = [(x, t) for x, t in pairs if x not in (0, 1)]
    rest = dataclasses.replace(program, results=tuple(x for x, _ in computed))
    after = pass_cycles(rest, tuple(t for _, t in computed), spec.out_dtype, 0, dims, target)
    return plain(dims) + linked, plain(dataclasses.replace(dims, n=2 * dims.n)) + after
