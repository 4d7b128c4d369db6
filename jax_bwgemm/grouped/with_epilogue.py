"""An m-grouped product and its epilogue: one primitive where that is linked, else two steps."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jax_bwgemm import compat
from jax_bwgemm.config import links_epilogues
from jax_bwgemm.epilogue.apply import Epilogue, apply_epilogue, check_epilogue, flat_results
from jax_bwgemm.epilogue.grouped_primitive import GroupedFused, grouped_with_epilogue
from jax_bwgemm.epilogue.primitive import kernel_refusal
from jax_bwgemm.epilogue.program import MATRICES, Operand, Program
from jax_bwgemm.epilogue.tracing import EpilogueError
from jax_bwgemm.grouped.call import RaggedCall, canonical_rows, run
from jax_bwgemm.grouped.contraction import GROUPED
from jax_bwgemm.grouped.groups import as_int32, rows_of_groups
from jax_bwgemm.product.implementations import log_once
from jax_bwgemm.product.support import viable_implementations


@dataclasses.dataclass(frozen=True)
class EpilogueOperands:
    """What an epilogue of a grouped product reads besides the product.

    Attributes:
        plain: Arrays that broadcast to the product's shape.
        of_groups: Arrays of [E] or [E, N].
    """

    plain: tuple[jax.Array, ...] = ()
    of_groups: tuple[jax.Array, ...] = ()

    def check(self, caller: str, experts: int, columns: int) -> None:
        """That those of groups fit the matrices.

        Raises:
            TypeError: They do not.
        """
        for i, x in enumerate(self.of_groups):
            if x.shape not in ((experts,), (experts, 1), (experts, columns)):
                raise TypeError(
                    f"{caller}: epilogue_group_operands are of shape {(experts,)} or "
                    f"{(experts, columns)}, operand {i} is {x.shape}"
                )

    def rows(
        self, sizes: jax.Array, offset: jax.Array | None, product: jax.Array
    ) -> tuple[jax.Array, ...]:
        """All of them for each row of the product, as XLA's pass reads them.

        Where types have shardings, those of groups get the product's, however they were sharded.
        """
        first = jnp.int32(0) if offset is None else as_int32(offset)
        factors = as_int32(sizes), first
        if not compat.has_explicit_axes():
            found = rows_of_groups(self.of_groups, *factors, product.shape[0])
        else:
            found = [_rows_like(product, x, *factors) for x in self.of_groups]
        return (*self.plain, *found)


jax.tree_util.register_dataclass(EpilogueOperands, ("plain", "of_groups"), ())


def _rows_like(product: jax.Array, x: jax.Array, sizes: jax.Array, first: jax.Array) -> jax.Array:
    """An array of groups for each row of a product, sharded as that is."""
    rows, columns = compat.spec_of(product)
    return compat.in_automatic_axes(
        lambda *args: rows_of_groups(args[:1], *args[1:], product.shape[0])[0],
        lambda: (rows, columns if x.shape[1:] == product.shape[1:] else None),
        *(x, sizes, first),
    )


@dataclasses.dataclass(frozen=True)
class After:
    """What follows a grouped product.

    Attributes:
        epilogue: A function of it.
        operands: What the epilogue reads besides the product.
        gated: Whether it gets the halves of the product's columns as two arrays.
        only_linked: Whether the call returns None where no kernel takes the epilogue, instead of
            computing it in a pass of XLA's.
        halves: Whether the function's first two results are returned as one array.
        sums: Whether its last result is summed over columns, in float32.
        by_xla: The same in terms of the rounded product, as XLA computes it: a list of what is
            returned. None: the function itself.
    """

    epilogue: Epilogue
    operands: EpilogueOperands
    gated: bool = False
    only_linked: bool = False
    halves: bool = False
    sums: bool = False
    by_xla: Callable[..., list[jax.Array]] | None = None


def _run_with_epilogue(
    lhs: jax.Array,
    rhs: jax.Array,
    sizes: jax.Array,
    offset: jax.Array | None,
    operands: EpilogueOperands,
    call: RaggedCall,
    epilogue: Epilogue,
) -> Any:
    """As `run`, of a product of rank 2, and its epilogue."""
    fused = _fuse(lhs, rhs, sizes, offset, call, After(epilogue, operands))
    if fused is not None:
        return fused.run()
    product = run(lhs, rhs, sizes, offset, call)
    return apply_epilogue(epilogue, product, operands.rows(sizes, offset, product))


_compiled = jax.jit(_run_with_epilogue, static_argnums=(5, 6), inline=compat.INLINE)


def run_with_epilogue(*args: Any) -> Any:
    """As `run`, of a product of rank 2, and its epilogue: one program if it is called eagerly.

    Not where mesh axes are explicit: JAX refuses values of automatic axes, which gradients keep,
    between programs.
    """
    return (_run_with_epilogue if compat.has_explicit_axes() else _compiled)(*args)


def run_linked(
    lhs: jax.Array,
    rhs: jax.Array,
    sizes: jax.Array,
    offset: jax.Array | None,
    call: RaggedCall,
    after: After,
) -> Any | None:
    """A product and what follows it in one kernel; None where it would not be that here."""
    epilogue = after.epilogue
    try:
        fused = _fuse(lhs, rhs, sizes, offset, call, after)
    except EpilogueError as error:
        log_once(f"{epilogue.caller}: what follows a grouped product is a pass of its own: {error}")
        return None
    if fused is None:
        return None
    if refusal := kernel_refusal(fused.factors, fused.fused):
        what = f"{fused.fused.spec}: what follows the product is a pass of its own"
        log_once(f"{what}: {refusal}")
        return None
    return fused.run()


@dataclasses.dataclass(frozen=True)
class FusedRows:
    """A product and its epilogue that are to be one primitive."""

    factors: tuple[jax.Array, ...]
    operands: tuple[jax.Array, ...]
    fused: GroupedFused
    tree: Any

    def run(self) -> Any:
        """What the function returns."""
        results = grouped_with_epilogue(self.factors, self.operands, self.fused)
        return results if self.tree is None else jax.tree.unflatten(self.tree, results)


def _fuse(
    lhs: jax.Array,
    rhs: jax.Array,
    sizes: jax.Array,
    offset: jax.Array | None,
    call: RaggedCall,
    after: After,
) -> FusedRows | None:
    """Product and what follows it as one primitive; None where they are two."""
    operands, epilogue, gated = after.operands, after.epilogue, after.gated
    given = (lhs, rhs, *operands.plain, *operands.of_groups)
    if (
        not links_epilogues()
        or call.implementations == ("xla",)
        or [lhs.dtype.name, rhs.dtype.name] != [call.out_dtype] * 2
        or any(compat.explicit_sharding(jax.typeof(x)) is not None for x in given)
    ):
        return None
    factors, spec = canonical_rows(lhs, rhs, sizes, offset, call)
    dims = GROUPED.dims(spec, *(x.shape for x in factors))
    viable = viable_implementations(GROUPED, spec, [lhs.dtype.name, rhs.dtype.name], dims)
    if viable[0] == "xla":
        return None
    shape = (dims.m, dims.n // 2 if gated else dims.n)
    halves = [jax.ShapeDtypeStruct(shape, jnp.float32)] if gated else []
    read = (*halves, *operands.plain, *row_types(operands.of_groups, dims.m))
    traced = check_epilogue(epilogue, jnp.dtype(spec.out_dtype), shape, read)
    program = with_groups(traced.program, operands.of_groups)
    if program.summed:
        what = f"{spec}: the epilogue is a pass of its own"
        log_once(f"{what}: kernels with swapped operands sum no rows")
        return None
    types = program.result_types(spec.out_dtype)
    if after.sums:
        program = dataclasses.replace(program, summed=(len(types) - 1,))
        types = (*types[:-1], "float32")
    fused = GroupedFused(
        spec.with_policy(implementations=viable),
        after.by_xla or flat_results(epilogue.function),
        program,
        types,
        shape,
        of_groups=len(operands.of_groups),
        gated=gated,
        halves=after.halves,
    )
    tree = None if after.by_xla else traced.tree
    return FusedRows(factors, (*operands.plain, *operands.of_groups), fused, tree)


def row_types(of_groups: Sequence[jax.Array], rows: int) -> list[jax.ShapeDtypeStruct]:
    """Types of operands of groups as a function of so many rows gets them."""
    return [jax.ShapeDtypeStruct((rows, *(x.shape[1:] or (1,))), x.dtype) for x in of_groups]


def with_groups(program: Program, of_groups: Sequence[jax.Array]) -> Program:
    """The program whose last operands are of groups."""
    plain = len(program.operands) - len(of_groups)
    found = [
        Operand(x.dtype.name, (MATRICES, 1) if x.shape[1:] not in ((), (1,)) else (MATRICES,))
        for x in of_groups
    ]
    return dataclasses.replace(program, operands=(*program.operands[:plain], *found))
