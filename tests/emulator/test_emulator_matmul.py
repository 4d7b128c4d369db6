"""`matmul(..., implementation="emulator")` under JAX's transformations, and its errors."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from emulator_cases import Problem, operands, requires_emulator, two_cta_kernel
from numerics import assert_exact, small_integers

import jax_bwgemm
from jax_bwgemm import emulator, runtime
from jax_bwgemm.emulator.dense import find_kernel, run_gemm

pytestmark = requires_emulator


def emulated_matmul(a: jax.Array, b: jax.Array) -> jax.Array:
    return jax_bwgemm.matmul(a, b, implementation="emulator")


def xla_matmul(a: jax.Array, b: jax.Array) -> jax.Array:
    return jax_bwgemm.matmul(a, b, implementation="xla")


def integers(*shape: int) -> jax.Array:
    return jnp.asarray(small_integers(np.random.default_rng(sum(shape)), shape, "bfloat16"))


def sum_of_squares(f: Callable[[jax.Array, jax.Array], jax.Array]) -> Callable[..., jax.Array]:
    """A loss whose gradient is the two transposed products of integers."""

    def loss(a: jax.Array, b: jax.Array) -> jax.Array:
        return jnp.sum(jnp.clip(f(a, b), -2, 2).astype(jnp.float32) ** 2)

    return loss


@pytest.mark.parametrize(
    ("transform", "rhs_batch"),
    [
        (lambda f: f, True),
        (jax.jit, True),
        (lambda f: jax.vmap(f, in_axes=(0, None)), False),
        (lambda f: jax.jit(jax.vmap(f)), True),
        (lambda f: jax.vmap(jax.vmap(f, in_axes=(None, 0)), in_axes=(0, None)), True),
    ],
    ids=["eager", "jit", "vmap_lhs", "jit_vmap_both", "vmap_vmap"],
)
def test_values(transform: Callable[..., Callable[..., jax.Array]], rhs_batch: bool) -> None:
    a, b = integers(2, 40, 24), integers(2, 24, 48)
    b = b if rhs_batch else b[0]
    before = emulator.launch_count()
    got = jax.block_until_ready(transform(emulated_matmul)(a, b))
    assert emulator.launch_count() > before, "nothing ran in the emulator"
    assert_exact(got, transform(xla_matmul)(a, b))


@pytest.mark.parametrize("jit", [False, True])
def test_gradients(jit: bool) -> None:
    a, b = integers(40, 24), integers(24, 48)
    wrap = jax.jit if jit else lambda f: f
    before = emulator.launch_count()
    gradients = wrap(jax.grad(sum_of_squares(emulated_matmul), argnums=(0, 1)))(a, b)
    got = jax.block_until_ready(gradients)
    assert emulator.launch_count() == before + 3, "forward and two backward products"
    want = wrap(jax.grad(sum_of_squares(xla_matmul), argnums=(0, 1)))(a, b)
    assert_exact(got[0], want[0], "lhs")
    assert_exact(got[1], want[1], "rhs")


def test_vmap_of_grad_and_jvp() -> None:
    a, b = integers(3, 16, 24), integers(3, 24, 32)
    for transform in (
        lambda f: jax.vmap(jax.grad(sum_of_squares(f))),
        lambda f: lambda x, y: jax.jvp(f, (x[0], y[0]), (x[1], y[1]))[1],
    ):
        assert_exact(transform(emulated_matmul)(a, b), transform(xla_matmul)(a, b))


def test_same_array_as_both_operands() -> None:
    a = integers(64, 64)
    assert_exact(emulated_matmul(a, a), xla_matmul(a, a))


def test_sm90_by_target() -> None:
    a, b = integers(64, 64), integers(64, 64)
    with jax_bwgemm.config.target("sm90"):
        assert_exact(emulated_matmul(a, b), xla_matmul(a, b))
    last = emulator.last_launch()
    assert last is not None
    assert "Sm90" in last.kernel


def test_a_report_reaches_python_with_the_line() -> None:
    """A fault inside a jitted call is a JaxRuntimeError with the emulator's report."""
    a, b = integers(64, 64), integers(64, 64)
    with (
        emulator.configure(step_limit=100),
        pytest.raises(jax.errors.JaxRuntimeError, match=r"(?s)INTERNAL: .*step limit.*sm100_"),
    ):
        jax.jit(emulated_matmul)(a, b).block_until_ready()
    # The process goes on.
    assert_exact(emulated_matmul(a, b), xla_matmul(a, b))


def test_unsupported_operands_are_refused_by_the_shared_handler() -> None:
    kernel = two_cta_kernel()
    a, b = operands(kernel, Problem(64, 64, 64))
    with pytest.raises(jax.errors.JaxRuntimeError, match=r"INVALID_ARGUMENT: .*computes bfloat16"):
        run_gemm(kernel, a.astype(np.float16), b)
    with pytest.raises(ValueError, match="multiples of 16 bytes"):
        run_gemm(kernel, *operands(kernel, Problem(64, 65, 64)))
    with pytest.raises(ValueError, match="the emulator has no kernel 'k'"):
        find_kernel("k")


def test_unknown_kernel_name_is_unimplemented() -> None:
    a, b = integers(1, 64, 64), integers(1, 64, 64)
    call = jax.ffi.ffi_call(
        "bwgemm.gemm.emulated.v1",
        (jax.ShapeDtypeStruct((1, 64, 64), "bfloat16"), jax.ShapeDtypeStruct((0,), "uint8")),
    )
    config = {
        "kernel": "sm100_none",
        "raster_order": "m",
        "swizzle": np.int64(1),
        "splits": np.int64(1),
    }
    with pytest.raises(jax.errors.JaxRuntimeError, match="UNIMPLEMENTED: kernel 'sm100_none'"):
        call(a, b, config=config)


def test_the_emulated_runtime_is_hidden() -> None:
    """JAX may have the real CUDA runtime in the same process."""
    module = runtime.load_emulator()
    assert module is not None
    library = ctypes.CDLL(module.__file__)
    for symbol in ("cudaLaunchKernelExC", "__cudaRegisterFatBinary", "cudaGetErrorString"):
        assert not hasattr(library, symbol)


def test_poisoned_outputs_can_be_switched_off() -> None:
    kernel = two_cta_kernel()
    a, b = operands(kernel, Problem(64, 64, 64))
    with emulator.configure(poison_outputs=False):
        assert np.isfinite(run_gemm(kernel, a, b).astype(np.float32)).all()
