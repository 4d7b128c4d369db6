"""Quantizations of functions of arrays: what one kernel has to give, exactly."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numerics import assert_exact

import jax_bwgemm as bw

F32 = jnp.float32


def integers(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> jax.Array:
    return jnp.asarray(rng.integers(-4, 5, shape), dtype)


def halves(y: jax.Array) -> tuple[jax.Array, jax.Array]:
    return tuple(jnp.split(y, 2, axis=-1))  # type: ignore[return-value]


def product_of_halves(y: jax.Array, row: jax.Array, column: jax.Array) -> jax.Array:
    """Columns of one array, a row, a column of float32."""
    gate, up = halves(y)
    return (gate * up + row) * column.astype(y.dtype)


def side_by_side(g: jax.Array, y: jax.Array) -> jax.Array:
    """Two parts, as the gradient of a gate is, from whole arrays and columns of one."""
    gate, up = halves(y)
    return jnp.concatenate([g * up, jnp.where(gate > 0, g, -gate)], axis=-1)


def of_two_widths(g: jax.Array, y: jax.Array, integers: jax.Array) -> jax.Array:
    """Two parts of which one is twice as wide as the other, an array of int32."""
    return jnp.concatenate([g * integers.astype(g.dtype), y * y], axis=-1)


def of_slices(y: jax.Array, other: jax.Array) -> jax.Array:
    """Columns as slices, an array of float32, the position."""
    half = y.shape[-1] // 2
    columns = jax.lax.broadcasted_iota(jnp.int32, (y.shape[0], half), 1)
    found = jnp.where(columns % 3 == 0, y[:, half:], y[:, :half])
    return found * other.astype(y.dtype)


# name -> (function, (columns of each operand in halves of y, or "row", "column"; type or None))
FUNCTIONS: dict[str, tuple[Callable[..., Any], list[tuple[Any, str | None]]]] = {
    "product of halves": (product_of_halves, [(2, None), ("row", None), ("column", "float32")]),
    "side by side": (side_by_side, [(1, None), (2, None)]),
    "two widths": (of_two_widths, [(1, None), (2, None), (1, "int32")]),
    "slices": (of_slices, [(2, None), (1, "float32")]),
}
# Layout, type, transposed, scale, random.
OPTIONS: list[dict[str, Any]] = [
    {"scaling": "1x128", "transposed": True, "power_of_two": True},
    {"scaling": "1x128", "dtype": "float8_e5m2"},
    {"scaling": "128x128", "transposed": True},
    {"scaling": "tensor", "transposed": True, "scale": 0.25, "dtype": "float8_e5m2"},
    {"scaling": "1x128", "transposed": True, "key": 3},
]


def check(
    name: str,
    options: dict[str, Any],
    rows: int,
    half: int,
    dtype: str,
    implementation: str,
    kernel: str = "",
) -> None:
    """The kernel gives what XLA does, bit by bit."""
    rng = np.random.default_rng(rows + half)
    f, kinds = FUNCTIONS[name]
    shapes = {"row": (half,), "column": (rows, 1)}
    arrays = [
        integers(rng, shapes[kind] if isinstance(kind, str) else (rows, kind * half), t or dtype)
        for kind, t in kinds
    ]
    options = dict(options)
    if "key" in options:
        options["key"] = jax.random.key(options["key"])

    def quantized(*arrays: Any, implementation: Any) -> Any:
        return bw.quantize(f(*arrays), implementation=implementation, **options)

    ours = jax.jit(bw.accelerate(lambda *xs: quantized(*xs, implementation=implementation)))
    lowered = ours.lower(*arrays)
    assert lowered.as_text().count("source_digest") == 1
    assert kernel in lowered.as_text()
    got = lowered.compile()(*arrays)
    want = jax.jit(lambda *xs: quantized(*xs, implementation="xla"))(*arrays)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert_exact(a.astype(F32), b.astype(F32))
