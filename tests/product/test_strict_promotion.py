"""Every function and its gradients where jax.numpy may convert no types and add no dimensions.

Types of products' results are compared with JAX's in tests/dense/test_dtype_promotion.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_bwgemm as bw

M, N, K, E = 64, 48, 32, 4
NUMBERS = (((1,), (0,)), ((), ()))
SIZES = np.array([20, 0, 37, 7], np.int32)
EXPERTS = np.arange(2 * M, dtype=np.int32).reshape(M, 2) % E
LABELS = np.arange(M, dtype=np.int32) % N
F32 = jnp.float32


def dense_layer(x: Any, w: Any, b: Any) -> Any:
    return jax.nn.gelu(jnp.dot(x, w, preferred_element_type=F32) + b.astype(F32)[None]) ** 2


# name: (function, shape and type of its operands)
FUNCTIONS: dict[str, tuple[Callable, list[tuple[tuple[int, ...], str]]]] = {
    "linear": (
        lambda x, w, b, r: bw.linear(x, w, b, activation="gelu", residual=r),
        [((M, K), "bfloat16"), ((K, N), "bfloat16"), ((N,), "float32"), ((M, N), "bfloat16")],
    ),
    "f32 results": (
        lambda x, w, b: bw.linear(x, w, b, preferred_element_type=F32),
        [((M, K), "bfloat16"), ((K, N), "bfloat16"), ((N,), "bfloat16")],
    ),
    "gated_linear_unit": (
        lambda x, w: bw.gated_linear_unit(x, w),
        [((M, K), "bfloat16"), ((K, 2, N), "bfloat16")],
    ),
    "mlp": (
        lambda x, gate, up, down, b, c: bw.mlp(
            x, (gate, up), down, up_bias=(b, b), down_bias=c, recompute=2
        ),
        [
            ((M, K), "bfloat16"),
            *[((K, N), "bfloat16")] * 2,
            ((N, K), "bfloat16"),
            ((N,), "bfloat16"),
            ((K,), "bfloat16"),
        ],
    ),
    "mlp of one matrix": (
        lambda x, up, down, b: bw.mlp(x, up, down, up_bias=b),
        [((M, K), "bfloat16"), ((K, N), "bfloat16"), ((N, K), "bfloat16"), ((N,), "bfloat16")],
    ),
    "grouped_mlp": (
        lambda x, up, down, w: bw.grouped_mlp(x, up, down, SIZES, row_weights=w),
        [
            ((M, K), "bfloat16"),
            ((E, K, 2, N), "bfloat16"),
            ((E, N, K), "bfloat16"),
            ((M,), "float32"),
        ],
    ),
    "moe_mlp": (
        lambda x, up, down, w: bw.moe_mlp(x, up, down, EXPERTS, w),
        [
            ((M, K), "bfloat16"),
            ((E, K, 2, N), "bfloat16"),
            ((E, N, K), "bfloat16"),
            ((M, 2), "float32"),
        ],
    ),
    "ragged_dot_general": (
        lambda x, w: bw.ragged_dot_general(
            x, w, SIZES, jax.lax.RaggedDotDimensionNumbers((((1,), (1,)), ((), ())), [0], [0])
        ),
        [((M, K), "bfloat16"), ((E, K, N), "bfloat16")],
    ),
    "loss, stored": (
        lambda x, w: bw.linear_softmax_cross_entropy_loss(x, LABELS, w, z_loss=1e-4),
        [((M, K), "bfloat16"), ((K, N), "bfloat16")],
    ),
    "loss, recomputed": (
        lambda x, w: bw.linear_softmax_cross_entropy_loss(x, LABELS, w, logits="recomputed"),
        [((M, K), "bfloat16"), ((K, N), "float32")],
    ),
    "loss, mean of some": (
        lambda x, w: bw.linear_softmax_cross_entropy_loss(
            x, LABELS, w, reduction="mean", ignore_index=3, label_smoothing=0.1
        ),
        [((M, K), "bfloat16"), ((K, N), "bfloat16")],
    ),
    "per_tensor": (
        lambda a, b: bw.fp8_dot_general("per_tensor")(a, b, NUMBERS),
        [((M, K), "bfloat16"), ((K, N), "bfloat16")],
    ),
    "blockwise": (
        lambda a, b: bw.fp8_dot_general("blockwise")(a, b, NUMBERS),
        [((128, 128), "bfloat16"), ((128, 128), "float32")],
    ),
    "mxfp8": (
        lambda a, b: bw.fp8_dot_general("mxfp8")(a, b, NUMBERS),
        [((M, K), "bfloat16"), ((K, 32), "bfloat16")],
    ),
    "nvfp4": (
        lambda a, b: bw.fp8_dot_general("nvfp4")(a, b, NUMBERS, key=jax.random.key(0)),
        [((M, K), "bfloat16"), ((K, N), "bfloat16")],
    ),
    "experts in 8 bits": (
        lambda a, b: bw.fp8_ragged_dot("per_tensor")(a, b, SIZES),
        [((M, K), "bfloat16"), ((E, K, N), "bfloat16")],
    ),
    "accelerate": (
        bw.accelerate(dense_layer),
        [((M, K), "bfloat16"), ((K, N), "bfloat16"), ((N,), "bfloat16")],
    ),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_types_are_those_of_standard_promotion(name: str) -> None:
    f, operands = FUNCTIONS[name]
    args = [jax.ShapeDtypeStruct(s, t) for s, t in operands]

    def step(*args: Any) -> Any:
        result, pullback = jax.vjp(f, *args)
        return result, pullback(jnp.ones(result.shape, result.dtype))

    expected = jax.eval_shape(step, *args)
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        assert jax.eval_shape(step, *args) == expected
        bw.explain_program(step, *args, device="sm90")
        bw.explain_program(bw.accelerate(step), *args, device="sm90")
    assert [x.dtype for x in expected[1]] == [x.dtype for x in args]


@pytest.mark.parametrize("x64", [False, True])
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "uint32", "int64", "uint64"])
def test_experts_of_any_integer_type(dtype: str, x64: bool) -> None:
    shapes = ((M, K), (E, K, N), (E, N, K))
    rng = np.random.default_rng(0)
    x, up, down = (rng.standard_normal(s, np.float32) * s[-2] ** -0.5 for s in shapes)
    weights = np.ones((M, 2), np.float32)
    layer = jax.jit(bw.moe_mlp)
    want = layer(x, up, down, EXPERTS, weights)
    with (
        jax.enable_x64(x64),
        jax.numpy_dtype_promotion("strict"),
        jax.numpy_rank_promotion("raise"),
    ):
        got = layer(x, up, down, EXPERTS.astype(dtype), weights)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("recipe", ["per_tensor", "blockwise", "mxfp8"])
def test_experts_in_8_bits_run_by_xla(recipe: str) -> None:
    """The reference is traced when it is lowered."""
    x, w = jnp.ones((M, K)), jnp.ones((E, K, 8))
    dot = bw.fp8_ragged_dot(recipe)
    step = jax.jit(jax.grad(lambda x, w: jnp.sum(dot(x, w, SIZES)), (0, 1)))
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        _, w_bar = step(x, w)
    want = np.broadcast_to(SIZES[:, None, None], w.shape)
    np.testing.assert_allclose(w_bar, want, rtol=1e-5)
