"""The kernels of this installation that epilogues are linked into: LTO-IR, data of the package."""

from __future__ import annotations

import functools
from pathlib import Path

_FOLDER = Path(__file__).parents[1] / "linkable"


@functools.cache
def linkable_kernels() -> dict[str, Path]:
    """Fat binary of every such kernel, by the kernel's name; empty when none were built."""
    index = _FOLDER / "index.txt"
    if not index.exists():
        return {}
    rows = (line.split() for line in index.read_text(encoding="utf-8").splitlines() if line)
    return {name: _FOLDER / file for name, file in rows}
