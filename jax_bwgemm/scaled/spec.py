"""What is static about a scaled product. Pure."""

from __future__ import annotations

import dataclasses

from jax_bwgemm.product.spec import ProductSpec

ACCUMULATIONS = ("promoted", "fast")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScaledSpec(ProductSpec):
    """Everything static about a scaled product. Hashable; the only parameter of the primitive.

    Attributes:
        a_scaling: Layout of A's scales.
        b_scaling: Layout of B's scales.
        accumulation: ``"promoted"`` or ``"fast"``.
    """

    a_scaling: str
    b_scaling: str
    accumulation: str

    @property
    def kind(self) -> str:
        return "scaled"

    @property
    def majors(self) -> str:
        return "kk"

    def _more(self) -> list[str]:
        return [f"{self.a_scaling} x {self.b_scaling}", self.accumulation]


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
        a_batch: Matrices A; None: as many as products.
        b_batch: Matrices B, likewise.
    """

    batch: int
    m: int
    n: int
    k: int
    a_dtype: str
    b_dtype: str
    a_batch: int | None = None
    b_batch: int | None = None

    @property
    def empty(self) -> bool:
        """Whether there is nothing to multiply: the result is empty or all zeros."""
        return 0 in (self.batch, self.m, self.n, self.k)

    def describe(self, spec: ScaledSpec) -> str:
        """The product in one line, for messages."""
        return (
            f"scaled GEMM {self.a_dtype} {spec.a_scaling} x {self.b_dtype} {spec.b_scaling} -> "
            f"{spec.out_dtype}, {spec.accumulation}, [B={self.batch}, M={self.m}, N={self.n}, "
            f"K={self.k}]"
        )
