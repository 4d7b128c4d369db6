"""The call of a grouped scaled kernel with an epilogue in it, or why there is none."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from jax_bwgemm.config import Target
from jax_bwgemm.epilogue.call import refused_arrays
from jax_bwgemm.epilogue.costs import grouped_linked_cycles, pass_cycles
from jax_bwgemm.epilogue.linkable import linkable_kernels
from jax_bwgemm.epilogue.program import Program
from jax_bwgemm.epilogue.scaled_call import as_call
from jax_bwgemm.grouped import heuristics
from jax_bwgemm.product.contraction import KernelCall
from jax_bwgemm.product.kernels import Kernel
from jax_bwgemm.scaled.costs import elements_in_16_bits
from jax_bwgemm.scaled.ragged_primitive import RAGGED
from jax_bwgemm.scaled.ragged_spec import ScaledRaggedDims, ScaledRaggedSpec


def choose_scaled_grouped(
    name: str,
    platform: str,
    spec: ScaledRaggedSpec,
    program: Program,
    result_types: Sequence[str],
    factors: Sequence[Any],
    also_read: int = 0,
) -> KernelCall | str:
    """The kernel, or why none takes the epilogue along.

    Args:
        name: ``"cutlass"`` or ``"emulator"``.
        platform: JAX platform being lowered for.
        spec: The product, m-grouped.
        program: The epilogue, of rank 2.
        result_types: Types of its results.
        factors: The operands of `RAGGED`, or their types.
        also_read: As in `pass_cycles`.
    """
    if reason := refused_arrays(program.operands, result_types, factors[:1]):
        return reason
    dims = RAGGED.dims_of(factors, spec)
    if dims.empty:
        return "an empty problem runs no kernel"
    if program.summed:
        return "grouped kernels of scaled operands sum nothing"
    if spec.out_dtype not in result_types:
        return f"no result is of the product's type {spec.out_dtype}"
    if dims.batch != 1:
        return "the product is a batch"
    target = RAGGED.gpu(name, platform, spec, spec.policy.target)
    if isinstance(target, str):
        return target
    table = RAGGED.table_of(name)
    if reason := RAGGED.refusal(table, spec, dims):
        return reason
    found = linkable_kernels()
    linkable = [k for k in table if k.name in found and k.out_dtype == spec.out_dtype]
    choice = RAGGED.select(linkable, spec, dims, target)
    if isinstance(choice, str):
        return f"{choice}, with an epilogue"
    if spec.policy.config is not None:
        return as_call(RAGGED, name, choice, spec, dims, target, factors)
    linked, apart = _cycles(choice.kernel, spec, program, result_types, dims, target, also_read)
    if apart < linked:
        return (
            f"{choice.kernel.name} without it and a pass over the result are predicted to take "
            f"{apart:.0f} cycles, with it {linked:.0f}"
        )
    return as_call(RAGGED, name, choice, spec, dims, target, factors)


def _cycles(
    kernel: Kernel,
    spec: ScaledRaggedSpec,
    program: Program,
    result_types: Sequence[str],
    dims: ScaledRaggedDims,
    target: Target,
    also_read: int,
) -> tuple[float, float]:
    """Of the kernel with the epilogue, and of both apart.

    They are those of the equivalent product of 16-bit operands: see `jax_bwgemm.scaled.costs`.
    """
    each = elements_in_16_bits(kernel.a_dtype)
    types = {"a_dtype": "bfloat16", "b_dtype": "bfloat16", "scales": ""}
    wide = dataclasses.replace(kernel, **types, tile_k=kernel.tile_k // each)
    sizes = dataclasses.replace(dims, k=-(-dims.k // each))
    plain = heuristics.evaluate(wide, spec, sizes, target)
    linked = grouped_linked_cycles(plain, program, result_types, sizes, target)
    after = pass_cycles(program, result_types, spec.out_dtype, also_read, sizes, target)
    return linked, plain.cycles + after
