"""An m-grouped product and its epilogue: one primitive where that is linked, else two steps."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jax_bwgemm import compat
from jax_bwgemm.config import links_epilogues
from jax_bwgemm.epilogue.apply import Epilogue, apply_epilogue, check_epilogue, flat_results
from jax_bwgemm.epilogue.grouped_primitive import GroupedFused, grouped_with_epilogue
from jax_bwgemm.epilogue.program import FLOATS, GROUPS, Operand, Program
from jax_bwgemm.grouped.call import RaggedCall, canonical_rows, run
from jax_bwgemm.grouped.contraction import GROUPED
from jax_bwgemm.grouped.groups import as_int32, rows_of_groups
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

    def rows(self, sizes: jax.Array, offset: jax.Array | None, rows: int) -> tuple[jax.Array, ...]:
        """All of them for each row of the product, as XLA's pass reads them."""
        first = jnp.int32(0) if offset is None else as_int32(offset)
        return (*self.plain, *rows_of_groups(self.of_groups, as_int32(sizes), first, rows))


jax.tree_util.register_dataclass(EpilogueOperands, ("plain", "of_groups"), ())


@functools.partial(jax.jit, static_argnums=(5, 6), inline=compat.INLINE)
def run_with_epilogue(
    lhs: jax.Array,
    rhs: jax.Array,
    sizes: jax.Array,
    offset: jax.Array | None,
    operands: EpilogueOperands,
    call: RaggedCall,
    epilogue: Epilogue,
) -> Any:
    """As `run`, of a product of rank 2, and its epilogue."""
    if links_epilogues():
        fused = _fused(lhs, rhs, sizes, offset, operands, call, epilogue)
        if fused is not None:
            return fused
    product = run(lhs, rhs, sizes, offset, call)
    return apply_epilogue(epilogue, product, operands.rows(sizes, offset, lhs.shape[0]))


def _fused(
    lhs: jax.Array,
    rhs: jax.Array,
    sizes: jax.Array,
    offset: jax.Array | None,
    operands: EpilogueOperands,
    call: RaggedCall,
    epilogue: Epilogue,
) -> Any | None:
    """Product and epilogue as one primitive; None where they are two."""
    given = (lhs, rhs, *operands.plain, *operands.of_groups)
    if (
        call.implementations == ("xla",)
        or [lhs.dtype.name, rhs.dtype.name] != [call.out_dtype] * 2
        or any(compat.explicit_sharding(jax.typeof(x)) is not None for x in given)
    ):
        return None
    factors, spec = canonical_rows(lhs, rhs, sizes, offset, call)
    dims = GROUPED.dims(spec, *(x.shape for x in factors))
    viable = viable_implementations(GROUPED, spec, [lhs.dtype.name, rhs.dtype.name], dims)
    if viable[0] == "xla":
        return None
    shape = (dims.m, dims.n)
    rows = [jax.ShapeDtypeStruct((dims.m, *(x.shape[1:] or (1,))), x.dtype)
            for x in operands.of_groups]  # fmt: skip
    traced = check_epilogue(epilogue, jnp.dtype(spec.out_dtype), shape, (*operands.plain, *rows))
    program = _with_groups(traced.program, operands.of_groups)
    types = (program.dtype(x) for x in program.results)
    results = grouped_with_epilogue(
        factors,
        (*operands.plain, *operands.of_groups),
        GroupedFused(
            spec.with_policy(implementations=viable),
            flat_results(epilogue.function),
            program,
            tuple(spec.out_dtype if t in FLOATS else t for t in types),
            shape,
            of_groups=len(operands.of_groups),
        ),
    )
    return jax.tree.unflatten(traced.tree, results)


def _with_groups(program: Program, of_groups: Sequence[jax.Array]) -> Program:
    """The program whose last operands are of groups."""
    plain = len(program.operands) - len(of_groups)
    found = [
        Operand(x.dtype.name, (GROUPS, 1) if x.shape[1:] not in ((), (1,)) else (GROUPS,))
        for x in of_groups
    ]
    return dataclasses.replace(program, operands=(*program.operands[:plain], *found))
