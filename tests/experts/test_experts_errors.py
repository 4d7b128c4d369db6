"""Arguments of `grouped_mlp` and `moe_mlp` that are refused, with their messages."""

from __future__ import annotations

from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from experts_cases import SIZES, TOP, Arrays, E, H, K, M, T, moe, ours, routed

import jax_bwgemm as bw


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"up": np.zeros((E, K + 1, H), "f4")}, TypeError, r"up \[E, K, H\] or \[E, K, 2, H\]"),
        ({"up": np.zeros((E, K, 3, H), "f4")}, TypeError, r"up \[E, K, H\] or \[E, K, 2, H\]"),
        ({"rows": np.zeros((M, K), "f2")}, TypeError, "one type of .*, got float16, float32"),
        ({"row_weights": np.zeros(M + 1, "f4")}, TypeError, r"the shape \(24,\) and a type"),
        ({"up": np.zeros((E, K, H), "f2")}, TypeError, "one type of .*, got float16, float32"),
        ({"row_weights": np.zeros(M, "i4")}, TypeError, "a type of .*, got int32 of shape"),
    ],
)
def test_grouped_arguments(arrays: Arrays, change: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=f"grouped_mlp: .*{message}"):
        ours(arrays | change)


def test_an_unknown_activation(arrays: Arrays) -> None:
    with pytest.raises(ValueError, match="grouped_mlp: unknown activation 'geluu'"):
        ours(arrays, activation="geluu")


@pytest.mark.parametrize(
    "activation", [lambda z: z[:1], lambda z: (z, z), lambda z: None, lambda z: "z", str]
)
def test_activations_of_another_shape(arrays: Arrays, activation: Any) -> None:
    with pytest.raises(TypeError, match="grouped_mlp: activation must return one array of its"):
        ours(arrays, activation=activation)


def test_an_activation_that_reads_the_program_around_it(arrays: Arrays) -> None:
    def layer(slope: Any) -> jax.Array:
        return ours(arrays, activation=lambda z: z * slope)

    np.testing.assert_array_equal(layer(jnp.float32(1)), ours(arrays, activation=lambda z: z))
    with pytest.raises(bw.EpilogueError, match="grouped_mlp: activation reads an array of the pro"):
        jax.jit(layer)(jnp.float32(2))


@pytest.mark.parametrize("recompute", [4, "no", float("nan"), np.ones(2), jnp.ones(2)], ids=str)
def test_recompute_is_a_flag(arrays: Arrays, recompute: Any) -> None:
    with pytest.raises(TypeError, match="grouped_mlp: recompute must be True or False, got"):
        ours(arrays, recompute=recompute)
    with pytest.raises(TypeError, match="moe_mlp: recompute must be True or False, got"):
        moe(*routed(), recompute=recompute)


@pytest.mark.parametrize(
    ("sizes", "offset", "message"),
    [
        (np.array([M, 1, 0, 0]), None, "group_sizes sum to 25, but there are 24 ragged rows"),
        (np.array([-1, 1, 0, 0]), None, "group_sizes must not be negative, got -1"),
        (SIZES, -1, "group_offset must be between 0 and the number of groups, 4, got -1"),
        (SIZES, 99, "group_offset must be between 0 and the number of groups, 4, got 99"),
    ],
)
def test_groups_out_of_range(arrays: Arrays, sizes: Any, offset: Any, message: str) -> None:
    with pytest.raises(ValueError, match=f"grouped_mlp {message}"):
        ours(arrays, sizes, group_offset=offset)


@pytest.mark.parametrize(
    ("number", "error", "message"),
    [
        (1.5, TypeError, "moe_mlp num_experts must be an integer or None, got 1.5"),
        (-1, ValueError, "moe_mlp num_experts must not be negative, got -1"),
        (2**70, ValueError, "moe_mlp num_experts must be below"),
        (E - 1, ValueError, f"num_experts={E - 1} is less than the {E} matrices of up and down"),
    ],
)
def test_numbers_of_experts(number: Any, error: Any, message: str) -> None:
    a, experts = routed()
    with pytest.raises(error, match=message):
        moe(a, experts, num_experts=number, group_offset=0)


@pytest.mark.parametrize(
    ("experts", "change", "more", "error", "message"),
    [
        (np.zeros((T + 1, TOP), "i4"), {}, {}, TypeError, r"experts must be \[T, k\] for x \[T"),
        (None, {"up": np.zeros((E, K + 1, H), "f4")}, {}, TypeError, r"x must be \[M, K\], up"),
        (
            None,
            {"x": np.zeros((T, K), "f2")},
            {},
            TypeError,
            "x, up and down must have one type",
        ),
        (None, {}, {"activation": "gleu"}, ValueError, "unknown activation 'gleu'"),
        (np.zeros((T, TOP), "f4"), {}, {}, TypeError, "experts must be integers, got float32"),
        (
            None,
            {"weights": np.zeros((T, 3), "f4")},
            {},
            TypeError,
            r"the shape \(12, 2\)",
        ),
        (None, {"weights": np.zeros((T, TOP), "i4")}, {}, TypeError, "a type of .*, got int32 of"),
        (None, {}, {"num_experts": 8}, ValueError, "must be given together"),
        (None, {}, {"group_offset": 0}, ValueError, "must be given together"),
    ],
)
def test_routed_arguments(experts: Any, change: Any, more: Any, error: Any, message: str) -> None:
    a, chosen = routed()
    with pytest.raises(error, match=f"moe_mlp: .*{message}"):
        moe(a | change, chosen if experts is None else experts, **more)
