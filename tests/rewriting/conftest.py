"""What all tests of `accelerate` have in common."""

from __future__ import annotations

import pytest

from jax_bwgemm.rewriting import policy


@pytest.fixture(autouse=True)
def small_products_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs of tests are small: `test_small.py` is about what that means for their products."""
    monkeypatch.setattr(policy, "SMALL_CYCLES", 0)
