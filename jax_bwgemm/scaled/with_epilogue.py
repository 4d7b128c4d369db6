"""A product of scaled operands and its epilogue: one primitive if it is linked, else two steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jax_bwgemm import compat
from jax_bwgemm.config import links_epilogues
from jax_bwgemm.epilogue.apply import Epilogue, apply_epilogue, check_epilogue, flat_results
from jax_bwgemm.epilogue.program import SUMS_OVER_BATCH, as_matrix, batch_dims_of
from jax_bwgemm.epilogue.scaled_primitive import ScaledFused, scaled_with_epilogue
from jax_bwgemm.product.implementations import log_once
from jax_bwgemm.scaled.layouts import layout_of, multipliable
from jax_bwgemm.scaled.primitive import DENSE
from jax_bwgemm.scaled.product import factors
from jax_bwgemm.scaled.scaled_array import ScaledArray
from jax_bwgemm.scaled.spec import ScaledDims, ScaledSpec


def product_with_epilogue(
    a: ScaledArray,
    b: ScaledArray,
    spec: ScaledSpec,
    dims: ScaledDims,
    operands: tuple[jax.Array, ...],
    epilogue: Epilogue,
    product: Callable[[], jax.Array],
) -> Any:
    """The results of an epilogue of a product.

    Args:
        a: The product's operands.
        b: Likewise.
        spec: What is static about it.
        dims: Its sizes.
        operands: Those of the epilogue, checked.
        epilogue: The function.
        product: Computes the product alone.
    """
    shape = (*(a.shape[:-2] or b.shape[:-2]), a.shape[-2], b.shape[-2])
    traced = check_epilogue(epilogue, jnp.dtype(spec.out_dtype), shape, operands)
    viable = _viable(a, b, spec, dims, operands) if links_epilogues() else ("xla",)
    if viable[0] != "xla":
        batch_dims = batch_dims_of(shape, dims.batch)
        assert batch_dims is not None, "the result's leading dimensions are the batch"
        program = as_matrix(traced.program, shape, batch_dims)
        if batch_dims and traced.program.summed:
            program = SUMS_OVER_BATCH
        if not isinstance(program, str):
            fused = ScaledFused(
                spec.with_policy(implementations=viable),
                flat_results(epilogue.function),
                program,
                program.result_types(spec.out_dtype),
                shape,
                batch_dims=batch_dims,
            )
            results = scaled_with_epilogue(factors(a, b), operands, fused)
            return jax.tree.unflatten(traced.tree, results)
        log_once(f"{spec}: the epilogue is a pass of its own: {program}")
    return apply_epilogue(epilogue, product(), operands)


def _viable(
    a: ScaledArray,
    b: ScaledArray,
    spec: ScaledSpec,
    dims: ScaledDims,
    operands: tuple[jax.Array, ...],
) -> tuple[str, ...]:
    """Implementations whose kernels may have the epilogue; only "xla" where none may."""
    sizes = (dims.m, dims.n, dims.k)
    arrays = (a.values, b.values, *operands)
    if (
        not all(isinstance(size, int) for size in sizes)
        or not multipliable(a.scaling, b.scaling)
        or layout_of(a.scaling).has_global_scale
        or any(compat.explicit_sharding(jax.typeof(x)) is not None for x in arrays)
    ):
        return ("xla",)
    return DENSE.viable_implementations(spec, dims, [])
