"""What tests of sharding share: a mesh, and which collectives a compiled program has."""

from __future__ import annotations

import collections
import re
from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import AxisType

_COLLECTIVES = "all-gather|all-reduce|reduce-scatter|all-to-all|collective-permute"


def mesh_of(devices: list[jax.Device], kind: AxisType = AxisType.Auto) -> jax.sharding.Mesh:
    """Eight devices, 4 along x and 2 along y."""
    return jax.make_mesh((4, 2), ("x", "y"), axis_types=(kind, kind), devices=devices)


def collectives(compiled: Any) -> dict[str, int]:
    """How many of each kind a compiled program has."""
    found = re.findall(rf"= \S+ ({_COLLECTIVES})(?:-start)?\(", compiled.as_text())
    return dict(collections.Counter(found))


def compile_and_run(f: Callable, *args: Any, **options: Any) -> tuple[Any, dict[str, int]]:
    """A function's results, and the collectives in it. Options are those of `jax.jit`."""
    compiled = jax.jit(f, **options).lower(*args).compile()
    return compiled(*args), collectives(compiled)
