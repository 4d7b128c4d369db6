"""One grouped kernel of this package in the emulator, called directly: no selection, no padding."""

from __future__ import annotations

import jax
import numpy as np

from jax_bwgemm import runtime
from jax_bwgemm.emulator.settings import settings
from jax_bwgemm.product import targets
from jax_bwgemm.product.kernels import Kernel


def group_rows(sizes: np.ndarray, rows: int) -> list[tuple[int, int]]:
    """First row and end of each group, as the kernels understand sizes.

    Args:
        sizes: [G]; negative ones count as 0.
        rows: Where the last group ends at the latest.
    """
    ends = np.minimum(np.cumsum(np.maximum(sizes.astype(np.int64), 0)), rows)
    return list(zip([0, *ends[:-1].tolist()], ends.tolist(), strict=True))


def reference(
    kernel: Kernel,
    lhs: np.ndarray,
    rhs: np.ndarray,
    sizes: np.ndarray,
    offset: np.ndarray,
    experts: int,
) -> np.ndarray:
    """The exact result in float64. Arguments as those of `run_grouped`."""
    batch = max(x.shape[0] for x in (lhs, rhs, sizes, offset))
    rows, k = lhs.shape[1:]
    left, right = lhs.astype(np.float64), rhs.astype(np.float64)
    if kernel.kind == "m-grouped" and kernel.b_major == "k":
        right = right.swapaxes(2, 3)
    n = right.shape[-1]
    shape = (batch, rows, n) if kernel.kind == "m-grouped" else (batch, experts, k, n)
    out = np.zeros(shape, np.float64)
    for b in range(batch):
        left_b, right_b = left[b % len(left)], right[b % len(right)]
        groups = group_rows(sizes[b % len(sizes)], rows)
        first = min(max(int(offset[b % len(offset)]), 0), len(groups))
        for e, (start, end) in enumerate(groups[first : first + experts]):
            if kernel.kind == "m-grouped":
                out[b, start:end] = left_b[start:end] @ right_b[e]
            else:
                out[b, e] = left_b[start:end].T @ right_b[start:end]
    return out


def run_grouped(
    kernel: Kernel,
    lhs: np.ndarray,
    rhs: np.ndarray,
    sizes: np.ndarray,
    offset: np.ndarray,
    experts: int,
    *,
    order: str = "heuristic",
    swizzle: int = 1,
) -> np.ndarray:
    """Runs one kernel through the same FFI handler that the compiled kernels have.

    Args:
        kernel: One of `runtime.emulated_grouped_kernels()`.
        lhs: [Ba, M, K] of type ``kernel.a_dtype``.
        rhs: m-grouped: [Bb, E, K, N], or [Bb, E, N, K] if the kernel's b_major is
            "k"; k-grouped: [Bb, M, N]; of type ``kernel.b_dtype``.
        sizes: [Bs, G] int32.
        offset: [Bo] int32. Every batch extent is B or 1.
        experts: E: matrices of rhs ("m-grouped") or of the result ("k-grouped").
        order: ``"heuristic"``, ``"horizontal"`` or ``"vertical"``.
        swizzle: Row tiles per band.

    Returns:
        "m-grouped": [B, M, N]; "k-grouped": [B, E, K, N]; of type ``kernel.out_dtype``.

    Raises:
        jax.errors.JaxRuntimeError: Operands that the kernel cannot take, or an emulator report.
        ValueError: The kernel cannot do this problem.
    """
    m, k = lhs.shape[1:]
    n = rhs.shape[2] if kernel.kind == "m-grouped" and kernel.b_major == "k" else rhs.shape[-1]
    batch = max(x.shape[0] for x in (lhs, rhs, sizes, offset))
    scratch = runtime.emulated_grouped_workspace_bytes(
        kernel.name, m, n, k, sizes.shape[1], experts, batch, settings().sm_count
    )
    shape = (batch, m, n) if kernel.kind == "m-grouped" else (batch, experts, k, n)
    try:
        with jax.default_device(jax.local_devices(backend="cpu")[0]):
            out = targets.call_kernel(
                "emulator",
                kernel.name,
                {"a": lhs, "b": rhs, "group_sizes": sizes, "group_offset": offset},
                jax.ShapeDtypeStruct(shape, kernel.out_dtype),
                scratch,
                order=order,
                swizzle=swizzle,
            )
            return np.asarray(out)
    except ValueError as error:
        # When a call of these shapes has succeeded before, JAX 0.12 raises a run-time error so.
        if str(error).startswith(("INTERNAL: ", "INVALID_ARGUMENT: ", "UNIMPLEMENTED: ")):
            raise jax.errors.JaxRuntimeError(str(error)) from None
        raise
