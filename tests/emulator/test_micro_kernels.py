"""Small kernels with one fault each are reported on every seed; their corrected twins never are."""

from __future__ import annotations

import micro
import pytest
from emulator_cases import requires_emulator
from micro.case import Micro

pytestmark = requires_emulator

SEEDS = range(8)


@pytest.mark.parametrize("case", micro.KERNELS, ids=lambda case: case.name.replace(" ", "_"))
def test_the_fault_is_reported_and_its_correction_is_not(case: Micro) -> None:
    assert case.text(right=False) != case.text(right=True)
    for seed in SEEDS:
        report = case.run(right=False, seed=seed)
        assert report is not None
        assert any(name in report for name in case.reports), report
        assert case.run(right=True, seed=seed) is None


def test_each_kernel_has_a_name_of_its_own() -> None:
    assert len({case.name for case in micro.KERNELS}) == len(micro.KERNELS) > 200
