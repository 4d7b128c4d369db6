"""Finds the collectives of a compiled program in its HLO text."""

from __future__ import annotations

import re

KINDS = (
    "all-reduce",
    "all-gather",
    "reduce-scatter",
    "all-to-all",
    "collective-permute",
    "collective-broadcast",
)
# `%name = TYPE op(` where TYPE is one array or a tuple; asynchronous pairs are counted by -start.
_INSTRUCTION = re.compile(rf"=\s+(\(.*?\)|\S+)\s+({'|'.join(KINDS)})(-start)?\(")
_ARRAY = re.compile(r"\b(pred|bf16|[suf]\d+(?:e\dm\d\w*)?|c\d+)\[([\d,]*)\]")


def _array_bytes(dtype: str, dims: str) -> int:
    if dtype == "pred":
        bits = 8
    elif dtype == "bf16":
        bits = 16
    else:
        bits = int(re.match(r"[a-z](\d+)", dtype).group(1))
    size = 1
    for extent in dims.split(","):
        size *= int(extent) if extent else 1
    return size * bits // 8


def collectives(text: str) -> dict[str, dict[str, int]]:
    """Collectives of an HLO module: kind -> {"count", "bytes"}; bytes of the results per device.

    Args:
      text: `compiled.as_text()`.
    """
    found: dict[str, dict[str, int]] = {}
    for type_text, kind, start in _INSTRUCTION.findall(text):
        arrays = [_array_bytes(*a) for a in _ARRAY.findall(type_text)]
        # The start of an asynchronous gather or permute carries its operands in the tuple too.
        if start and kind != "all-reduce" and len(arrays) > 1:
            arrays = arrays[len(arrays) // 2 : 2 * (len(arrays) // 2)]
        entry = found.setdefault(kind, {"count": 0, "bytes": 0})
        entry["count"] += 1
        entry["bytes"] += sum(arrays)
    return found


def describe(found: dict[str, dict[str, int]]) -> str:
    """`all-reduce x1 (4.2 MB)`, or `none`."""
    parts = [f"{k} x{v['count']} ({v['bytes'] / 1e6:.3g} MB)" for k, v in sorted(found.items())]
    return ", ".join(parts) or "none"
