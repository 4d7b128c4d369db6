"""Finds the tuned choice of a problem: tables in force > cache > table in the package."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jax_bwgemm.config import Target
from jax_bwgemm.product.implementations import log_once
from jax_bwgemm.product.selection import Selection
from jax_bwgemm.tuning import devices, files, on_miss
from jax_bwgemm.tuning.context import Tuning, TuningMissError
from jax_bwgemm.tuning.keys import Key
from jax_bwgemm.tuning.records import TunedEntry
from jax_bwgemm.tuning.table import TuningTable

MEASURED = "what was measured in this process"


class Found(NamedTuple):
    """A tuned choice that can run.

    Attributes:
        kernel: The kernel.
        entry: Its run-time attributes and times.
        source: Where the entry comes from.
    """

    kernel: Any
    entry: TunedEntry
    source: str

    @property
    def reason(self) -> str:
        """Why this kernel."""
        entry = self.entry
        return (
            f"tuned, from {self.source}: measured {entry.us:g} us ({entry.method}), the "
            f"heuristic's choice {entry.heuristic_us:g} us"
        )

    def selection(self, table: Sequence[Any]) -> Selection:
        """The choice as selection gives it, from a table of kernels."""
        entry, other = self.entry, "another kernel was measured to be best"
        return Selection(
            self.kernel,
            entry.raster_order,
            entry.swizzle,
            self.reason,
            tuple((k.name, other) for k in table if k != self.kernel),
            entry.splits,
            entry.decomposition,
        )


def find(
    key: Key, tuning: Tuning | None, target: Target, usable: Callable[[TunedEntry], Any]
) -> Found | None:
    """The tuned choice of a folded and padded problem.

    Args:
        key: The problem.
        tuning: What was in force where it was traced; None for the defaults.
        target: The GPU.
        usable: The kernel of an entry, or as a string why this build cannot run it.

    Returns:
        The choice; None to leave it to the heuristic.

    Raises:
        TuningMissError: There is none, and the policy is ``"error"``.
    """
    tuning = tuning or Tuning()
    for tuned, source in _tables(tuning, target):
        found = _usable(key, tuned, source, usable)
        if found is not None:
            return found
    if tuning.on_miss == "error":
        raise TuningMissError(
            f"no tuned entry for {key} on {target}, and the policy on a miss is 'error'"
        )
    if tuning.on_miss == "autotune":
        kind = devices.local_kind(target)
        if kind is None:
            log_once(f"{key} is not tuned: the GPU compiled for is not in this process")
            return None
        return _usable(key, on_miss.tune_now(key, kind), MEASURED, usable)
    return None


def _tables(tuning: Tuning, target: Target) -> Iterator[tuple[TuningTable, str]]:
    for tuned in tuning.tables:
        # Entered by the user: the kind of GPU is their business, but kernels must run and sizes
        # in multiprocessors must be right.
        if (tuned.device.arch, tuned.device.sm_count) == (target.arch, target.sm_count):
            yield tuned, "the tuning in force"
    kind = devices.local_kind(target)
    if kind is None:
        return
    if kind in on_miss.measured:
        yield on_miss.measured[kind], MEASURED
    older = files.older_cache_paths(kind.kind)
    places: tuple[tuple[Path | None, str], ...] = (
        (files.cache_path(kind.kind), "the tuning cache"),
        *((path, "the tuning cache of an older version") for path in older),
        (files.packaged_path(kind.kind), "the package's tuning table"),
    )
    for path, source in places:
        tuned = files.load_if_usable(path) if path else None
        if tuned is None:
            continue
        if tuned.device == kind:
            yield tuned, f"{source} {path}"
        else:
            log_once(f"{path} is for {tuned.device}, not {kind}")


def _usable(
    key: Key, tuned: TuningTable, source: str, usable: Callable[[TunedEntry], Any]
) -> Found | None:
    """A table's entry for a problem, if this build can still run it."""
    entry = tuned.get(key)
    if entry is None:
        return None
    kernel = usable(entry)
    if isinstance(kernel, str):
        log_once(f"{key}: kernel {entry.kernel} of {source} is ignored: {kernel}")
        return None
    return Found(kernel, entry, source)
