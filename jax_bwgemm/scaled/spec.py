"""What is static about a scaled product. Pure."""

from __future__ import annotations

import dataclasses

from jax_bwgemm.config import Target


@dataclasses.dataclass(frozen=True)
class ScaledSpec:
    """Everything static about a scaled product. Hashable; the only parameter of the primitive.

    Attributes:
        a_scaling: Layout of A's scales.
        b_scaling: Layout of B's scales.
        out_dtype: Name of the result's type.
        accumulation: ``"promoted"`` or ``"fast"``.
        implementations: Names to try, in order.
        target: Architecture chosen explicitly; None means that of the device at lowering.
    """

    a_scaling: str
    b_scaling: str
    out_dtype: str
    accumulation: str
    implementations: tuple[str, ...]
    target: Target | None = None


@dataclasses.dataclass(frozen=True)
class ScaledDims:
    """Sizes of a scaled product, and the types of its operands.

    Attributes:
        batch: Products.
        m: Rows of A.
        n: Rows of B.
        k: What is contracted.
        a_dtype: Name of the type of A's values.
        b_dtype: Name of the type of B's values.
    """

    batch: int
    m: int
    n: int
    k: int
    a_dtype: str
    b_dtype: str

    def describe(self, spec: ScaledSpec) -> str:
        """The product in one line, for messages."""
        return (
            f"scaled GEMM {self.a_dtype} {spec.a_scaling} x {self.b_dtype} {spec.b_scaling} -> "
            f"{spec.out_dtype}, {spec.accumulation}, [B={self.batch}, M={self.m}, N={self.n}, "
            f"K={self.k}]"
        )
