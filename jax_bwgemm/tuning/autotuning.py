"""`autotune`: measures kernels for the GEMMs of a program and remembers the fastest."""

from __future__ import annotations

import dataclasses
import numbers
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from jax_bwgemm.config import Target
from jax_bwgemm.tuning import files, problems, storage
from jax_bwgemm.tuning.abstract_work import Work
from jax_bwgemm.tuning.bench import Bench
from jax_bwgemm.tuning.devices import local_device
from jax_bwgemm.tuning.kernel_timer import Timer, make_timer
from jax_bwgemm.tuning.keys import Key
from jax_bwgemm.tuning.progress import ProgressBar
from jax_bwgemm.tuning.records import Choice, TunedDevice, TunedEntry
from jax_bwgemm.tuning.table import TuningTable
from jax_bwgemm.tuning.work import work_of

# Kernels and splits measured for a problem before the orders of the fastest.
KERNELS = 12
# Seconds for one problem that is tuned because a program that is being compiled needs it.
MISS_SECONDS = 5.0
# The heuristic's choice stays unless another is faster by more than measurements scatter.
KEEP_WITHIN = 0.01
# The fastest that are measured anew against the heuristic's choice. The fastest of twenty is so in
# part by luck, and at the power limit by which kernels ran before it.
CHALLENGERS = 2

MeasureFn = Callable[[Sequence[Choice], float], Mapping[Choice, float]]


@dataclasses.dataclass(frozen=True)
class Measurement:
    """What autotuning found for one problem.

    Attributes:
        problem: The problem.
        times_us: Median microseconds of everything measured, fastest first.
        failures: (choice, reason) of what could not run.
    """

    problem: Key
    times_us: tuple[tuple[Choice, float], ...]
    failures: tuple[tuple[Choice, str], ...] = ()


class AutotuneResult(TuningTable):
    """A `TuningTable` that also tells how it came about.

    Attributes:
        measurements: Everything that was measured, in the order of measurement.
        skipped: (problem, reason) of GEMMs without an entry.
    """

    def __init__(
        self,
        device: TunedDevice,
        entries: Mapping[Key, TunedEntry],
        measurements: tuple[Measurement, ...],
        skipped: tuple[tuple[str, str], ...],
    ) -> None:
        super().__init__(device, entries)
        self.measurements = measurements
        self.skipped = skipped

    def __reduce__(self) -> tuple[Any, ...]:
        kind, arguments = super().__reduce__()
        return kind, (*arguments, self.measurements, self.skipped)

    def __str__(self) -> str:
        lines = [repr(self)]
        for key, entry in self.items():
            gain = entry.heuristic_us / entry.us
            lines.append(
                f"  {key}: {entry.us:.1f} us ({entry.method}), {gain:.3f}x the heuristic; "
                f"{entry.kernel} raster {entry.raster_order} swizzle {entry.swizzle} "
                f"splits {entry.splits}"
                + (f" {entry.decomposition}" if entry.decomposition != "heuristic" else "")
            )
        return "\n".join(lines + [f"  not {what}: {reason}" for what, reason in self.skipped])


def autotune(
    program: Any,
    *args: Any,
    timeout: float = 60.0,
    save: bool | str | os.PathLike[str] = False,
    progress: bool | None = None,
) -> AutotuneResult:
    """Measures kernels for every product of a program and returns the fastest of each.

    Use the result as a context manager, write it to a file with ``dump``, or save it to the cache,
    which every later process consults:

        with jax_bwgemm.autotune(step, params, batch):
            step(params, batch)     # traced again: the tuning is part of jit's key

    Functions that were compiled before an entry came into the *cache* keep their kernels until
    `jax.clear_caches` or a new process.

    Args:
        program: A function, jitted or not; or a `jax.stages.Traced`, `Lowered` or `Compiled`, or a
            jaxpr. Gradients are found where the program takes them, so pass the training step,
            not the loss. The function is traced, never run; it is compiled only if arguments are
            sharded over several devices, since only then is a device's share of each GEMM known.
        *args: Arguments of a function, arrays or `jax.ShapeDtypeStruct`.
        timeout: Seconds to measure at most, apart from finishing what was begun.
        save: ``True`` merges the result into the cache, a path into that file.
        progress: Whether to draw a progress bar on stderr; None means on a terminal.

    Returns:
        The result: entries for the problems that were reached, sorted by kind of product. The
        heaviest problems are measured first.

    Raises:
        RuntimeError: No GPU in this process, or none that kernels exist for.
        TypeError: Not a program, arguments for one that takes none, or options of other types.
        ValueError: A timeout that is negative or NaN, or an empty path.
        OSError: The result could not be saved; this is found out before measuring.
        TuningFileError: ``save`` is a path to something else than a file.
    """
    _check_options(timeout, save, progress)
    device, target, kind = local_device()
    path = files.cache_path(kind.kind) if save is True else save
    if path:
        storage.check_writable(path)
    found = problems.find(program, target, args, {})
    result = tune(found, device, target, kind, timeout=timeout, progress=progress)
    if path:
        result.dump(path, merge=True)
    return result


