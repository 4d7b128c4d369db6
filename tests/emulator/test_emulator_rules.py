"""Rules: their names in Python and in the documentation, severities, warnings."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from emulator_cases import requires_emulator
from ptx_samples import HEADER

from jax_bwgemm import emulator

pytestmark = requires_emulator

DOCS = Path(__file__).parents[2] / "docs" / "emulator" / "reports.md"

# Reads shared memory that nothing has written, in two places.
UNWRITTEN = (
    HEADER
    + """
.visible .entry unwritten(.param .u64 out)
{
  .reg .b32 %r<3>;
  .reg .b64 %rd<2>;
  .shared .align 16 .b8 tile[64];
  .loc 1 30 7
  ld.shared.u32 %r1, [tile+4];
  .loc 1 31 7
  ld.shared.u32 %r2, [tile+8];
  ld.param.u64 %rd1, [out];
  st.global.u32 [%rd1], 7;
  ret;
}
.file 1 "kernel.cu"
"""
)


def unwritten() -> emulator.LaunchStats:
    out = np.zeros(1, np.int32)
    stats = emulator.Module(UNWRITTEN).launch("unwritten", out, block=1)
    assert out[0] == 7
    return stats


def test_the_documentation_lists_the_rules() -> None:
    rows = re.findall(r"^\| `([a-z-]+)` \| (\w+) \| (.+) \|$", DOCS.read_text(), re.MULTILINE)
    assert [tuple(row) for row in rows] == [
        (rule.name, rule.severity, rule.meaning) for rule in emulator.rules()
    ]


def test_a_rule_that_is_off_is_silent() -> None:
    assert unwritten().warnings == ()


def test_warnings_are_collected() -> None:
    with emulator.configure(rules={"uninitialized-shared": "warning"}):
        stats = unwritten()
    assert stats.ok
    assert stats.rule == ""
    assert [(w.rule, w.count) for w in stats.warnings] == [("uninitialized-shared", 1)] * 2
    first, second = stats.warnings
    assert UNWRITTEN.splitlines()[first.line - 1].strip() == "ld.shared.u32 %r1, [tile+4];"
    assert "('tile'" in first.text
    assert "kernel.cu:30" in first.text
    assert "kernel.cu:31" in second.text
    assert f"{first.text}: 2 times, 2 lines" in stats.table()


def test_an_error_names_its_rule() -> None:
    with (
        emulator.configure(rules={"uninitialized-shared": "error"}),
        pytest.raises(emulator.LaunchFault, match=r"\[rule uninitialized-shared\]") as caught,
    ):
        unwritten()
    assert caught.value.rule == "uninitialized-shared"


def test_severities_add_up() -> None:
    with (
        emulator.configure(rules={"load-wait": "off"}),
        emulator.configure(rules={"proxy-fence": "warning"}) as inside,
    ):
        assert inside.rules["load-wait"] == "off"
        assert inside.rules["proxy-fence"] == "warning"
        assert inside.rules["async-hazard"] == "error"


def test_older_switches_set_their_rules() -> None:
    with emulator.configure(async_hazards=False, uninitialized=True) as inside:
        assert inside.rules["async-hazard"] == "off"
        assert inside.rules["uninitialized-shared"] == "error"
        assert inside.rules["proxy-fence"] == "error"


def test_a_rules_own_name_is_stronger_than_an_older_switch() -> None:
    with emulator.configure(proxy_fences=False, rules={"proxy-fence": "warning"}) as inside:
        assert inside.rules["proxy-fence"] == "warning"


def test_a_table_has_the_number_of_breaches() -> None:
    with emulator.configure(rules={"uninitialized-shared": "warning", "same-value": "off"}):
        stats = emulator.Module(UNWRITTEN).launch("unwritten", np.zeros(1, np.int32), grid=3)
    assert [w.count for w in stats.warnings] == [3, 3]
    assert f"{stats.warnings[0].text}: 6 times, 2 lines" in stats.table()


RACE = (
    HEADER
    + """
.visible .entry race(.param .u64 out)
{
  .reg .b32 %r<2>;
  .reg .b64 %rd<2>;
  mov.u32 %r1, %tid.x;
  ld.param.u64 %rd1, [out];
  st.global.u32 [%rd1], %r1;
  ret;
}
"""
)


@pytest.mark.parametrize("seed", range(8))
def test_a_race_is_reported_whatever_the_seed(seed: int) -> None:
    out = np.full(1, -1, np.int32)
    with emulator.configure(seed=seed), pytest.raises(emulator.LaunchFault) as caught:
        emulator.Module(RACE).launch("race", out, block=64)
    assert caught.value.rule == "global-race"
    assert "races with the write of line" in str(caught.value)


def test_without_histories_there_are_no_races() -> None:
    out = np.full(1, -1, np.int32)
    with emulator.configure(races=False):
        stats = emulator.Module(RACE).launch("race", out, block=64)
    assert stats.ok
    assert stats.warnings == ()
