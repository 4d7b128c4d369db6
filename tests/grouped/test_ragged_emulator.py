"""ragged_dot through the emulated kernels: what Python adds to a call, and every transform."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import grouped_oracle as oracle
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from emulator_cases import requires_emulator
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from numerics import assert_exact, exact_integers, small_integers

import jax_bwgemm as bw
from jax_bwgemm import emulator, runtime

ARCHS = sorted({k.arch for k in runtime.emulated_grouped_kernels()})
pytestmark = [
    *requires_emulator,
    pytest.mark.skipif(not ARCHS, reason="the emulator was built without grouped kernels"),
]
M, K, N, E, G = 70, 40, 56, 3, 5
SIZES = np.array([20, 0, 13, 30, 2], np.int32)


@pytest.fixture(params=ARCHS, autouse=True)
def arch(request: pytest.FixtureRequest) -> Iterator[str]:
    with bw.config.target(request.param), emulator.configure(sm_count=2):
        yield request.param


def operands(*shapes: tuple[int, ...], seed: int = 0) -> list[Any]:
    rng = np.random.default_rng(seed)
    return [jnp.asarray(small_integers(rng, shape, "bfloat16")) for shape in shapes]


def dot(lhs: Any, rhs: Any, sizes: Any, **kwargs: Any) -> Any:
    return bw.ragged_dot(lhs, rhs, sizes, implementation="emulator", **kwargs)


def rows(*args: Any) -> np.ndarray:
    return oracle.rows(*args).astype(jnp.bfloat16)


def test_offset_and_gradients() -> None:
    lhs, rhs, ct = operands((M, K), (E, K, N), (M, N))
    sizes = jnp.asarray(SIZES)
    out, vjp = jax.vjp(lambda a, b: dot(a, b, sizes, group_offset=1), lhs, rhs)
    d_lhs, d_rhs = vjp(ct)
    assert_exact(out, rows(lhs, rhs, SIZES, 1))
    assert_exact(d_lhs, rows(ct, np.swapaxes(rhs, 1, 2), SIZES, 1))
    assert_exact(d_rhs, oracle.contract(lhs, ct, SIZES, 1, E).astype(jnp.bfloat16))


def test_unaligned_operands_are_padded() -> None:
    lhs, rhs, ct = operands((20, 9), (2, 9, 11), (20, 11))
    sizes = np.array([7, 11])
    out, vjp = jax.vjp(lambda a, b: dot(a, b, sizes), lhs, rhs)
    d_lhs, d_rhs = vjp(ct)
    assert_exact(out, rows(lhs, rhs, sizes))
    assert_exact(d_lhs, rows(ct, np.swapaxes(rhs, 1, 2), sizes))
    assert_exact(d_rhs, oracle.contract(lhs, ct, sizes, 0, 2).astype(jnp.bfloat16))


def test_f32_result() -> None:
    lhs, rhs = operands((M, K), (G, K, N))
    out = dot(lhs, rhs, SIZES, preferred_element_type=jnp.float32)
    assert_exact(out, oracle.rows(lhs, rhs, SIZES).astype(np.float32))


@pytest.fixture
def f32_kernels(arch: str) -> None:
    # SM100's are those of 16-bit operands, which get terms.
    if arch == "sm90" and not any(k.terms > 1 for k in runtime.emulated_grouped_kernels()):
        pytest.skip("the emulator was built without them")


def f32_of_two_terms(*shape: int) -> jax.Array:
    return jnp.asarray(exact_integers(np.random.default_rng(5), shape, "float32"))


@pytest.mark.usefixtures("f32_kernels")
@pytest.mark.parametrize("offset", [0, 1])
def test_gradients_of_an_f32_result_have_all_bits_of_the_cotangent(offset: int) -> None:
    lhs, rhs = operands((M, K), (E, K, N))
    ct, sizes = f32_of_two_terms(M, N), jnp.asarray(SIZES)

    def wide(a: Any, b: Any) -> Any:
        return dot(a, b, sizes, group_offset=offset, preferred_element_type=jnp.float32)

    _, vjp = jax.vjp(wide, lhs, rhs)
    d_lhs, d_rhs = jax.jit(vjp)(ct)
    assert_exact(d_lhs, rows(ct, np.swapaxes(rhs, 1, 2), SIZES, offset))
    assert_exact(d_rhs, oracle.contract(lhs, ct, SIZES, offset, E).astype(jnp.bfloat16))


@pytest.mark.usefixtures("f32_kernels")
def test_f32_rows_and_f32_matrices_with_their_tangents_and_gradients() -> None:
    """Of the f32 operand: the other's gradient is a product of two f32 operands, which is XLA's."""
    bf16_lhs, bf16_rhs = operands((24, 16), (2, 16, 8))
    f32_lhs, f32_rhs = f32_of_two_terms(24, 16), f32_of_two_terms(2, 16, 8)
    ct = small_integers(np.random.default_rng(2), (24, 8), "float32")
    sizes = np.array([13, 9])

    out, vjp = jax.vjp(lambda a: dot(a, bf16_rhs, sizes), f32_lhs)
    assert_exact(out, oracle.rows(f32_lhs, bf16_rhs, sizes).astype(np.float32))
    d_lhs = oracle.rows(ct, np.swapaxes(bf16_rhs, 1, 2), sizes)
    assert_exact(vjp(ct)[0], d_lhs.astype(np.float32))
    _, tangent = jax.jvp(lambda a: dot(a, bf16_rhs, sizes), (f32_lhs,), (2 * f32_lhs,))
    assert_exact(tangent, 2 * out)

    out, vjp = jax.vjp(lambda b: dot(bf16_lhs, b, sizes), f32_rhs)
    assert_exact(out, oracle.rows(bf16_lhs, f32_rhs, sizes).astype(np.float32))
    assert_exact(vjp(ct)[0], oracle.contract(bf16_lhs, ct, sizes, 0, 2).astype(np.float32))


@pytest.mark.usefixtures("f32_kernels")
def test_vmap_and_one_term_of_f32_rows() -> None:
    lhs, (rhs,) = f32_of_two_terms(2, 24, 16), operands((2, 16, 8))
    sizes = np.array([[3, 9], [20, 0]])
    for precision in (None, "BF16_BF16_F32"):
        rounded = lhs if precision is None else lhs.astype(jnp.bfloat16)
        mapped = jax.vmap(functools.partial(dot, precision=precision), in_axes=(0, None, 0))
        out = mapped(lhs, rhs, jnp.asarray(sizes))
        for i in range(2):
            assert_exact(out[i], oracle.rows(rounded[i], rhs, sizes[i]).astype(np.float32))


@pytest.mark.usefixtures("f32_kernels")
def test_f32_rows_of_matrices_on_two_devices(cpu_devices: list[jax.Device]) -> None:
    mesh = jax.make_mesh((2,), ("x",), axis_types=(AxisType.Auto,), devices=cpu_devices[:2])
    lhs, (rhs,) = f32_of_two_terms(24, 16), operands((4, 16, 8))
    sizes = jnp.array([5, 0, 12, 4])
    sharded = jax.device_put(rhs, NamedSharding(mesh, P("x")))
    replicated = NamedSharding(mesh, P())
    args = jax.device_put(lhs, replicated), sharded, jax.device_put(sizes, replicated)
    compiled = jax.jit(lambda a, b, s: dot(a, b, s)).lower(*args).compile()
    assert compiled.as_text().count('custom_call_target="bwgemm.product.emulated.v2"') == 1
    assert_exact(compiled(*args), oracle.rows(lhs, rhs, np.asarray(sizes)).astype(np.float32))


def test_vmap_with_shared_matrices_and_their_gradient() -> None:
    lhs, rhs, ct = operands((2, 24, 16), (2, 16, 8), (2, 24, 8))
    sizes = np.array([[3, 9], [20, 0]])
    mapped = jax.vmap(dot, in_axes=(0, None, 0))
    out, vjp = jax.vjp(lambda a, b: mapped(a, b, jnp.asarray(sizes)), lhs, rhs)
    d_lhs, d_rhs = vjp(ct)
    total = np.zeros(rhs.shape)
    for i in range(2):
        assert_exact(out[i], rows(lhs[i], rhs, sizes[i]))
        assert_exact(d_lhs[i], rows(ct[i], np.swapaxes(rhs, 1, 2), sizes[i]))
        total += oracle.contract(lhs[i], ct[i], sizes[i], 0, 2)
    assert_exact(d_rhs, total.astype(jnp.bfloat16))


def test_second_order() -> None:
    """The derivative of a gradient, along the operands themselves: grouped GEMMs throughout."""
    lhs, rhs, ct = operands((24, 16), (2, 16, 8), (24, 8))
    sizes = np.array([13, 9])

    def gradients(implementation: str) -> Any:
        def loss(a: Any, b: Any) -> Any:
            return jnp.vdot(bw.ragged_dot(a, b, sizes, implementation=implementation), ct)

        return jax.jit(lambda a, b: jax.jvp(jax.grad(loss, (0, 1)), (a, b), (b_of(a), b)))(lhs, rhs)

    def b_of(a: Any) -> Any:
        return jnp.flip(a, 1)

    got, want = gradients("emulator"), gradients("xla")
    for x, y in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert_exact(x, y)


def test_expert_parallel_equals_one_device(cpu_devices: list[jax.Device]) -> None:
    """Two devices with half of the matrices each: partitioned by the compiler, two kernels."""
    mesh = jax.make_mesh((2,), ("x",), axis_types=(AxisType.Auto,), devices=cpu_devices[:2])
    lhs, rhs = operands((24, 16), (4, 16, 8))
    sizes = jnp.array([5, 0, 12, 4])
    sharded = jax.device_put(rhs, NamedSharding(mesh, P("x")))
    compiled = jax.jit(lambda a, b, s: dot(a, b, s)).lower(lhs, sharded, sizes).compile()
    text = compiled.as_text()
    assert text.count('custom_call_target="bwgemm.product.emulated.v2"') == 1
    assert "bf16[1,2,16,8]" in text
    replicated = NamedSharding(mesh, P())
    args = jax.device_put(lhs, replicated), sharded, jax.device_put(sizes, replicated)
    assert_exact(compiled(*args), rows(lhs, rhs, np.asarray(sizes)))
