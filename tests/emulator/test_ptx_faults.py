"""Faults that fit any PTX, in this package's flagship kernel: one of each kind is noticed.

``tools/run_emulator_faults.py`` runs them on all kernels.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from pathlib import Path
from typing import Any

import pytest
from emulator_cases import requires_emulator, two_cta_kernel

TOOLS = Path(__file__).resolve().parents[2] / "tools"
pytestmark = [
    *requires_emulator,
    pytest.mark.skipif(not TOOLS.is_dir(), reason="not part of an installed package"),
]

SEEDS, SMS = 8, 2
KINDS = (
    "no barrier",
    "no arrival",
    "two arrivals",
    "other parity",
    "wait goes on",
    "no copy",
    "no bulk commit",
    "no bulk wait",
    "weaker bulk wait",
    "no tensor memory wait",
    "no tensor memory fence",
    "no commit",
    "no alloc",
    "no dealloc",
    "two deallocs",
    "no MMA",
    "no cluster barrier",
    "no shared store",
)


@pytest.fixture(autouse=True)
def _tools_on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(TOOLS))


@functools.cache
def flagship() -> tuple[Any, str, set[str]]:
    """The kernel's case, its PTX, and the rules that it breaks."""
    import run_emulator_faults as tool

    case = next(c for c in tool.dense_cases() if c.name == two_cta_kernel().name)
    return case, *tool.original(case, SMS)


@pytest.mark.parametrize("kind", KINDS)
def test_a_fault_of_each_kind_is_noticed(kind: str) -> None:
    import run_emulator_faults as tool

    case, text, rules = flagship()
    assert rules == set()
    # Some places do not matter: of several waits in a row, the last one does.
    found = tool.chosen(text, 5, re.compile(f"^{kind}$"))
    assert any(
        tool.attempt(case, fault, rules, SEEDS, SMS) not in tool.NOT_NOTICED for fault in found
    )


def test_what_changes_nothing_is_missed_and_what_nobody_runs_is_not_reached() -> None:
    import run_emulator_faults as tool

    case, text, rules = flagship()
    (fault,) = tool.chosen(text, 1, re.compile("^no MMA$"))
    nothing = dataclasses.replace(fault, text=text + "\n// end\n")
    assert tool.attempt(case, nothing, rules, 1, SMS) == "missed"
    unreached = dataclasses.replace(nothing, trap=text + "\n// end\n")
    assert tool.attempt(case, unreached, rules, 1, SMS) == "not reached"


def test_an_initialisation_counts_where_somebody_waits_for_the_barrier() -> None:
    import run_emulator_faults as tool

    case, text, rules = flagship()
    (fault,) = tool.chosen(text, 1, re.compile("^no mbarrier initialisation$"))
    nobody = dataclasses.replace(fault, text=fault.trap)
    assert tool.attempt(case, nobody, rules, 1, SMS) not in tool.NOT_NOTICED
    unused = dataclasses.replace(fault, text=text + "\n// end\n", trap=text + "\n// end\n")
    assert tool.attempt(case, unused, rules, 1, SMS) == "not reached"


def test_what_is_no_ptx_is_refused() -> None:
    import run_emulator_faults as tool

    case, text, rules = flagship()
    (fault,) = tool.chosen(text, 1, re.compile("^no MMA$"))
    broken = dataclasses.replace(fault, text=text.replace("tcgen05.mma", "tcgen05.mmma"))
    assert tool.attempt(case, broken, rules, 1, SMS) == "refused"
