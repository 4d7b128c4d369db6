"""Settings of the emulated machine."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from types import ModuleType

from jax_bwgemm import runtime


def native() -> ModuleType:
    """The compiled emulator.

    Raises:
        RuntimeError: It was not built.
    """
    module = runtime.load_emulator()
    if module is None:
        raise RuntimeError("jax_bwgemm was installed without its emulator (module _emulator)")
    return module


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """What emulated launches use.

    Attributes:
        seed: Seed of the scheduler: which warp runs next, which asynchronous operation completes
            next. Everything about a run is reproducible from it.
        sm_count: Multiprocessors of the machine. Few of them make a persistent kernel loop over
            many tiles.
        step_limit: Warp instructions after which a launch is stopped and reported.
        async_hazards: Report accesses to memory that an asynchronous operation in flight owns.
        proxy_fences: Report asynchronous reads of shared memory that ordinary stores wrote, without
            the proxy fence.
        uninitialized: Report ordinary loads of shared memory that nothing has written.
        poison_outputs: Fill the results of a JAX call with NaN bit patterns before the kernel runs.
        trace: Keep the timeline of each launch (`last_trace`).
        trace_limit: Events kept of one launch; the rest is counted and dropped.
    """

    seed: int = 0
    sm_count: int = 4
    step_limit: int = 1 << 36
    async_hazards: bool = True
    proxy_fences: bool = True
    uninitialized: bool = False
    poison_outputs: bool = True
    trace: bool = False
    trace_limit: int = 1 << 21

    def __post_init__(self) -> None:
        for name, least, most in (
            ("seed", 0, (1 << 64) - 1),
            ("sm_count", 1, 1024),
            ("step_limit", 1, (1 << 64) - 1),
            ("trace_limit", 0, 1 << 26),
        ):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int):
                raise TypeError(f"{name} must be an int, got {value!r}")
            if not least <= value <= most:
                raise ValueError(f"{name} must be in [{least}, {most}], got {value}")
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(field.default, bool) and not isinstance(value, bool):
                raise TypeError(f"{field.name} must be True or False, got {value!r}")


def settings() -> Settings:
    """The settings in force."""
    return Settings(**native().settings())


@contextlib.contextmanager
def configure(**changes: int | bool) -> Iterator[Settings]:
    """Changes settings for the launches inside a ``with`` block.

    The settings belong to the process, not to the thread, because JAX runs CPU computations on
    threads of its own: wait for results (``jax.block_until_ready``) before the block ends, and do
    not nest blocks on different threads.

    Args:
        **changes: Fields of `Settings`.

    Yields:
        The settings inside the block.

    Raises:
        TypeError: A name is no setting, or a value has the wrong type.
        ValueError: A value is out of range.
    """
    before = settings()
    inside = dataclasses.replace(before, **changes)
    native().configure(**dataclasses.asdict(inside))
    try:
        yield inside
    finally:
        native().configure(**dataclasses.asdict(before))
