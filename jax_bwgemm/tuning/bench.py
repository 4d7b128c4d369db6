"""Runs and times candidate kernels of one problem on the GPU."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax

from jax_bwgemm.tuning.abstract_work import Work
from jax_bwgemm.tuning.kernel_timer import MeasurementError, Timer
from jax_bwgemm.tuning.records import Choice

# Operands are rotated over this much memory, more than any supported GPU's L2, so that a call does
# not find what the one before it read.
ROTATE_BYTES = 256 * 2**20
MAX_COPIES = 32
ROUNDS, BURST = 7, 3


class Bench:
    """Measures choices of one problem against each other.

    Args:
        work: The problem.
        device: The GPU, as JAX knows it.
        timer: How to measure.
    """

    def __init__(self, work: Work, device: jax.Device, timer: Timer) -> None:
        self._work, self._timer = work, timer
        self.failures: list[tuple[Choice, str]] = []
        self._calls: dict[Choice, Callable[[int], Any]] = {}
        copies = max(2, min(MAX_COPIES, -(-ROTATE_BYTES // max(work.bytes, 1))))
        with jax.default_device(device):
            self._operands = work.operands(copies)
            jax.block_until_ready([self._operands(i) for i in range(copies)])

    def _compile(self, choice: Choice) -> Callable[[int], Any]:
        """A function of the number of a call that runs it."""
        if choice in self._calls:
            return self._calls[choice]
        run = jax.jit(lambda *operands: self._work.emit(choice, *operands))
        compiled = run.lower(*self._operands(0)).compile()
        self._calls[choice] = lambda i: compiled(*self._operands(i))
        return self._calls[choice]

    def measure(self, choices: Sequence[Choice], deadline: float) -> dict[Choice, float]:
        """Median microseconds of each choice that runs, the first of them in any case.

        Choices are measured in turns, so that clocks and temperature are the same for all, each
        turn in another order: at the power limit a kernel's clock depends on the kernel before.
        In a turn all choices get the same operands.

        Args:
            choices: What to measure; later ones are left out when time is short.
            deadline: `time.monotonic` at which to stop.
        """
        begin = time.monotonic()
        half = begin + (deadline - begin) / 2
        ready: list[tuple[Choice, Callable[[int], Any]]] = []
        for choice in choices:
            if ready and time.monotonic() > half:
                break
            try:
                call = self._compile(choice)
                self._timer.burst(call, 0, 2)  # once unmeasured: loading, clocks
            # What a kernel refuses comes as either; one kernel must not cost the others.
            except (jax.errors.JaxRuntimeError, ValueError, MeasurementError) as error:
                self.failures.append((choice, str(error).splitlines()[0]))
                continue
            ready.append((choice, call))
        times: dict[Choice, list[float]] = {choice: [] for choice, _ in ready}
        disturbed: dict[Choice, str] = {}
        for turn in range(ROUNDS):
            if turn and time.monotonic() > deadline:
                break
            for choice, call in random.Random(turn).sample(ready, len(ready)):
                try:
                    times[choice] += self._timer.burst(call, turn * BURST, BURST)
                except MeasurementError as error:  # other work: this turn does not count
                    disturbed[choice] = str(error)
        unknown = [choice for choice, found in times.items() if not found]
        self.failures += [(choice, disturbed[choice]) for choice in unknown]
        return {choice: statistics.median(found) for choice, found in times.items() if found}
