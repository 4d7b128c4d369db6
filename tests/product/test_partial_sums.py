"""`config.partial_sums`: in which type devices exchange the parts of a sharded sum."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from numerics import normal

import jax_bwgemm as bw
from jax_bwgemm import config
from jax_bwgemm.dense.api import rounded_dot_general

M, N, K, E = 16, 32, 512, 2
SIZES = np.array([10, 6], np.int32)


@pytest.fixture(scope="module")
def mesh(cpu_devices: list[jax.Device]) -> jax.sharding.Mesh:
    return jax.make_mesh((8,), ("x",), axis_types=(AxisType.Auto,), devices=cpu_devices)


def place(mesh: Any, x: np.ndarray, *spec: Any) -> jax.Array:
    return jax.device_put(x, NamedSharding(mesh, P(*spec)))


def collectives(f: Callable, *args: Any) -> list[tuple[str, str]]:
    """(type, name) of the collectives in the program as it is partitioned."""
    text = jax.jit(f).lower(*args).compile().as_text()
    return re.findall(r"= (\w+)\[\S+ (all-reduce|reduce-scatter)(?:-start)?\(", text)


def error(got: Any, a: Any, b: Any) -> float:
    exact = np.asarray(a, np.float64) @ np.asarray(b, np.float64)
    return float(np.sqrt(np.mean((np.asarray(got, np.float64) - exact) ** 2)))


def operands(mesh: Any) -> tuple[jax.Array, jax.Array]:
    rng = np.random.default_rng(0)
    a, b = normal(rng, (M, K), "bfloat16"), normal(rng, (K, N), "bfloat16")
    return place(mesh, a, None, "x"), place(mesh, b, "x")


def test_the_error_drops(mesh: Any) -> None:
    a, b = operands(mesh)
    rounded = error(jax.jit(bw.matmul)(a, b), a, b)
    with config.partial_sums("float32"):
        exact = error(jax.jit(bw.matmul)(a, b), a, b)
    once = error(jnp.matmul(a, b, preferred_element_type=jnp.float32).astype(jnp.bfloat16), a, b)
    assert exact <= 1.01 * once
    assert exact < 0.8 * rounded


def test_all_reduce_is_of_f32_and_the_context_is_part_of_jaxs_caches(mesh: Any) -> None:
    # XLA's CPU backend widens a bf16 all-reduce, so f16 shows the difference.
    a, b = (x.astype(jnp.float16) for x in operands(mesh))
    step = lambda x, y: bw.matmul(x, y)  # noqa: E731
    assert jax.jit(step)(a, b).dtype == jnp.float16
    before = collectives(step, a, b)
    with config.partial_sums("float32"):
        within = collectives(step, a, b)
        assert jax.jit(step)(a, b).dtype == jnp.float16
    assert before in ([("f16", "all-reduce")], [("f32", "all-reduce")])
    assert within == [("f32", "all-reduce")]
    assert collectives(step, a, b) == before


def test_a_result_that_is_rounded_once_is_exchanged_as_wide_as_asked(mesh: Any) -> None:
    a, b = operands(mesh)
    numbers = (((1,), (0,)), ((), ()))
    step = lambda x, y: rounded_dot_general(  # noqa: E731
        x, y, numbers, "bfloat16", preferred_element_type=jnp.bfloat16
    )
    assert "partial_sums=float32" not in str(jax.make_jaxpr(step)(a, b))
    with config.partial_sums("float32"):
        assert "partial_sums=float32" in str(jax.make_jaxpr(step)(a, b))


def test_exchanged_types(mesh: Any) -> None:
    """What is asked of XLA, whatever its backend makes of it."""
    a, b = operands(mesh)
    for name in ("result", "float32"):
        with config.partial_sums(name):
            spec = jax.make_jaxpr(bw.matmul)(a, b)
        shown = "partial_sums=float32" in str(spec)
        assert shown == (name == "float32")


def test_sums_of_32_bits_stay_what_they_are(mesh: Any) -> None:
    """Integers that float32 does not hold."""
    a = place(mesh, np.full((8, 8), 4097, np.int32), None, "x")
    w = place(mesh, np.full((2, 8, 8), 4097, np.int32), None, "x")
    with config.partial_sums("float32"):
        got = jax.jit(lambda a, w: bw.ragged_dot(a, w, np.array([4, 4])))(a, w)
    np.testing.assert_array_equal(got, np.full((8, 8), 8 * 4097**2))


def test_reduce_scatter(mesh: Any) -> None:
    a, b = operands(mesh)

    def f(x: Any, y: Any) -> Any:
        return jax.lax.with_sharding_constraint(bw.matmul(x, y), NamedSharding(mesh, P("x")))

    with config.partial_sums("float32"):
        assert collectives(f, a, b) == [("f32", "reduce-scatter")]
        got = jax.jit(f)(a, b)
    assert got.dtype == jnp.bfloat16
    assert error(got, a, b) < 0.8 * error(jax.jit(f)(a, b), a, b)


def test_grouped(mesh: Any) -> None:
    rng = np.random.default_rng(0)
    a = place(mesh, normal(rng, (M, K), "bfloat16"), None, "x")
    w = place(mesh, normal(rng, (E, K, N), "bfloat16"), None, "x")

    def f(x: Any, y: Any) -> Any:
        return bw.ragged_dot(x, y, SIZES)

    def errors(got: Any) -> float:
        ends = np.cumsum(SIZES)
        parts = [
            error(got[end - size : end], a[end - size : end], w[e])
            for e, (size, end) in enumerate(zip(SIZES, ends, strict=True))
        ]
        return max(parts)

    rounded = errors(np.asarray(jax.jit(f)(a, w)))
    with config.partial_sums("float32"):
        assert ("f32", "all-reduce") in collectives(f, a, w)
        exact = jax.jit(f)(a, w)
    assert exact.dtype == jnp.bfloat16
    assert errors(np.asarray(exact)) < 0.8 * rounded


def test_gradients_exchange_the_same_type(mesh: Any) -> None:
    rng = np.random.default_rng(0)
    x = place(mesh, normal(rng, (K, M), "bfloat16"), "x")
    w = place(mesh, normal(rng, (M, N), "bfloat16"))
    cotangent = place(mesh, normal(rng, (K, N), "bfloat16"), "x")

    def weights(x: Any, w: Any, g: Any) -> Any:
        return jax.vjp(lambda b: bw.matmul(x, b), w)[1](g)[0]

    rounded = error(jax.jit(weights)(x, w, cotangent), np.asarray(x).T, cotangent)
    with config.partial_sums("float32"):
        got = jax.jit(weights)(x, w, cotangent)
    assert error(got, np.asarray(x).T, cotangent) < 0.8 * rounded


def test_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    assert config.current_partial_sums() is None
    monkeypatch.setenv("BWGEMM_PARTIAL_SUMS", "float32")
    assert config.current_partial_sums() == "float32"
    with config.partial_sums("result"):
        assert config.current_partial_sums() is None
    monkeypatch.setenv("BWGEMM_PARTIAL_SUMS", "f32")
    with pytest.raises(ValueError, match="BWGEMM_PARTIAL_SUMS: unknown type 'f32'; known are 're"):
        config.current_partial_sums()
    with pytest.raises(ValueError, match="partial_sums: unknown type 'bfloat16'; known are"):
        config.partial_sums("bfloat16")
    for of_two in (config.partial_sums, config.tuning_miss):
        with pytest.raises(ValueError, match=r"unknown .* array"):
            of_two(np.array(["result", "error"]))  # type: ignore[arg-type]
