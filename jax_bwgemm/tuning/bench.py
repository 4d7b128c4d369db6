"""Runs and times candidate kernels of one problem on the GPU."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jax_bwgemm.config import Target
from jax_bwgemm.dense.lowering import KernelCall, emit
from jax_bwgemm.dense.search_space import Choice, spec_of
from jax_bwgemm.dense.selection import Selection
from jax_bwgemm.dense.spec import Folded
from jax_bwgemm.tuning.cache import ProblemKey
from jax_bwgemm.tuning.kernel_timer import Timer

# Operands are rotated over this much memory, more than any supported GPU's L2, so that a call does
# not find what the one before it read.
ROTATE_BYTES = 256 * 2**20
MAX_COPIES = 32
ROUNDS, BURST = 7, 3


class Bench:
    """Measures choices of one problem against each other.

    Args:
        key: The problem.
        target: The GPU.
        device: It, as JAX knows it.
        timer: How to measure.
        implementation: ``"cutlass"``; ``"emulator"`` runs the same code on a CPU.
    """

    def __init__(
        self,
        key: ProblemKey,
        target: Target,
        device: jax.Device,
        timer: Timer,
        implementation: str = "cutlass",
    ) -> None:
        self._key, self._target, self._timer = key, target, timer
        self._implementation = implementation
        self.failures: list[tuple[Choice, str]] = []
        self._calls: dict[Choice, Callable[[int], Any]] = {}
        dims = key.dims
        lhs = (dims.m, dims.k) if key.majors[0] == "k" else (dims.k, dims.m)
        rhs = (dims.k, dims.n) if key.majors[1] == "n" else (dims.n, dims.k)
        self._shapes = (dims.lhs_batch, *lhs), (dims.rhs_batch, *rhs)
        size = jnp.dtype(key.in_dtype).itemsize
        each = size * (dims.lhs_batch * dims.m + dims.rhs_batch * dims.n) * dims.k
        copies = max(2, min(MAX_COPIES, -(-ROTATE_BYTES // max(each, 1))))
        with jax.default_device(device):
            keys = jax.random.split(jax.random.key(0), copies)
            self._operands = jax.block_until_ready([self._draw(k) for k in keys])

    def _draw(self, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Normal operands: how many bits toggle decides power, and so the clock."""
        lhs, rhs = jax.random.split(key)
        dtype = self._key.in_dtype
        return (
            jax.random.normal(lhs, self._shapes[0], dtype),
            jax.random.normal(rhs, self._shapes[1], dtype),
        )

    def _compile(self, choice: Choice) -> Callable[[int], Any]:
        """A function of the number of a call that runs it."""
        if choice in self._calls:
            return self._calls[choice]
        dims, (lhs, rhs) = self._key.dims, self._shapes
        selection = Selection(
            choice.kernel,
            choice.raster_order,
            choice.swizzle,
            "autotuning",
            (),
            choice.splits,
            choice.decomposition,
        )
        call = KernelCall(
            self._implementation,
            selection,
            self._target,
            Folded(spec_of(self._key), None, lhs, None, rhs),
            dims,
            dims,
        )
        shape = (dims.batch, dims.m, dims.n)
        run = jax.jit(lambda a, b: emit(call, a, b, shape))
        compiled = run.lower(*self._operands[0]).compile()
        self._calls[choice] = lambda i: compiled(*self._operands[i % len(self._operands)])
        return self._calls[choice]

    def measure(self, choices: Sequence[Choice], deadline: float) -> dict[Choice, float]:
        """Median microseconds of each choice that runs, the first of them in any case.

        Choices are measured in turns, so that clocks and temperature are the same for all, each
        turn in another order: at the power limit a kernel's clock depends on the kernel before.

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
            except (jax.errors.JaxRuntimeError, ValueError) as error:
                self.failures.append((choice, str(error).splitlines()[0]))
                continue
            ready.append((choice, call))
        times: dict[Choice, list[float]] = {choice: [] for choice, _ in ready}
        for turn in range(ROUNDS):
            if turn and time.monotonic() > deadline:
                break
            for choice, call in random.Random(turn).sample(ready, len(ready)):
                times[choice] += self._timer.burst(call, turn * BURST, BURST)
        return {choice: statistics.median(found) for choice, found in times.items()}
