"""The tolerance policy: how results are compared. No test has numbers of its own.

1. exact: small-integer inputs, bitwise equality. Finds indexing, layout and tail errors.
2. relative: normal inputs, error at most twice that of XLA's own same-type result, against f64.
3. similarity: products of 8-bit operands against f64 of the same operands, and quantized values
   against what was quantized, in decibels.
4. gradients: structure by `jax.test_util.check_grads` in f32 (its tolerances are set here).
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from ml_dtypes import bfloat16

# Differences of f32 values around 1 with step 1e-2 are good to about 1e-3 of their size.
CHECK_GRADS = {"atol": 2e-2, "rtol": 2e-2}
# Least signal-to-noise ratios in dB of normal values rounded to so many bits of fraction (the
# implicit one not counted): 6 dB for each bit, less what a scale that is no exact fit costs.
FRACTION_DB = {3: 31.0, 2: 25.0, 1: 18.0}
# Of a product of two such operands: the noise of both is added.
PRODUCT_DB = {(3, 3): 28.0, (3, 2): 24.0}
# Of a product of quantized operands against f64 of the same operands: f32 sums.
SAME_OPERANDS_DB = 100.0
# A mean of 4,096 stochastic roundings of a number, in steps between its neighbours: six sigmas.
STOCHASTIC_MEAN = 6 * 0.5 / 64
# Last losses of the example that trains in low precision, relative to those in bfloat16.
LOW_PRECISION_LOSS = 1e-2
# Losses and their derivatives, f32 sums of some dozen terms in another order; a Hessian's are a
# hundred times as large as the terms that cancel in it.
LOSS = {"atol": 1e-3, "rtol": 1e-4}
# Layers in f32 and their gradients, sums of some dozen terms in another order: of each element, or
# of the array's largest, because terms of that size may cancel in any element.
LAYERS = {"element": 1e-4, "largest": 1e-5}
# Largest error of a product of two f32 operands over the root mean square, by precision.
F32_PRODUCTS = {"high": 5e-5, "highest": 2e-6}
# The same on a GPU for K = 4096, by the terms' type and number. Tiles at most 64 wide add the
# smaller products of three terms apart.
F32_LONG_PRODUCTS = {("bfloat16", 2): 5e-5, ("float16", 2): 6e-6, ("bfloat16", 3): 6e-6}
F32_LONG_PRODUCTS_APART = 1e-6
# Results of size one in bf16, of f32 accumulators in another order: a unit in the last place.
LINKED = {"atol": 2**-7, "rtol": 2**-7}


def small_integers(rng: np.random.Generator, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Integers from -2 to 2: sums of up to 64 products of them are exact even in bf16."""
    return rng.integers(-2, 3, shape).astype(np.dtype(dtype) if dtype != "bfloat16" else bfloat16)


