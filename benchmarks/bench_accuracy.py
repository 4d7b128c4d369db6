"""Errors of products of f32 operands against f64: this package's kernels beside XLA's algorithms.

    python bench_accuracy.py

A row for each kind of values, a column for each algorithm: the largest error over the sum of the
products' magnitudes, which no order of summation changes. `f32 x bf16` has its own operands. Of
values that are not finite: how many results are of another class (finite, +inf, -inf, NaN) than
IEEE's.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from common import options, report
from jax import lax

PRESETS = lax.DotAlgorithmPreset
# Precision by column: of ours, of XLA's.
OURS = {"x3": lax.Precision.HIGH, "x6": PRESETS.BF16_BF16_F32_X6, "highest": lax.Precision.HIGHEST}
XLA = {
    "xla tf32": PRESETS.TF32_TF32_F32,
    "xla x3": PRESETS.BF16_BF16_F32_X3,
    "xla x6": PRESETS.BF16_BF16_F32_X6,
    "xla x9": PRESETS.BF16_BF16_F32_X9,
    "xla f32": PRESETS.F32_F32_F32,
}
SIZES = {False: (2048, 2048, 4096), True: (16, 24, 64)}  # M, N, K; of a rehearsal


def _normal(rng: np.random.Generator, a: np.ndarray, b: np.ndarray) -> None:
    del rng, a, b


def _wide(rng: np.random.Generator, a: np.ndarray, b: np.ndarray) -> None:
    a *= 2.0 ** rng.integers(-20, 21, a.shape)
    b *= 2.0 ** rng.integers(-20, 21, b.shape)


def _cancels(rng: np.random.Generator, a: np.ndarray, b: np.ndarray) -> None:
    """The second half of K takes away what the first adds, but for a thousandth."""
    half = a.shape[1] // 2
    a[:, half:] = -a[:, :half] * (1 + 1e-3 * rng.standard_normal((a.shape[0], half)))
    b[half:] = b[:half]


def _small(rng: np.random.Generator, a: np.ndarray, b: np.ndarray) -> None:
    """Normal numbers of f32 whose low terms are below bf16's least."""
    del rng
    a *= 2.0**-118
    b *= 2.0**60


def _denormal(rng: np.random.Generator, a: np.ndarray, b: np.ndarray) -> None:
    del rng
    a *= 2.0**-130
    b *= 2.0**60


def _largest(rng: np.random.Generator, a: np.ndarray, b: np.ndarray) -> None:
    """Up to f32's largest, which bf16's is below."""
    a[...] = rng.uniform(-1, 1, a.shape) * float(np.finfo(np.float32).max)
    a[:, 0] = np.finfo(np.float32).max
    b *= 2.0**-40


def _infinite(rng: np.random.Generator, a: np.ndarray, b: np.ndarray) -> None:
    a[rng.random(a.shape) < 0.2 / a.shape[1]] = np.inf
    b[rng.random(b.shape) < 0.2 / b.shape[0]] = -np.inf


def _nan(rng: np.random.Generator, a: np.ndarray, b: np.ndarray) -> None:
    a[rng.random(a.shape) < 0.2 / a.shape[1]] = np.nan
    b[rng.random(b.shape) < 0.2 / b.shape[0]] = np.inf


KINDS: dict[str, Callable[[np.random.Generator, np.ndarray, np.ndarray], None]] = {
    "normal": _normal,
    "wide exponents": _wide,
    "cancellation": _cancels,
    "2^-118": _small,
    "denormal": _denormal,
    "up to the largest": _largest,
    "infinite": _infinite,
    "NaN": _nan,
}


def _class(x: np.ndarray) -> np.ndarray:
    return np.where(np.isnan(x), 2, np.where(np.isinf(x), np.sign(x), 0))


def difference(got: Any, a: np.ndarray, b: np.ndarray) -> float:
    """The error as the module's docstring defines it."""
    a, b = a.astype(np.float64), b.astype(np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        exact = a @ b
        if not (np.isfinite(a).all() and np.isfinite(b).all()):
            return float(np.sum(_class(np.asarray(got)) != _class(exact)))
        error = np.abs(np.asarray(got, np.float64) - exact) / (np.abs(a) @ np.abs(b))
    return float(np.max(error))


def columns(implementation: Any) -> dict[str, tuple[Callable[..., jax.Array], bool]]:
    """Each column's product, and whether its second operand is rounded to bf16 first."""
    import jax_bwgemm

    # The CPU has few of XLA's algorithms: a rehearsal has its own.
    gpu = jax.default_backend() == "gpu"
    dot = functools.partial(jnp.matmul, preferred_element_type=jnp.float32)
    ours = functools.partial(
        jax_bwgemm.matmul, preferred_element_type=jnp.float32, implementation=implementation
    )
    of: dict[str, tuple[Callable[..., jax.Array], bool]] = {"f32 x bf16": (ours, True)}
    for name, precision in OURS.items():
        of[name] = functools.partial(ours, precision=precision), False
    for name, preset in XLA.items():
        of[name] = functools.partial(dot, precision=preset if gpu else None), False
    return of


def main(argv: Sequence[str] | None = None) -> int:
    args = options.parser(__doc__.split("\n", 1)[0]).parse_args(argv)
    if args.dry_run:
        print(*KINDS, sep="\n")
        return 0
    options.prepare(args)
    out = report.Report(args.out, "bench_accuracy")
    m, n, k = SIZES[args.small]
    rows = []
    for kind, change in KINDS.items():
        rng = np.random.default_rng(args.seed)
        a, b = (rng.standard_normal(shape) for shape in ((m, k), (k, n)))
        change(rng, a, b)
        a, b = a.astype(np.float32), b.astype(np.float32)
        found = {}
        for name, (product, rounds) in columns(options.implementation_of(args)).items():
            rhs = jnp.asarray(b, jnp.bfloat16 if rounds else jnp.float32)
            found[name] = difference(jax.jit(product)(a, rhs), a, np.asarray(rhs, np.float32))
        rows.append(out.add("accuracy", values=kind, m=m, n=n, k=k, **found))
    print(report.table(rows, ("values", *columns(None))))
    out.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
