"""The kernel table that cc/dense/kernels.def describes, for tests on a checkout without a build."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Sequence
from pathlib import Path

from jax_bwgemm.runtime import KernelInfo

KERNELS_DEF = Path(__file__).parents[2] / "cc" / "dense" / "kernels.def"
_DTYPES = {"bf16": "bfloat16", "f16": "float16", "f32": "float32"}
_TILE = r"^BWGEMM_TILE(_SWAP_AB|_STREAM_K)?\((\w+), (\d+), (\d+), (\d+), (\d+), (\d+), (\w+)(.*)\)$"


@functools.cache
def described_kernels() -> tuple[KernelInfo, ...]:
    """The table as the build makes it: 16 kernels a tile, less those that its line leaves out."""
    return tuple(
        KernelInfo(
            f"{arch}_{in_name}_{out_name}_{majors}_{tm}x{tn}x{tk}_{cm}x{cn}_{schedule}"
            + {"_SWAP_AB": "_swap", "_STREAM_K": "_streamk"}.get(variant, ""),
            arch,
            _DTYPES[in_name],
            _DTYPES[out_name],
            *majors,
            *map(int, (tm, tn, tk, cm, cn)),
            schedule,
            swap_ab=variant == "_SWAP_AB",
            stream_k=variant == "_STREAM_K",
            stages=4,
            alignment_bytes=16,
            has_f32="no_f32" not in left_out,
        )
        for variant, arch, tm, tn, tk, cm, cn, schedule, left_out in re.findall(
            _TILE, KERNELS_DEF.read_text(), re.MULTILINE
        )
        for in_name in ("bf16", "f16")
        for out_name in (in_name, "f32")
        for majors in ("kn", "kk", "mn", "mk")
        if f"no_{out_name}" not in left_out and f"no_{majors}" not in left_out
    )


def widened(table: Sequence[KernelInfo]) -> tuple[KernelInfo, ...]:
    """The bf16 kernels of a table as if they existed for f32 and f64.

    The rules then apply to types in which finite differences mean something. On the CPU the
    lowering is XLA's dot anyway, so no kernel is ever asked for.
    """
    return tuple(
        dataclasses.replace(k, name=f"{dtype}_{k.name}", in_dtype=dtype, out_dtype=dtype)
        for k in table
        if k.in_dtype == k.out_dtype == "bfloat16"
        for dtype in ("float32", "float64")
    )
