"""Floating-point operations of products: two for each element of A times one of B."""

from __future__ import annotations

import math
from typing import Any


def flops_of(dims: Any) -> int:
    """Of a product with these sizes. Of a grouped one as if every row were in a group."""
    return 2 * dims.batch * dims.m * dims.n * dims.k


def flops_of_equation(eqn: Any) -> int:
    """Of one of JAX's own products, an equation of a jaxpr: as `flops_of` counts."""
    lhs, rhs = (x.aval for x in eqn.invars[:2])
    groups: tuple[int, ...] = ()
    if eqn.primitive.name == "dot_general":
        (_, contracted), (_, batch) = eqn.params["dimension_numbers"]
    else:
        numbers = eqn.params["ragged_dot_dimension_numbers"]
        (_, contracted), (_, batch) = numbers.dot_dimension_numbers
        groups = tuple(numbers.rhs_group_dimensions)
    seen = {*contracted, *batch, *groups}
    free = (size for dim, size in enumerate(rhs.shape) if dim not in seen)
    return 2 * math.prod(lhs.shape) * math.prod(free)
