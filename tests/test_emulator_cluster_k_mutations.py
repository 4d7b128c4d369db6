"""Faults injected into a cluster-K kernel must be noticed, on one of ten seeds at most."""

from __future__ import annotations

import pytest
from cluster_k_mutations import MUTATIONS, original_ptx, try_mutation
from emulator_cases import requires_emulator
from emulator_mutations import Mutation

pytestmark = requires_emulator


@pytest.fixture(scope="module")
def ptx() -> str:
    return original_ptx()


def test_mutations_differ(ptx: str) -> None:
    assert len({m.edit(ptx) for m in MUTATIONS}) == len(MUTATIONS)


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda m: m.name.replace(" ", "_"))
def test_fault_is_noticed(ptx: str, mutation: Mutation) -> None:
    assert try_mutation(ptx, mutation).caught_by is not None


def test_the_text_itself_is_not_the_difference(ptx: str) -> None:
    """The unchanged text, substituted, still passes."""
    unchanged = Mutation("none", lambda text: text + "\n// end\n")
    assert try_mutation(ptx, unchanged).caught_by is None
