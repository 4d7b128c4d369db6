"""Cases of errors: (call, type, message), the message whole."""

from __future__ import annotations

from collections.abc import Callable

import pytest

Case = tuple[Callable[[], object], type[BaseException], str]


def check_error(case: Case) -> None:
    """Checks an error's type and text. A message that ends in a colon stands for all that begin so:
    lists of a build's kernels follow it.
    """
    call, kind, message = case
    with pytest.raises(kind) as caught:
        call()
    assert type(caught.value) is kind
    assert str(caught.value) == message or (
        message.endswith(": ") and str(caught.value).startswith(message)
    )
