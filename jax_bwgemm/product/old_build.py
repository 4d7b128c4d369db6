"""Compiled modules from before FFI version 2, while builds of both kinds are in use."""

from __future__ import annotations

import re
from types import ModuleType
from typing import Any

import numpy as np


def is_old(module: ModuleType | None) -> bool:
    """Whether a compiled module has the tables and targets of version 1."""
    return hasattr(module, "grouped_kernels")


def v1_call(implementation: str, config: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Target and attribute of version 1 for those of version 2."""
    grouped = "group_sizes" in config["operands"]
    tail = ".emulated.v1" if implementation == "emulator" else ".v1"
    defaults = {"order": "heuristic"} if grouped else {"raster_order": "heuristic"}
    kept = {k: v for k, v in config.items() if k not in ("operands", "results")}
    return (
        "bwgemm." + ("grouped" if grouped else "gemm") + tail,
        {**defaults, "swizzle": np.int64(1), **kept},
    )


def rows(module: ModuleType) -> list[dict[str, Any]]:
    """A module's kernels, with the fields of `Kernel`."""
    dense = module.kernels()
    names = {row["name"] for row in dense}
    found = []
    for row in [*dense, *module.grouped_kernels()]:
        kind = row.pop("kind", None)
        row["contraction"] = {None: "dense", "rows": "m_grouped", "contract": "k_grouped"}[kind]
        row["a_dtype"] = row["b_dtype"] = row.pop("in_dtype")
        row["a_major"] = row.pop("lhs_major", "m" if kind == "contract" else "k")
        row["b_major"] = row.pop("rhs_major")
        stream_k = row.get("stream_k", False)
        row["uneven_parts"] = (
            kind is None and not stream_k and row["schedule"] in ("cooperative", "pingpong")
        )
        twin = re.sub(r"^([^_]*_[^_]*)_[^_]*_", r"\1_f32_", row["name"])
        row["f32_twin"] = twin if kind is None and not stream_k and twin in names else ""
        found.append(row)
    return found


def workspace_bytes(module: ModuleType, name: str, sizes: dict[str, Any]) -> int:
    """As the module's function of version 2."""
    if "groups" in sizes:
        order = ("m", "n", "k", "groups", "experts", "batch", "sm_count")
        return module.grouped_workspace_bytes(name, *(sizes[x] for x in order))
    positional = [sizes.pop(x) for x in ("m", "n", "k", "batch")]
    splits, sm_count = sizes.pop("splits", 1), sizes.pop("sm_count")
    return module.workspace_bytes(name, *positional, splits, sm_count, **sizes)
