"""What holds of every jaxpr."""

from __future__ import annotations

from typing import Any


def assert_defined_once(jaxpr: Any) -> None:
    """No variable of the outermost equations is defined twice."""
    defined = [id(v) for e in jaxpr.eqns for v in e.outvars]
    assert len(set(defined)) == len(defined)
