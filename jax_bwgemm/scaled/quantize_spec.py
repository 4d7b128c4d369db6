"""What is static about quantizing a batch of matrices, and the shapes that follow. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp

from jax_bwgemm.config import Target
from jax_bwgemm.scaled.layouts import FLOAT32, Layout, layout_of
from jax_bwgemm.scaled.random_bits import WORDS


@dataclasses.dataclass(frozen=True)
class QuantizeSpec:
    """Everything static about quantizing x [B, R, K]. Hashable; the primitive's only parameter.

    Operands are x, then by need: ``scales``, ``t_scales``, ``random``. Results are ``values``, and
    by need ``t_values``, ``scales``, ``t_scales``, ``amax``; those with ``t_`` are of the
    transposed matrices.

    Attributes:
        scaling: The layout.
        dtype: Name of the values' type.
        transposed: Whether the transposed copy is wanted.
        power_of_two: Whether scales are rounded up to powers of two.
        epsilon: Least amax.
        stochastic: Whether values are rounded by random bits.
        amax: Whether the largest magnitude of each matrix is wanted.
        square_blocks: Whether as many rows as columns share a scale; of layouts without kernels.
        implementations: Names to try, in order.
        target: Architecture chosen explicitly; None means that of the device at lowering.
    """

    scaling: str
    dtype: str
    transposed: bool = False
    power_of_two: bool = False
    epsilon: float = 0.0
    stochastic: bool = False
    amax: bool = False
    square_blocks: bool = False
    implementations: tuple[str, ...] = ("xla",)
    target: Target | None = None

    @property
    def layout(self) -> Layout:
        """The layout's record."""
        return layout_of(self.scaling)

    @property
    def given_scales(self) -> bool:
        """Whether scales are operands: those of what is larger than a tile."""
        return self.layout.block_k is None

    @property
    def operand_names(self) -> tuple[str, ...]:
        """Names of the operands, in order."""
        names = ["x"]
        if self.given_scales:
            names += ["scales", "t_scales"] if self.own_scales else ["scales"]
        return (*names, *(["random"] if self.stochastic else []))

    @property
    def own_scales(self) -> bool:
        """Whether there is a transposed copy whose scales are not those of the matrix."""
        return self.transposed and not (self.layout.transposable and self.given_scales)

    @property
    def result_names(self) -> tuple[str, ...]:
        """Names of the results, in order."""
        names = ["values", *(["t_values"] if self.transposed else [])]
        if not self.given_scales:
            names += ["scales", *(["t_scales"] if self.transposed else [])]
        return (*names, *(["amax"] if self.amax else []))

    def dimensions(self, name: str) -> tuple[str, ...]:
        """Names of a buffer's dimensions: ``b``, ``r``, ``k``, blocks of these ``R`` and ``K``."""
        if name == "amax":
            return ("b",)
        if name == "random":
            return ("b", "w")
        own, other = ("k", "r") if name.startswith("t_") else ("r", "k")
        if not name.endswith("scales"):
            return ("b", own, other)
        layout = self.layout
        rows = [] if layout.block_rows is None else [own if layout.block_rows == 1 else own.upper()]
        blocks = [] if layout.block_k is None else [other.upper()]
        return ("b", *(blocks + rows if layout.k_first else rows + blocks))

    def shape(self, name: str, x_shape: Sequence[int]) -> jax.ShapeDtypeStruct:
        """Shape and type of a buffer other than x."""
        batch, rows, k = x_shape
        block = self.layout.block_k or 1
        sizes = {"b": batch, "r": rows, "k": k, "w": WORDS}
        sizes |= {"R": -(-rows // block), "K": -(-k // block)}
        types = {"random": jnp.int32, "values": self.dtype, "t_values": self.dtype}
        dtype = types.get(name, FLOAT32)
        return jax.ShapeDtypeStruct([sizes[d] for d in self.dimensions(name)], dtype)

    def describe(self, x_shape: Sequence[int], x_dtype: object) -> str:
        """The problem in one line, for messages."""
        copies = ", and transposed" * self.transposed + ", randomly rounded" * self.stochastic
        batch, rows, k = x_shape
        return (
            f"quantize {jnp.dtype(x_dtype).name} -> {self.dtype} {self.scaling}{copies}, "
            f"[B={batch}, R={rows}, K={k}]"
        )
