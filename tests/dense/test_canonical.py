"""Canonicalisation, folding and specs: pure functions, no arrays but for one end-to-end check."""

from __future__ import annotations

import pytest

from jax_bwgemm.dense.canonical import CanonicalPlan, canonicalize, dot_labels, matmul_labels
from jax_bwgemm.dense.spec import GemmSpec, a_transpose_spec, b_transpose_spec, fold, gemm_dims
from jax_bwgemm.product.spec import Policy


def plan_dot(lhs: tuple, rhs: tuple, contract: tuple, batch: tuple = ((), ())) -> CanonicalPlan:
    labels = dot_labels(len(lhs), len(rhs), contract, batch)
    return plan(labels, lhs, rhs)


def plan_matmul(lhs: tuple, rhs: tuple) -> CanonicalPlan:
    return plan(matmul_labels(lhs, rhs), lhs, rhs)


def plan(labels: tuple, lhs: tuple, rhs: tuple) -> CanonicalPlan:
    sizes = dict(zip(labels[0], lhs, strict=True)) | dict(zip(labels[1], rhs, strict=True))
    return canonicalize(*labels, tuple(sorted(sizes.items())))


# (plan, A's major and shape, B's major and shape, elements copied)
FREE = [
    (plan_matmul((5, 7), (7, 3)), "k", (1, 5, 7), "n", (1, 7, 3)),
    # Leading dimensions of activations stay a batch, so that each can be sharded.
    (plan_matmul((2, 5, 7), (7, 3)), "k", (2, 5, 7), "n", (1, 7, 3)),
    (plan_matmul((2, 4, 5, 7), (7, 3)), "k", (2, 20, 7), "n", (1, 7, 3)),
    (plan_matmul((2, 5, 7), (2, 7, 3)), "k", (2, 5, 7), "n", (2, 7, 3)),
    # Shared operands are not repeated, whether missing or of size 1.
    (plan_matmul((5, 7), (2, 7, 3)), "k", (1, 5, 7), "n", (2, 7, 3)),
    (plan_matmul((1, 5, 7), (2, 7, 3)), "k", (1, 5, 7), "n", (2, 7, 3)),
    (plan_matmul((2, 5, 7), (1, 7, 3)), "k", (2, 5, 7), "n", (1, 7, 3)),
    # Vectors.
    (plan_matmul((7,), (7,)), "k", (1, 1, 7), "n", (1, 7, 1)),
    (plan_matmul((7,), (7, 3)), "k", (1, 1, 7), "n", (1, 7, 3)),
    (plan_matmul((2, 5, 7), (7,)), "k", (2, 5, 7), "n", (1, 7, 1)),
    # Every storage order of a plain product.
    (plan_dot((7, 5), (7, 3), ((0,), (0,))), "m", (1, 7, 5), "n", (1, 7, 3)),
    (plan_dot((5, 7), (3, 7), ((1,), (1,))), "k", (1, 5, 7), "k", (1, 3, 7)),
    (plan_dot((7, 5), (3, 7), ((0,), (1,))), "m", (1, 7, 5), "k", (1, 3, 7)),
    # Several contracted dimensions in the same order; in either order of the numbers.
    (plan_dot((5, 2, 7), (2, 7, 3), ((1, 2), (0, 1))), "k", (1, 5, 14), "n", (1, 14, 3)),
    (plan_dot((5, 2, 7), (2, 7, 3), ((2, 1), (1, 0))), "k", (1, 5, 14), "n", (1, 14, 3)),
    # Weight gradient of a batched layer: both leading dimensions are contracted.
    (plan_dot((2, 5, 7), (2, 5, 3), ((0, 1), (0, 1))), "m", (1, 10, 7), "n", (1, 10, 3)),
    # Size-1 dimensions may lie anywhere.
    (plan_dot((5, 1, 7), (1, 7, 3), ((2,), (1,)), ((1,), (0,))), "k", (1, 5, 7), "n", (1, 7, 3)),
    # Per-head projections: two free dimensions of the right operand.
    (plan_dot((5, 7), (7, 2, 3), ((1,), (0,))), "k", (1, 5, 7), "n", (1, 7, 6)),
]


@pytest.mark.parametrize("case", FREE)
def test_storage_orders_that_need_no_copy(case: tuple) -> None:
    got, a_major, lhs_shape, b_major, rhs_shape = case
    assert (got.lhs.major, got.lhs.shape) == (a_major, lhs_shape)
    assert (got.rhs.major, got.rhs.shape) == (b_major, rhs_shape)
    assert got.lhs.perm is got.rhs.perm is got.perm is None
    assert got.copied == 0


def test_the_smaller_operand_is_copied() -> None:
    # Contracted dimensions in different orders: one operand has to move.
    small_left = plan_dot((2, 5, 7), (7, 2, 300), ((0, 2), (1, 0)))
    assert (small_left.lhs.perm, small_left.rhs.perm) == ((1, 2, 0), None)
    assert small_left.copied == 2 * 5 * 7
    small_right = plan_dot((500, 2, 7), (7, 2, 3), ((1, 2), (1, 0)))
    assert (small_right.lhs.perm, small_right.rhs.perm) == (None, (1, 0, 2))
    assert small_right.copied == 7 * 2 * 3


def test_batch_that_is_not_leading_moves() -> None:
    got = plan_dot((5, 2, 7), (2, 7, 3), ((2,), (1,)), ((1,), (0,)))
    assert got.lhs.perm == (1, 0, 2)
    assert got.rhs.perm is None
    assert got.copied == 5 * 2 * 7


