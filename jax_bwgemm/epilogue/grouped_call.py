"""The call of an m-grouped kernel with an epilogue in it, or why there is none."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from jax_bwgemm.epilogue.call import refused_arrays
from jax_bwgemm.epilogue.costs import grouped_linked_cycles, pass_cycles
from jax_bwgemm.epilogue.grouped_hook import gated_symbol
from jax_bwgemm.epilogue.linkable import linkable_kernels
from jax_bwgemm.epilogue.program import Program
from jax_bwgemm.grouped import heuristics
from jax_bwgemm.grouped.contraction import GROUPED, Grouped
from jax_bwgemm.grouped.spec import M_GROUPED, GroupedSpec
from jax_bwgemm.product.contraction import KernelCall
from jax_bwgemm.product.kernels import Kernel
from jax_bwgemm.product.lowering import choose


@dataclasses.dataclass(frozen=True)
class LinkableGrouped(Grouped):
    """As `Grouped`, of the kernels that an epilogue can be linked into.

    Attributes:
        only: The only kernel; None: all.
        gated: Whether it is to compute two products.
        sm90: Whether it is to do what SM90's kernels alone do.
    """

    only: str | None = None
    gated: bool = False
    sm90: bool = False

    def kernels(self, implementation: str) -> tuple[Kernel, ...]:
        found = linkable_kernels()
        table = super().kernels(implementation)
        return tuple(
            k
            for k in table
            if (gated_symbol(k.name) if self.gated else k.name) in found
            and self.only in (None, k.name)
            and (k.arch == "sm90" or not self.sm90)
        )


def choose_grouped(
    name: str,
    platform: str,
    spec: GroupedSpec,
    program: Program,
    result_types: Sequence[str],
    factors: Sequence[Any],
    also_read: int = 0,
    *,
    form: str = "",
) -> KernelCall | str:
    """The kernel, or why none computes the epilogue.

    Args:
        name: ``"cutlass"`` or ``"emulator"``.
        platform: JAX platform being lowered for.
        spec: The product.
        program: The epilogue, of rank 2.
        result_types: Types of its results.
        factors: A, B, sizes and offset, or their types.
        also_read: As in `pass_cycles`.
        form: "gated" where B's columns are those of two matrices, whose products the program reads;
            "halves" where its first two results are one array.
    """
    a, b, *groups = factors
    gated = form == "gated"
    products = 2 if gated else 1
    linkable = LinkableGrouped(gated=gated, sm90=form == "halves" or bool(program.summed))
    if reason := refused_arrays(program.operands[products - 1 :], result_types, (a, b)):
        return reason
    if groups[0].size == 0:
        return "an empty problem runs no kernel"
    if len(program.summed) > 1:
        return "grouped kernels sum one result over columns"
    if spec.out_dtype not in result_types:
        return f"no result is of the kernels' type {spec.out_dtype}"
    if spec.kind != M_GROUPED:
        return "kernels that contract the rows of groups take no epilogue"
    if not linkable.kernels(name):
        return "this installation has no grouped kernels that epilogues are linked into"
    dtype = a.dtype.name

    def chosen(contraction: LinkableGrouped) -> KernelCall | str:
        try:
            shapes = [x.shape for x in factors]
            return choose(contraction, name, platform, spec, (dtype, dtype), shapes)
        except NotImplementedError as error:
            return str(error)

    call = chosen(linkable)
    if isinstance(call, str):
        return call
    if call.padded != call.dims or call.dims.batch != 1:
        return "row pitches are not multiples of 16 bytes, or the product is a batch"
    if call.dims.n // products * np.dtype(spec.out_dtype).itemsize % 16 != 0:
        return "row pitches are not multiples of 16 bytes"
    if spec.policy.config is not None:
        return call

    @functools.cache
    def linked(kernel: Kernel) -> float:
        found = heuristics.evaluate(kernel, spec, call.dims, call.target, linked=True)
        return grouped_linked_cycles(found, program, result_types, call.dims, call.target, products)

    table = linkable.kernels(name)
    usable, _ = heuristics.rank(table, spec, dtype, call.dims, call.target)
    best = min((c.kernel for c in usable), key=linked)
    plain = heuristics.rank(GROUPED.kernels(name), spec, dtype, call.dims, call.target)[0][0]
    passed = program, result_types, spec.out_dtype, also_read, call.dims, call.target, products
    after = pass_cycles(*passed)
    if linked(best) > plain.cycles + after:
        return (
            f"{plain.kernel.name} without it and a pass over the result are predicted to take "
            f"{plain.cycles + after:.0f} cycles, {best.name} with it {linked(best):.0f}"
        )
    return call if best == call.selection.kernel else chosen(LinkableGrouped(best.name, gated))
