"""Grouped scaled kernels with epilogues linked into them, on a GPU of compute capability 9.0."""

from __future__ import annotations

from typing import Any

import pytest
from linked_cases import close_on_gpu, requires_linker
from ragged_linked_cases import (
    every_operand,
    kernels,
    layouts_of,
    operands,
    run,
    whatever_it_costs,
)

from jax_bwgemm import config

pytestmark = [pytest.mark.sm90, requires_linker]

CASES = [
    pytest.param(kernel, layouts, marks=getattr(pytest.mark, kernel.arch))
    for kernel in kernels("cutlass")
    for layouts in layouts_of(kernel)
]


@pytest.mark.parametrize(("kernel", "layouts"), CASES, ids=lambda x: getattr(x, "name", str(x)))
@pytest.mark.parametrize("shape", [(1000, 1512, 400), (540, 2048, 1024), (499, 8, 16)])
def test_every_kernel(
    kernel: Any,
    layouts: tuple[str, str],
    shape: tuple[int, int, int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whatever_it_costs(monkeypatch)
    plain, of_groups = operands(*shape[:2], experts=4)
    with config.linked_epilogues(True):
        close_on_gpu(*run(kernel, layouts, shape, every_operand, plain, of_groups, "cutlass"))
