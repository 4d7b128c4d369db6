"""The kernels of this installation that epilogues are linked into: LTO-IR, data of the package."""

from __future__ import annotations

import functools
from pathlib import Path

from jax_bwgemm import runtime


@functools.cache
def linkable_kernels() -> dict[str, Path]:
    """Fat binary of every such kernel, by the kernel's name; empty when none were built."""
    for implementation in ("cutlass", "emulator"):
        module = runtime.compiled_module(implementation)
        if module is None or module.__file__ is None:
            continue
        # Beside the compiled modules: of an editable installation not where the sources are.
        folder = Path(module.__file__).parent / "linkable"
        if (folder / "index.txt").exists():
            lines = (folder / "index.txt").read_text(encoding="utf-8").splitlines()
            return {name: folder / file for name, file in map(str.split, filter(None, lines))}
    return {}
