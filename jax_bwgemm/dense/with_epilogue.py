"""A dense product and its epilogue: one primitive where that is linked, else two steps."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp

from jax_bwgemm import compat
from jax_bwgemm.config import links_epilogues
from jax_bwgemm.dense.arrangement import arrange
from jax_bwgemm.dense.canonical import dot_labels, matmul_labels
from jax_bwgemm.dense.contraction import DENSE
from jax_bwgemm.dense.problem import Options, make_problem
from jax_bwgemm.dense.products import dot_product, is_symbolic, matmul_product
from jax_bwgemm.dense.spec import matrices
from jax_bwgemm.dense.validation import check_dot_general, check_matmul
from jax_bwgemm.epilogue.apply import Epilogue, apply_epilogue, check_epilogue, flat_results
from jax_bwgemm.epilogue.fused import Fused
from jax_bwgemm.epilogue.primitive import gemm_with_epilogue
from jax_bwgemm.epilogue.program import SUMS_OVER_BATCH, as_matrix, batch_dims_of
from jax_bwgemm.product.implementations import log_once
from jax_bwgemm.product.support import viable_implementations


@functools.partial(jax.jit, static_argnums=(2, 4, 5), inline=compat.INLINE)
def product_with_epilogue(
    a: jax.Array,
    b: jax.Array,
    numbers: Any,
    operands: tuple[jax.Array, ...],
    options: Options,
    epilogue: Epilogue,
) -> Any:
    """A product, `matmul`'s where there are no dimension numbers, and its epilogue."""
    if links_epilogues():
        found = fused_product(a, b, numbers, operands, options, epilogue)
        if found is not None:
            results = gemm_with_epilogue(*found.factors, operands, found.fused)
            return jax.tree.unflatten(found.tree, results)
    if numbers is None:
        product = matmul_product(a, b, options)
    else:
        product = dot_product(a, b, numbers, options)
    return apply_epilogue(epilogue, product, operands)


@dataclasses.dataclass(frozen=True)
class FusedProduct:
    """A product and its epilogue as one primitive.

    Attributes:
        factors: A and B, as `gemm_with_epilogue` takes them.
        fused: What it computes.
        tree: The structure of the epilogue's results.
    """

    factors: tuple[jax.Array, jax.Array]
    fused: Fused
    tree: Any


def fused_product(
    a: jax.Array,
    b: jax.Array,
    numbers: Any,
    operands: tuple[jax.Array, ...],
    options: Options,
    epilogue: Epilogue,
) -> FusedProduct | None:
    """Product and epilogue as one primitive; None where they are two."""
    if options.implementations == ("xla",) or is_symbolic(epilogue.caller, a, b, options):
        return None
    if numbers is None:
        check_matmul(a.shape, b.shape)
        labels = matmul_labels(a.shape, b.shape)
    else:
        check_dot_general(a.shape, b.shape, numbers)
        labels = dot_labels(a.ndim, b.ndim, *numbers)
    problem = make_problem(a, b, labels, options, promotes=numbers is None)
    spec, plan, dims = problem.spec, problem.plan, problem.dims
    dtypes = [a.dtype.name, b.dtype.name]
    explicit = (compat.explicit_sharding(jax.typeof(x)) for x in (a, b, *operands))
    batch_dims = batch_dims_of(plan.shape, matrices(spec, dims))
    if (
        plan.perm is not None
        or batch_dims is None
        or plan.shape[-1:] != (dims.n,)
        or dtypes != [spec.out_dtype] * 2
        or options.out_sharding is not None
        or any(sharding is not None for sharding in explicit)
    ):
        return None
    viable = viable_implementations(DENSE, spec, dtypes, dims, veto=problem.veto)
    if viable[0] == "xla":
        return None
    traced = check_epilogue(epilogue, jnp.dtype(spec.out_dtype), plan.shape, operands)
    program = as_matrix(traced.program, plan.shape, batch_dims)
    if batch_dims and traced.program.summed:
        program = SUMS_OVER_BATCH
    if isinstance(program, str):
        log_once(f"{spec}: the epilogue is a pass of its own: {program}")
        return None
    fused = Fused(
        spec.with_policy(implementations=viable),
        flat_results(epilogue.function),
        program,
        program.result_types(spec.out_dtype),
        plan.shape,
        batch_dims=batch_dims,
    )
    factors = (
        arrange(a, plan.lhs.squeezed, plan.lhs.perm, plan.lhs.shape),
        arrange(b, plan.rhs.squeezed, plan.rhs.perm, plan.rhs.shape),
    )
    return FusedProduct(factors, fused, traced.tree)
