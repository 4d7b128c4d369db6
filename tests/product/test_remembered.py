"""`remembered`: computed once within `remembering`, each time outside."""

from __future__ import annotations

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import pytest

from jax_bwgemm import config
from jax_bwgemm.dense.spec import GemmSpec
from jax_bwgemm.epilogue.costs import Surroundings
from jax_bwgemm.epilogue.fused import Fused
from jax_bwgemm.epilogue.grouped_primitive import GroupedFused
from jax_bwgemm.epilogue.tracing import trace_epilogue
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


def test_no_product_gets_the_kernel_of_one_that_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the choice depends on is part of its key."""
    made = itertools.count()
    for of in (Fused, GroupedFused):
        monkeypatch.setattr(of, "_choose", lambda *_: next(made))
    plus, minus = (trace_epilogue(f, (16, 8), ()).program for f in (lambda z: z + 1, lambda z: -z))
    one = Fused(GemmSpec(), list, plus, ("bfloat16",), (16, 8))
    grouped = GroupedFused(one.spec, list, plus, ("bfloat16",), (16, 8))

    def types(rows: int = 16, dtype: str = "bfloat16") -> list[jax.ShapeDtypeStruct]:
        return [jax.ShapeDtypeStruct(s, jnp.dtype(dtype)) for s in ((1, rows, 8), (1, 8, 8))]

    def all_that_differ() -> list[object]:
        changed = [
            {},
            {"spec": GemmSpec(b_major="k")},
            {"program": minus},
            {"result_types": ("float32",)},
            {"surroundings": Surroundings(also_read=1)},
        ]
        found = [
            dataclasses.replace(one, **more).choose("cutlass", "cuda", types()) for more in changed
        ]
        found += [one.choose(name, "cpu", types()) for name in ("emulator", "cutlass")]
        found += [one.choose("cutlass", "cuda", types(32))]
        found += [one.choose("cutlass", "cuda", types(dtype="float16"))]
        found += [grouped.choose("cutlass", "cuda", types())]
        halves = dataclasses.replace(grouped, halves=True)
        found += [halves.choose("cutlass", "cuda", types())]
        with config.target("sm100"):
            return [*found, one.choose("cutlass", "cuda", types())]

    with remembering():
        found = all_that_differ()
        assert found == list(range(len(found)))
        assert all_that_differ() == found
