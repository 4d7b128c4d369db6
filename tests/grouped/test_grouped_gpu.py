"""Every grouped kernel of this build for this GPU, on the GPU: a new line of the list is a test."""

from __future__ import annotations

import functools
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from grouped_cases import Problem, column_tile, expected, families, problem, row_tile, rows_of
from numerics import assert_exact, small_integers

import jax_bwgemm
from jax_bwgemm import runtime
from jax_bwgemm.product import targets
from jax_bwgemm.product.kernels import Kernel

pytestmark = pytest.mark.gpu


def built() -> list[Kernel]:
    return list(runtime.grouped_kernels()) if runtime.extension() is not None else []


def gpu_kernels(each_line: bool = False) -> list[Any]:
    """Test parameters, marked with their architecture; all, or one for each line of the list."""
    marks = {"sm90": pytest.mark.sm90, "sm100": pytest.mark.sm100}
    found = built()
    if each_line:
        lines: dict[tuple, list[Kernel]] = {}
        for k in found:
            key = (k.arch, k.kind, k.tile_m, k.tile_n, k.cluster_m, k.swap_ab, k.schedule)
            lines.setdefault(key, []).append(k)
        found = [kernels[i % len(kernels)] for i, kernels in enumerate(lines.values())]
    if not found:  # collected, so that the skip (or failure) is reported
        return [pytest.param(None, id="no kernels")]
    return [pytest.param(k, id=k.name, marks=marks[k.arch]) for k in found]


every_kernel = pytest.mark.parametrize("kernel", gpu_kernels())
every_line = pytest.mark.parametrize("kernel", gpu_kernels(each_line=True))


def launcher(kernel: Kernel, p: Problem, order: str, swizzle: int) -> Any:
    """The FFI call of exactly this kernel."""
    batch = max(p.lhs.shape[0], p.rhs.shape[0], p.sizes.shape[0], p.offset.shape[0])
    m, k = p.lhs.shape[1:]
    if kernel.kind == "m-grouped":
        n = p.rhs.shape[3 if kernel.b_major == "n" else 2]
        shape: tuple[int, ...] = (batch, m, n)
    else:
        n = p.rhs.shape[2]
        shape = (batch, p.experts, k, n)
    sms = jax.devices()[0].core_count
    workspace = runtime.grouped_workspace_bytes(
        kernel.name, m, n, k, p.sizes.shape[1], p.experts, batch, sms
    )
    roles = ("a", "b", "group_sizes", "group_offset")
    result = jax.ShapeDtypeStruct(shape, jnp.dtype(kernel.out_dtype))
    return jax.jit(
        lambda *operands: targets.call_kernel(
            "cutlass",
            kernel.name,
            dict(zip(roles, operands, strict=True)),
            result,
            workspace,
            order=order,
            swizzle=swizzle,
        )
    )


def run(kernel: Kernel, p: Problem, order: str = "heuristic", swizzle: int = 8) -> np.ndarray:
    operands = (p.lhs, p.rhs, p.sizes, p.offset)
    return np.asarray(launcher(kernel, p, order, swizzle)(*operands))


@every_kernel
def test_group_sizes(kernel: Kernel) -> None:
    """Zeros, ones, all rows in one group, sum below M, straddling tiles, hostile, random."""
    m, n, k = 3 * row_tile(kernel) + 60, 3 * column_tile(kernel) + 72, 328
    for i, (name, sizes) in enumerate(families(kernel, m).items()):
        p = problem(kernel, m, n, k, sizes, seed=i)
        assert_exact(run(kernel, p), expected(kernel, p), f"{kernel.name} {name}")


@every_kernel
def test_offset(kernel: Kernel) -> None:
    """Any offset, clamped; what lies outside of the experts' groups is NaN and does not count."""
    m = 2 * row_tile(kernel) + 60
    sizes = families(kernel, m)["random"]
    for offset, experts in ((0, 2), (2, 2), (5, 2), (6, 2), (-3, 2), (100, 2)):
        p = problem(kernel, m, 72, 72, sizes, experts=experts, offset=offset)
        want = expected(kernel, p)
        outside = np.ones(m, bool)
        for group in range(max(offset, 0), min(max(offset, 0) + experts, len(sizes))):
            outside[rows_of(p, group)] = False
        p.lhs[:, outside] = np.nan
        if kernel.kind == "k-grouped":
            p.rhs[:, outside] = np.nan
        assert_exact(run(kernel, p), want, f"{kernel.name} offset {offset}")


