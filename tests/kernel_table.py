"""The kernel table that cc/gemm/kernels.def describes, for tests on a checkout without a build."""

from __future__ import annotations

import functools
import re
from pathlib import Path

from jax_bwgemm.runtime import KernelInfo

KERNELS_DEF = Path(__file__).parent.parent / "cc" / "gemm" / "kernels.def"
_DTYPES = {"bf16": "bfloat16", "f16": "float16", "f32": "float32"}
_TILE = r"^BWGEMM_TILE(_SWAP_AB)?\((\w+), (\d+), (\d+), (\d+), (\d+), (\d+), (\w+)\)"


@functools.cache
def described_kernels() -> tuple[KernelInfo, ...]:
    """The table as the build makes it: 16 kernels for each tile."""
    return tuple(
        KernelInfo(
            f"{arch}_{in_name}_{out_name}_{majors}_{tm}x{tn}x{tk}_{cm}x{cn}_{schedule}"
            + ("_swap" if swap else ""),
            arch,
            _DTYPES[in_name],
            _DTYPES[out_name],
            *majors,
            *map(int, (tm, tn, tk, cm, cn)),
            schedule,
            swap_ab=bool(swap),
            stages=4,
            alignment_bytes=16,
        )
        for swap, arch, tm, tn, tk, cm, cn, schedule in re.findall(
            _TILE, KERNELS_DEF.read_text(), re.MULTILINE
        )
        for in_name in ("bf16", "f16")
        for out_name in (in_name, "f32")
        for majors in ("kn", "kk", "mn", "mk")
    )