def exact_integers(rng: np.random.Generator, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """`small_integers`, but as f32 some that need two bf16 terms, to multiply with small ones."""
    if np.dtype(dtype) != np.float32:
        return small_integers(rng, shape, dtype)
    return rng.integers(-1024, 1025, shape).astype(np.float32)


def exact_factors(
    rng: np.random.Generator, lhs: np.ndarray, rhs: np.ndarray, axes: tuple[int, int], kernel: Any
) -> None:
    """Overwrites f32 operands with integers whose products need no more than the terms multiplied.

    Along K, in turn: many bits times few and few times many; of three terms also some times some.
    Most of the largest are zero, so that sums of 4,096 stay below 2^24. For terms of f16, few bits
    are as large as many, because such rows are narrow (cc/dense/row_range.h).

    Args:
        rng: Where they come from.
        lhs: Left operand.
        rhs: Right operand.
        axes: K of either.
        kernel: Whose terms.
    """
    if kernel.term_dtype == "float16":
        _exact_factors_of_one_size(rng, lhs, rhs, axes)
        return
    most = {2: [(1024, 2), (2, 1024)], 3: [(2**18, 1), (300, 300), (1, 2**18)]}[kernel.terms]
    for i, limits in enumerate(most):
        for x, axis, limit in zip((lhs, rhs), axes, limits, strict=True):
            part = np.moveaxis(x, axis, 0)[i :: len(most)]
            part[...] = rng.integers(-limit, limit + 1, part.shape)
            if limit == 2**18:
                part *= rng.random(part.shape) < 1 / 8


def _exact_factors_of_one_size(
    rng: np.random.Generator, lhs: np.ndarray, rhs: np.ndarray, axes: tuple[int, int]
) -> None:
    size = 2**14
    for i in range(2):
        for j, (x, axis) in enumerate(zip((lhs, rhs), axes, strict=True)):
            part = np.moveaxis(x, axis, 0)[i::2]
            if i == j:
                part[...] = rng.integers(-size, size + 1, part.shape)
            else:
                part[...] = size * rng.integers(-1, 2, part.shape)


def normal(rng: np.random.Generator, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Standard normal values rounded to ``dtype``."""
    return rng.standard_normal(shape).astype(np.dtype(dtype) if dtype != "bfloat16" else bfloat16)


def assert_same_classes(got: Any, want: np.ndarray) -> None:
    """Finite, infinite of either sign and NaN where ``want`` is."""
    got, finite = np.asarray(got, np.float64), np.isfinite(want)
    np.testing.assert_array_equal(np.isfinite(got), finite)
    np.testing.assert_array_equal(got[~finite], want[~finite])


def assert_exact(got: Any, want: Any, context: str = "") -> None:
    """Same type, shape and values, bit for bit (up to the sign of zero)."""
    got, want = np.asarray(got), np.asarray(want)
    assert got.dtype == want.dtype, f"{context}: dtype {got.dtype}, expected {want.dtype}"
    assert got.shape == want.shape, f"{context}: shape {got.shape}, expected {want.shape}"
    different = np.flatnonzero(np.asarray(got != want))
    if different.size:
        first = tuple(int(i) for i in np.unravel_index(different[0], got.shape))
        raise AssertionError(
            f"{context}: {different.size} of {got.size} elements differ, first at {first}: "
            f"{got[first]}, expected {want[first]}"
        )


def assert_as_good_as_xla(
    got: Any, xla: Any, exact: np.ndarray, context: str = "", *, depth: int = 0, split: float = 0.0
) -> None:
    """Largest error against f64 at most twice XLA's, plus one rounding of the largest value.

    ``depth`` is K for results of the tensor cores, whose f32 accumulators truncate: one unit in
    the last place of the largest value for each 16 products (one MMA instruction's K). It matters
    for f32 results only, where XLA may split K and so truncate less often: measured on an H200
    for K = 4096 and values up to 280, 1.9e-3 without splits, against 1.2e-4 of XLA's split-K.

    ``split`` is what an f32 operand's two bf16 terms may leave out: see `split_error`.
    """
    assert got.dtype == xla.dtype, f"{context}: dtype {got.dtype}, expected {xla.dtype}"
    largest = np.max(np.abs(exact), initial=0.0)
    ours = np.max(np.abs(np.asarray(got, np.float64) - exact), initial=0.0)
    theirs = np.max(np.abs(np.asarray(xla, np.float64) - exact), initial=0.0)
    rounding = float(jnp.finfo(got.dtype).eps) * largest / 2
    truncation = depth / 16 * float(np.finfo(np.float32).eps) * largest
    assert ours <= 2 * theirs + rounding + truncation + split, (
        f"{context}: largest error {ours}, XLA's {theirs}, one rounding {rounding}, "
        f"truncation {truncation}, split {split}"
    )


def decibels(got: Any, want: Any) -> float:
    """Signal-to-noise ratio: sum of squares of ``want`` over that of the errors."""
    want = np.asarray(want, np.float64)
    noise = np.sum(np.square(np.asarray(got, np.float64) - want))
    return float(10 * np.log10(np.sum(np.square(want)) / noise)) if noise else np.inf


def split_error(magnitudes: np.ndarray, kernel: Any) -> float:
    """Largest error of a kernel that splits f32 values x: two terms leave out at most 2^-17 x.

    Of two split operands, the product of both low terms is left out as well. Three terms are exact;
    what is left out of their products, and the additions of the larger ones in f32, are a few of
    f32's roundings of each product (cc/sm90/split.h). Two terms of f16 leave out 2^-22 of either
    operand, and the product of both low terms.

    Args:
        magnitudes: The product of the operands' magnitudes.
        kernel: The kernel.
    """
    relative = {(1, 1): 0.0, (2, 2): 2.0**-17, (2, 3): 2.0**-15, (3, 6): 2.0**-22}
    of_kernel = relative[(kernel.terms, kernel.mmas)]
    if kernel.term_dtype == "float16":
        of_kernel = 2.0**-20
    return of_kernel * float(np.max(magnitudes, initial=0.0))


def assert_same_layers(got: Any, want: Any) -> None:
    """Trees of f32 arrays of two computations of a layer are equal but for the order of sums."""

    def compare(g: Any, w: Any) -> None:
        w = np.asarray(w)
        largest = float(np.max(np.abs(w), initial=1.0))
        np.testing.assert_allclose(g, w, rtol=LAYERS["element"], atol=LAYERS["largest"] * largest)

    jax.tree.map(compare, got, want)


def assert_same_loss(got: Any, want: Any) -> None:
    """A loss of bf16 operands, or a gradient: sums split over devices, each part rounded to bf16.

    Parts are a little larger than their sum: two units in the last place of the largest element.
    """
    got, want = (np.asarray(x, np.float64) for x in (got, want))
    np.testing.assert_allclose(got, want, rtol=0, atol=2**-7 * float(np.max(np.abs(want))))


def assert_similar(got: Any, want: np.ndarray) -> None:
    """1 - 2xy / (xx + yy) below 1e-3, as DeepGEMM compares products of 8-bit operands."""
    got = np.asarray(got, np.float64)
    difference = 1 - 2 * np.sum(got * want) / np.sum(got * got + want * want)
    assert difference < 1e-3


def assert_same_training(
    got: list[float], want: list[float], *, low_precision: bool = False
) -> None:
    """Losses of the same training, step by step, whose products round differently.

    A product of bf16 rounds by 2^-9. Steps amplify that, so that losses drift apart; 2 % is what
    a hundred steps of small models stay well below. Operands of 8 bits round by 2^-4: 5 %.
    """
    np.testing.assert_allclose(got, want, rtol=5e-2 if low_precision else 2e-2)
    assert want[-1] < want[0], "the training does not learn, so its losses show nothing"


def ulps(got: np.ndarray, exact: np.ndarray) -> float:
    """Largest error of f32 values in units in the last place of the exact ones.

    Below the normal numbers a unit is that of the smallest normal one.
    """
    size = np.maximum(np.abs(exact), float(np.finfo(np.float32).tiny))
    unit = 2.0 ** (np.floor(np.log2(size)) - 23)
    return float(np.max(np.abs(np.asarray(got, np.float64) - exact) / unit))
