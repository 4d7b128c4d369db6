"""What a benchmark program wrote, for its tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def records(path: Path, kind: str) -> list[dict[str, Any]]:
    """The records of one kind in a program's file of JSON lines."""
    from common import report  # on the path by the fixture benchmark_programs

    return [r for r in report.load(path) if r["record"] == kind]
