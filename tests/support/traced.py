"""What tests look for in jaxprs and in StableHLO."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any


def equations(jaxpr: Any, name: str) -> Iterator[Any]:
    """Equations of a primitive, nested ones included."""
    for eqn in jaxpr.eqns:
        if eqn.primitive.name == name:
            yield eqn
        for value in eqn.params.values():
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                yield from equations(inner, name)


def count(jaxpr: Any, *names: str) -> int:
    """How many equations of these primitives there are."""
    return sum(len(list(equations(jaxpr, name))) for name in names)


def operations(text: str) -> set[str]:
    """Names of the StableHLO operations in a module, but for barriers, which move nothing."""
    return set(re.findall(r"stablehlo\.(\w+)", text)) - {"optimization_barrier"}
