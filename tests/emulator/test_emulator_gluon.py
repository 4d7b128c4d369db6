"""Kernels that another compiler made, in the emulator: the outside check of its Blackwell side.

Optional: needs ``triton``. The kernels follow those of a tutorial.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from emulator_cases import requires_emulator

from jax_bwgemm import emulator

if TYPE_CHECKING:
    from gluon_kernels import Compiled, Tile

# Before 3.9 Gluon's names were others.
pytest.importorskip("triton", minversion="3.9", reason="triton 3.9 or newer is not installed")
pytestmark = requires_emulator


@functools.cache
def compile_cached(
    name: str,
    arguments: tuple[tuple[str, str | Tile], ...],
    constants: tuple[tuple[str, int | bool], ...],
    num_warps: int,
) -> Compiled:
    import gluon_kernels

    kernel = getattr(gluon_kernels, name)
    return gluon_kernels.compile_kernel(kernel, dict(arguments), dict(constants), num_warps)


@functools.cache
def load(ptx: str) -> emulator.Module:
    return emulator.Module(ptx)


def launch(
    name: str,
    tensors: dict[str, tuple[np.ndarray, tuple[int, int]]],
    constants: dict[str, int | bool],
    grid: tuple[int, ...],
    num_warps: int,
) -> emulator.LaunchStats:
    """Launches a kernel all of whose arguments are tensor descriptors (array, block)."""
    from gluon_kernels import Tile

    kinds = {np.dtype(np.float16): "fp16", np.dtype(np.float32): "fp32"}
    tiles = {n: Tile(kinds[array.dtype], block) for n, (array, block) in tensors.items()}
    compiled = compile_cached(name, tuple(tiles.items()), tuple(constants.items()), num_warps)
    args: list[Any] = []
    for (array, _), (box, swizzle) in zip(tensors.values(), compiled.tensor_maps, strict=True):
        args.append(emulator.TensorMap(array, box, swizzle=swizzle))
        # The compiler passes each descriptor's shape and strides again, as plain numbers.
        args += [*array.shape, *(s // array.itemsize for s in array.strides)]
    args += [0, 0]  # scratch pointers, unused by these kernels
    return load(compiled.ptx).launch(
        compiled.name,
        *args,
        grid=grid,
        block=compiled.threads,
        shared_bytes=compiled.shared_bytes,
    )


@pytest.mark.parametrize("m", [64, 128, 256])
@pytest.mark.parametrize("n", [64, 128])
@pytest.mark.parametrize("num_warps", [4, 8])
def test_tensor_memory_round_trip(m: int, n: int, num_warps: int) -> None:
    compiled = compile_cached(
        "tensor_memory_round_trip",
        (("in_ptr", "*fp32"), ("out_ptr", "*fp32")),
        (("M", m), ("N", n)),
        num_warps,
    )
    source = np.random.default_rng(0).standard_normal((m, n), np.float32)
    out = np.full_like(source, np.nan)
    load(compiled.ptx).launch(
        compiled.name,
        source,
        out,
        0,
        0,
        block=compiled.threads,
        shared_bytes=compiled.shared_bytes,
    )
    np.testing.assert_array_equal(out, source)


@pytest.mark.parametrize(
    ("m", "n", "k"), [(128, 128, 128), (64, 128, 128), (64, 256, 256), (256, 64, 64)]
)
@pytest.mark.parametrize("lhs_in_tmem", [False, True])
@pytest.mark.parametrize("commit", [False, True])
@pytest.mark.parametrize("num_warps", [4, 8])
def test_small_mma(m: int, n: int, k: int, lhs_in_tmem: bool, commit: bool, num_warps: int) -> None:
    rng = np.random.default_rng(0)
    a = rng.integers(-4, 5, (m, k)).astype(np.float16)
    b = rng.integers(-4, 5, (k, n)).astype(np.float16)
    c = rng.integers(-64, 65, (m, n)).astype(np.float32)
    d = np.full_like(c, np.nan)
    stats = launch(
        "small_mma",
        {
            "a_desc": (a, (m, k)),
            "b_desc": (b, (k, n)),
            "c_desc": (c, (m, n)),
            "d_desc": (d, (m, n)),
        },
        {"LHS_IN_TMEM": lhs_in_tmem, "COMMIT": commit},
        (1,),
        num_warps,
    )
    np.testing.assert_array_equal(d, a.astype(np.float32) @ b.astype(np.float32) + c)
    assert stats.mma_flops == 2 * m * n * k


# The tutorial's; many steps of K, and few tiles.
SHAPES = [(208, 416, 304), (264, 136, 2000)]


def check_matmul(
    name: str, m: int, n: int, k: int, block: tuple[int, int, int], **options: Any
) -> None:
    """Exact on integers: products and sums stay below 2048, where f16 has all integers."""
    bm, bn, bk = block
    transpose_b, num_warps = options.get("transpose_b"), options["num_warps"]
    rng = np.random.default_rng(0)
    a = rng.integers(-1, 2, (m, k)).astype(np.float16)
    b = rng.integers(-1, 2, (n, k) if transpose_b else (k, n)).astype(np.float16)
    c = np.full((m, n), np.nan, np.float16)
    rows = bm * (1 if transpose_b is not None else 2)
    launch(
        name,
        {
            "a_desc": (a, (bm, bk)),
            "b_desc": (b, (bn, bk) if transpose_b else (bk, bn)),
            "c_desc": (c, (bm, bn)),
        },
        {} if transpose_b is None else {"TRANSPOSE_B": transpose_b},
        (-(-m // rows), -(-n // bn)),
        num_warps,
    )
    rhs = b.T if transpose_b else b
    np.testing.assert_array_equal(c, a.astype(np.float32) @ rhs.astype(np.float32))


@pytest.mark.parametrize(("m", "n", "k"), SHAPES)
@pytest.mark.parametrize("block", [(64, 64, 64), (128, 128, 128)])
@pytest.mark.parametrize("transpose_b", [False, True])
@pytest.mark.parametrize("num_warps", [4, 8])
def test_blocked_matmul(
    m: int, n: int, k: int, block: tuple[int, int, int], transpose_b: bool, num_warps: int
) -> None:
    check_matmul("blocked_matmul", m, n, k, block, transpose_b=transpose_b, num_warps=num_warps)


@pytest.mark.parametrize(("m", "n", "k"), SHAPES)
@pytest.mark.parametrize("block", [(64, 64, 64), (128, 128, 128)])
@pytest.mark.parametrize("num_warps", [4, 8])
def test_two_accumulator_matmul(
    m: int, n: int, k: int, block: tuple[int, int, int], num_warps: int
) -> None:
    check_matmul("two_accumulator_matmul", m, n, k, block, num_warps=num_warps)
