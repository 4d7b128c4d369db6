"""One line on a terminal that says how far a long measurement is."""

from __future__ import annotations

import time
from typing import TextIO


class ProgressBar:
    """One line on a terminal, redrawn; nothing elsewhere unless asked for.

    Args:
        total: Steps.
        budget: Seconds that are available.
        stream: Where to draw.
        wanted: True or False; None means only on a terminal.
    """

    def __init__(self, total: int, budget: float, stream: TextIO, wanted: bool | None) -> None:
        self._total, self._budget, self._stream = total, budget, stream
        self._on = stream.isatty() if wanted is None else wanted
        self._begin = time.monotonic()

    def show(self, done: int, text: str) -> None:
        """Draws the state after ``done`` steps."""
        if not self._on:
            return
        filled = 20 * done // max(1, self._total)
        used = time.monotonic() - self._begin
        line = (
            f"[{'#' * filled}{'.' * (20 - filled)}] {done}/{self._total} "
            f"{used:.0f}/{self._budget:.0f} s  {text}"
        )
        self._stream.write("\r\x1b[K" + line[:110])
        self._stream.flush()

    def close(self) -> None:
        """Ends the line."""
        if self._on:
            self._stream.write("\n")
