"""What tuning has to know of a problem: what to try, with which operands, how to run it."""

from __future__ import annotations

import abc
import functools
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp

from jax_bwgemm.tuning.records import Choice

Operands = tuple[jax.Array, ...]


class Work(abc.ABC):
    """One problem as tuning sees it.

    Attributes:
        bytes: Size of A and B.
    """

    bytes: int

    @abc.abstractmethod
    def kernels_to_try(self, limit: int) -> list[Choice]:
        """The heuristic's choice, then at most ``limit - 1`` others, the most promising first.

        Raises:
            ValueError: No kernel can run the problem.
        """

    @abc.abstractmethod
    def orders_to_try(self, choice: Choice, known: Sequence[Choice]) -> list[Choice]:
        """Other tile orders of a choice's kernel that are worth measuring."""

    @abc.abstractmethod
    def operands(self, copies: int) -> Callable[[int], Operands]:
        """Draws that many copies of A and B, and gives the operands of a call by its number."""

    @abc.abstractmethod
    def emit(self, choice: Choice, *operands: jax.Array) -> jax.Array:
        """The call of a kernel, to be traced."""


@functools.partial(jax.jit, static_argnums=(1, 2))
def draw(key: jax.Array, dtype: str, shape: tuple[int, ...]) -> jax.Array:
    """Normal numbers: how many bits toggle decides power, and so the clock."""
    wide = dtype if jnp.finfo(dtype).bits >= 16 else "bfloat16"
    return jax.random.normal(key, shape, wide).astype(dtype)
