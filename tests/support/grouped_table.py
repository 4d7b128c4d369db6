"""The kernel table that cc/grouped/grouped.def describes, for tests without a build."""

from __future__ import annotations

import functools
import re
from pathlib import Path

from jax_bwgemm.runtime import GroupedKernelInfo

GROUPED_DEF = Path(__file__).parents[2] / "cc" / "grouped" / "grouped.def"
_DTYPES = {"bf16": "bfloat16", "f16": "float16", "f32": "float32"}
_LINE = (
    r"^GROUPED_(ROWS|CONTRACT)(_SWAP_AB)?(_PINGPONG)?"
    r"\((\w+), (\d+), (\d+), (\d+), (\d+), (\d+)\)"
)


def _schedule(arch: str, cluster_m: int, pingpong: bool) -> str:
    if arch == "sm100":
        return "2sm" if cluster_m == 2 else "1sm"
    return "pingpong" if pingpong else "cooperative"


@functools.cache
def described_grouped_kernels() -> tuple[GroupedKernelInfo, ...]:
    """The table as the build makes it: 8 kernels for each line of rows, 4 of contract."""
    return tuple(
        GroupedKernelInfo(
            f"{arch}_grouped_{kind.lower()}_{in_name}_{out_name}_{majors}_{tm}x{tn}x{tk}_{cm}x{cn}"
            + ("_swap" if swap else "")
            + ("_pingpong" if pingpong else ""),
            arch,
            {"ROWS": "m-grouped", "CONTRACT": "k-grouped"}[kind],
            _DTYPES[in_name],
            _DTYPES[out_name],
            majors[1],
            *map(int, (tm, tn, tk, cm, cn)),
            swap_ab=bool(swap),
            schedule=_schedule(arch, int(cm), bool(pingpong)),
            stages=4,
            alignment_bytes=16,
        )
        for kind, swap, pingpong, arch, tm, tn, tk, cm, cn in re.findall(
            _LINE, GROUPED_DEF.read_text(), re.MULTILINE
        )
        for in_name in ("bf16", "f16")
        for out_name in (in_name, "f32")
        for majors in (("kn", "kk") if kind == "ROWS" else ("mn",))
    )
