"""`quantize` on a GPU against the reference on the CPU, bit by bit."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from numerics import assert_exact
from quantize_cases import KERNEL_SCALINGS, QuantizeCase, grid, special

pytestmark = pytest.mark.gpu


def assert_equal_to_the_cpu(case: QuantizeCase) -> None:
    x = case.x()
    got = case.run("cutlass", x)
    with jax.default_device(jax.devices("cpu")[0]):
        want = case.run("xla", x)
    for ours, expected in zip(got, want, strict=True):
        assert_exact(ours, expected, str(case))


@pytest.mark.parametrize("shape", [(130, 200), (1000, 1160)])
def test_equal_to_the_reference(shape: tuple[int, ...]) -> None:
    for case in grid(shape):
        assert_equal_to_the_cpu(case)


@pytest.mark.parametrize("scaling", ["tensor", "1x128", "128x128"])
def test_many_tiles(scaling: str) -> None:
    assert_equal_to_the_cpu(QuantizeCase((2048, 4096), scaling))


def test_special_numbers() -> None:
    for case in special():
        assert_equal_to_the_cpu(case)


def test_random_shapes() -> None:
    rng = np.random.default_rng(0)
    for i in range(24):
        shape = tuple(max(int(n) >> i % 4, 1) for n in rng.integers(1, 700, 2 + i % 2))
        assert_equal_to_the_cpu(QuantizeCase(shape, KERNEL_SCALINGS[i % 4]))
