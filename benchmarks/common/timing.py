"""Times of GPU work: kernel time through CUPTI where there is a GPU, wall clock elsewhere.

Rules this file keeps so that two columns of a table can be compared:

- candidates are interleaved: every round runs a short burst of each, in an order that rotates;
- operands are rotated over several copies, so that a call does not find its own inputs in L2;
- the reported figure is the median over all calls of all rounds, with the spread beside it;
- kernel time is the sum over all kernels of one call (a split-K product has two), and the names of
  those kernels are kept: they say what really ran.
"""

from __future__ import annotations

import dataclasses
import math
import os
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

# Three times the largest L2 of the supported GPUs (B200: 126 MB): a rotation evicts itself.
ROTATE_BYTES = 380 * 2**20
MAX_COPIES = 64
# Of a turn, however short its calls: their results are kept until it ends.
MAX_CALLS = 1000


def configure_environment(*, share_gpu: bool) -> None:
    """Sets what must be set before jax is imported.

    Args:
      share_gpu: another framework allocates on the same GPU, so that JAX must not take most of its
        memory up front. Values the user has set are kept.
    """
    if share_gpu:
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")


@dataclasses.dataclass
class Candidate:
    """Something to time.

    Attributes:
      name: label of the column.
      call: runs the work on operand copy `i` without waiting, returns what `wait` waits for.
      wait: blocks until everything `call` returned is computed.
      copies: number of operand copies that `call` accepts.
      info: fields to store beside the times.
    """

    name: str
    call: Callable[[int], Any]
    wait: Callable[[Any], None]
    copies: int = 1
    info: dict[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass
class Timing:
    """Times of one candidate, microseconds per call, and the kernels of one call."""

    times_us: list[float] = dataclasses.field(default_factory=list)
    kernels: list[tuple[str, float]] = dataclasses.field(default_factory=list)


class Timer(Protocol):
    """Runs calls and returns the microseconds of each."""

    method: str

    def burst(self, candidate: Candidate, start: int, calls: int) -> Timing:
        """Runs `calls` calls on operand copies start, start+1, ... and waits for them."""


def copies_for(bytes_per_call: int, rotate_bytes: int = ROTATE_BYTES) -> int:
    """How many operand copies make one rotation exceed `rotate_bytes`; 2 to MAX_COPIES."""
    return max(2, min(MAX_COPIES, -(-rotate_bytes // max(1, bytes_per_call))))


class WallTimer:
    """Host clock around a burst of asynchronous calls, divided by their number."""

    method = "wall"

    def burst(self, candidate: Candidate, start: int, calls: int) -> Timing:
        begin = time.perf_counter()
        results = [candidate.call((start + i) % candidate.copies) for i in range(calls)]
        for result in results:
            candidate.wait(result)
        elapsed = (time.perf_counter() - begin) * 1e6
        return Timing(times_us=[elapsed / calls])


class CuptiTimer:
    """Device time of every kernel of a burst, from CUPTI activity records.

    Uses the collector that ships inside jaxlib. It sees all kernels of this process, also those of
    other frameworks, so that peers outside JAX are timed by the very same method. Memory copies
    and memsets are not kernels and do not count.
    """

    method = "cupti"

    def __init__(self) -> None:
        from jax.experimental.mosaic.gpu import profiler

        if profiler.mosaic_gpu_lib is None:
            raise RuntimeError(
                "this jaxlib has no CUPTI collector (jax.experimental.mosaic.gpu.profiler); "
                "use --timer wall"
            )
        self._collector = profiler.mosaic_gpu_lib._mosaic_gpu_ext

    def burst(self, candidate: Candidate, start: int, calls: int) -> Timing:
        self._collector._cupti_init()
        try:
            results = [candidate.call((start + i) % candidate.copies) for i in range(calls)]
            for result in results:
                candidate.wait(result)
        finally:
            # False: stay attached to CUPTI. Attaching again for each burst costs far more than
            # the bursts do.
            records = self._collector._cupti_get_timings(False)
        return split_records(candidate.name, [(n, ms * 1e3) for n, ms in records], calls)


def split_records(name: str, records: Sequence[tuple[str, float]], calls: int) -> Timing:
    """Divides the kernel records of a burst among its calls.

    Args:
      name: of the candidate, for messages.
      records: (kernel name, microseconds) in launch order.
      calls: how many identical calls made them.

    Raises:
      RuntimeError: no kernel ran, or the calls did not all launch the same kernels.
    """
    if not records:
        raise RuntimeError(f"{name}: no kernel was seen by CUPTI")
    if len(records) % calls:
        raise RuntimeError(
            f"{name}: {len(records)} kernels for {calls} calls is not a whole number per call: "
            f"{sorted({kernel for kernel, _ in records})}"
        )
    per_call = len(records) // calls
    groups = [records[i * per_call : (i + 1) * per_call] for i in range(calls)]
    first = [kernel for kernel, _ in groups[0]]
    for group in groups[1:]:
        if [kernel for kernel, _ in group] != first:
            raise RuntimeError(f"{name}: calls launched different kernels: {first} and {group}")
    return Timing(
        times_us=[sum(us for _, us in group) for group in groups], kernels=list(groups[0])
    )


def make_timer(kind: str, platform: str) -> Timer:
    """The timer called `kind` ("auto", "cupti" or "wall") for a JAX platform.

    Raises:
      ValueError: CUPTI was asked for on a machine without a CUDA device, or an unknown kind.
    """
    if kind == "auto":
        kind = "cupti" if platform == "gpu" else "wall"
    if kind == "cupti":
        if platform != "gpu":
            raise ValueError(f"--timer cupti needs a CUDA device, the platform is {platform!r}")
        return CuptiTimer()
    if kind == "wall":
        return WallTimer()
    raise ValueError(f"unknown timer {kind!r}; the timers are auto, cupti and wall")


def warm_up(candidate: Candidate, seconds: float = 0.0) -> None:
    """Runs a candidate at least once, then for `seconds` so that the clocks come up."""
    begin = time.perf_counter()
    candidate.wait(candidate.call(0))
    turn = 1
    while time.perf_counter() - begin < seconds:
        # A few calls in flight keep the device busy; waiting for each would let it idle.
        results = [candidate.call((turn + i) % candidate.copies) for i in range(4)]
        for result in results:
            candidate.wait(result)
        turn += 4


def interleave(
    timer: Timer,
    candidates: Sequence[Candidate],
    *,
    rounds: int,
    burst: int,
    turn_ms: float = 0.0,
) -> list[Timing]:
    """Times all candidates against each other; one Timing per candidate, in their order.

    Args:
      timer: how to measure a burst.
      candidates: already warmed up.
      rounds: how often every candidate gets a turn.
      burst: calls per turn.
      turn_ms: milliseconds that a turn lasts at least, with as many more calls as that takes, up to
        MAX_CALLS. Between short turns a GPU rests, and its clock is higher than in training.
    """
    timings = [Timing() for _ in candidates]
    calls = [_calls_of_turn(timer, c, burst, turn_ms) for c in candidates]
    for turn in range(rounds):
        for step in range(len(candidates)):
            index = (turn + step) % len(candidates)  # nobody always follows the same neighbour
            measured = timer.burst(candidates[index], turn * calls[index], calls[index])
            timings[index].times_us += measured.times_us
            timings[index].kernels = measured.kernels
    return timings


def _calls_of_turn(timer: Timer, candidate: Candidate, burst: int, turn_ms: float) -> int:
    if turn_ms <= 0:
        return burst
    times = timer.burst(candidate, 0, burst).times_us
    return min(MAX_CALLS, max(burst, math.ceil(turn_ms * 1e3 * len(times) / sum(times))))


def copy_bandwidth(timer: Timer, nbytes: int, *, rounds: int = 5) -> dict[str, float]:
    """Device copy bandwidth: bytes read plus bytes written over the median time of a copy.

    The copy is an element-wise kernel, since memcpy calls leave no kernel record.
    """
    import jax
    import jax.numpy as jnp

    source = jnp.arange(nbytes // 4, dtype=jnp.uint32)
    add = jax.jit(lambda x: x ^ jnp.uint32(1))
    candidate = Candidate("copy", lambda _: add(source), jax.block_until_ready)
    warm_up(candidate)
    (timing,) = interleave(timer, [candidate], rounds=rounds, burst=2)
    median = sorted(timing.times_us)[len(timing.times_us) // 2]
    return {
        "bytes": 2 * source.nbytes,
        "median_us": median,
        "gb_per_s": 2 * source.nbytes / median / 1e3,
    }
