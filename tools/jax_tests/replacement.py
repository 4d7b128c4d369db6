"""Puts jax_bwgemm's functions in the place of JAX's, in every module of JAX."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import sys
import types
from collections.abc import Callable
from typing import Any

SUPPORT = "tests/support"


@dataclasses.dataclass
class Counts:
    """Calls of our functions, and products that became a primitive of ours, in this process."""

    calls: int = 0
    binds: int = 0


counts = Counts()


def install(*, primitive: bool) -> None:
    """Replaces the functions in all modules of JAX, those imported later included.

    Args:
        primitive: Whether kernels for f32 and f64 are pretended.
    """
    import jax.numpy as jnp
    from jax import lax

    import jax_bwgemm

    if primitive:
        _pretend_wide_kernels()
    _count_binds()
    ours = {
        lax.dot_general: jax_bwgemm.dot_general,
        lax.dot: _dot(lax.dot),
        lax.ragged_dot: jax_bwgemm.ragged_dot,
        lax.ragged_dot_general: jax_bwgemm.ragged_dot_general,
        jnp.matmul: jax_bwgemm.matmul,
    }
    replace({original: _outermost(original, new) for original, new in ours.items()})


def replace(replacements: dict[Callable[..., Any], Callable[..., Any]]) -> None:
    """Replaces functions where modules of JAX hold them: as names and as default arguments."""
    for name, module in list(sys.modules.items()):
        if name != "jax" and not name.startswith("jax."):
            continue
        for key, value in list(vars(module).items()):
            if (new := _lookup(replacements, value)) is not None:
                setattr(module, key, new)
            if isinstance(value, types.FunctionType) and value.__kwdefaults__:
                for keyword, default in value.__kwdefaults__.items():
                    if (new := _lookup(replacements, default)) is not None:
                        value.__kwdefaults__[keyword] = new


def _lookup(replacements: dict[Any, Any], value: Any) -> Any:
    return next((new for original, new in replacements.items() if value is original), None)


def _outermost(original: Callable[..., Any], new: Callable[..., Any]) -> Callable[..., Any]:
    """Calls ours, except from within jax_bwgemm: what it leaves to JAX has to be JAX's."""

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        if _called_by_us():
            return original(*args, **kwargs)
        counts.calls += 1
        return new(*args, **kwargs)

    return call


def _called_by_us() -> bool:
    frame = sys._getframe(2)
    while frame is not None:
        if frame.f_globals.get("__name__", "").startswith("jax_bwgemm."):
            return True
        frame = frame.f_back
    return False


def _dot(original: Callable[..., Any]) -> Callable[..., Any]:
    """`jax.lax.dot` by `jax_bwgemm.dot_general`; errors about its own arguments are JAX's."""
    import numpy as np

    import jax_bwgemm

    def dot(lhs: Any, rhs: Any, **options: Any) -> Any:
        numbers = options.pop("dimension_numbers", None)
        shapes = np.shape(lhs), np.shape(rhs)
        simple = {len(shape) for shape in shapes} <= {1, 2} and shapes[0][-1] == shapes[1][0]
        if numbers is None and not simple:
            return original(lhs, rhs, **options)
        return jax_bwgemm.dot_general(lhs, rhs, numbers, **options)

    return dot


def _count_binds() -> None:
    from jax_bwgemm.dense.primitive import bw_gemm_p
    from jax_bwgemm.grouped.primitive import bw_k_grouped_p, bw_m_grouped_p

    for primitive in (bw_gemm_p, bw_m_grouped_p, bw_k_grouped_p):

        def bind(*args: Any, _original: Any = primitive.bind, **params: Any) -> Any:
            counts.binds += 1
            return _original(*args, **params)

        primitive.bind = bind


def _pretend_wide_kernels() -> None:
    from jax_bwgemm import runtime
    from jax_tests.suite import REPOSITORY

    sys.path.append(str(REPOSITORY / SUPPORT))
    tables = importlib.import_module("kernel_table")
    described = runtime.kernels() or tables.described_kernels()
    table = (*described, *tables.widened(described))
    runtime.kernels = lambda: table