@every_line
@pytest.mark.parametrize("order", ["horizontal", "vertical"])
def test_many_groups_in_every_order(kernel: Kernel, order: str) -> None:
    """512 groups, many of them empty, one of them large; more tiles than multiprocessors."""
    rng = np.random.default_rng(1)
    sizes = np.where(rng.random(512) < 0.5, 0, rng.integers(0, 24, 512))
    sizes[300] = 1900
    m = int(sizes.sum()) + 5
    for swizzle in (1, 8):
        p = problem(kernel, m, 4 * column_tile(kernel) + 8, 200, sizes)
        assert_exact(run(kernel, p, order, swizzle), expected(kernel, p), f"swizzle {swizzle}")


@every_line
def test_batch(kernel: Kernel) -> None:
    """Operands of the batch, or shared by it, in any combination."""
    sizes = np.asarray([[5, row_tile(kernel), 2], [30, 0, 11]])
    m = row_tile(kernel) + 50
    for lhs, rhs, groups, offset in itertools.product((False, True), repeat=4):
        p = problem(
            kernel,
            m,
            136,
            264,
            sizes if groups else sizes[:1],
            experts=2,
            offset=[1, 0] if offset else [1],
            lhs_batch=2 if lhs else 1,
            rhs_batch=2 if rhs else 1,
        )
        context = f"batched: lhs {lhs}, rhs {rhs}, sizes {groups}, offset {offset}"
        assert_exact(run(kernel, p), expected(kernel, p), context)


@every_line
def test_same_bits_every_time(kernel: Kernel) -> None:
    """Tiles go to whoever is free; the result does not depend on it."""
    rng = np.random.default_rng(2)
    m, n, k = 3000, 1544, 1032
    sizes = np.diff(np.sort(rng.integers(0, m + 1, 11)), prepend=0, append=m)
    p = problem(kernel, m, n, k, sizes)
    lhs, rhs = (jnp.asarray(rng.standard_normal(x.shape), x.dtype) for x in (p.lhs, p.rhs))
    call = launcher(kernel, p, "heuristic", 8)
    first = np.asarray(call(lhs, rhs, p.sizes, p.offset)).tobytes()
    for _ in range(20):
        assert np.asarray(call(lhs, rhs, p.sizes, p.offset)).tobytes() == first


@pytest.mark.sm90
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("m", [24, 700])
def test_ragged_dot_and_its_gradients(dtype: str, m: int) -> None:
    """The public function on the kernels: no gradient falls back."""
    rng = np.random.default_rng(3)
    sizes = np.asarray([m // 3, 0, m // 2, 1], np.int32)
    lhs = jnp.asarray(small_integers(rng, (m, 72), dtype))
    rhs = jnp.asarray(small_integers(rng, (4, 72, 136), dtype))
    cotangent = jnp.asarray(small_integers(rng, (m, 136), dtype))

    def both(implementation: str) -> Any:
        f = functools.partial(
            jax_bwgemm.ragged_dot, group_sizes=jnp.asarray(sizes), implementation=implementation
        )
        return jax.jit(lambda a, b, c: (f(a, b), *jax.vjp(f, a, b)[1](c)))(lhs, rhs, cotangent)

    for ours, theirs in zip(both("cutlass"), both("xla"), strict=True):
        assert_exact(np.asarray(ours), np.asarray(theirs), "against XLA")


@pytest.mark.sm90
def test_group_sizes_may_change_between_runs_of_one_executable() -> None:
    """Nothing of the schedule is fixed while tracing or capturing a CUDA graph."""
    rng = np.random.default_rng(4)
    lhs = jnp.asarray(small_integers(rng, (512, 128), "bfloat16"))
    rhs = jnp.asarray(small_integers(rng, (8, 128, 256), "bfloat16"))

    @jax.jit
    def chain(sizes: jax.Array) -> list[jax.Array]:
        # Enough kernels for XLA to make a command buffer of them.
        return [jax_bwgemm.ragged_dot(lhs + i, rhs, sizes) for i in range(8)]

    for seed in range(5):
        cuts = np.sort(np.random.default_rng(seed).integers(0, 513, 7))
        sizes = np.diff(cuts, prepend=0, append=512).astype(np.int32)
        want = jax_bwgemm.ragged_dot(lhs + 7, rhs, jnp.asarray(sizes), implementation="xla")
        assert_exact(np.asarray(chain(jnp.asarray(sizes))[7]), np.asarray(want), f"seed {seed}")
