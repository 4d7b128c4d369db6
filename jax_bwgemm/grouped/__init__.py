"""Grouped GEMM: canonical problem, primitives, rules, selection and lowering."""

from jax_bwgemm.grouped import lowering as lowering  # registers the lowering rules
