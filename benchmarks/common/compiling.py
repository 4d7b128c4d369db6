"""Programs compiled side by side, so that a benchmark with many does not wait for each."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import os
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, TypeVar

import jax

Key = TypeVar("Key", bound=Hashable)


@dataclasses.dataclass(frozen=True)
class Compiled:
    """A program.

    Attributes:
        text: As lowered.
        call: Runs it.
    """

    text: str
    call: Callable[..., Any]


def side_by_side(
    programs: Mapping[Key, tuple[Callable[..., Any], Sequence[Any]]],
    tuned_by_xla: Callable[[Key], bool],
) -> dict[Key, Compiled]:
    """Compiles functions, on all cores.

    Args:
        programs: Functions and their arguments, or the types of these.
        tuned_by_xla: Which of them XLA runs kernels for while it compiles, to choose one. These are
            compiled one after another, so that they do not disturb each other.
    """

    def compile_one(key: Key) -> Compiled:
        function, arguments = programs[key]
        lowered = jax.jit(function).lower(*arguments)
        return Compiled(lowered.as_text(), lowered.compile())

    pool = concurrent.futures.ThreadPoolExecutor
    with pool(max(2, os.cpu_count() or 1)) as many, pool(1) as one:
        # Those that wait for each other first.
        keys = sorted(programs, key=lambda key: not tuned_by_xla(key))
        found = {key: (one if tuned_by_xla(key) else many).submit(compile_one, key) for key in keys}
        return {key: found[key].result() for key in programs}
