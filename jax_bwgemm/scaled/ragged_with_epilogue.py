"""A grouped scaled product and its epilogue: one primitive if it is linked, else two steps."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp

from jax_bwgemm import compat
from jax_bwgemm.config import links_epilogues
from jax_bwgemm.epilogue.apply import Epilogue, apply_epilogue, check_epilogue, flat_results
from jax_bwgemm.epilogue.scaled_primitive import ScaledGroupedFused, scaled_ragged_with_epilogue
from jax_bwgemm.grouped.with_epilogue import EpilogueOperands, row_types, with_groups
from jax_bwgemm.product.implementations import log_once
from jax_bwgemm.scaled.ragged_primitive import RAGGED
from jax_bwgemm.scaled.ragged_spec import ScaledRaggedSpec


@functools.partial(jax.jit, static_argnums=(2, 3), inline=compat.INLINE)
def linked(
    factors: tuple[jax.Array, ...],
    operands: EpilogueOperands,
    spec: ScaledRaggedSpec,
    epilogue: Epilogue,
) -> Any | None:
    """The results of an epilogue of an m-grouped product, by one primitive.

    None where kernels cannot have it.

    Args:
        factors: The operands of `RAGGED`, all of batch 1.
        operands: What the epilogue reads besides the product.
        spec: What is static about the product.
        epilogue: The function.
    """
    arrays = (*factors, *operands.plain, *operands.of_groups)
    explicit = any(compat.explicit_sharding(jax.typeof(x)) is not None for x in arrays)
    dims = RAGGED.dims_of(factors, spec)
    viable = RAGGED.viable_implementations(spec, dims, []) if links_epilogues() else ("xla",)
    if explicit or viable[0] == "xla":
        return None
    shape = (dims.m, dims.n)
    read = (*operands.plain, *row_types(operands.of_groups, dims.m))
    traced = check_epilogue(epilogue, jnp.dtype(spec.out_dtype), shape, read)
    program = with_groups(traced.program, operands.of_groups)
    if program.summed:
        log_once(f"{spec}: the epilogue is a pass of its own: grouped kernels sum no rows")
        return None
    fused = ScaledGroupedFused(
        spec.with_policy(implementations=viable),
        flat_results(epilogue.function),
        program,
        program.result_types(spec.out_dtype),
        shape,
        of_groups=len(operands.of_groups),
    )
    rest = (*operands.plain, *operands.of_groups)
    return jax.tree.unflatten(traced.tree, scaled_ragged_with_epilogue(factors, rest, fused))


@functools.partial(jax.jit, static_argnums=0, inline=compat.INLINE)
def by_xla(
    epilogue: Epilogue,
    product: jax.Array,
    sizes: jax.Array,
    offset: jax.Array,
    operands: EpilogueOperands,
) -> Any:
    """The same of the product that a kernel has stored, by XLA."""
    return apply_epilogue(epilogue, product, operands.rows(sizes, offset, product))
