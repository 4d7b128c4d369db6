"""The canonical GEMM: `GemmSpec` (everything static) and `GemmDims` (sizes). Pure.

``D[B, M, N] = A[B, M, K] @ B[B, K, N]`` with row-major rank-3 arrays. A transposed operand is a
*major* flag, never a copy. An operand's batch may be 1: it is then shared by all batches.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Hashable, Sequence

from jax_bwgemm.config import Target
from jax_bwgemm.dense.tuning_config import TuningConfig


@dataclasses.dataclass(frozen=True)
class GemmSpec:
    """Everything static about a GEMM. Hashable; the primitive's only parameter.

    Attributes:
        lhs_major: ``"k"`` if the left operand is stored [B, M, K], ``"m"`` if [B, K, M].
        rhs_major: ``"n"`` if the right operand is stored [B, K, N], ``"k"`` if [B, N, K].
        out_dtype: Name of the result's dtype.
        reduce_batch: Sum the products over the batch, giving D[1, M, N]. Both operands then have
            the full batch. This is what the gradient of a shared (batch 1) operand is.
        implementations: Names to try in order, as in the public ``implementation=``.
        config: The user's constraints on the kernel.
        precision: The user's ``precision=``, for the XLA path. The kernels multiply exactly and
            accumulate in f32, which satisfies every value that reaches them.
        out_sharding: Sharding of D in its type, under a mesh with explicit axes; None lets it
            follow from the operands'.
        target: Architecture chosen explicitly; None means that of the device at lowering.
        tuning: `tuning.context.Tuning` in force; None means the defaults.
    """

    lhs_major: str = "k"
    rhs_major: str = "n"
    out_dtype: str = "bfloat16"
    reduce_batch: bool = False
    implementations: tuple[str, ...] = ("cutlass", "xla")
    config: TuningConfig | None = None
    precision: Hashable = None
    out_sharding: Hashable = None
    target: Target | None = None
    tuning: Hashable = None

    @property
    def majors(self) -> str:
        """Both majors in one word, as kernel names have them: ``"kn"``, ``"mk"``, ..."""
        return self.lhs_major + self.rhs_major

    def __str__(self) -> str:
        default = GemmSpec()
        parts = [self.majors, self.out_dtype]
        if self.reduce_batch:
            parts.append("reduce_batch")
        for field in ("implementations", "config", "precision", "out_sharding", "target", "tuning"):
            value = getattr(self, field)
            if value != getattr(default, field):
                parts.append(f"{field}={value}")
        return f"<{' '.join(parts)}>"

    __repr__ = __str__


@dataclasses.dataclass(frozen=True)
class GemmDims:
    """Sizes of one GEMM. ``batch`` is the larger of the two operands' batches."""

    m: int
    n: int
    k: int
    batch: int = 1
    lhs_batch: int = 1
    rhs_batch: int = 1

    @property
    def empty(self) -> bool:
        """Whether there is nothing to multiply: the result is empty or all zeros."""
        return 0 in (self.m, self.n, self.k, self.batch)

    def __str__(self) -> str:
        text = f"M={self.m} N={self.n} K={self.k}"
        if self.batch == 1:
            return text
        shared = [s for s, b in (("A", self.lhs_batch), ("B", self.rhs_batch)) if b != self.batch]
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
    lhs_batch, m, k = lhs_shape
    if spec.lhs_major == "m":
        m, k = k, m
    rhs_batch, rhs_k, n = rhs_shape
    if spec.rhs_major == "k":
        rhs_k, n = n, rhs_k
    if k != rhs_k:
        raise TypeError(
            f"bw_gemm contracts K={k} of lhs {tuple(lhs_shape)} with K={rhs_k} of rhs "
            f"{tuple(rhs_shape)} (majors {spec.majors})"
        )
    shared_ok = not spec.reduce_batch and 1 in (lhs_batch, rhs_batch)
    if lhs_batch != rhs_batch and not shared_ok:
        raise TypeError(
            f"bw_gemm batches {lhs_batch} of lhs {tuple(lhs_shape)} and {rhs_batch} of rhs "
            f"{tuple(rhs_shape)} differ"
        )
    batch = rhs_batch if lhs_batch == 1 else lhs_batch
    return GemmDims(m, n, k, batch, lhs_batch, rhs_batch)


