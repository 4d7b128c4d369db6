"""One GEMM kernel of this package in the emulator, called directly: no selection, no padding."""

from __future__ import annotations

import jax
import numpy as np

from jax_bwgemm import runtime
from jax_bwgemm.emulator.settings import settings
from jax_bwgemm.product import targets
from jax_bwgemm.product.kernels import Kernel


def find_kernel(name: str) -> Kernel:
    """The emulated kernel of that name.

    Raises:
        ValueError: This build has none.
    """
    for kernel in runtime.emulated_kernels():
        if kernel.name == name:
            return kernel
    raise ValueError(
        f"the emulator has no kernel {name!r}; see `python -m jax_bwgemm info --kernels`"
    )


def operand_shapes(
    kernel: Kernel, m: int, n: int, k: int, batch: int
) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
    """Shapes of both operands in the kernel's memory order."""
    lhs = (batch, m, k) if kernel.a_major == "k" else (batch, k, m)
    rhs = (batch, k, n) if kernel.b_major == "n" else (batch, n, k)
    return lhs, rhs


def reference(kernel: Kernel, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The exact product in float64.

    Args:
        kernel: Says how the operands lie in memory.
        a: [Ba, M, K] or [Ba, K, M].
        b: [Bb, K, N] or [Bb, N, K].

    Returns:
        [B, M, N].
    """
    lhs = a.astype(np.float64) if kernel.a_major == "k" else a.astype(np.float64).swapaxes(1, 2)
    rhs = b.astype(np.float64) if kernel.b_major == "n" else b.astype(np.float64).swapaxes(1, 2)
    return lhs @ rhs


def run_gemm(
    kernel: Kernel,
    a: np.ndarray,
    b: np.ndarray,
    *,
    raster_order: str = "heuristic",
    swizzle: int = 1,
    splits: int = 1,
    decomposition: str = "heuristic",
) -> np.ndarray:
    """Runs one kernel through the same FFI handler that the compiled kernels have.

    Args:
        kernel: One of `runtime.emulated_kernels()`.
        a: [Ba, M, K], or [Ba, K, M] if the kernel's a_major is "m"; type ``kernel.in_dtype``.
        b: [Bb, K, N], or [Bb, N, K] if the kernel's b_major is "k". Ba and Bb are equal or 1.
        raster_order: ``"heuristic"``, ``"m"`` or ``"n"``.
        swizzle: 1, 2, 4, 8 or 16.
        splits: Parts that K is split into.
        decomposition: How a stream-K kernel divides the work, as in `TuningConfig`.

    Returns:
        [max(Ba, Bb), M, N] of type ``kernel.out_dtype``.

    Raises:
        jax.errors.JaxRuntimeError: Operands that the kernel cannot take, or an emulator report.
        ValueError: The kernel cannot do this problem.
    """
    m, k = a.shape[1:] if kernel.a_major == "k" else a.shape[:0:-1]
    n = b.shape[2] if kernel.b_major == "n" else b.shape[1]
    batch = max(a.shape[0], b.shape[0])
    order = {"raster_order": raster_order, "swizzle": swizzle, "decomposition": decomposition}
    scratch = runtime.emulated_workspace_bytes(
        kernel.name,
        m,
        n,
        k,
        batch,
        splits,
        settings().sm_count,
        **(order if kernel.stream_k else {}),
    )
    try:
        with jax.default_device(jax.local_devices(backend="cpu")[0]):
            out = targets.call_kernel(
                "emulator",
                kernel.name,
                {"a": a, "b": b},
                jax.ShapeDtypeStruct((batch, m, n), kernel.out_dtype),
                scratch,
                splits=splits,
                **order,
            )
            return np.asarray(out)
    except ValueError as error:
        # When a call of these shapes has succeeded before, JAX 0.12 raises a run-time error so.
        if str(error).startswith(("INTERNAL: ", "INVALID_ARGUMENT: ", "UNIMPLEMENTED: ")):
            raise jax.errors.JaxRuntimeError(str(error)) from None
        raise
