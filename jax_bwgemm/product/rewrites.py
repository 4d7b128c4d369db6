"""What `accelerate` and `autocast` decide for products of JAX's, and who is told."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterable, Iterator

import jax

from jax_bwgemm.product.implementations import log_once


@dataclasses.dataclass(frozen=True)
class Rewrite:
    """What `jax_bwgemm.accelerate` or `jax_bwgemm.autocast` decided for a product of JAX's.

    Attributes:
        product: JAX's operation and its types.
        rewritten: Whether it became this package's; of ``autocast``, an 8-bit one.
        reason: Why, or why not.
        source: File, line and function of the user's code; empty if unknown.
        place: The bodies it is in, from the outermost, as ``"scan body > checkpoint"``; empty at
            the top of the decorated function.
        times: How often a call of the decorated function runs it, as in `ProgramExplanation`.
        by: ``"accelerate"`` or ``"autocast"``.
    """

    product: str
    rewritten: bool
    reason: str
    source: str = ""
    place: str = ""
    times: int = 1
    by: str = "accelerate"

    def inside(self, place: str, times: int) -> Rewrite:
        """The decision seen from outside of a body that runs so often."""
        path = f"{place} > {self.place}" if self.place else place
        return dataclasses.replace(self, place=path, times=self.times * times)

    @property
    def left(self) -> str:
        """What a product that was not rewritten is."""
        return "left to XLA" if self.by == "accelerate" else "left as it is"

    def __str__(self) -> str:
        where = ", ".join(x for x in (self.place, self.source) if x)
        lines = [f"{self.times} x {self.product}"]
        lines.append(f"  {'rewritten' if self.rewritten else self.left}: {self.reason}")
        return "\n".join([*lines, f"  in {where}"] if where else lines)


class _Recorder:
    """Holds a list. A part of JAX's cache keys that is equal to no other."""

    def __init__(self) -> None:
        self.decisions: list[Rewrite] = []


_recorder = jax.make_user_context(default_value=None)


@contextlib.contextmanager
def recorded() -> Iterator[list[Rewrite]]:
    """A list of what is decided while it lasts.

    What JAX has traced before is traced again, and its caches keep those programs as long as their
    functions, or until `jax.clear_caches`.
    """
    recorder = _Recorder()
    decisions = recorder.decisions
    try:
        with _recorder(recorder):
            yield decisions
    finally:
        recorder.decisions = []  # the caches keep the recorder


def report(decisions: Iterable[Rewrite]) -> None:
    """Says what was decided for a function: to `recorded`, or else to the log, if it was left."""
    if _recorder.value is not None:
        _recorder.value.decisions.extend(decisions)
        return
    for found in decisions:
        if not found.rewritten:
            where = f", in {found.source}" if found.source else ""
            log_once(f"{found.by}: {found.product} is {found.left}: {found.reason}{where}")
