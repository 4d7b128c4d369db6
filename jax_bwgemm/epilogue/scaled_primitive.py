"""The primitive ``bw_scaled_epilogue_p``: a product of scaled operands and a function of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar

import jax
from jax.interpreters import ad

from jax_bwgemm import compat
from jax_bwgemm.compat import Primitive
from jax_bwgemm.epilogue.fused import Fused
from jax_bwgemm.epilogue.primitive import register
from jax_bwgemm.epilogue.scaled_call import arranged, choose_scaled
from jax_bwgemm.product.contraction import KernelCall
from jax_bwgemm.scaled import derivatives
from jax_bwgemm.scaled.primitive import DENSE

bw_scaled_epilogue_p = Primitive("bw_scaled_epilogue")
bw_scaled_epilogue_p.multiple_results = True


@dataclasses.dataclass(frozen=True, repr=False)
class ScaledFused(Fused):
    """As `Fused`, of a product of scaled operands, which has no derivative itself."""

    roles: ClassVar[tuple[str, ...]] = DENSE.roles

    def arrange(self, factors: Sequence[jax.Array]) -> Sequence[jax.Array]:
        return arranged(factors, self.spec)

    def product(self, *factors: jax.Array) -> jax.Array:
        return DENSE.product(factors, self.spec).reshape(self.shape)

    def tangents(self, factors: Sequence[Any], moved: Sequence[Any]) -> list[jax.Array]:
        if any(not isinstance(tangent, ad.Zero) for tangent in moved):
            derivatives.of_product()
        return []

    def choose(self, name: str, platform: str, factors: Sequence[Any]) -> KernelCall | str:
        more = self.program, self.result_types, factors, self.surroundings
        return choose_scaled(name, platform, self.spec, *more)

    def describe(self, factors: Sequence[Any]) -> tuple[str, Any]:
        dims = DENSE.dims_of(factors, self.spec)
        return dims.describe(self.spec), dims


def scaled_with_epilogue(
    factors: Sequence[jax.Array], operands: Sequence[jax.Array], fused: ScaledFused
) -> list[jax.Array]:
    """Binds the primitive.

    Args:
        factors: A, B, the scales of both and alpha.
        operands: Arrays that broadcast to ``fused.shape``.
        fused: What is computed.
    """
    return bw_scaled_epilogue_p.bind(*compat.match_varying(*factors, *operands), fused=fused)


register(bw_scaled_epilogue_p)
