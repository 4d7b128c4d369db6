"""What all tests of `accelerate` have in common."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from jax_bwgemm import config
from jax_bwgemm.rewriting import fuse, policy, slopes


@pytest.fixture(autouse=True)
def small_products_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs of tests are small: `test_small.py` is about what that means for their products."""
    monkeypatch.setattr(policy, "SMALL_CYCLES", 0)


@pytest.fixture
def everything_links(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No kernel runs: what is traced counts, and is then computed by XLA."""
    for module in (fuse, slopes):
        monkeypatch.setattr(module, "link_refusal", lambda *_: None)
    with config.target("sm90"), config.linked_epilogues(True):
        yield
