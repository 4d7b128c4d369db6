"""`remembered`: computed once within `remembering`, each time outside."""

from __future__ import annotations

import pytest

from jax_bwgemm.product.remembered import remembered, remembering


def counting() -> tuple[list[int], object]:
    calls: list[int] = []

    def compute() -> int:
        calls.append(len(calls))
        return calls[-1]

    return calls, compute


def test_once_for_a_key_within() -> None:
    calls, compute = counting()
    with remembering():
        assert [remembered(key, compute) for key in ("a", "b", "a", "a")] == [0, 1, 0, 0]
        with remembering():  # that of the outermost
            assert remembered("b", compute) == 1
        assert remembered("a", compute) == 0
    with remembering():  # another program
        assert remembered("a", compute) == 2
    assert len(calls) == 3


def test_each_time_outside() -> None:
    calls, compute = counting()
    with pytest.raises(ZeroDivisionError), remembering():
        remembered("a", lambda: 1 // 0)
    assert [remembered("a", compute) for _ in range(3)] == [0, 1, 2]
    assert len(calls) == 3


def test_errors_are_not_kept() -> None:
    with remembering():
        with pytest.raises(ZeroDivisionError):
            remembered("a", lambda: 1 // 0)
        assert remembered("a", lambda: 3) == 3
