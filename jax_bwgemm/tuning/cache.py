"""Tuned choices and their JSON form: what was measured to be fastest, for one kind of GPU. Pure.

Nothing read from a file is executed or trusted: every field is checked, a kernel is only a name
that selection looks up in the table of the running build.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import re
import threading
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from jax_bwgemm.dense.spec import GemmDims, GemmSpec
from jax_bwgemm.dense.tuning_config import DECOMPOSITIONS, MAX_SPLITS, RASTER_ORDERS, SWIZZLES

FORMAT = "jax_bwgemm tuning"
# Also part of the default folder's name, so that versions of this package do not fight over files.
VERSION = 1

_KERNEL_NAME = re.compile(r"[a-z0-9_]{1,128}")
_DTYPES = ("bfloat16", "float16", "float32")
_MAJORS = ("kn", "kk", "mn", "mk")
SHARED = ("none", "lhs", "rhs")
METHODS = ("cupti", "wall")


class TuningFileError(ValueError):
    """Text that is not a tuning file this version reads, with the place and the reason."""


@dataclasses.dataclass(frozen=True, order=True)
class ProblemKey:
    """What selection knows of a problem when it chooses: types, majors and padded sizes.

    Attributes:
        in_dtype: Type of both operands.
        out_dtype: Type of the result.
        majors: Storage of both operands, as in kernel names.
        m: Rows of D, with the padding that alignment demands.
        n: Columns of D, likewise.
        k: Contracted size, likewise.
        batch: Number of products.
        shared: The operand that all of a batch share: ``"none"``, ``"lhs"`` or ``"rhs"``.
    """

    in_dtype: str
    out_dtype: str
    majors: str
    m: int
    n: int
    k: int
    batch: int = 1
    shared: str = "none"

    def __str__(self) -> str:
        batch = f" x{self.batch}" if self.batch != 1 else ""
        shared = f" ({self.shared} shared)" if self.shared != "none" else ""
        types = f"{self.in_dtype}->{self.out_dtype}"
        return f"{self.m}x{self.n}x{self.k}{batch}{shared} {self.majors} {types}"

    @property
    def dims(self) -> GemmDims:
        """The sizes as selection takes them."""
        lhs = 1 if self.shared == "lhs" else self.batch
        rhs = 1 if self.shared == "rhs" else self.batch
        return GemmDims(self.m, self.n, self.k, self.batch, lhs, rhs)


def problem_key(spec: GemmSpec, in_dtype: str, dims: GemmDims) -> ProblemKey:
    """The key of a folded and padded problem."""
    shared = "none"
    if dims.batch != 1 and dims.lhs_batch != dims.rhs_batch:
        shared = "lhs" if dims.lhs_batch == 1 else "rhs"
    return ProblemKey(
        in_dtype, spec.out_dtype, spec.majors, dims.m, dims.n, dims.k, dims.batch, shared
    )


@dataclasses.dataclass(frozen=True)
class TunedEntry:
    """The fastest choice measured for a problem.

    Attributes:
        kernel: Name of the kernel.
        raster_order: ``"heuristic"``, ``"m"`` or ``"n"``.
        swizzle: 1, 2, 4, 8 or 16.
        splits: Parts that K was split into.
        us: Median time in microseconds.
        heuristic_us: Median time of the heuristic's choice in the same measurement.
        method: ``"cupti"`` (kernel time) or ``"wall"``.
        decomposition: How a stream-K kernel divided the work. Files may lack it.
    """

    kernel: str
    raster_order: str
    swizzle: int
    splits: int
    us: float
    heuristic_us: float
    method: str
    decomposition: str = "heuristic"


@dataclasses.dataclass(frozen=True)
class TunedDevice:
    """The GPU that a table was measured on.

    Attributes:
        kind: JAX's ``device_kind``, for example ``"NVIDIA H200"``.
        arch: Architecture of the kernels.
        sm_count: Number of multiprocessors.
    """

    kind: str
    arch: str
    sm_count: int


class TuningTable:
    """Tuned choices of one kind of GPU. Immutable, hashable by content.

    A context manager: within it these entries come before the cache and the heuristic (but after
    an explicit ``config=``), and within nested tables the innermost comes first. Programs traced
    outside are traced again inside, as with any JAX configuration. ``a | b`` merges two tables;
    where both have a problem, b's entry stays.

    Args:
        device: Where the entries were measured.
        entries: Choice of each problem.
    """

    def __init__(self, device: TunedDevice, entries: Mapping[ProblemKey, TunedEntry]) -> None:
        self.device = device
        self._entries = dict(sorted(entries.items()))
        self._identity = (device, tuple(self._entries.items()))
        self._hash = hash(self._identity)
        self._entered = threading.local()  # contexts belong to the thread that entered them

    def get(self, key: ProblemKey) -> TunedEntry | None:
        """The choice for a problem; None when it was not tuned."""
        return self._entries.get(key)

    def items(self) -> Iterable[tuple[ProblemKey, TunedEntry]]:
        """All problems with their choices, sorted."""
        return self._entries.items()

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[ProblemKey]:
        return iter(self._entries)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TuningTable) and self._identity == other._identity

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        return f"<{len(self)} tuned problems of {self.device.kind}>"

    def __or__(self, other: TuningTable) -> TuningTable:
        if not isinstance(other, TuningTable):
            return NotImplemented
        if self.device != other.device:
            raise ValueError(f"cannot merge tuning of {self.device} with that of {other.device}")
        return TuningTable(self.device, {**self._entries, **other._entries})

    def __enter__(self) -> TuningTable:
        from jax_bwgemm.tuning.context import tuned

        context = tuned(self)
        context.__enter__()
        self._entered.stack = [*getattr(self._entered, "stack", []), context]
        return self

    def __exit__(self, *error: Any) -> None:
        self._entered.stack.pop().__exit__(*error)

    def dumps(self) -> str:
        """The table as JSON text."""
        rows = [
            json.dumps(dataclasses.asdict(key) | dataclasses.asdict(entry))
            for key, entry in self.items()
        ]
        head = {"format": FORMAT, "version": VERSION, "device": dataclasses.asdict(self.device)}
        listed = ",\n".join("  " + row for row in rows)
        return json.dumps(head)[:-1] + f', "entries": [\n{listed}\n]}}\n'

    def dump(self, path: str | os.PathLike[str], *, merge: bool = False) -> None:
        """Writes the table to a file; see `tuning_files.dump`.

        Args:
            path: Where.
            merge: Keep the entries of other problems that the file has.

        Raises:
            OSError: The file cannot be written.
        """
        from jax_bwgemm.tuning import files as tuning_files

        tuning_files.dump(self, path, merge=merge)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> TuningTable:
        """Reads a file that `dump` wrote.

        Raises:
            OSError: The file cannot be read.
            TuningFileError: It is not a tuning file.
        """
        from jax_bwgemm.tuning import files as tuning_files

        return tuning_files.load(path)

    @classmethod
    def loads(cls, text: str | bytes) -> TuningTable:
        """Reads what `dumps` wrote.

        Raises:
            TuningFileError: It is not such text, or a field has a value it cannot have.
        """
        try:
            data = json.loads(text)
        except (ValueError, RecursionError) as error:  # also bytes that are not UTF-8
            raise TuningFileError(f"not JSON: {error}") from None
        if not isinstance(data, dict) or data.get("format") != FORMAT:
            raise TuningFileError(f'not a tuning file: no "format": {json.dumps(FORMAT)}')
        if data.get("version") != VERSION:
            raise TuningFileError(
                f"version {data.get('version')!r} of the format, this package reads {VERSION}"
            )
        device = _read(TunedDevice, data.get("device"), "device", _DEVICE_CHECKS)
        rows = data.get("entries")
        if not isinstance(rows, list):
            raise TuningFileError("entries: not a list")
        entries: dict[ProblemKey, TunedEntry] = {}
        for index, row in enumerate(rows):
            where = f"entries[{index}]"
            key = _read(ProblemKey, row, where, _KEY_CHECKS)
            entries[key] = _read(TunedEntry, row, where, _ENTRY_CHECKS)
            unknown = row.keys() - _KEY_CHECKS.keys() - _ENTRY_CHECKS.keys()
            if unknown:
                raise TuningFileError(f"{where}: unknown fields {sorted(unknown)}")
        return TuningTable(device, entries)


def _is_int(value: Any, most: int = 2**31 - 1) -> bool:
    return type(value) is int and 1 <= value <= most


def _is_time(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value) and value > 0


_DEVICE_CHECKS = {
    "kind": lambda v: isinstance(v, str) and 0 < len(v) <= 256,
    "arch": lambda v: v in ("sm90", "sm100"),
    "sm_count": lambda v: _is_int(v, 10**4),
}
_KEY_CHECKS = {
    "in_dtype": lambda v: v in _DTYPES,
    "out_dtype": lambda v: v in _DTYPES,
    "majors": lambda v: v in _MAJORS,
    "m": _is_int,
    "n": _is_int,
    "k": _is_int,
    "batch": _is_int,
    "shared": lambda v: v in SHARED,
}
_ENTRY_CHECKS = {
    "kernel": lambda v: isinstance(v, str) and _KERNEL_NAME.fullmatch(v) is not None,
    "raster_order": lambda v: v in RASTER_ORDERS,
    "swizzle": lambda v: _is_int(v) and v in SWIZZLES,
    "splits": lambda v: _is_int(v, MAX_SPLITS),
    "us": _is_time,
    "heuristic_us": _is_time,
    "method": lambda v: v in METHODS,
    "decomposition": lambda v: v in DECOMPOSITIONS,
}
_OPTIONAL = ("decomposition",)


def _read(kind: Any, row: Any, where: str, checks: Mapping[str, Any]) -> Any:
    """Builds a dataclass from a JSON object, checking every field."""
    if not isinstance(row, dict):
        raise TuningFileError(f"{where}: not an object")
    for field, check in checks.items():
        if field not in row:
            if field in _OPTIONAL:
                continue
            raise TuningFileError(f"{where}: no field {field!r}")
        # Containers are never valid, and some checks would have to hash them.
        if isinstance(row[field], list | dict) or not check(row[field]):
            raise TuningFileError(f"{where}: {field} has the impossible value {row[field]!r:.80}")
    return kind(**{field: row[field] for field in checks if field in row})
