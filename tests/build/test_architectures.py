"""What kernels are compiled for: plain ones and those that functions are linked into alike."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from jax_bwgemm.epilogue import linker

CMAKE = Path(__file__).parents[2] / "cmake"


@pytest.mark.parametrize(("arch", "targets"), [("sm90", {"90a"}), ("sm100", {"100f"})])
def test_linked_kernels_run_wherever_plain_ones_do(arch: str, targets: set[str]) -> None:
    """SM100's are of the family, which has compute capabilities 10.0 and 10.3."""
    for name in ("BwgemmKernelLibrary.cmake", "BwgemmLinkedKernels.cmake"):
        text = (CMAKE / name).read_text()
        found = set(re.findall(rf"(?:compute|sm|lto)_({arch[2:]}\w*)", text))
        assert found - {"90"} == targets, name  # 90: kernels without instructions of one GPU
    assert {linker.ARCHS[arch].format("sm")} == {f"sm_{x}" for x in targets}
