"""Programmatic dependent launches by `Module.launch`; faults of theirs are in `micro`."""

from __future__ import annotations

import dataclasses

import pytest
from emulator_cases import requires_emulator
from micro import dependent_grids

from jax_bwgemm import emulator

pytestmark = requires_emulator


@pytest.mark.parametrize("seed", range(2))
def test_a_launch_that_starts_after_the_one_before_needs_no_wait(seed: int) -> None:
    for case in dependent_grids.KERNELS:
        plain = dataclasses.replace(case, programmatic=False)
        assert plain.run(right=False, seed=seed) is None, case.name


def test_a_report_names_both_kernels() -> None:
    case = dependent_grids.KERNELS[0]
    with pytest.raises(emulator.LaunchFault, match="of kernel 'k', launched before") as fault:
        case.launch(case.text(right=False))
    assert fault.value.rule == "global-race"


def test_several_threads_and_no_histories_see_nothing() -> None:
    case = dependent_grids.KERNELS[0]
    for settings in ({"threads": 2}, {"races": False}):
        with emulator.configure(**settings):
            assert not case.launch(case.text(right=False)).warnings
