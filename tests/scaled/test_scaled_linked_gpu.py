"""Scaled kernels with epilogues linked into them, on a GPU of compute capability 9.0."""

from __future__ import annotations

from typing import Any

import pytest
from linked_cases import close_on_gpu, requires_linker
from scaled_linked_cases import LAYOUTS, arrays_of, kernels, run

from jax_bwgemm import config

pytestmark = [pytest.mark.sm90, requires_linker]

CASES = [
    pytest.param(kernel, layouts, name, marks=getattr(pytest.mark, kernel.arch))
    for kernel in kernels("cutlass")
    for layouts in LAYOUTS[kernel.scales]
    for name in ("activation", "gradient")
]


@pytest.mark.parametrize(
    ("kernel", "layouts", "name"), CASES, ids=lambda x: getattr(x, "name", str(x))
)
@pytest.mark.parametrize("sizes", [(1000, 1512, 400), (4096, 2048, 1024), (40, 264, 1024)])
def test_every_kernel(
    kernel: Any,
    layouts: tuple[str, str],
    name: str,
    sizes: tuple[int, int, int],
) -> None:
    f, arrays = arrays_of(name, *sizes[:2])
    with config.linked_epilogues(True):
        close_on_gpu(*run(kernel, layouts, sizes, f, arrays, "cutlass"))
