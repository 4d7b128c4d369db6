"""What all tests of `accelerate` have in common."""

from __future__ import annotations

from collections.abc import Iterator

import jax
import pytest
from fuse_cases import operands

from jax_bwgemm import config
from jax_bwgemm.rewriting import fuse, policy, slopes


@pytest.fixture(autouse=True)
def small_products_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs of tests are small: `test_small.py` is about what that means for their products."""
    monkeypatch.setattr(policy, "SMALL_CYCLES", 0)


@pytest.fixture
def functions_link(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No kernel runs: what is traced counts, and is then computed by XLA. No slope is stored."""
    monkeypatch.setattr(fuse, "link_refusal", lambda *_: None)
    with config.target("sm90"), config.linked_epilogues(True):
        yield


@pytest.fixture
def everything_links(functions_link: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same, with slopes."""
    monkeypatch.setattr(slopes, "link_refusal", lambda *_: None)


@pytest.fixture
def arrays() -> dict[str, jax.Array]:
    """Two layers' operands, and a square matrix."""
    return operands()
