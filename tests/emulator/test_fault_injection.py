"""Injected faults must be noticed: a report or a wrong result, on one of ten seeds at most."""

from __future__ import annotations

import functools
from types import ModuleType

import block_scaled_mutations
import cluster_k_mutations
import emulator_mutations
import grouped_mutations
import pingpong_mutations
import promoted_mutations
import pytest
import sm90_mutations
from emulator_cases import requires_emulator
from emulator_mutations import Mutation

pytestmark = requires_emulator

# Kernels, and how many faults each has to have.
KERNELS = {
    emulator_mutations: 15,
    grouped_mutations: 25,
    pingpong_mutations: 13,
    cluster_k_mutations: 15,
    sm90_mutations: 15,
    block_scaled_mutations: 25,
    promoted_mutations: 15,
}


@functools.cache
def original(kernel: ModuleType) -> str:
    return kernel.original_ptx()


def name(kernel: ModuleType) -> str:
    return kernel.__name__.removesuffix("_mutations")


@pytest.mark.parametrize("kernel", KERNELS, ids=name)
def test_there_are_enough_distinct_mutations(kernel: ModuleType) -> None:
    texts = {m.edit(original(kernel)) for m in kernel.MUTATIONS}
    assert len(texts) == len(kernel.MUTATIONS) >= KERNELS[kernel]


@pytest.mark.parametrize(
    ("kernel", "mutation"),
    [
        pytest.param(kernel, m, id=f"{name(kernel)}:{m.name.replace(' ', '_')}")
        for kernel in KERNELS
        for m in kernel.MUTATIONS
    ],
)
def test_fault_is_noticed(kernel: ModuleType, mutation: Mutation) -> None:
    assert kernel.try_mutation(original(kernel), mutation).caught_by is not None


@pytest.mark.parametrize("kernel", KERNELS, ids=name)
def test_the_text_itself_is_not_the_difference(kernel: ModuleType) -> None:
    """The unchanged text, substituted, still passes."""
    unchanged = Mutation("none", lambda text: text + "\n// end\n")
    assert kernel.try_mutation(original(kernel), unchanged).caught_by is None
