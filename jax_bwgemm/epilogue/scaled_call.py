"""The call of a scaled kernel with an epilogue in it, or why there is none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

from jax_bwgemm.config import Target
from jax_bwgemm.dense import heuristics
from jax_bwgemm.epilogue.call import refused_arrays
from jax_bwgemm.epilogue.costs import ALONE, Surroundings, linked_cycles, pass_cycles
from jax_bwgemm.epilogue.hook import MAX_SUMS
from jax_bwgemm.epilogue.linkable import linkable_kernels
from jax_bwgemm.epilogue.program import Program
from jax_bwgemm.product import targets
from jax_bwgemm.product.contraction import FfiCall, Folded, KernelCall
from jax_bwgemm.product.kernels import Kernel
from jax_bwgemm.product.selection import Selection
from jax_bwgemm.scaled.costs import Candidate, as_dense_dims, candidates
from jax_bwgemm.scaled.family import Family
from jax_bwgemm.scaled.fit import satisfying, scales_fit, types_fit
from jax_bwgemm.scaled.layouts import layout_of
from jax_bwgemm.scaled.primitive import DENSE, for_one_group
from jax_bwgemm.scaled.selection import WHERE, Choice, chosen_by, order_of, ordered_by
from jax_bwgemm.scaled.spec import ScaledDims, ScaledSpec


def choose_scaled(
    name: str,
    platform: str,
    spec: ScaledSpec,
    program: Program,
    result_types: Sequence[str],
    factors: Sequence[Any],
    surroundings: Surroundings = ALONE,
) -> KernelCall | str:
    """The kernel, or why none takes the epilogue along.

    Args:
        name: ``"cutlass"`` or ``"emulator"``.
        platform: JAX platform being lowered for.
        spec: The product.
        program: The epilogue, of `as_matrix`.
        result_types: Types of its results.
        factors: A, B, the scales of both and alpha, or their types.
        surroundings: What the same costs without a kernel that takes it along.
    """
    if reason := refused_arrays(program.operands, result_types, factors[:1]):
        return reason
    dims = DENSE.dims_of(factors, spec)
    if dims.empty:
        return "an empty problem runs no kernel"
    if len(program.summed) > MAX_SUMS:
        return f"more than {MAX_SUMS} sums over rows"
    if layout_of(spec.a_scaling).has_global_scale:
        return f"no kernel for scales of {spec.a_scaling} has an epilogue"
    written = [t for i, t in enumerate(result_types) if i not in program.summed]
    if spec.out_dtype not in written:
        return f"no result is of the product's type {spec.out_dtype}"
    target = DENSE.gpu(name, platform, spec, spec.policy.target)
    if isinstance(target, str):
        return target
    table = DENSE.table_of(name)
    if reason := DENSE.refusal(table, spec, dims):
        return reason
    config = spec.policy.config
    if config is not None and (config.splits or 1) > 1:
        return f"a kernel with an epilogue computes all of K at once, not in {config.splits} parts"
    linkable = _linkable(table, spec, dims, target)
    if program.summed:
        linkable = [k for k in linkable if k.contraction == "scaled" and not k.swap_ab]
    if not linkable:
        return (
            f"no kernel of {target.arch} for {dims.a_dtype} x {dims.b_dtype} -> {spec.out_dtype} "
            f"with scales of {spec.a_scaling} and {spec.b_scaling} has an epilogue"
        )
    linkable = satisfying(linkable, config, target)
    if isinstance(linkable, str):
        return f"{linkable}, with an epilogue"
    sizes = as_dense_dims(dims)
    whole = {k.name: candidates(k, dims, target)[0] for k in linkable}
    more = program, result_types, sizes, target
    cycles = {k.name: linked_cycles(whole[k.name], *more) for k in linkable}
    kernel = min(linkable, key=lambda k: cycles[k.name])
    choice = _choice(kernel, whole[kernel.name], spec, dims, target, cycles[kernel.name])
    if config is not None:
        return as_call(DENSE, name, choice, spec, dims, target, factors)
    plain = DENSE.select(table, spec, dims, target)
    if isinstance(plain, str):
        return plain
    best = min(candidates(plain.kernel, dims, target), key=heuristics.preference)
    also_read = surroundings.also_read
    apart = best.cycles + pass_cycles(
        program, result_types, spec.out_dtype, also_read, sizes, target
    )
    if apart < cycles[kernel.name]:
        return (
            f"{plain.kernel.name} without it and a pass over the result are predicted to take "
            f"{apart:.0f} cycles, {kernel.name} with it {cycles[kernel.name]:.0f}"
        )
    return as_call(DENSE, name, choice, spec, dims, target, factors)


def _choice(
    kernel: Kernel,
    whole: Candidate,
    spec: ScaledSpec,
    dims: ScaledDims,
    target: Target,
    cycles: float,
) -> Choice:
    """A kernel with an epilogue, predicted to take so many cycles.

    Args:
        kernel: The kernel.
        whole: What it costs without the epilogue.
        spec: The product.
        dims: Its sizes.
        target: The GPU.
        cycles: With the epilogue.
    """
    config = spec.policy.config
    raster_order, swizzle = ordered_by(config, order_of(kernel, whole, dims))
    why = (
        f"{WHERE[kernel.scales]}; {chosen_by(config)}predicted {cycles:.0f} cycles with the "
        "epilogue"
    )
    return Choice(kernel, spec.out_dtype, raster_order, swizzle, 1, target.sm_count, why)


def _linkable(
    table: Sequence[Kernel], spec: ScaledSpec, dims: ScaledDims, target: Target
) -> list[Kernel]:
    """The kernels that compute a product and may have an epilogue."""
    found = linkable_kernels()
    return [
        kernel
        for kernel in table
        if kernel.name in found
        and kernel.arch == target.arch
        and kernel.out_dtype == spec.out_dtype
        and types_fit(kernel, spec, dims)
        and scales_fit(kernel, spec)
        and (dims.batch == 1 or not for_one_group(kernel))
    ]


def as_call(
    family: Family,
    name: str,
    choice: Choice,
    spec: Any,
    dims: Any,
    target: Target,
    factors: Sequence[Any],
) -> KernelCall:
    """The call of a kernel on operands as they are: neither folded nor padded.

    Args:
        family: The products.
        name: ``"cutlass"`` or ``"emulator"``.
        choice: The kernel, which computes all of K at once.
        spec: The product.
        dims: Its sizes.
        target: The GPU.
        factors: The family's operands, or their types.
    """
    roles: list[str] = []

    def read(*operands: jax.Array) -> list[jax.Array]:
        named = family.call_operands(operands, spec, choice.kernel)
        roles.extend(named)
        return list(named.values())

    shapes = [x.shape for x in jax.eval_shape(read, *factors)]
    ffi_target, config = targets.configure(
        name,
        choice.kernel.name,
        roles,
        a_scaling=spec.a_scaling,
        b_scaling=spec.b_scaling,
        **family.call_options(choice),
    )
    scratch = family.workspace(name, choice, dims)
    return KernelCall(
        name,
        Selection(choice.kernel, choice.raster_order, choice.swizzle, choice.why, ()),
        target,
        Folded(spec, tuple(shapes), (None,) * len(shapes)),
        dims,
        dims,
        FfiCall(ffi_target, scratch, config),
    )
