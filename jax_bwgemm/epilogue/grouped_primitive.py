"""The primitive ``bw_grouped_epilogue_p``: an m-grouped product and a function of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from jax_bwgemm import compat
from jax_bwgemm.compat import Primitive
from jax_bwgemm.epilogue.fused import Fused
from jax_bwgemm.epilogue.grouped_call import choose_grouped
from jax_bwgemm.epilogue.primitive import register
from jax_bwgemm.grouped.contraction import GROUPED
from jax_bwgemm.grouped.groups import rows_of_groups
from jax_bwgemm.grouped.primitive import grouped
from jax_bwgemm.product.contraction import Contraction, KernelCall

bw_grouped_epilogue_p = Primitive("bw_grouped_epilogue")
bw_grouped_epilogue_p.multiple_results = True


@dataclasses.dataclass(frozen=True, repr=False)
class GroupedFused(Fused):
    """As `Fused`, of an m-grouped product of one batch element.

    Attributes:
        of_groups: How many operands, the last ones, have a value or a row for every matrix, [E] or
            [E, N]. The function gets those of each row's matrix; zeros where there is none.
        gated: Whether the product's columns are those of two products side by side, which the
            function gets as two arrays of ``shape``.
        halves: Whether the first two results are returned as one array, side by side. `function`
            returns that.

    What the program sums, it sums over columns.
    """

    of_groups: int = 0
    gated: bool = False
    halves: bool = False

    roles: ClassVar[tuple[str, ...]] = ("a", "b", "group_sizes", "group_offset")
    sums_rows: ClassVar[bool] = False
    contraction: ClassVar[Contraction] = GROUPED

    @property
    def form(self) -> str:
        return "gated" if self.gated else "halves" if self.halves else ""

    @property
    def outputs(self) -> list[tuple[tuple[int, ...], str]]:
        rows, columns = self.shape
        summed = self.program.summed
        found = [
            ((rows,) if i in summed else self.shape, t) for i, t in enumerate(self.result_types)
        ]
        if self.halves:
            found[:2] = [((rows, 2 * columns), found[0][1])]
        return found

    @property
    def products(self) -> int:
        return 2 if self.gated else 1

    def parts(self, product: jax.Array) -> list[jax.Array]:
        return jnp.split(product, self.products, axis=-1)

    def whole(self, parts: Sequence[jax.Array]) -> jax.Array:
        return jnp.concatenate(parts, axis=-1)

    def product(self, *factors: jax.Array) -> jax.Array:
        rows, columns = self.shape
        return grouped(*factors, self.spec).reshape(rows, self.products * columns)

    def apply(
        self, product: jax.Array, factors: Sequence[jax.Array], operands: Sequence[jax.Array]
    ) -> list[jax.Array]:
        sizes, offset = factors[2:4]
        plain = len(operands) - self.of_groups
        rows = rows_of_groups(operands[plain:], sizes[0], offset[0], self.shape[0])
        first, *second = self.parts(product)
        wide = [x.astype(jnp.float32) for x in second]  # as a kernel has it
        return self.function(first, *wide, *operands[:plain], *rows)

    def _choose(self, name: str, platform: str, factors: Sequence[Any]) -> KernelCall | str:
        more = self.program, self.result_types, factors, self.surroundings.also_read
        return choose_grouped(name, platform, self.spec, *more, form=self.form)


def grouped_with_epilogue(
    factors: Sequence[jax.Array], operands: Sequence[jax.Array], fused: GroupedFused
) -> list[jax.Array]:
    """Binds the primitive.

    Args:
        factors: A, B, sizes and offset as `grouped` takes them, all of batch 1.
        operands: Arrays that broadcast to ``fused.shape``, then those of groups.
        fused: What is computed.
    """
    return bw_grouped_epilogue_p.bind(*compat.match_varying(*factors, *operands), fused=fused)


register(bw_grouped_epilogue_p)
