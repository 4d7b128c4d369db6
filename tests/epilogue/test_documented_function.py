"""The function in docs/epilogues.md: it computes what it says, in a kernel."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from linked_cases import requires_linker

import jax_bwgemm as bw

PAGE = Path(__file__).parents[2] / "docs" / "epilogues.md"

pytestmark = pytest.mark.skipif(not PAGE.exists(), reason="needs the source tree")


@pytest.fixture
def example() -> Any:
    """The page's product with dropout, as a function of x, w and b."""
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.S)
    (block,) = [text for text in blocks if "def dropout" in text]
    definition, call = block.split("\ny = ")
    namespace: dict[str, Any] = {"jax": jax, "jnp": jnp, "bw": bw}
    exec(definition, namespace)
    return lambda x, w, b: eval(call, {**namespace, "x": x, "w": w, "b": b})


@requires_linker
@pytest.mark.parametrize("device", ["sm90", "sm100"])
def test_it_is_linked(example, device) -> None:
    shapes = ((4096, 4096), (4096, 8192), (8192,))
    types = [jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in shapes]
    assert "the epilogue is linked into" in str(bw.explain_program(example, *types, device=device))


def test_it_drops_a_tenth(example) -> None:
    x, w, b = jnp.eye(256), jnp.full((256, 512), 3.0), jnp.ones(512)
    y = np.asarray(example(x, w, b))
    kept = y != 0
    assert 0.88 < kept.mean() < 0.92
    np.testing.assert_allclose(y[kept], jax.nn.gelu(4.0) / 0.9, rtol=1e-6)
