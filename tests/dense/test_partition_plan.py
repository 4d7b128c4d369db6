"""The sharding decisions, as a table; what they compile to is in test_sharding.py."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from jax_bwgemm.dense.contraction import DENSE
from jax_bwgemm.dense.spec import GemmDims, GemmSpec
from jax_bwgemm.product.partition import Form, plan, sharding_rule

MESH = {"x": 4, "y": 2}
X, Y = ("x",), ("y",)
DIMS = GemmDims(m=16, n=32, k=64, batch=8, a_batch=8, b_batch=8)


def decide(lhs: dict, rhs: dict, out: dict, spec: Any = None, dims: Any = DIMS) -> Any:
    return plan(DENSE, spec or GemmSpec(), dims, MESH, lhs, rhs, out)


def test_block_of_the_result() -> None:
    got = decide({"m": X}, {"n": Y}, {"m": X, "n": Y})
    assert got.operands[0] == ((), X, ())
    assert got.operands[1] == ((), (), Y)
    assert got.out == ((), X, Y)
    assert got.reduce_axes == ()
    assert got.scatter == ()


def test_k_reduces() -> None:
    got = decide({"k": X}, {"k": X}, {})
    assert (got.operands[0], got.operands[1], got.out) == (((), (), X), ((), X, ()), ((), (), ()))
    assert got.reduce_axes == X


def test_k_scatters_when_the_result_is_sharded_alike() -> None:
    got = decide({"k": X}, {"k": X}, {"m": X})
    assert got.reduce_axes == ()
    assert got.scatter == ((1, X),)
    assert got.out == ((), X, ())
    assert got.operands[0] == ((), (), X)  # the local product has all of m


def test_scatter_continues_another_sharding() -> None:
    got = decide({"m": Y, "k": X}, {"k": X}, {"m": (*Y, *X)})
    assert got.out == ((), ("y", "x"), ())
    assert got.scatter == ((1, X),)


def test_scatter_that_does_not_divide_becomes_an_all_reduce() -> None:
    dims = GemmDims(m=6, n=32, k=64)
    got = decide({"k": X}, {"k": X}, {"m": X}, dims=dims)
    assert got.scatter == ()
    assert got.reduce_axes == X


def test_weights_sharded_over_the_data_axis_are_gathered() -> None:
    got = decide({"m": X}, {"k": X}, {"m": X})
    assert got.operands[0] == ((), X, ())
    assert got.operands[1] == ((), (), ())
    assert got.reduce_axes == ()


def test_k_of_one_operand_slices_the_other() -> None:
    got = decide({"k": X}, {}, {})
    assert got.operands[1] == ((), X, ())
    assert got.reduce_axes == X


def test_what_an_operand_has_is_kept_when_the_result_does_not_care() -> None:
    got = decide({"m": X}, {}, {})
    assert got.out == ((), X, ())


def test_axes_are_used_once() -> None:
    got = decide({"m": X}, {"n": X}, {"n": X})
    assert got.out == ((), (), X)
    assert got.operands[0] == ((), (), ())


def test_uneven_sizes_are_not_sharded() -> None:
    dims = GemmDims(m=6, n=32, k=10)
    got = decide({"m": (*Y, *X), "k": ()}, {"k": X}, {"m": (*Y, *X)}, dims=dims)
    assert got.operands[0] == ((), Y, ())  # 6 = 2 * 3
    assert got.operands[1] == ((), (), ())  # 10 is not a multiple of 4


def test_shared_operand_has_no_batch_to_shard() -> None:
    dims = GemmDims(m=16, n=32, k=64, batch=8, a_batch=8, b_batch=1)
    got = decide({"b": X}, {}, {"b": X}, dims=dims)
    assert got.operands[0] == (X, (), ())
    assert got.operands[1] == ((), (), ())
    assert got.out == (X, (), ())


def test_summed_batch_reduces_like_k() -> None:
    spec = GemmSpec("m", "n", reduce_batch=True)
    got = decide({"b": X, "k": Y}, {"b": X, "k": Y}, {}, spec)
    assert got.operands[0] == (X, Y, ())
    assert got.operands[1] == (X, Y, ())
    assert got.out == ((), (), ())
    assert got.reduce_axes == ("x", "y")


@pytest.mark.parametrize(
    ("spec", "lhs", "rhs", "rule", "reduced"),
    [
        (GemmSpec(), (8, 2, 3), (8, 3, 4), "b m k, b k n -> b m n", ("k",)),
        (GemmSpec("m", "k"), (8, 3, 2), (8, 4, 3), "b k m, b n k -> b m n", ("k",)),
        (GemmSpec(), (8, 2, 3), (1, 3, 4), "b m k, q k n -> b m n", ("k",)),
        (GemmSpec(), (1, 2, 3), (8, 3, 4), "p m k, b k n -> b m n", ("k",)),
        (
            GemmSpec("m", "n", reduce_batch=True),
            (8, 3, 2),
            (8, 3, 4),
            "b k m, b k n -> r m n",
            ("b", "k"),
        ),
    ],
)
def test_shardy_rule(spec: GemmSpec, lhs: tuple, rhs: tuple, rule: str, reduced: tuple) -> None:
    dims = DENSE.dims(spec, lhs, rhs)
    assert sharding_rule(DENSE, Form(spec), dims) == (rule, {"reduction_factors": reduced})


@pytest.mark.parametrize(
    ("spec", "lhs", "rhs", "rule"),
    [
        (GemmSpec(), (1, 2, 3), (1, 3, 4), "m k, k n -> m n"),
        (GemmSpec(), (8, 2, 3), (1, 3, 4), "b m k, k n -> b m n"),
        (GemmSpec("m", "n", reduce_batch=True), (8, 3, 2), (8, 3, 4), "b k m, b k n -> m n"),
    ],
)
def test_the_compiler_sees_no_batch_of_one(
    spec: GemmSpec, lhs: tuple, rhs: tuple, rule: str
) -> None:
    form = Form.of(DENSE, spec, [SimpleNamespace(shape=lhs), SimpleNamespace(shape=rhs)])
    assert sharding_rule(DENSE, form, DENSE.dims(spec, lhs, rhs))[0] == rule


def test_a_scatter_continues_no_other_sharding_than_the_result_s() -> None:
    """The rows have y, which is no beginning of what is wanted: they are reduced everywhere."""
    mesh, both = {"x": 2, "y": 2, "z": 2}, ("x", "z")
    got = plan(DENSE, GemmSpec(), DIMS, mesh, {"m": Y, "k": both}, {"k": both}, {"m": both})
    assert got.out == ((), Y, ())
    assert (got.scatter, got.reduce_axes) == ((), both)


def test_an_axis_after_one_that_does_not_divide_is_not_used() -> None:
    """Devices would hold other rows than the neighbours': all axes from there on are gathered."""
    dims = GemmDims(m=6, n=32, k=64)
    rows = {"m": (*X, *Y)}
    got = decide(rows, {}, rows, dims=dims)
    assert got.out == ((), (), ())
    assert got.operands[0] == ((), (), ())


def test_an_operand_is_gathered_along_k_where_the_result_needs_its_axes() -> None:
    """The left one; `test_weights_sharded_over_the_data_axis_are_gathered` is the right one's."""
    got = decide({"k": X}, {"n": X}, {"n": X})
    assert got.operands[:2] == (((), (), ()), ((), (), X))
    assert (got.out, got.reduce_axes, got.scatter) == (((), (), X), (), ())
