"""Functions that sanitize_linked.py links into kernels: exact on small integers."""

from __future__ import annotations

import dataclasses
from itertools import count
from typing import Any

import numpy as np

# Kind and type of an operand of a function: a row of values, a column, a scalar, a matrix.
Operand = tuple[str, str]
KINDS = ("row", "column", "scalar", "matrix")
TYPES = ("bfloat16", "float32", "float16", "int32")


@dataclasses.dataclass(frozen=True)
class Composed:
    """A function of a product or two and of operands.

    Attributes:
        operations: What is done, one number for each: each operation reads two of what there is.
        types: Type of each result, "float32" or "int32"; the last operations' values, last first.
        sums: How many of the results it returns again, summed over `axis`.
        axis: 0 sums rows, 1 columns.
        terms: Whether it returns the terms of these sums instead, for a kernel that adds them up.
    """

    operations: tuple[int, ...]
    types: tuple[str, ...]
    sums: int = 0
    axis: int = 0
    terms: bool = False

    def __call__(self, z: Any, *xs: Any) -> list[Any]:
        import jax.numpy as jnp
        from jax import lax

        wide = jnp.float32
        operations = (
            lambda x, y: x + y,
            lambda x, y: x - y,
            jnp.maximum,
            jnp.minimum,
            lambda x, y: jnp.where(x > y, x, y * 2),
            lambda x, y: jnp.floor(x / 2),
            lambda x, y: (x.astype(jnp.int32) ^ y.astype(jnp.int32)).astype(wide),
            lambda x, y: jnp.abs(x) + jnp.sign(y),
        )
        position = (lax.broadcasted_iota(jnp.int32, z.shape, z.ndim - d) % 8 for d in (2, 1))
        found = [z, *xs, *position]
        for number in self.operations:
            x, y = (found[i % len(found)].astype(wide) for i in (number, number // 7))
            # A few bits, so that sums are exact.
            value = operations[number // 64 % len(operations)](x, y)
            found.append(jnp.clip(jnp.broadcast_to(value, z.shape), -64, 64))
        matrices = [jnp.broadcast_to(x, z.shape).astype(wide) for x in found[::-1]]
        results = [x.astype(t) for x, t in zip(matrices, self.types, strict=False)]
        terms = [jnp.clip(x, -9, 9) for x in matrices[: self.sums]]
        return [*results, *(x if self.terms else jnp.sum(x, self.axis) for x in terms)]


def chain(operands: int) -> tuple[int, ...]:
    """Operations that read all of so many operands, each with what came before it."""
    found = []
    for i in range(operands):
        there = 3 + operands + i
        last = there - 1 if i else 0
        numbers = (x for x in count() if (x % there, x // 7 % there) == (1 + i, last))
        found.append(next(x for x in numbers if x // 64 % 8 == (0, 1, 4)[i % 3]))
    return tuple(found)


def random_operands(rng: np.random.Generator, kinds: tuple[str, ...], most: int) -> list[Operand]:
    """Fewer than ``most`` of random kinds and types."""
    return [
        (kinds[rng.integers(len(kinds))], TYPES[rng.integers(len(TYPES))])
        for _ in range(rng.integers(most))
    ]


def random_operations(rng: np.random.Generator) -> tuple[int, ...]:
    """As `Composed.operations`."""
    return tuple(int(x) for x in rng.integers(0, 2**30, rng.integers(3, 10)))
