"""Signals that reach a process while the emulator runs a launch."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

from jax_bwgemm import emulator


@contextlib.contextmanager
def signalled_within_a_launch(number: int, handler: Callable[..., Any]) -> Iterator[None]:
    """Sends a signal, once, as soon as a launch within the block has begun."""
    ended = threading.Event()

    def send() -> None:
        while emulator.progress() == (0, 0):  # not begun
            if ended.is_set():
                return
        os.kill(os.getpid(), number)

    before = signal.signal(number, handler)
    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        signal.signal(number, before)
