"""Products that a kernel could compute, but not in less time than XLA."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import jax_bwgemm as bw
from jax_bwgemm.config import make_target
from jax_bwgemm.dense.spec import GemmDims
from jax_bwgemm.rewriting import fuse, policy

SMALL = policy.SMALL_CYCLES


@pytest.fixture(autouse=True)
def small_products_are_left(
    monkeypatch: pytest.MonkeyPatch, small_products_are_taken: None
) -> None:
    monkeypatch.setattr(policy, "SMALL_CYCLES", SMALL)


def decision(f: Any, *shapes: tuple[int, ...], dtype: str = "bfloat16") -> Any:
    args = [jax.ShapeDtypeStruct(shape, dtype) for shape in shapes]
    (one,) = bw.explain_program(bw.accelerate(f), *args, device="sm90").rewrites
    return one


@pytest.mark.parametrize(
    ("a", "b", "taken"),
    [
        ((256, 512), (512, 1024), False),  # a recurrent cell
        ((32, 256, 64), (32, 64, 256), False),
        ((64, 1024), (1024, 1152), True),  # few rows
        ((32, 64, 512), (32, 512, 64), False),  # few rows, but of many matrices
        ((16, 1024), (1024, 2816), True),
        ((16384, 128), (128, 128), False),  # few columns, but tiles for all multiprocessors
        ((1024, 1024), (1024, 1024), True),
        ((4096, 1024), (1024, 4096), True),
    ],
)
def test_small_products(a: tuple[int, ...], b: tuple[int, ...], taken: bool) -> None:
    one = decision(jnp.matmul, a, b)
    assert one.rewritten == taken
    assert taken or one.reason.startswith("it is predicted to take ")
    assert taken or f"fewer than {SMALL}: a kernel would save less" in one.reason


@pytest.mark.parametrize(
    ("m", "n", "batch", "few"),
    [
        (policy.FEW_ROWS, 1024, 1, True),
        (policy.FEW_ROWS + 1, 1024, 1, False),
        (1024, policy.FEW_ROWS, 1, True),
        (1024, policy.FEW_ROWS + 1, 1, False),
        (64, 1024, 4, False),  # rows of four matrices, which the right one is shared by
        (32, 1024, 4, True),
    ],
)
def test_few_rows_are_those_of_all_matrices_together(m: int, n: int, batch: int, few: bool) -> None:
    dims = GemmDims(m, n, 512, batch, batch, 1)
    reason = policy.small(("bfloat16", "bfloat16"), dims, SMALL - 1, make_target("sm90"))
    assert (reason is None) == few


def test_a_kernel_that_computes_what_follows_takes_a_small_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fuse, "link_refusal", lambda *_: None)

    def f(x: jax.Array, w: jax.Array, b: jax.Array) -> jax.Array:
        return jax.nn.gelu(x @ w + b)

    shapes = (2048, 512), (512, 768), (768,)
    assert not decision(jnp.matmul, *shapes[:2]).rewritten
    for linked in (True, False):
        with bw.config.target("sm90"), bw.config.linked_epilogues(linked):
            assert decision(f, *shapes).rewritten == linked


@pytest.mark.parametrize(
    ("a", "b", "taken"),
    [
        ((8192, 512), (512, 8), False),  # a router of experts
        ((16, 512, 512), (512, 8), False),
        ((512, 4096), (4096, 4096), True),
        ((16, 4096), (4096, 14336), True),  # bound by memory
    ],
)
def test_f32_with_few_columns(a: tuple[int, ...], b: tuple[int, ...], taken: bool) -> None:
    def f(x: jax.Array, w: jax.Array) -> jax.Array:
        return jnp.matmul(x, w, precision="highest")

    one = decision(f, a, b, dtype="float32")
    assert one.rewritten == taken
    assert taken or one.reason.startswith("XLA is predicted to take ")


def test_only_xlas_f32_is_compared() -> None:
    """X3 and X6 are several products in XLA, too."""
    target, dims = make_target("sm90"), GemmDims(8192, 8, 512, 1, 1, 1)
    f32, mixed = ("float32", "float32"), ("float32", "bfloat16")
    highest, x6 = lax.Precision.HIGHEST, lax.DotAlgorithmPreset.BF16_BF16_F32_X6
    assert policy.slower(f32, highest, dims, 50_000, target)
    assert policy.slower(f32, highest, dims, 5_000, target) is None
    assert policy.slower(f32, highest, dims, None, target) is None
    assert policy.slower(f32, x6, dims, 50_000, target) is None
    assert policy.slower(mixed, highest, dims, 50_000, target) is None
    assert policy.small(mixed, dims, 5_000, target) is None
    assert policy.small(("bfloat16", "bfloat16"), dims, None, target) is None
