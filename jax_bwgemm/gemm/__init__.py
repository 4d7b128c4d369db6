"""Dense matrix multiplication: canonical problem, primitive, rules, selection and lowering."""

from jax_bwgemm.gemm import lowering as lowering  # registers the lowering rules
