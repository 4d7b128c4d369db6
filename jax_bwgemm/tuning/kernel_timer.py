"""Times of GPU work for autotuning: kernel time through CUPTI, else the wall clock, labelled."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import jax

from jax_bwgemm import compat

Call = Callable[[int], Any]


class MeasurementError(RuntimeError):
    """The times of calls cannot be told from those of other work."""


class Timer(Protocol):
    """Measures calls.

    Attributes:
        method: ``"cupti"`` or ``"wall"``, as in `TunedEntry.method`.
    """

    method: str

    def burst(self, call: Call, start: int, count: int) -> list[float]:
        """Microseconds of ``count`` calls ``call(start)``, ``call(start + 1)``, ...

        Raises:
            MeasurementError: Other work ran at the same time.
        """


class WallTimer:
    """Host clock around a burst of asynchronous calls, divided by their number."""

    method = "wall"

    def burst(self, call: Call, start: int, count: int) -> list[float]:
        begin = time.perf_counter()
        jax.block_until_ready([call(start + i) for i in range(count)])
        return [(time.perf_counter() - begin) * 1e6 / count]


class CuptiTimer:
    """Sum of the times of all kernels of a call, from CUPTI activity records.

    Args:
        collector: jaxlib's collector (`compat.cupti_collector`).
    """

    method = "cupti"

    def __init__(self, collector: Any) -> None:
        self._collector = collector

    def burst(self, call: Call, start: int, count: int) -> list[float]:
        self._collector._cupti_init()
        try:
            jax.block_until_ready([call(start + i) for i in range(count)])
        finally:
            # False: stay attached; attaching again for every burst costs more than the bursts do.
            records = self._collector._cupti_get_timings(False)
        return per_call([milliseconds * 1e3 for _, milliseconds in records], count)


def per_call(kernels_us: Sequence[float], calls: int) -> list[float]:
    """Divides kernel times, in launch order, among identical calls.

    Raises:
        MeasurementError: There are none, or no whole number per call.
    """
    if not kernels_us or len(kernels_us) % calls:
        raise MeasurementError(
            f"CUPTI saw {len(kernels_us)} kernels for {calls} identical calls; is another "
            "profiler attached, or other work running in this process?"
        )
    each = len(kernels_us) // calls
    return [sum(kernels_us[i * each : (i + 1) * each]) for i in range(calls)]


def make_timer(platform: str) -> Timer:
    """CUPTI on a GPU whose jaxlib has the collector; else the wall clock, with a warning."""
    collector = compat.cupti_collector() if platform == "gpu" else None
    if collector is not None:
        return CuptiTimer(collector)
    warnings.warn(
        "autotune: kernel times are not available here (no CUPTI collector in this jaxlib), so "
        "the wall clock is used; it includes the cost of launching",
        RuntimeWarning,
        stacklevel=2,
    )
    return WallTimer()
