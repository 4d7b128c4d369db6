"""Where the scales of a matrix lie: the one table of layouts. Pure.

A matrix [..., R, K] is stored with the dimension that products contract, K, last: FP8 tensor-core
instructions read nothing else on Hopper.
"""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp
import numpy as np

FLOAT8 = (np.dtype(jnp.float8_e4m3fn), np.dtype(jnp.float8_e5m2))
FLOAT4 = (np.dtype(jnp.float4_e2m1fn),)
FLOAT32 = np.dtype(jnp.float32)


@dataclasses.dataclass(frozen=True)
class Layout:
    """One way to scale a matrix.

    Attributes:
        name: Its name in the public interface.
        block_k: Elements along K that share a scale; None: all.
        block_rows: Rows that share a scale; None: all.
        k_first: Whether the scales' K blocks come before their rows.
        scale_dtype: Type of the scales.
        value_dtypes: Types the values may have, the default first.
        has_global_scale: Whether one more f32 scale multiplies everything.
        read_by_mma: Whether SM100's MMA instructions multiply by these scales, and kernels do so.
        multiplied_as: The layout whose kernels multiply it, its values widened exactly. None: this.
    """

    name: str
    block_k: int | None
    block_rows: int | None
    k_first: bool = False
    scale_dtype: np.dtype = FLOAT32
    value_dtypes: tuple[np.dtype, ...] = FLOAT8
    has_global_scale: bool = False
    read_by_mma: bool = False
    multiplied_as: str | None = None

    @property
    def transposable(self) -> bool:
        """Whether the scales of the transposed matrix are the transposed scales."""
        return self.block_k == self.block_rows

    @property
    def exact_in_bfloat16(self) -> bool:
        """Whether a value times its block's scale is a bfloat16, but for overflow."""
        return self.scale_dtype != FLOAT32

    def scales_shapes(self, shape: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
        """Shapes that the scales of a matrix [..., R, K] may have, the usual one first."""
        *batch, rows, k = shape
        if self.block_k is None and self.block_rows is None:
            return ((), tuple(batch)) if batch else ((),)
        blocks = [-(-k // self.block_k)] if self.block_k else []
        lines = [-(-rows // self.block_rows)] if self.block_rows else []
        inner = blocks + lines if self.k_first else lines + blocks
        return ((*batch, *inner),)


LAYOUTS = {
    layout.name: layout
    for layout in (
        Layout("tensor", None, None),
        Layout("row", None, 1),
        Layout("1x128", 128, 1, k_first=True),
        Layout("128x128", 128, 128),
        Layout("mxfp8", 32, 1, scale_dtype=np.dtype(jnp.float8_e8m0fnu), read_by_mma=True),
        Layout(
            "mxfp4",
            32,
            1,
            scale_dtype=np.dtype(jnp.float8_e8m0fnu),
            value_dtypes=FLOAT4,
            multiplied_as="mxfp8",
        ),
        Layout(
            "nvfp4",
            16,
            1,
            scale_dtype=np.dtype(jnp.float8_e4m3fn),
            value_dtypes=FLOAT4,
            has_global_scale=True,
            read_by_mma=True,
        ),
    )
}


def multipliable(*scalings: str) -> bool:
    """Whether such operands can be multiplied by kernels: of f32 scales, or of one layout."""
    layouts = {layout_of(layout_of(name).multiplied_as or name) for name in scalings}
    return len(layouts) == 1 or {layout.scale_dtype for layout in layouts} == {FLOAT32}


def layout_of(scaling: object, what: str = "scaling") -> Layout:
    """The layout of that name.

    Args:
        scaling: The name.
        what: What it is of, for messages.

    Raises:
        ValueError: There is none.
    """
    if not isinstance(scaling, str) or scaling not in LAYOUTS:
        known = ", ".join(repr(name) for name in LAYOUTS)
        raise ValueError(f"{what} must be one of {known}, got {scaling!r}")
    return LAYOUTS[scaling]
