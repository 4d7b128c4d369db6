"""Cases of `quantize` whose kernel must equal the reference bit by bit."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np

import jax_bwgemm as bw

KERNEL_SCALINGS = ("tensor", "row", "1x128", "128x128")


@dataclasses.dataclass(frozen=True)
class QuantizeCase:
    """One call. ``x_dtype`` and ``dtype`` are names of types."""

    shape: tuple[int, ...]
    scaling: str
    x_dtype: str = "bfloat16"
    dtype: str = "float8_e4m3fn"
    transposed: bool = True
    power_of_two: bool = False
    stochastic: bool = False
    epsilon: float = 0.0
    special: bool = False

    def __str__(self) -> str:
        shape = "x".join(map(str, self.shape))
        flags = ("transposed", "power_of_two", "stochastic", "special")
        words = [flag for flag in flags if getattr(self, flag)]
        return "-".join([self.x_dtype, self.dtype[7:], self.scaling, shape, *words])

    def x(self) -> np.ndarray:
        """Numbers of many magnitudes, a twentieth of them zeros; if special: the odd ones too."""
        rng = np.random.default_rng(0)
        x = rng.standard_normal(self.shape) * np.exp(4 * rng.standard_normal(self.shape))
        x[rng.random(self.shape) < 0.05] = 0
        if self.special:
            flat = x.reshape(-1)
            flat[:6] = [np.inf, -np.inf, np.nan, -np.nan, 1e-40, -0.0]
            flat[-3:] = [-np.inf, 1e-39, -1e-45]
        return np.asarray(jnp.asarray(x, jnp.float32).astype(self.x_dtype))

    def run(self, implementation: str, x: np.ndarray) -> list[np.ndarray]:
        """The bytes of every result, those of all NaNs alike."""
        key = jax.random.key(7) if self.stochastic else None

        def f(x: jax.Array) -> object:
            return bw.quantize(
                x,
                self.scaling,
                dtype=self.dtype,
                transposed=self.transposed,
                power_of_two=self.power_of_two,
                epsilon=self.epsilon,
                key=key,
                implementation=implementation,
            )

        return [_bytes(np.atleast_1d(leaf)) for leaf in jax.tree.leaves(jax.jit(f)(x))]


def _bytes(x: np.ndarray) -> np.ndarray:
    return np.where(np.isnan(x), np.asarray(np.nan, x.dtype), x).view(np.uint8)


def grid(shape: tuple[int, ...]) -> Iterator[QuantizeCase]:
    """Every layout, type, copy and rounding of one shape, in all combinations that share code."""
    x_dtypes = itertools.cycle(("bfloat16", "float32", "float16"))
    dtypes = itertools.cycle(("float8_e4m3fn", "float8_e5m2"))
    for scaling, transposed, power_of_two, stochastic in itertools.product(
        KERNEL_SCALINGS, (False, True), (False, True), (False, True)
    ):
        yield QuantizeCase(
            shape,
            scaling,
            next(x_dtypes),
            next(dtypes),
            transposed,
            power_of_two,
            stochastic,
            epsilon=1e-3 if power_of_two else 0.0,
        )


def special() -> Iterator[QuantizeCase]:
    """Infinities, NaNs, subnormal numbers and signed zeros."""
    for scaling, dtype, x_dtype in itertools.product(
        KERNEL_SCALINGS, ("float8_e4m3fn", "float8_e5m2"), ("bfloat16", "float32")
    ):
        yield QuantizeCase((130, 200), scaling, x_dtype, dtype, special=True)
