"""The JSON form of tuned choices. Pure.

Nothing read is executed or trusted: every field is checked, a kernel is only a name that selection
looks up in the table of the running build.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Callable, Mapping
from typing import Any

from jax_bwgemm.dense.tuning_config import DECOMPOSITIONS, MAX_SPLITS, SWIZZLES
from jax_bwgemm.grouped.grouped_config import MAX_SWIZZLE
from jax_bwgemm.product.kernel_config import RASTER_ORDERS
from jax_bwgemm.scaled.layouts import FLOAT4, FLOAT8, LAYOUTS
from jax_bwgemm.scaled.spec import ACCUMULATIONS
from jax_bwgemm.tuning.keys import (
    GROUPED_SHARED,
    KINDS,
    SHARE_PARTS,
    SHARED,
    DenseKey,
    GroupedKey,
    Key,
    ScaledGroupedKey,
    ScaledKey,
)
from jax_bwgemm.tuning.records import METHODS, TunedDevice, TunedEntry, TuningFileError

FORMAT = "jax_bwgemm tuning"
# Version 1 had dense products only, in rows without "product"; version 2 none of scaled operands.
VERSION = 3

# Names of fields in files where they are not the keys'. They stay, so that old caches are read.
_FILE_NAMES = {"b_major": "rhs_major"}

_KERNEL_NAME = re.compile(r"[a-z0-9_]{1,128}")
_DTYPES = ("bfloat16", "float16", "float32")
_MIXED_DTYPES = (*_DTYPES, "float32 x bfloat16", "bfloat16 x float32")
_IN_DTYPES = (*_MIXED_DTYPES, "float32x3", "float32x6", "float32highest")
_MAJORS = ("kn", "kk", "mn", "mk")
_SCALED_DTYPES = tuple(dtype.name for dtype in (*FLOAT8, *FLOAT4))
_SCALINGS = tuple(name for name, layout in LAYOUTS.items() if layout.multiplied_as is None)
MAX_SIZE = 2**31 - 1


def dumps(device: TunedDevice, entries: Mapping[Key, TunedEntry]) -> str:
    """Device and entries as JSON text, an entry a line."""
    rows = [
        json.dumps(
            {"product": _PRODUCT_OF[type(key)]}
            | {_FILE_NAMES.get(f, f): v for f, v in dataclasses.asdict(key).items()}
            | dataclasses.asdict(entry)
        )
        for key, entry in entries.items()
    ]
    head = {"format": FORMAT, "version": VERSION, "device": dataclasses.asdict(device)}
    listed = ",\n".join("  " + row for row in rows)
    return json.dumps(head)[:-1] + f', "entries": [\n{listed}\n]}}\n'


def loads(text: str | bytes) -> tuple[TunedDevice, dict[Key, TunedEntry]]:
    """Reads what `dumps` wrote, also of versions 1 and 2.

    Raises:
        TuningFileError: It is not such text, or a field has a value it cannot have.
    """
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:  # also bytes that are not UTF-8
        raise TuningFileError(f"not JSON: {error}") from None
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise TuningFileError(f'not a tuning file: no "format": {json.dumps(FORMAT)}')
    version = data.get("version")
    if type(version) is not int or not 1 <= version <= VERSION:
        raise TuningFileError(
            f"version {version!r:.80} of the format, this package reads 1 to {VERSION}"
        )
    device = _read(TunedDevice, data.get("device"), "device", _DEVICE_CHECKS)
    rows = data.get("entries")
    if not isinstance(rows, list):
        raise TuningFileError("entries: not a list")
    entries: dict[Key, TunedEntry] = {}
    for index, row in enumerate(rows):
        key, entry = _read_row(row, f"entries[{index}]", version)
        entries[key] = entry
    return device, entries


def _read_row(row: Any, where: str, version: int) -> tuple[Key, TunedEntry]:
    if not isinstance(row, dict):
        raise TuningFileError(f"{where}: not an object")
    product = row.get("product", "dense") if version > 1 else "dense"
    if not isinstance(product, str) or product not in _KEYS:
        raise TuningFileError(f"{where}: product has the impossible value {product!r:.80}")
    kind, key_checks, entry_checks = _KEYS[product]
    key = _read(kind, row, where, key_checks)
    entry = _read(TunedEntry, row, where, entry_checks)
    known = {_FILE_NAMES.get(field, field) for field in key_checks | entry_checks}
    known |= {"product"} if version > 1 else set()
    if unknown := row.keys() - known:
        raise TuningFileError(f"{where}: unknown fields {sorted(unknown)}")
    if isinstance(key, GroupedKey):
        _check_groups(key, where)
    return key, entry


def _check_groups(key: GroupedKey, where: str) -> None:
    if key.shares and sum(count for count, _ in key.shares) != key.groups:
        raise TuningFileError(f"{where}: shares are not those of {key.groups} groups")
    if key.kind == "k-grouped" and key.b_major != "n":
        raise TuningFileError(f"{where}: rhs_major has the impossible value {key.b_major!r}")


def _is_int(value: Any, most: int = MAX_SIZE) -> bool:
    return type(value) is int and 1 <= value <= most


def _is_time(value: Any) -> bool:
    # An integer may be too large for a float.
    return type(value) in (int, float) and 0 < value < 1e18 and math.isfinite(value)


def _is_shares(value: Any) -> bool:
    """Pairs of a positive count and a size, with sizes rising, as `canonical_shares` makes them."""
    if not isinstance(value, list):
        return False
    for pair in value:
        if not isinstance(pair, list) or len(pair) != 2 or not _is_int(pair[0]):
            return False
        if type(pair[1]) is not int or not 0 <= pair[1] <= SHARE_PARTS * MAX_SIZE:
            return False
    sizes = [size for _, size in value]
    return sizes == sorted(set(sizes))


def _one_of(known: tuple[Any, ...]) -> Callable[[Any], bool]:
    # Of one type: 1.0 and True are equal to 1.
    return lambda value: any(type(value) is type(one) and value == one for one in known)


_DEVICE_CHECKS = {
    "kind": lambda v: isinstance(v, str) and 0 < len(v) <= 256,
    "arch": _one_of(("sm90", "sm100")),
    "sm_count": lambda v: _is_int(v, 10**4),
}
_DENSE_CHECKS = {
    "in_dtype": _one_of(_IN_DTYPES),
    "out_dtype": _one_of(_DTYPES),
    "majors": _one_of(_MAJORS),
    "m": _is_int,
    "n": _is_int,
    "k": _is_int,
    "batch": _is_int,
    "shared": _one_of(SHARED),
}
_GROUPED_CHECKS = {
    "kind": _one_of(KINDS),
    "in_dtype": _one_of(_MIXED_DTYPES),
    "out_dtype": _one_of(_DTYPES),
    "b_major": _one_of(("n", "k")),
    "m": _is_int,
    "n": _is_int,
    "k": _is_int,
    "groups": _is_int,
    "experts": _is_int,
    "batch": _is_int,
    "shared": _one_of(GROUPED_SHARED),
    "shares": _is_shares,
}
_DENSE_ENTRY_CHECKS = {
    "kernel": lambda v: isinstance(v, str) and _KERNEL_NAME.fullmatch(v) is not None,
    "raster_order": _one_of(RASTER_ORDERS),
    "swizzle": _one_of(SWIZZLES),
    "splits": lambda v: _is_int(v, MAX_SPLITS),
    "us": _is_time,
    "heuristic_us": _is_time,
    "method": _one_of(METHODS),
    "decomposition": _one_of(DECOMPOSITIONS),
}
_GROUPED_ENTRY_CHECKS = _DENSE_ENTRY_CHECKS | {
    "raster_order": _one_of(RASTER_ORDERS),
    "swizzle": lambda v: _is_int(v, MAX_SWIZZLE),
    "splits": _one_of((1,)),
    "decomposition": _one_of(("heuristic",)),
}
_SCALED_CHECKS: dict[str, Callable[[Any], bool]] = {
    "a_dtype": _one_of(_SCALED_DTYPES),
    "b_dtype": _one_of(_SCALED_DTYPES),
    "a_scaling": _one_of(_SCALINGS),
    "b_scaling": _one_of(_SCALINGS),
    "accumulation": _one_of(ACCUMULATIONS),
    "out_dtype": _one_of(("bfloat16", "float32")),
    "m": _is_int,
    "n": _is_int,
    "k": _is_int,
}
_SCALED_DENSE_CHECKS = _SCALED_CHECKS | {"batch": _is_int, "shared": _one_of(SHARED)}
_SCALED_GROUPED_CHECKS = _SCALED_CHECKS | {
    "kind": _one_of(KINDS),
    "groups": _is_int,
    "experts": _is_int,
}
_KEYS: dict[str, tuple[type, dict[str, Any], dict[str, Any]]] = {
    "dense": (DenseKey, _DENSE_CHECKS, _DENSE_ENTRY_CHECKS),
    "grouped": (GroupedKey, _GROUPED_CHECKS, _GROUPED_ENTRY_CHECKS),
    "scaled": (ScaledKey, _SCALED_DENSE_CHECKS, _DENSE_ENTRY_CHECKS),
    "scaled grouped": (ScaledGroupedKey, _SCALED_GROUPED_CHECKS, _GROUPED_ENTRY_CHECKS),
}
_PRODUCT_OF: dict[type, str] = {kind: name for name, (kind, *_) in _KEYS.items()}
_OPTIONAL = ("decomposition",)


def _read(kind: Any, row: Any, where: str, checks: Mapping[str, Any]) -> Any:
    """Builds a dataclass from a JSON object, checking every field."""
    if not isinstance(row, dict):
        raise TuningFileError(f"{where}: not an object")
    values = {}
    for field, check in checks.items():
        name = _FILE_NAMES.get(field, field)
        if name not in row:
            if field in _OPTIONAL:
                continue
            raise TuningFileError(f"{where}: no field {name!r}")
        if not check(row[name]):
            raise TuningFileError(f"{where}: {name} has the impossible value {row[name]!r:.80}")
        values[field] = _frozen(row[name])
    return kind(**values)


def _frozen(value: Any) -> Any:
    return tuple(map(_frozen, value)) if isinstance(value, list) else value
