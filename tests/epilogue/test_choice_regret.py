"""What linking, or not, loses to the best way to compute a function, on times of one H200."""

from __future__ import annotations

import functools
import math

import pytest

pytestmark = pytest.mark.usefixtures("benchmark_programs")


@functools.cache
def regrets() -> dict[str, float]:
    from dense import epilogue_choice

    return {
        f"{','.join(map(str, p['shape']))} {p['function']}": epilogue_choice.regret(**p)
        for p in epilogue_choice.load()
    }


def test_the_choice_loses_little_in_the_mean() -> None:
    found = regrets().values()
    assert len(found) >= 110
    assert math.exp(sum(map(math.log, found)) / len(found)) <= 1.02


def test_no_choice_loses_much() -> None:
    assert {name: x for name, x in regrets().items() if x > 1.3} == {}


def test_two_products_are_one_kernel_where_it_takes_less_time() -> None:
    from dense import gated_choice

    found = {
        f"{p['shape']} {p['keeps_products']}": gated_choice.regret(**p) for p in gated_choice.load()
    }
    assert len(found) == 22
    assert {name: x for name, x in found.items() if x > 1.02} == {}
