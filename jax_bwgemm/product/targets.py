"""The FFI call of a kernel: one target for every product, its buffers named by their roles.

The target takes any number of operands and results. Its one attribute ``config`` says which is
which, names the kernel and has the options that differ from their defaults. Exported programs
outlive versions of this library: a version refuses members and roles it does not know, and a
program that needs none of them runs in any version.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

TARGETS = {"cutlass": "bwgemm.product.v2", "emulator": "bwgemm.product.emulated.v2"}
QUANTIZE_TARGETS = {
    "cutlass": "bwgemm.quantize.v1",
    "emulator": "bwgemm.quantize.emulated.v1",
}
# Those of version 1 are still registered: programs exported then run.
V1_TARGETS = (
    "bwgemm.gemm.v1",
    "bwgemm.gemm.emulated.v1",
    "bwgemm.grouped.v1",
    "bwgemm.grouped.emulated.v1",
)
_DEFAULTS: Mapping[str, int | str] = {
    "raster_order": "heuristic",
    "swizzle": 1,
    "splits": 1,
    "decomposition": "heuristic",
    "order": "heuristic",
    "a_scaling": "",
    "b_scaling": "",
}


def configure(
    implementation: str, kernel: str, operands: Sequence[str], **options: int | str
) -> tuple[str, dict[str, Any]]:
    """Target and attribute of a kernel's call.

    Args:
        implementation: ``"cutlass"`` or ``"emulator"``.
        kernel: Its name.
        operands: Their roles, in order: ``a``, ``b``, and for grouped kernels ``group_sizes`` and
            ``group_offset``, for scaled ones ``a_scales`` and ``b_scales``. The results
            are ``d`` and ``workspace``.
        **options: ``raster_order``, ``swizzle`` and ``splits`` of a dense or scaled kernel;
            ``decomposition`` of a dense one; ``order`` and ``swizzle`` of a grouped one;
            ``a_scaling`` and ``b_scaling``, the layouts of the scales, of a scaled one.
    """
    config: dict[str, Any] = {
        "kernel": kernel,
        "operands": " ".join(operands),
        "results": "d workspace",
    }
    for name, value in options.items():
        if value != _DEFAULTS[name]:
            config[name] = value if isinstance(value, str) else np.int64(value)
    return TARGETS[implementation], config


def settled(implementation: str, result: Any) -> Any:
    """A kernel's results behind a barrier, so that XLA does not fuse the call with a loop's update.

    XLA may let a call write directly into the array in which a loop (`jax.lax.scan`) stacks its
    results. If the program also reads the result, as it does what is kept for the backward pass,
    XLA of jaxlib 0.11 then runs the call twice: openxla/xla, pull request 45799.
    """
    return lax.optimization_barrier(result) if implementation == "cutlass" else result


def call_kernel(
    implementation: str,
    kernel: str,
    operands: Mapping[str, jax.Array | np.ndarray],
    result: jax.ShapeDtypeStruct,
    workspace: int,
    **options: int | str,
) -> jax.Array:
    """Emits the call of a kernel, without selection and padding: D.

    Args:
        implementation: ``"cutlass"`` or ``"emulator"``.
        kernel: Its name.
        operands: The operands by their roles.
        result: Shape and type of D.
        workspace: Bytes of scratch memory that the kernel needs.
        **options: As those of `configure`.
    """
    target, config = configure(implementation, kernel, tuple(operands), **options)
    results = (result, jax.ShapeDtypeStruct((workspace,), jnp.uint8))
    return jax.ffi.ffi_call(target, results)(*operands.values(), config=config)[0]