def _check_options(timeout: Any, save: Any, progress: Any) -> None:
    """Raises what `autotune` does for them."""
    if isinstance(timeout, bool) or not isinstance(timeout, numbers.Real):
        raise TypeError(f"autotune: timeout must be a number of seconds, got {timeout!r}")
    if not timeout >= 0:
        raise ValueError(f"autotune: timeout must be at least 0, got {timeout!r}")
    if not isinstance(save, bool | str | os.PathLike):
        raise TypeError(f"autotune: save must be a bool or a path, got {save!r}")
    if not isinstance(save, bool) and not os.fspath(save):
        raise ValueError("autotune: save is an empty path")
    if not isinstance(progress, bool | None):
        raise TypeError(f"autotune: progress must be True, False or None, got {progress!r}")


def tune_missing(key: Key, kind: TunedDevice) -> TuningTable:
    """Tunes one problem that a program being compiled needs, on a GPU of this process."""
    device, target, _ = local_device(kind)
    found = tune(problems.Problems({key: 1}, ()), device, target, kind, timeout=MISS_SECONDS)
    return TuningTable(kind, dict(found.items()))


def tune(
    found: problems.Problems,
    device: Any,
    target: Target,
    kind: TunedDevice,
    *,
    timeout: float,
    progress: bool | None = False,
) -> AutotuneResult:
    """Measures problems, those that take the longest first."""
    timer = make_timer(device.platform)
    deadline = time.monotonic() + timeout
    weight = {key: key.macs * n for key, n in found.counts.items()}
    waiting = sorted(weight, key=lambda key: -weight[key])
    bar = ProgressBar(len(waiting), timeout, sys.stderr, progress)
    entries: dict[Key, TunedEntry] = {}
    measurements: list[Measurement] = []
    skipped = list(found.skipped)
    for done, key in enumerate(waiting):
        now = time.monotonic()
        if now >= deadline:
            skipped.append((str(key), f"the time budget of {timeout:g} s ran out"))
            continue
        share = now + (deadline - now) / (len(waiting) - done)
        bar.show(done, str(key))
        measurement, entry = _tune_one(key, device, target, timer, now, share)
        measurements.append(measurement)
        if isinstance(entry, str):
            skipped.append((str(key), entry))
        else:
            entries[key] = entry
    bar.show(len(waiting), f"{len(entries)} problems tuned")
    bar.close()
    return AutotuneResult(kind, entries, tuple(measurements), tuple(skipped))


def _tune_one(
    key: Key, device: Any, target: Target, timer: Timer, begin: float, deadline: float
) -> tuple[Measurement, TunedEntry | str]:
    """What was measured of a problem, and its entry, or why there is none.

    Operands are gone when it returns: those of the next problem may need the memory.
    """
    work = work_of(key, target)
    try:
        choices = work.kernels_to_try(KERNELS)
    except ValueError as error:  # a batch that no grid has, or a program for another GPU
        return Measurement(key, ()), str(error)
    try:
        bench = Bench(work, device, timer)
    except jax.errors.JaxRuntimeError as error:  # no memory for the operands
        return Measurement(key, ()), str(error).splitlines()[0]
    times, finalists = _measure_one(work, choices, bench.measure, begin, deadline)
    ordered = tuple(sorted(times.items(), key=lambda row: row[1]))
    measurement = Measurement(key, ordered, tuple(bench.failures))
    if not ordered:
        return measurement, f"no kernel ran: {bench.failures[0][1]}"
    return measurement, _entry(choices[0], finalists, timer.method)


def _measure_one(
    work: Work,
    choices: Sequence[Choice],
    measure: MeasureFn,
    begin: float,
    deadline: float,
) -> tuple[dict[Choice, float], dict[Choice, float]]:
    """Times kernels, then tile orders of the two fastest together with these again.

    Returns:
        Everything that was measured, and what to decide by: where another choice than the first is
        the fastest, the first and its challengers, measured once more.
    """
    first = choices[0]
    times = dict(measure(choices, begin + 0.45 * (deadline - begin)))
    fastest = sorted(times, key=times.__getitem__)[:2]
    orders = [o for c in fastest for o in work.orders_to_try(c, choices)]
    if orders and time.monotonic() < deadline:
        again = [first] if first in times and first not in fastest else []
        # What is compared was measured in one go: medians of the first go are replaced.
        times |= measure([*fastest, *again, *orders], begin + 0.8 * (deadline - begin))
    ordered = sorted(times, key=times.__getitem__)
    if first not in times or first == ordered[0] or time.monotonic() >= deadline:
        return times, times
    challengers = [choice for choice in ordered if choice != first][:CHALLENGERS]
    finalists = dict(measure([first, *challengers], deadline))
    return times | finalists, finalists if first in finalists else times


def _entry(first: Choice, times: Mapping[Choice, float], method: str) -> TunedEntry:
    """The fastest choice, or the heuristic's if it is as fast as can be told."""
    best = min(times, key=times.__getitem__)
    if first in times and times[first] <= times[best] * (1 + KEEP_WITHIN):
        best = first
    heuristic_us = times.get(first, times[best])
    return TunedEntry(
        best.kernel.name,
        best.raster_order,
        best.swizzle,
        best.splits,
        round(times[best], 3),
        round(heuristic_us, 3),
        method,
        best.decomposition,
    )
