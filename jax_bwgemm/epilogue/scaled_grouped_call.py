"""The call of a grouped scaled kernel with an epilogue in it, or why there is none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jax_bwgemm.epilogue.call import refused_arrays
from jax_bwgemm.epilogue.costs import grouped_linked_cycles, pass_cycles
from jax_bwgemm.epilogue.linkable import linkable_kernels
from jax_bwgemm.epilogue.program import Program
from jax_bwgemm.epilogue.scaled_call import as_call
from jax_bwgemm.product.contraction import KernelCall
from jax_bwgemm.scaled.ragged_costs import evaluate, sizes_in_16_bits
from jax_bwgemm.scaled.ragged_primitive import RAGGED
from jax_bwgemm.scaled.ragged_spec import ScaledRaggedSpec


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
    plain = RAGGED.select(table, spec, dims, target)
    assert not isinstance(plain, str), "what takes an epilogue runs without one, too"
    with_it, sizes = evaluate(choice.kernel, spec, dims, target), sizes_in_16_bits(dims)
    linked = grouped_linked_cycles(with_it, program, result_types, sizes, target)
    after = pass_cycles(program, result_types, spec.out_dtype, also_read, sizes, target)
    apart = evaluate(plain.kernel, spec, dims, target).cycles + after
    if apart < linked:
        return (
            f"{plain.kernel.name} without it and a pass over the result are predicted to take "
            f"{apart:.0f} cycles, {choice.kernel.name} with it {linked:.0f}"
        )
    return as_call(RAGGED, name, choice, spec, dims, target, factors)
