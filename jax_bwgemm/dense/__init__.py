"""Dense matrix multiplication: canonical problem, primitive, rules, selection and lowering."""

from jax_bwgemm.dense import lowering as lowering  # registers the lowering rules
