"""What is computed once while a program is rewritten, however many equal products it has."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Callable, Hashable, Iterator
from typing import Any

_found: contextvars.ContextVar[dict[Hashable, Any] | None] = contextvars.ContextVar(
    "bwgemm_remembered", default=None
)


@contextlib.contextmanager
def remembering() -> Iterator[None]:
    """Within it, `remembered` computes what has one key once.

    What that depends on besides the key must stay the same meanwhile: devices, tuning tables,
    environment variables.
    """
    if _found.get() is not None:
        yield
        return
    token = _found.set({})
    try:
        yield
    finally:
        _found.reset(token)


def remembered(key: Hashable, compute: Callable[[], Any]) -> Any:
    """What `compute` returns, or has returned for an equal key within `remembering`."""
    found = _found.get()
    if found is None:
        return compute()
    if key not in found:
        found[key] = compute()
    return found[key]
