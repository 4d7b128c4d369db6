"""Tuned choices of dense products: their keys, and which entries this build can run."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from jax import lax

from jax_bwgemm.config import Target
from jax_bwgemm.dense import heuristics
from jax_bwgemm.dense.spec import GemmDims, GemmSpec
from jax_bwgemm.product.dtypes import narrowest_bytes
from jax_bwgemm.product.implementations import f32_algorithm
from jax_bwgemm.product.kernels import Kernel
from jax_bwgemm.product.spec import Policy
from jax_bwgemm.tuning import lookup
from jax_bwgemm.tuning.keys import DenseKey
from jax_bwgemm.tuning.records import TunedEntry

_PRECISIONS = {
    "x3": lax.DotAlgorithmPreset.BF16_BF16_F32_X3,
    "x6": lax.DotAlgorithmPreset.BF16_BF16_F32_X6,
    "highest": lax.Precision.HIGHEST,
}
# How tuning keys name two f32 operands, by `f32_algorithm`.
_F32_TYPES = {"x3": "float32x3", "x6": "float32x6", "highest": "float32highest"}


def key_of(spec: GemmSpec, in_dtype: str, dims: GemmDims) -> DenseKey:
    """The key of a folded and padded problem."""
    shared = "none"
    if dims.batch != 1 and dims.a_batch != dims.b_batch:
        shared = "lhs" if dims.a_batch == 1 else "rhs"
    algorithm = f32_algorithm(spec.policy.precision) if in_dtype == "float32" else None
    if algorithm is not None:
        in_dtype = _F32_TYPES[algorithm]
    return DenseKey(
        in_dtype, spec.out_dtype, spec.majors, dims.m, dims.n, dims.k, dims.batch, shared
    )


def spec_of(key: DenseKey) -> GemmSpec:
    """The problem as selection sees it."""
    algorithm = next((a for a, name in _F32_TYPES.items() if name == key.in_dtype), None)
    return GemmSpec(
        *key.majors, out_dtype=key.out_dtype, policy=Policy(precision=_PRECISIONS.get(algorithm))
    )


def precision_of(kernel: Kernel) -> Hashable:
    """What a kernel of two f32 operands is for; None for others."""
    return _PRECISIONS[kernel.f32_algorithms[0]] if kernel.splits_both else None


def dims_of(key: DenseKey) -> GemmDims:
    """The sizes as selection takes them."""
    lhs = 1 if key.shared == "lhs" else key.batch
    rhs = 1 if key.shared == "rhs" else key.batch
    return GemmDims(key.m, key.n, key.k, key.batch, lhs, rhs)


def find_tuned(
    spec: GemmSpec, in_dtype: str, dims: GemmDims, target: Target, table: Sequence[Kernel]
) -> lookup.Found | None:
    """The tuned choice of a folded and padded problem; None to leave it to the heuristic.

    Args:
        spec: The problem, with the tuning in force where it was traced.
        in_dtype: The operands' types, as `dtypes.operand_types` says them.
        dims: Sizes.
        target: The GPU.
        table: The kernels to choose from.

    Raises:
        TuningMissError: There is none, and the policy is ``"error"``.
    """

    def usable(entry: TunedEntry) -> Kernel | str:
        kernel = next((k for k in table if k.name == entry.kernel), None)
        if kernel is None:
            return "is not in this build"
        reason = heuristics.kernel_mismatch(kernel, spec, in_dtype, target.arch)
        if reason is None:
            in_bytes = narrowest_bytes(in_dtype)
            reason = heuristics.run_refusal(
                kernel, dims, entry.splits, entry.decomposition, in_bytes
            )
        return kernel if reason is None else reason

    return lookup.find(key_of(spec, in_dtype, dims), spec.policy.tuning, target, usable)
