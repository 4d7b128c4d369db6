"""Scaled kernels with epilogues linked into them, in the emulator."""

from __future__ import annotations

import dataclasses
import logging
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from emulator_cases import requires_emulator
from linked_cases import close, linked_for_sm90, requires_linker  # noqa: F401
from numerics import assert_exact
from scaled_cases import exact_operand
from scaled_linked_cases import LAYOUTS, arrays_of, kernels, operand, run

import jax_bwgemm as bw
from jax_bwgemm import config, emulator
from jax_bwgemm.epilogue import scaled_call
from jax_bwgemm.product.implementations import log_once

pytestmark = [*requires_emulator, requires_linker, pytest.mark.usefixtures("no_rule_broken")]

KERNELS = kernels("emulator")
# Gradients of layers have values of e5m2 as A.
CASES = [
    (kernel, layouts, "activation")
    for kernel in KERNELS
    for layouts in LAYOUTS[kernel.scales]
    if kernel.a_dtype == "float8_e4m3fn"
]
CASES += [(kernel, LAYOUTS[kernel.scales][0], "gradient") for kernel in KERNELS]


@pytest.mark.parametrize(
    ("kernel", "layouts", "name"), CASES, ids=lambda x: getattr(x, "name", str(x))
)
def test_every_kernel(kernel: Any, layouts: tuple[str, str], name: str) -> None:
    sizes = (kernel.tile_m + 9, kernel.tile_n + 40, 272)
    f, arrays = arrays_of(name, *sizes[:2])
    close(*run(kernel, layouts, sizes, f, arrays, "emulator"))


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda k: k.name)
def test_many_tiles_of_a_consumer(kernel: Any) -> None:
    """What one tile reads and stores takes the places of what the one before it did."""
    if kernel.b_dtype != kernel.a_dtype:
        pytest.skip("types differ in the MMA's name only")
    sizes = (3 * kernel.tile_m + 64, 4 * kernel.tile_n + 8, 128)
    f, arrays = arrays_of("activation", *sizes[:2])
    with emulator.configure(sm_count=2):
        close(*run(kernel, LAYOUTS[kernel.scales][0], sizes, f, arrays, "emulator", sm_count=2))


@pytest.mark.parametrize(
    ("recipe", "arch", "bound"), [("blockwise", "sm90", 0.02), ("per_tensor", "sm100", 0.06)]
)
def test_a_training_step_has_its_activation_in_the_kernels(
    recipe: str, arch: str, bound: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bias, GELU, its gradient and the bias's gradient, in a step that `accelerate` rewrites.

    bound: An activation that is rounded elsewhere may be quantized to the neighbour. With one scale
    for the tensor, all may.
    """
    # Tiles are large for these sizes: a pass would take less time.
    monkeypatch.setattr(scaled_call, "pass_cycles", lambda *_: float("inf"))
    rng = np.random.default_rng(0)
    dot = bw.fp8_dot_general(recipe, implementation="emulator")
    numbers = (((2,), (0,)), ((), ()))

    def layer(x: Any, w1: Any, b1: Any, w2: Any) -> Any:
        return dot(jax.nn.gelu(dot(x, w1, numbers) + b1), w2, numbers)

    def step(g: Any, *args: Any) -> Any:
        out, back = jax.vjp(layer, *args)
        return out, *back(g)

    shapes = ((2, 96, 128), (2, 96, 256), (256, 384), (384,), (384, 128))
    args = [jnp.asarray(rng.standard_normal(s) / 8, jnp.bfloat16) for s in shapes]
    with config.target(arch, 4):
        lowered = jax.jit(bw.accelerate(step)).lower(*args)
        assert lowered.as_text().count("epilogue_digest") == 2
        got, want = lowered.compile()(*args), jax.jit(step)(*args)
    for ours, theirs in zip(got, want, strict=True):
        ours, theirs = (np.asarray(x, np.float32) for x in (ours, theirs))
        assert np.linalg.norm(ours - theirs) < bound * np.linalg.norm(theirs)


def test_a_call_with_parts_of_k_is_refused() -> None:
    """A call as no version of this library writes it."""
    from jax_bwgemm.epilogue.hook import VERSION, Hook, Staging
    from jax_bwgemm.epilogue.linking import linked_kernel
    from jax_bwgemm.epilogue.tracing import trace_epilogue
    from jax_bwgemm.product import targets

    kernel = KERNELS[0]
    rng = np.random.default_rng(0)
    program = trace_epilogue(lambda z: z * 2, (128, 256), []).program
    hook = Hook(program, ("bfloat16",), "sm90", False, Staging(kernel.tile_n, 0))
    code = linked_kernel(kernel.name, hook, ptx=True)
    a, b = (operand(rng, r, 512, "tensor", kernel.a_dtype) for r in (128, 256))
    named = {"a": a.values[None], "b": b.values[None]}
    named |= {"a_scales": a.scales[None], "b_scales": b.scales[None]}
    target, options = targets.configure(
        "emulator", kernel.name, tuple(named), a_scaling="tensor", b_scaling="tensor", splits=2
    )
    options |= {"epilogue": code.code, "epilogue_digest": code.digest}
    options["epilogue_version"] = np.int64(VERSION)
    results = (
        jax.ShapeDtypeStruct((1, 128, 256), jnp.bfloat16),
        jax.ShapeDtypeStruct((1 << 20,), jnp.uint8),
    )
    with pytest.raises(jax.errors.JaxRuntimeError, match="has no splits"):
        jax.block_until_ready(jax.ffi.ffi_call(target, results)(*named.values(), config=options))


def test_types_of_the_tables() -> None:
    """Kernels for activations times weights, and gradients times weights."""
    assert {(k.a_dtype, k.b_dtype) for k in KERNELS} >= {
        ("float8_e4m3fn", "float8_e4m3fn"),
        ("float8_e5m2", "float8_e4m3fn"),
    }
    assert all(dataclasses.replace(k, out_dtype="bfloat16") == k for k in KERNELS)


@pytest.mark.parametrize("shape", [(0, 64, 128), (64, 0, 128), (64, 64, 0)])
def test_an_empty_problem_links_no_kernel(
    shape: tuple[int, int, int], caplog: pytest.LogCaptureFixture
) -> None:
    m, n, k = shape
    rng, before = np.random.default_rng(0), emulator.launch_count()
    a, b = exact_operand(rng, (m, k), "row"), exact_operand(rng, (n, k), "row")
    log_once.cache_clear()
    with caplog.at_level(logging.INFO, "jax_bwgemm"):
        got = bw.scaled_matmul(a, b, implementation="emulator", epilogue=lambda z: z + 1)
    assert_exact(got, jnp.ones((m, n), jnp.bfloat16))
    assert "an empty problem runs no kernel" in caplog.text
    assert emulator.launch_count() == before
