"""Random epilogues for hypothesis: every operation of them is exact on small integers."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from hypothesis import strategies as st

F32 = jnp.float32


@st.composite
def functions(
    draw: Any, *, m: int, n: int, most: int, products: int = 1, results: int = 2
) -> tuple[Any, list[tuple[str, tuple[int, ...]]]]:
    """Functions of products and of operands; types and shapes of the operands.

    Args:
        draw: Of hypothesis.
        m: Rows of the product.
        n: Its columns.
        most: Operations.
        products: How many, of one shape.
        results: At most.
    """
    types = st.sampled_from(["float32", "bfloat16", "float16", "int32"])
    shapes = st.sampled_from([(), (n,), (1, n), (m, 1), (m, n)])
    arrays = draw(st.lists(st.tuples(types, shapes), max_size=4))
    choices = draw(st.lists(st.integers(0, 2**30), min_size=3, max_size=most))
    count = draw(st.integers(1, results))

    def f(*xs: jax.Array) -> list[jax.Array]:
        shape = xs[0].shape  # of the products, which come first
        found = [*xs, *(jax.lax.broadcasted_iota(jnp.int32, shape, d) for d in (0, 1))]
        for c in choices:
            x, y = (found[i % len(found)] for i in (c, c // 7))
            x, y = jnp.broadcast_arrays(*(v.astype(F32) for v in (x, y)))
            operations = [
                lambda x, y: x + y, lambda x, y: x - y, jnp.maximum, jnp.minimum,
                lambda x, y: jnp.where(x > y, x, y * 2), lambda x, y: jnp.floor(x / 2),
                lambda x, y: (x.astype(jnp.int32) ^ y.astype(jnp.int32)).astype(F32),
                lambda x, y: jnp.abs(x) + jnp.sign(y), lambda x, y: jnp.square(jnp.clip(x, -9, y)),
            ]  # fmt: skip
            found.append(operations[c // 64 % len(operations)](x, y))
        return [jnp.broadcast_to(x.astype(F32), shape) for x in found[-count:]]

    return f, arrays
