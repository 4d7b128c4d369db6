"""No test depends on how fast a machine is: speed belongs in the benchmarks."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
# A clock, a pause, or a limit on how long a process or a thread may take; also in programs that
# tests start.
CLOCK = re.compile(
    r"^\s*(?:import|from)\s+(?:time|timeit|datetime)\b"
    r"|\b(?:communicate|wait|join|run|call)\([^()]*\btimeout\s*="
    r"|\bthreading\.Timer\(",
    re.MULTILINE,
)


def test_no_test_reads_a_clock() -> None:
    found = []
    for path in sorted(TESTS.rglob("*.py")):
        if path == Path(__file__):
            continue
        text = path.read_text(encoding="utf-8")
        for match in CLOCK.finditer(text):
            line = text.count("\n", 0, match.end()) + 1
            found.append(f"{path.relative_to(TESTS)}:{line}: {match[0].strip()}")
    assert found == []


def test_the_pattern_finds_clocks() -> None:
    for text in (
        "import time\n",
        "    from time import sleep\n",
        'CODE = """\nimport timeit\n"""',
        "process.communicate(timeout=3)",
        "subprocess.run(\n    command,\n    timeout=900,\n)",
        "threading.Timer(0.3, f)",
    ):
        assert CLOCK.search(text), text
    for text in ("import timings", "autotune(f, timeout=0)", "from common import timing"):
        assert not CLOCK.search(text), text