def out_shape(spec: GemmSpec, dims: GemmDims) -> tuple[int, int, int]:
    """Shape of D."""
    return (1 if spec.reduce_batch else dims.batch, dims.m, dims.n)


def lhs_transpose_spec(spec: GemmSpec, lhs_batch: int, dims: GemmDims, dtype: str) -> GemmSpec:
    """Spec of the GEMM that gives the cotangent of A, in A's own storage order.

    A stored [B, M, K]: dA = dD @ B^T, called with operands (dD, B).
    A stored [B, K, M]: dA^T = B @ dD^T, called with operands (B, dD).
    """
    if spec.lhs_major == "k":
        majors = ("k", "k" if spec.rhs_major == "n" else "n")
    else:
        majors = ("k" if spec.rhs_major == "n" else "m", "k")
    return _transposed(spec, majors, lhs_batch, dims, dtype)


def rhs_transpose_spec(spec: GemmSpec, rhs_batch: int, dims: GemmDims, dtype: str) -> GemmSpec:
    """Spec of the GEMM that gives the cotangent of B, in B's own storage order.

    B stored [B, K, N]: dB = A^T @ dD, called with operands (A, dD).
    B stored [B, N, K]: dB^T = dD^T @ A, called with operands (dD, A).
    """
    if spec.rhs_major == "n":
        majors = ("m" if spec.lhs_major == "k" else "k", "n")
    else:
        majors = ("m", "n" if spec.lhs_major == "k" else "k")
    return _transposed(spec, majors, rhs_batch, dims, dtype)


def _transposed(
    spec: GemmSpec, majors: tuple[str, str], operand_batch: int, dims: GemmDims, dtype: str
) -> GemmSpec:
    # D of a batch-reducing GEMM is shared by all batches: its transpose broadcasts instead.
    reduce_batch = not spec.reduce_batch and operand_batch == 1 and dims.batch != 1
    return dataclasses.replace(
        spec,
        lhs_major=majors[0],
        rhs_major=majors[1],
        out_dtype=dtype,
        reduce_batch=reduce_batch,
        out_sharding=None,  # the caller knows the operand's
        config=None,  # another problem: the user's constraints were for the forward one
    )


@dataclasses.dataclass(frozen=True)
class Folded:
    """An equivalent GEMM for one device, with the batch folded into M or K.

    ``lhs_perm`` and ``rhs_perm`` are transposes (copies) needed before the reshape, or None.
    """

    spec: GemmSpec
    lhs_perm: tuple[int, ...] | None
    lhs_shape: tuple[int, int, int]
    rhs_perm: tuple[int, ...] | None
    rhs_shape: tuple[int, int, int]


def fold(spec: GemmSpec, lhs_shape: Sequence[int], rhs_shape: Sequence[int]) -> Folded:
    """Folds the batch away where one larger GEMM does the same work. Pure.

    Only done on one device's operands: before partitioning the separate batch dimension is what
    lets both it and M be sharded.
    """
    dims = gemm_dims(spec, lhs_shape, rhs_shape)
    lhs_shape, rhs_shape = tuple(lhs_shape), tuple(rhs_shape)
    same = Folded(spec, None, lhs_shape, None, rhs_shape)
    if dims.batch == 1:
        return dataclasses.replace(same, spec=dataclasses.replace(spec, reduce_batch=False))
    if spec.reduce_batch:
        # Sum over (b, k): contiguous when K is the outer of the two storage dimensions;
        # otherwise b has to be moved next to k, which copies the operand.
        depth = dims.batch * dims.k
        lhs_perm = None if spec.lhs_major == "m" else (1, 0, 2)
        lhs = (1, depth, dims.m) if spec.lhs_major == "m" else (1, dims.m, depth)
        rhs_perm = None if spec.rhs_major == "n" else (1, 0, 2)
        rhs = (1, depth, dims.n) if spec.rhs_major == "n" else (1, dims.n, depth)
        return Folded(dataclasses.replace(spec, reduce_batch=False), lhs_perm, lhs, rhs_perm, rhs)
    if dims.rhs_batch == 1 and spec.lhs_major == "k":
        rows = math.prod(lhs_shape[:2])
        return dataclasses.replace(same, lhs_shape=(1, rows, dims.k))
    return same
