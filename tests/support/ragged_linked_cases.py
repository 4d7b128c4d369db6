"""Grouped scaled kernels with an epilogue in them: calls, and what they have to give."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numerics import normal
from ragged_cases import exact_pair, expected

import jax_bwgemm as bw
from jax_bwgemm import runtime
from jax_bwgemm.epilogue import scaled_grouped_call
from jax_bwgemm.epilogue.linkable import linkable_kernels
from jax_bwgemm.product.kernels import Kernel

F32 = jnp.float32
# Layouts of A and B, by what a kernel does with scales.
LAYOUTS = {
    "sums": [("tensor", "tensor"), ("row", "row")],
    "blocks": [("1x128", "128x128"), ("1x128", "tensor")],
    "rows": [("1x128", "1x128"), ("128x128", "row")],
    "mma": [("mxfp8", "mxfp8")],
}
OFFSET = 1
# Without rows; less than a consumer's and more than a tile's; not all of A.
SIZES = (3, 130, 0, 1, 300, 65)


def kernels(implementation: str) -> list[Kernel]:
    """Those that epilogues are linked into."""
    table = (
        runtime.scaled_grouped_kernels()
        if implementation == "cutlass"
        else runtime.emulated_scaled_grouped_kernels()
    )
    return [k for k in table if k.name in linkable_kernels()]


def layouts_of(kernel: Kernel) -> list[tuple[str, str]]:
    """Those that a kernel takes."""
    return [("nvfp4", "nvfp4")] if kernel.a_dtype == "float4_e2m1fn" else LAYOUTS[kernel.scales]


def whatever_it_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels have the epilogue even where a pass of its own would be faster."""
    monkeypatch.setattr(scaled_grouped_call, "pass_cycles", lambda *_: float("inf"))


def run(
    kernel: Kernel,
    layouts: tuple[str, str],
    shape: tuple[int, int, int],
    f: Callable[..., Any],
    arrays: Sequence[jax.Array],
    of_groups: Sequence[jax.Array],
    implementation: str,
    sm_count: int | None = None,
) -> tuple[Any, Any]:
    """What the kernel with an epilogue gives for `SIZES`, and the function of the exact product.

    of_groups: Of as many matrices as these have.
    """
    experts = of_groups[0].shape[0]
    types = kernel.a_dtype, kernel.b_dtype
    a, b = exact_pair("m-grouped", layouts, shape, experts, types)
    # The products have the size of an activation's argument.
    smaller = np.asarray(2.0 ** -int(np.log2(shape[2]) / 2), a.scales.dtype)
    a = bw.ScaledArray(a.values, a.scales * smaller, a.scaling, a.global_scale)

    def call(a: Any, b: Any, arrays: Any, of_groups: Any) -> Any:
        return bw.scaled_ragged_dot(
            a,
            b,
            jnp.asarray(SIZES),
            group_offset=OFFSET,
            accumulation="fast" if kernel.scales == "sums" else "promoted",
            implementation=implementation,
            epilogue=f,
            epilogue_operands=arrays,
            epilogue_group_operands=of_groups,
        )

    with bw.config.target(kernel.arch, sm_count):
        lowered = jax.jit(call).lower(a, b, arrays, of_groups)
    assert kernel.name in lowered.as_text()
    assert lowered.as_text().count("epilogue_digest") == 1
    product = jnp.asarray(expected(a, b, SIZES, OFFSET), F32)
    rows = [jnp.asarray(of_every_row(np.asarray(x), shape[0])) for x in of_groups]
    return lowered.compile()(a, b, arrays, of_groups), jax.jit(f)(product, *arrays, *rows)


def of_every_row(values: np.ndarray, rows: int) -> np.ndarray:
    """Each row's values of its matrix; zeros for rows of none."""
    found = np.zeros((rows, values[0].size), values.dtype)
    ends = np.minimum(np.cumsum(SIZES), rows)
    for e, value in enumerate(values):
        found[ends[OFFSET + e - 1] : ends[OFFSET + e]] = value
    return found


def every_operand(
    z: jax.Array, r: jax.Array, h: jax.Array, s: jax.Array, c: jax.Array, b: jax.Array, g: jax.Array
) -> tuple[jax.Array, ...]:
    """An activation, its argument, and results of other types.

    Of matrices of two types, a column, a scalar, a row and a value of every matrix.
    """
    y = z * g + b
    return (
        jax.nn.silu(y) * s + r.astype(F32),
        y,
        y + h * c,
        (z > 0).astype(jnp.int32),
    )


def operands(m: int, n: int, experts: int) -> tuple[list[jax.Array], list[jax.Array]]:
    """Those of `every_operand`, the last two of groups."""
    rng = np.random.default_rng(1)
    types = [((m, n), "bfloat16"), ((m, n), "float32"), ((m, 1), "float32"), ((), "float32")]
    of_groups = [((experts, n), "float32"), ((experts,), "float32")]
    plain, groups = ([jnp.asarray(normal(rng, *t)) for t in x] for x in (types, of_groups))
    return plain, groups
