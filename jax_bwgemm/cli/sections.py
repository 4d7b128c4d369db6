"""What the sections of the demo have in common: options, checks and their table."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np

import jax_bwgemm
from jax_bwgemm.cli.info import decision

# Relative error that counts as none: a few units in the last place of float32.
TINY = 2.0**-22


@dataclasses.dataclass(frozen=True)
class Options:
    """What the user asked the demo for.

    Attributes:
      dtype: operand type of all products.
      implementation: the package's `implementation=` argument.
      steps: training steps.
      seed: of all random numbers.
    """

    dtype: str = "bfloat16"
    implementation: str | None = None
    steps: int = 150
    seed: int = 0

    @property
    def matmul(self) -> Callable[..., jax.Array]:
        """`jax_bwgemm.matmul` with the chosen implementation."""
        return functools.partial(jax_bwgemm.matmul, implementation=self.implementation)


@dataclasses.dataclass(frozen=True)
class Check:
    """One comparison.

    Attributes:
      name: what was compared.
      ours: error of this package.
      xla: error of `jnp.matmul` on the same input, None where it plays no part.
      allowed: largest error of ours that passes.
    """

    name: str
    ours: float
    xla: float | None
    allowed: float

    @property
    def passed(self) -> bool:
        """Whether the error is within bounds; not a number never is."""
        return self.ours <= self.allowed

    @classmethod
    def against_xla(cls, name: str, ours: float, xla: float) -> Check:
        """The package may be at most twice as far from the reference as XLA's own product."""
        return cls(name, ours, xla, 2 * xla + TINY)


@dataclasses.dataclass(frozen=True)
class Section:
    """A part of the demo.

    Attributes:
      name: as given to --sections.
      title: printed above its output.
      unavailable: one sentence on why it cannot run here, or None.
      run: takes the options and a function that prints a line; returns the checks.
    """

    name: str
    title: str
    unavailable: Callable[[], str | None]
    run: Callable[[Options, Callable[[str], None]], Sequence[Check]]


# dot_general dimension numbers of a @ b, a @ b.T and a.T @ b.
PLAIN, RIGHT_TRANSPOSED, LEFT_TRANSPOSED = (
    (((left,), (right,)), ((), ())) for left, right in ((1, 0), (1, 1), (0, 0))
)


def what_runs(options: Options, lhs: tuple, rhs: tuple, dimension_numbers: tuple = PLAIN) -> str:
    """Which implementation and kernel a product of these shapes gets here, and why, on one line.

    Raises:
      NotImplementedError: the implementation asked for cannot run it.
    """
    found = jax_bwgemm.explain(
        jax.ShapeDtypeStruct(lhs, options.dtype),
        jax.ShapeDtypeStruct(rhs, options.dtype),
        dimension_numbers,
        implementation=options.implementation,
        # Where arrays go by default, which `jax.default_device` may have moved off the GPU.
        device=jnp.zeros(()).devices().pop(),
    )
    return decision(found)


def relative_error(got: jax.Array, want: np.ndarray) -> float:
    """Largest absolute error over the largest value of `want`, computed in float64."""
    got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
    if got.shape != want.shape:
        return math.inf
    return float(np.max(np.abs(got - want)) / np.max(np.abs(want)))


def checks_table(checks: Sequence[Check]) -> str:
    """The final table of the demo."""
    header = ("check", "error", "XLA's error", "allowed", "result")
    rows = [header] + [
        (
            check.name,
            f"{check.ours:.2e}",
            "-" if check.xla is None else f"{check.xla:.2e}",
            f"{check.allowed:.2e}",
            "ok" if check.passed else "FAILED",
        )
        for check in checks
    ]
    widths = [max(len(row[i]) for row in rows) for i in range(len(header))]
    lines = ["  ".join(c.ljust(w) for c, w in zip(r, widths, strict=True)).rstrip() for r in rows]
    lines.insert(1, "  ".join("-" * w for w in widths))
    return "\n".join(lines)
