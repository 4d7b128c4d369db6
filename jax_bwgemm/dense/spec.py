"""The canonical GEMM: `GemmSpec` (everything static) and `GemmDims` (sizes). Pure.

``D[B, M, N] = A[B, M, K] @ B[B, K, N]`` with row-major rank-3 arrays. A transposed operand is a
*major* flag, never a copy. An operand's batch may be 1: it is then shared by all batches.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from jax_bwgemm.product.contraction import Folded
from jax_bwgemm.product.spec import MAX_SIZE, ProductSpec


@dataclasses.dataclass(frozen=True, repr=False)
class GemmSpec(ProductSpec):
    """Everything static about a GEMM. Hashable; the primitive's only parameter.

    Attributes:
        a_major: ``"k"`` if A is stored [B, M, K], ``"m"`` if [B, K, M].
        b_major: ``"n"`` if B is stored [B, K, N], ``"k"`` if [B, N, K].
    """

    a_major: str = "k"
    b_major: str = "n"

    @property
    def kind(self) -> str:
        return "dense"

    @property
    def majors(self) -> str:
        return self.a_major + self.b_major

    __repr__ = ProductSpec.__str__


@dataclasses.dataclass(frozen=True)
class GemmDims:
    """Sizes of one GEMM. ``batch`` is the larger of the two operands' batches."""

    m: int
    n: int
    k: int
    batch: int = 1
    a_batch: int = 1
    b_batch: int = 1

    @property
    def empty(self) -> bool:
        """Whether there is nothing to multiply: the result is empty or all zeros."""
        return 0 in (self.m, self.n, self.k, self.batch)

    @property
    def extents(self) -> dict[str, int]:
        """Size of every dimension, by name."""
        return {"b": self.batch, "m": self.m, "n": self.n, "k": self.k}

    @property
    def batches(self) -> tuple[int, int]:
        """Batch of every operand."""
        return self.a_batch, self.b_batch

    def __str__(self) -> str:
        text = f"M={self.m} N={self.n} K={self.k}"
        if self.batch == 1:
            return text
        shared = [s for s, b in (("A", self.a_batch), ("B", self.b_batch)) if b != self.batch]
        note = f" ({' and '.join(shared)} shared)" if shared else ""
        return f"{text} batch={self.batch}{note}"


def gemm_dims(spec: GemmSpec, lhs_shape: Sequence[int], rhs_shape: Sequence[int]) -> GemmDims:
    """Sizes of a GEMM from its operands' shapes.

    Raises:
        TypeError: The operands are not rank 3 or do not fit together.
    """
    if len(lhs_shape) != 3 or len(rhs_shape) != 3:
        raise TypeError(
            f"bw_gemm operands must have rank 3, got shapes {tuple(lhs_shape)} and "
            f"{tuple(rhs_shape)}"
        )
    a_batch, m, k = lhs_shape
    if spec.a_major == "m":
        m, k = k, m
    b_batch, rhs_k, n = rhs_shape
    if spec.b_major == "k":
        rhs_k, n = n, rhs_k
    if k != rhs_k:
        raise TypeError(
            f"bw_gemm contracts K={k} of lhs {tuple(lhs_shape)} with K={rhs_k} of rhs "
            f"{tuple(rhs_shape)} (majors {spec.majors})"
        )
    shared_ok = not spec.reduce_batch and 1 in (a_batch, b_batch)
    if a_batch != b_batch and not shared_ok:
        raise TypeError(
            f"bw_gemm batches {a_batch} of lhs {tuple(lhs_shape)} and {b_batch} of rhs "
            f"{tuple(rhs_shape)} differ"
        )
    batch = b_batch if a_batch == 1 else a_batch
    return GemmDims(m, n, k, batch, a_batch, b_batch)


def out_shape(spec: GemmSpec, dims: GemmDims) -> tuple[int, int, int]:
    """Shape of D."""
    return (1 if spec.reduce_batch else dims.batch, dims.m, dims.n)


def a_transpose_spec(spec: GemmSpec, a_batch: int, dims: GemmDims, dtype: str) -> GemmSpec:
    """Spec of the GEMM that gives the cotangent of A, in A's own storage order.

    A stored [B, M, K]: dA = dD @ B^T, called with operands (dD, B).
    A stored [B, K, M]: dA^T = B @ dD^T, called with operands (B, dD).
    """
    if spec.a_major == "k":
        majors = ("k", "k" if spec.b_major == "n" else "n")
    else:
        majors = ("k" if spec.b_major == "n" else "m", "k")
    return _transposed(spec, majors, a_batch, dims, dtype)


def b_transpose_spec(spec: GemmSpec, b_batch: int, dims: GemmDims, dtype: str) -> GemmSpec:
    """Spec of the GEMM that gives the cotangent of B, in B's own storage order.

    B stored [B, K, N]: dB = A^T @ dD, called with operands (A, dD).
    B stored [B, N, K]: dB^T = dD^T @ A, called with operands (dD, A).
    """
    if spec.b_major == "n":
        majors = ("m" if spec.a_major == "k" else "k", "n")
    else:
        majors = ("m", "n" if spec.a_major == "k" else "k")
    return _transposed(spec, majors, b_batch, dims, dtype)


def _transposed(
    spec: GemmSpec, majors: tuple[str, str], operand_batch: int, dims: GemmDims, dtype: str
) -> GemmSpec:
    # D of a batch-reducing GEMM is shared by all batches: its transpose broadcasts instead.
    reduce_batch = not spec.reduce_batch and operand_batch == 1 and dims.batch != 1
    return dataclasses.replace(
        spec,
        a_major=majors[0],
        b_major=majors[1],
        out_dtype=dtype,
        reduce_batch=reduce_batch,
        out_sharding=None,  # the caller knows the operand's
    ).with_policy(config=None)  # another problem: the user's constraints were for the forward one


def matrices(spec: GemmSpec, dims: GemmDims) -> int:
    """How many separate products `fold` leaves: a batch of rows with a shared B is more rows."""
    more_rows = dims.b_batch == 1 and spec.a_major == "k" and dims.batch * dims.m <= MAX_SIZE
    return 1 if more_rows or spec.reduce_batch else dims.batch


def fold(spec: GemmSpec, lhs_shape: Sequence[int], rhs_shape: Sequence[int]) -> Folded:
    """Folds the batch away where one larger GEMM does the same work. Pure.

    Only done on one device's operands: before partitioning the separate batch dimension is what
    lets both it and M be sharded.
    """
    dims = gemm_dims(spec, lhs_shape, rhs_shape)
    lhs_shape, rhs_shape = tuple(lhs_shape), tuple(rhs_shape)
    summed = dataclasses.replace(spec, reduce_batch=False)
    if dims.batch == 1:
        return Folded(summed, (lhs_shape, rhs_shape), (None, None))
    if spec.reduce_batch:
        # Sum over (b, k): contiguous when K is the outer of the two storage dimensions;
        # otherwise b has to be moved next to k, which copies the operand.
        depth = dims.batch * dims.k
        lhs_perm = None if spec.a_major == "m" else (1, 0, 2)
        lhs = (1, depth, dims.m) if spec.a_major == "m" else (1, dims.m, depth)
        rhs_perm = None if spec.b_major == "n" else (1, 0, 2)
        rhs = (1, depth, dims.n) if spec.b_major == "n" else (1, dims.n, depth)
        return Folded(summed, (lhs, rhs), (lhs_perm, rhs_perm))
    if matrices(spec, dims) == 1:
        lhs_shape = (1, dims.batch * dims.m, dims.k)
    return Folded(spec, (lhs_shape, rhs_shape), (None, None))
