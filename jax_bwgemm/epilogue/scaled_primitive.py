"""The primitives of a product of scaled operands and a function of it.

``bw_scaled_epilogue_p`` has a product that is not grouped, ``bw_scaled_ragged_epilogue_p`` an
m-grouped one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NoReturn

import jax
from jax.interpreters import ad

from jax_bwgemm import compat
from jax_bwgemm.compat import Primitive
from jax_bwgemm.epilogue.fused import Fused
from jax_bwgemm.epilogue.grouped_primitive import GroupedFused
from jax_bwgemm.epilogue.primitive import register
from jax_bwgemm.epilogue.scaled_call import choose_scaled
from jax_bwgemm.epilogue.scaled_grouped_call import choose_scaled_grouped
from jax_bwgemm.product.contraction import KernelCall
from jax_bwgemm.product.kernels import Kernel
from jax_bwgemm.scaled import derivatives
from jax_bwgemm.scaled.family import Family
from jax_bwgemm.scaled.primitive import DENSE
from jax_bwgemm.scaled.ragged_primitive import RAGGED

bw_scaled_epilogue_p = Primitive("bw_scaled_epilogue")
bw_scaled_epilogue_p.multiple_results = True
bw_scaled_ragged_epilogue_p = Primitive("bw_scaled_ragged_epilogue")
bw_scaled_ragged_epilogue_p.multiple_results = True


@dataclasses.dataclass(frozen=True, repr=False)
class FusedOfScaled(Fused):
    """As `Fused`, of a product of scaled operands, which has no derivative itself."""

    family: ClassVar[Family]
    refuse_derivative: ClassVar[Callable[[], NoReturn]]

    def arrange(self, factors: Sequence[jax.Array], kernel: Kernel) -> dict[str, jax.Array]:
        return self.family.call_operands(factors, self.spec, kernel)

    def product(self, *factors: jax.Array) -> jax.Array:
        return self.family.product(factors, self.spec).reshape(self.shape)

    def tangents(self, factors: Sequence[Any], moved: Sequence[Any]) -> list[jax.Array]:
        if any(not isinstance(tangent, ad.Zero) for tangent in moved):
            self.refuse_derivative()
        return []

    def describe(self, factors: Sequence[Any]) -> tuple[str, Any]:
        dims = self.family.dims_of(factors, self.spec)
        return dims.describe(self.spec), dims


@dataclasses.dataclass(frozen=True, repr=False)
class ScaledFused(FusedOfScaled):
    """As `FusedOfScaled`, of a product that is not grouped."""

    family: ClassVar[Family] = DENSE
    refuse_derivative = staticmethod(derivatives.of_product)
    roles: ClassVar[tuple[str, ...]] = DENSE.roles

    def _choose(self, name: str, platform: str, factors: Sequence[Any]) -> KernelCall | str:
        more = self.program, self.result_types, factors, self.surroundings
        return choose_scaled(name, platform, self.spec, *more)


@dataclasses.dataclass(frozen=True, repr=False)
class ScaledGroupedFused(FusedOfScaled, GroupedFused):
    """As `FusedOfScaled`, of an m-grouped product: as `GroupedFused`, neither gated nor halves."""

    family: ClassVar[Family] = RAGGED
    refuse_derivative = staticmethod(derivatives.of_grouped_product)
    roles: ClassVar[tuple[str, ...]] = RAGGED.roles

    def _choose(self, name: str, platform: str, factors: Sequence[Any]) -> KernelCall | str:
        more = self.program, self.result_types, factors, self.surroundings.also_read
        return choose_scaled_grouped(name, platform, self.spec, *more)


def scaled_with_epilogue(
    factors: Sequence[jax.Array], operands: Sequence[jax.Array], fused: ScaledFused
) -> list[jax.Array]:
    """Binds ``bw_scaled_epilogue_p``.

    Args:
        factors: A, B, the scales of both and alpha.
        operands: Arrays that broadcast to ``fused.shape``.
        fused: What is computed.
    """
    return bw_scaled_epilogue_p.bind(*compat.match_varying(*factors, *operands), fused=fused)


def scaled_ragged_with_epilogue(
    factors: Sequence[jax.Array], operands: Sequence[jax.Array], fused: ScaledGroupedFused
) -> list[jax.Array]:
    """Binds ``bw_scaled_ragged_epilogue_p``.

    Args:
        factors: The operands of `RAGGED`, all of batch 1.
        operands: As in `grouped_with_epilogue`.
        fused: What is computed.
    """
    operands = compat.match_varying(*factors, *operands)
    return bw_scaled_ragged_epilogue_p.bind(*operands, fused=fused)


register(bw_scaled_epilogue_p)
register(bw_scaled_ragged_epilogue_p)
