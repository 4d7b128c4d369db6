"""Two products of one lhs and a function of both: one primitive, or what it replaces."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jax_bwgemm import compat, runtime
from jax_bwgemm.config import links_epilogues
from jax_bwgemm.dense.api import matmul
from jax_bwgemm.dense.canonical import matmul_labels
from jax_bwgemm.dense.contraction import DENSE
from jax_bwgemm.dense.problem import Options, make_options, make_problem
from jax_bwgemm.dense.with_epilogue import product_with_epilogue
from jax_bwgemm.epilogue.apply import Epilogue, apply_epilogue, check_epilogue, flat_results
from jax_bwgemm.epilogue.fused import Fused
from jax_bwgemm.epilogue.gated import Gated, gated_gemm, halves
from jax_bwgemm.epilogue.program import as_matrix
from jax_bwgemm.product.implementations import PLATFORMS
from jax_bwgemm.product.support import viable_implementations

Weights = jax.Array | tuple[jax.Array, jax.Array]


def gated_product(
    x: jax.Array,
    weights: Weights,
    epilogue: Epilogue,
    operands: Sequence[jax.Array] = (),
    *,
    keeps_products: bool = False,
    **arguments: Any,
) -> Any:
    """``f(x @ gate, x @ up, *operands)``, whose first argument is float32.

    Args:
        x: [..., K].
        weights: [K, 2, N], gate first, or a pair of [K, N].
        epilogue: The function. It returns what an epilogue of `matmul` may.
        operands: Arrays that broadcast to [..., N].
        keeps_products: Whether to return ``(results, gate product, up product)``.
        **arguments: ``precision``, ``preferred_element_type``, ``out_sharding``,
            ``implementation`` and ``config``, as in `matmul`.

    Returns:
        What the function returns, floating-point arrays rounded to the products' type.
    """
    options = make_options(**arguments)
    found = _one_primitive(x, weights, tuple(operands), options, epilogue, keeps_products)
    if found is not None:
        return found
    placed = options.out_sharding is not None or compat.may_be_partitioned()
    if not isinstance(weights, tuple) and placed:
        weights = halves(weights)
    if isinstance(weights, tuple):
        gate, up = weights
        ups = matmul(x, up, **arguments)
        function = _and_product(epilogue.function) if keeps_products else epilogue.function
        after = Epilogue(function, epilogue.caller)
        results = product_with_epilogue(x, gate, None, (ups, *operands), options, after)
        return (*results, ups) if keeps_products else results
    k, _, n = weights.shape
    both = matmul(x, weights.reshape(k, 2 * n), **arguments).reshape(*x.shape[:-1], 2, n)
    gates, ups = both[..., 0, :], both[..., 1, :]
    results = apply_epilogue(epilogue, gates, (ups, *operands))
    return (results, gates, ups) if keeps_products else results


@functools.lru_cache(maxsize=256)
def _and_product(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, which returns the product as well."""

    def both(product: jax.Array, *operands: jax.Array) -> tuple[Any, jax.Array]:
        return function(product, *operands), product

    return both


@functools.partial(jax.jit, static_argnums=(3, 4, 5), inline=compat.INLINE)
def _one_primitive(
    x: jax.Array,
    weights: Weights,
    operands: tuple[jax.Array, ...],
    options: Options,
    epilogue: Epilogue,
    keeps_products: bool,
) -> Any | None:
    """The layer as one primitive; None where it is several."""
    stacked = not isinstance(weights, tuple)
    given = (weights,) if stacked else weights
    of_both = options.config is not None and options.config.kernel in {
        kernel.name for name in PLATFORMS for kernel in runtime.gated_kernels(name)
    }
    sizes = (size for array in (x, *given) for size in array.shape)
    if (
        not links_epilogues()
        # Which describes a kernel of one product.
        or (options.config is not None and not of_both)
        or options.implementations == ("xla",)
        or options.out_sharding is not None
        or not all(isinstance(size, int) for size in sizes)
        or any(compat.explicit_sharding(jax.typeof(a)) for a in (x, *given, *operands))
    ):
        return None
    k, n = given[0].shape[0], given[0].shape[-1]
    like = jax.ShapeDtypeStruct((k, n), given[0].dtype)
    free = dataclasses.replace(options, config=None)
    problem = make_problem(x, like, matmul_labels(x.shape, like.shape), free, promotes=True)
    spec, plan, dims = problem.spec, problem.plan, problem.dims
    dtypes = [a.dtype.name for a in (x, *given)]
    if (
        plan.lhs.perm is not None
        or plan.perm is not None
        or spec.majors != "kn"
        or dims.b_batch != 1
        or plan.shape[-1:] != (n,)
        or any(dtype != spec.out_dtype for dtype in dtypes)
    ):
        return None
    viable = viable_implementations(DENSE, spec, dtypes[:2], dims, veto=problem.veto)
    if viable[0] == "xla":
        return None
    up = jax.ShapeDtypeStruct(plan.shape, spec.out_dtype)
    traced = check_epilogue(epilogue, jnp.dtype(spec.out_dtype), plan.shape, (up, *operands))
    program = as_matrix(traced.program, plan.shape)
    if isinstance(program, str) or program.summed:
        return None
    fused = Fused(
        spec.with_policy(implementations=viable),
        flat_results(epilogue.function),
        program,
        program.result_types(spec.out_dtype),
        plan.shape,
    )
    results = gated_gemm(
        x.reshape(plan.lhs.shape),
        given if stacked else [w[None] for w in given],
        operands,
        Gated(fused, stacked, keeps_products, options.config),
    )
    if keeps_products:
        *results, gates, ups = results
        return jax.tree.unflatten(traced.tree, results), gates, ups
    return jax.tree.unflatten(traced.tree, results)
