"""Faults injected into grouped kernels must be noticed, on one of ten seeds at most."""

from __future__ import annotations

import pingpong_mutations
import pytest
from emulator_cases import requires_emulator
from emulator_mutations import Mutation
from grouped_mutations import MUTATIONS, original_ptx, try_mutation

pytestmark = requires_emulator


@pytest.fixture(scope="module")
def ptx() -> str:
    return original_ptx()


def test_there_are_enough_distinct_mutations(ptx: str) -> None:
    assert len({m.edit(ptx) for m in MUTATIONS}) == len(MUTATIONS) >= 25


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda m: m.name.replace(" ", "_"))
def test_fault_is_noticed(ptx: str, mutation: Mutation) -> None:
    assert try_mutation(ptx, mutation).caught_by is not None


def test_the_text_itself_is_not_the_difference(ptx: str) -> None:
    """The unchanged text, substituted, still passes."""
    unchanged = Mutation("none", lambda text: text + "\n// end\n")
    assert try_mutation(ptx, unchanged).caught_by is None


@pytest.fixture(scope="module")
def pingpong_ptx() -> str:
    return pingpong_mutations.original_ptx()


@pytest.mark.parametrize(
    "mutation", pingpong_mutations.MUTATIONS, ids=lambda m: m.name.replace(" ", "_")
)
def test_fault_of_a_pingpong_kernel_is_noticed(pingpong_ptx: str, mutation: Mutation) -> None:
    assert pingpong_mutations.try_mutation(pingpong_ptx, mutation).caught_by is not None


def test_pingpong_mutations_differ(pingpong_ptx: str) -> None:
    texts = {m.edit(pingpong_ptx) for m in pingpong_mutations.MUTATIONS}
    assert len(texts) == len(pingpong_mutations.MUTATIONS)
