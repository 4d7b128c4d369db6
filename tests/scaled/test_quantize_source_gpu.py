"""The quantizing kernel with functions linked into it, on a GPU of compute capability 9.0."""

from __future__ import annotations

from typing import Any

import pytest
from linked_cases import requires_linker
from source_cases import FUNCTIONS, OPTIONS, check

from jax_bwgemm import config

pytestmark = [pytest.mark.sm90, requires_linker]


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize(("rows", "half"), [(140, 136), (2048, 1536), (5, 8)])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_exact(name: str, options: dict[str, Any], rows: int, half: int, dtype: str) -> None:
    with config.linked_epilogues(True):
        check(name, options, rows, half, dtype, "cutlass")
