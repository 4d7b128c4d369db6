"""Two products that a program writes as one, whose columns it divides: as `Fused` to `fuse.py`."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax

from jax_bwgemm.epilogue.costs import ALONE, Surroundings
from jax_bwgemm.epilogue.gated import Gated
from jax_bwgemm.epilogue.gated_call import choose_gated
from jax_bwgemm.epilogue.gated_pair import pair_refusal
from jax_bwgemm.product.contraction import KernelCall


@dataclasses.dataclass(frozen=True)
class GatedFused:
    """What is computed of a product [..., 2N] whose halves a function reads.

    Attributes:
        gated: The same of stacked matrices.
        surroundings: What the function would cost outside the kernel.
    """

    gated: Gated
    surroundings: Surroundings = ALONE

    @property
    def spec(self) -> Any:
        """Of either product."""
        return self.gated.of_gate.spec

    def with_product(self) -> GatedFused:
        """The same, which returns both halves as well."""
        return dataclasses.replace(self, gated=self.gated.with_products())

    def factors(self, operands: Sequence[Any]) -> tuple[Sequence[Any], Sequence[Any]]:
        """The product's operands, and the function's."""
        return operands[:2], operands[2:]

    def choose(self, name: str, platform: str, factors: Sequence[Any]) -> KernelCall | str | None:
        """The kernel of both products; None where two of its own compute them; or why neither.

        Args:
            name: ``"cutlass"`` or ``"emulator"``.
            platform: JAX platform being lowered for.
            factors: The product's operands, or their types.
        """
        a, b = factors
        given = a, jax.ShapeDtypeStruct(stacked_shape(b.shape), b.dtype)
        call = choose_gated(name, platform, self.gated.problem, given)
        if isinstance(call, str) and pair_refusal(given, self.gated.of_pair, platform) is None:
            return None
        return call


def stacked_shape(shape: Sequence[int]) -> tuple[int, int, int]:
    """Of a B [1, K, 2N] as stacked matrices."""
    _, k, n = shape
    return k, 2, n // 2