def test_result_is_transposed_when_that_is_cheaper_than_both_operands() -> None:
    # Both operands store the batch as (b, a); the result wants (a, b).
    got = plan_dot((2, 3, 500, 7), (2, 3, 7, 1), ((3,), (2,)), ((1, 0), (1, 0)))
    assert got.lhs.perm is got.rhs.perm is None
    assert got.perm == (1, 0, 2)


def test_of_plans_that_copy_as_much_the_preferred_one_is_taken() -> None:
    """A leading dimension of rows stays the batch, so that it can be sharded."""
    sizes = {1: 3, 2: 5, 3: 7, 4: 11}
    got = canonicalize((1, 3, 2), (4, 2), (3, 1, 4), tuple(sizes.items()))
    assert (got.copied, got.perm) == (105, None)
    assert (got.lhs.perm, got.lhs.shape) == ((1, 0, 2), (7, 3, 5))
    assert (got.rhs.perm, got.rhs.shape) == (None, (1, 11, 5))


def test_dot_general_order_of_a_shared_left_operand() -> None:
    """dot_general wants (m, b, n); the kernel gives (b, m, n): the cheaper side moves."""
    got = plan_dot((5, 7), (2, 7, 3), ((1,), (1,)))
    # 30 elements of the result or 42 of the right operand.
    assert got.copied == 30
    assert got.perm == (1, 0, 2)


def test_partial_broadcast_of_both_batches() -> None:
    got = plan_matmul((5, 1, 4, 7), (1, 3, 7, 2))
    assert got.shape == (5, 3, 4, 2)
    assert got.lhs.perm is got.rhs.perm is None  # 5 joins m, 3 is the batch; only D moves
    assert got.perm is not None


@pytest.mark.parametrize("shape", [(0, 7, 3), (5, 0, 3), (5, 7, 0)])
def test_empty_dimensions(shape: tuple) -> None:
    m, k, n = shape
    got = plan_matmul((m, k), (k, n))
    assert got.lhs.shape == (1, m, k)
    assert got.rhs.shape == (1, k, n)


def test_groups() -> None:
    got = plan_matmul((2, 4, 5, 7), (7, 3))
    assert got.groups == (1, 2, 1)
    assert got.lhs.groups == (1, 2, 1)
    assert got.rhs.groups == (0, 1, 1)


# -- one device's folding


def folded_dims(spec: GemmSpec, lhs: tuple, rhs: tuple) -> tuple:
    folded = fold(spec, lhs, rhs)
    dims = gemm_dims(folded.spec, *folded.shapes)
    copies = tuple(perm is not None for perm in folded.perms)
    return (dims.batch, dims.m, dims.n, dims.k), copies


@pytest.mark.parametrize(
    ("spec", "lhs", "rhs", "dims", "copies"),
    [
        # Shared weights: rows of all batches are one GEMM.
        (GemmSpec("k", "n"), (4, 5, 7), (1, 7, 3), (1, 20, 3, 7), (False, False)),
        (GemmSpec("k", "k"), (4, 5, 7), (1, 3, 7), (1, 20, 3, 7), (False, False)),
        # M contiguous: rows of different batches do not lie beside each other.
        (GemmSpec("m", "n"), (4, 7, 5), (1, 7, 3), (4, 5, 3, 7), (False, False)),
        (GemmSpec("k", "n"), (1, 5, 7), (4, 7, 3), (4, 5, 3, 7), (False, False)),
        (GemmSpec("k", "n"), (4, 5, 7), (4, 7, 3), (4, 5, 3, 7), (False, False)),
        # Summed over the batch: one deep GEMM, free when K is the outer storage dimension.
        (
            GemmSpec("m", "n", reduce_batch=True),
            (4, 7, 5),
            (4, 7, 3),
            (1, 5, 3, 28),
            (False, False),
        ),
        (
            GemmSpec("k", "n", reduce_batch=True),
            (4, 5, 7),
            (4, 7, 3),
            (1, 5, 3, 28),
            (True, False),
        ),
        (
            GemmSpec("m", "k", reduce_batch=True),
            (4, 7, 5),
            (4, 3, 7),
            (1, 5, 3, 28),
            (False, True),
        ),
    ],
)
def test_fold(spec: GemmSpec, lhs: tuple, rhs: tuple, dims: tuple, copies: tuple) -> None:
    assert folded_dims(spec, lhs, rhs) == (dims, copies)


@pytest.mark.parametrize("majors", ["kn", "kk", "mn", "mk"])
def test_transposing_twice_gives_the_same_problem(majors: str) -> None:
    """The transpose of dA = f(dD, B) with respect to dD is D = f(A, B) again."""
    spec = GemmSpec(majors[0], majors[1])
    lhs = (1, 5, 7) if majors[0] == "k" else (1, 7, 5)
    rhs = (1, 7, 3) if majors[1] == "n" else (1, 3, 7)
    dims = gemm_dims(spec, lhs, rhs)
    first = a_transpose_spec(spec, 1, dims, "bfloat16")
    operands = ((1, 5, 3), rhs) if majors[0] == "k" else (rhs, (1, 5, 3))
    transposed = gemm_dims(first, *operands)
    back = (
        a_transpose_spec(first, 1, transposed, "bfloat16")
        if majors[0] == "k"
        else b_transpose_spec(first, 1, transposed, "bfloat16")
    )
    assert back == spec


def test_spec_repr_lists_only_what_differs() -> None:
    assert repr(GemmSpec()) == "<kn bfloat16>"
    spec = GemmSpec(
        "m",
        "k",
        out_dtype="float32",
        reduce_batch=True,
        policy=Policy(implementations=("cutlass",)),
    )
    assert repr(spec) == "<mk float32 reduce_batch implementations=('cutlass',)>"
