"""Small kernels with one fault each are reported on every seed; their corrected twins never are."""

from __future__ import annotations

import pytest
from emulator_cases import requires_emulator
from micro import bulk, global_memory, pipelines, registers, shared, tensor
from micro.case import Micro

pytestmark = requires_emulator

SEEDS = range(8)
KERNELS = [
    pytest.param(case, id=f"{module.__name__.removeprefix('micro.')}:{case.name.replace(' ', '_')}")
    for module in (shared, bulk, pipelines, global_memory, tensor, registers)
    for case in module.KERNELS
]


@pytest.mark.parametrize("case", KERNELS)
def test_the_fault_is_reported_and_its_correction_is_not(case: Micro) -> None:
    for seed in SEEDS:
        report = case.run(right=False, seed=seed)
        assert report is not None
        assert any(name in report for name in case.reports), report
        assert case.run(right=True, seed=seed) is None


def test_the_two_versions_differ() -> None:
    for parameters in KERNELS:
        case = parameters.values[0]
        assert case.text(right=False) != case.text(right=True)
