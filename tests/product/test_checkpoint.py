"""Policies of `jax.checkpoint` treat our products as they treat lax.dot_general."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from feature_cases import operands, primitives, ragged

import jax_bwgemm as bw

POLICIES = jax.checkpoint_policies


def products_of_a_gradient(matmul: Callable, policy: Any, x: jax.Array, w: jax.Array) -> list[str]:
    layer = jax.checkpoint(lambda x, w: jnp.sin(matmul(x, w)), policy=policy)
    jaxpr = jax.make_jaxpr(jax.grad(lambda x, w: layer(x, w).astype(jnp.float32).sum(), (0, 1)))
    wanted = ("dot_general", "bw_m_grouped", "bw_k_grouped", "device_put")
    return sorted(name for name in primitives(jaxpr(x, w).jaxpr) if name in wanted)


OFFLOAD = POLICIES.offload_dot_with_no_batch_dims("device", "pinned_host")


@pytest.mark.parametrize("batch", [(), (3,)], ids=["one", "batched"])
@pytest.mark.parametrize(
    ("name", "policy", "saves"),
    [
        ("nothing", POLICIES.nothing_saveable, ()),
        ("everything", POLICIES.everything_saveable, ("one", "batched")),
        ("dots", POLICIES.dots_saveable, ("one", "batched")),
        ("no_batch_dims", POLICIES.dots_with_no_batch_dims_saveable, ("one",)),
        ("offload", OFFLOAD, ("one",)),
    ],
)
def test_policies_by_name_save_our_products(
    batch: tuple[int, ...], name: str, policy: Any, saves: tuple[str, ...]
) -> None:
    x, w = operands((*batch, 4, 5), (*batch, 5, 6))
    got = products_of_a_gradient(bw.matmul, policy, x, w)
    assert got == products_of_a_gradient(jnp.matmul, policy, x, w)
    saved = ("batched" if batch else "one") in saves
    assert got.count("dot_general") == (3 if saved else 4)
    assert ("device_put" in got) == (name == "offload" and saved)


@pytest.mark.parametrize("policy", [POLICIES.dots_saveable, OFFLOAD], ids=["saved", "offloaded"])
def test_gradients_of_saved_products_are_right(policy: Any) -> None:
    x, w = operands((4, 5), (5, 6))

    def gradients(matmul: Callable, policy: Any) -> Any:
        layer = jax.checkpoint(lambda x, w: jnp.sin(matmul(x, w)), policy=policy)
        return jax.jit(jax.grad(lambda x, w: layer(x, w).astype(jnp.float32).sum(), (0, 1)))(x, w)

    for got, want in zip(
        gradients(bw.matmul, policy), gradients(bw.matmul, POLICIES.nothing_saveable), strict=True
    ):
        np.testing.assert_array_equal(got, want)


def test_policies_by_name_save_grouped_products() -> None:
    x, w = operands((6, 5), (3, 5, 4))
    saved = products_of_a_gradient(ragged, POLICIES.dots_with_no_batch_dims_saveable, x, w)
    assert saved == ["bw_k_grouped", "bw_m_grouped", "bw_m_grouped"]
    recomputed = products_of_a_gradient(ragged, POLICIES.nothing_saveable, x, w)
    assert recomputed == ["bw_k_grouped", *["bw_m_grouped"] * 3]


@pytest.mark.parametrize("recipe", ["per_tensor", "per_tensor_delayed", "blockwise", "nvfp4"])
@pytest.mark.parametrize("experts", [False, True])
def test_policies_by_name_save_products_in_8_bits(recipe: str, experts: bool) -> None:
    make = bw.fp8_ragged_dot if experts else bw.fp8_dot_general
    dot = make(recipe)
    state = {"key": jax.random.key(0)} if recipe == "nvfp4" else {}
    if recipe == "per_tensor_delayed":
        state["amax_history"] = dot.new_history()
    more = (np.array([64, 64]),) if experts else (None,)
    x, w = operands((128, 256), (2, 256, 64) if experts else (256, 64))

    def products(policy: Any) -> int:
        layer = jax.checkpoint(lambda x, w: jnp.sin(dot(x, w, *more, **state)), policy=policy)
        gradient = jax.grad(lambda x, w: layer(x, w).astype(jnp.float32).sum(), (0, 1))
        found = list(primitives(jax.make_jaxpr(gradient)(x, w).jaxpr))
        return found.count("bw_scaled_ragged" if experts else "bw_scaled_matmul")

    assert products(POLICIES.nothing_saveable) == 4
    assert products(POLICIES.dots_with_no_batch_dims_saveable) == 3
    assert products(POLICIES.everything_saveable) == 3


def test_products_in_8_bits_with_batch_dimensions_are_told_apart() -> None:
    dot = bw.fp8_dot_general("blockwise")
    numbers = (((2,), (1,)), ((0,), (0,)))
    x, w = operands((2, 128, 256), (2, 256, 64))

    def products(policy: Any) -> int:
        layer = jax.checkpoint(lambda x, w: jnp.sin(dot(x, w, numbers)), policy=policy)
        gradient = jax.grad(lambda x, w: layer(x, w).astype(jnp.float32).sum(), (0, 1))
        return list(primitives(jax.make_jaxpr(gradient)(x, w).jaxpr)).count("bw_scaled_matmul")

    assert products(POLICIES.dots_saveable) == 3
    assert products(POLICIES.dots_with_no_batch_dims_saveable) == 4


def test_grouped_products_with_batch_dimensions_are_told_apart() -> None:
    x, w = operands((2, 6, 5), (2, 3, 5, 4))

    def products(policy: Any) -> int:
        return len(products_of_a_gradient(jax.vmap(ragged), policy, x, w))

    assert products(POLICIES.dots_saveable) == 3
    assert products(POLICIES.dots_with_no_batch_dims_saveable) == 4


def test_grouped_products_in_8_bits_with_batch_dimensions_are_told_apart() -> None:
    dot = bw.fp8_ragged_dot("blockwise")
    x, w = operands((2, 128, 256), (2, 2, 256, 64))

    def products(policy: Any) -> int:
        one = jax.vmap(lambda x, w: dot(x, w, np.array([64, 64])))
        layer = jax.checkpoint(lambda x, w: jnp.sin(one(x, w)), policy=policy)
        gradient = jax.grad(lambda x, w: layer(x, w).astype(jnp.float32).sum(), (0, 1))
        return list(primitives(jax.make_jaxpr(gradient)(x, w).jaxpr)).count("bw_scaled_ragged")

    assert products(POLICIES.dots_saveable) == 3
    assert products(POLICIES.dots_with_no_batch_dims_saveable) == 4


def test_a_policy_may_name_the_primitive() -> None:
    x, w = operands((4, 5), (5, 6))

    def policy(primitive: Any, *_: Any, **__: Any) -> bool:
        return primitive.name == "bw_gemm"

    assert products_of_a_gradient(bw.matmul, policy, x, w).count("dot_general") == 3


@pytest.mark.skipif(jax.__version_info__ < (0, 12), reason="the rules of jax_remat3 are of 0.12")
@pytest.mark.parametrize("policy", [POLICIES.dots_saveable, POLICIES.nothing_saveable])
def test_policies_by_name_under_the_new_remat(policy: Any) -> None:
    x, w = operands((4, 5), (5, 6))
    before = jax.config.jax_remat3
    jax.config.update("jax_remat3", True)
    try:
        got = products_of_a_gradient(bw.matmul, policy, x, w)
        assert got == products_of_a_gradient(jnp.matmul, policy, x, w)
    finally:
        jax.config.update("jax_remat3", before)
