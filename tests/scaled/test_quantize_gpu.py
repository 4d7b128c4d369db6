"""`quantize` on a GPU against the reference on the CPU, bit by bit."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from numerics import assert_exact
from quantize_cases import QuantizeCase, grid, special

pytestmark = pytest.mark.gpu


def assert_equal_to_the_cpu(case: QuantizeCase) -> None:
    x = case.x()
    got = case.run("cutlass", x)
    with jax.default_device(jax.devices("cpu")[0]):
        want = case.run("xla", x)
    for ours, expected in zip(got, want, strict=True):
        assert_exact(ours, expected, str(case))


@pytest.mark.parametrize("shape", [(130, 200), (1000, 1160), (3, 72, 264), (2048, 4096)])
def test_equal_to_the_reference(shape: tuple[int, ...]) -> None:
    for case in grid(shape):
        assert_equal_to_the_cpu(case)


def test_special_numbers() -> None:
    for case in special():
        assert_equal_to_the_cpu(case)


def test_random_shapes() -> None:
    rng = np.random.default_rng(0)
    for i, case in enumerate(grid((1, 1))):
        shape = tuple(int(n) for n in rng.integers(1, 700, 2 + i % 2) >> (0 if i % 3 else 2))
        assert_equal_to_the_cpu(QuantizeCase(tuple(max(n, 1) for n in shape), case.scaling))
