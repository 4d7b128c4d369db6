"""Grouped scaled kernels with epilogues linked into them, in the emulator."""

from __future__ import annotations

import logging
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from emulator_cases import requires_emulator
from linked_cases import close, linked_for_sm90, requires_linker  # noqa: F401
from numerics import assert_exact
from ragged_cases import exact_pair
from ragged_linked_cases import (
    every_operand,
    kernels,
    layouts_of,
    operands,
    run,
    whatever_it_costs,
)
from scaled_cases import exact_operand, formula_product

import jax_bwgemm as bw
from jax_bwgemm import config, emulator
from jax_bwgemm.product.implementations import log_once

pytestmark = [*requires_emulator, requires_linker, pytest.mark.usefixtures("no_rule_broken")]

KERNELS = kernels("emulator")
CASES = [(kernel, layouts) for kernel in KERNELS for layouts in layouts_of(kernel)]


@pytest.mark.parametrize(("kernel", "layouts"), CASES, ids=lambda x: getattr(x, "name", str(x)))
def test_every_kernel(
    kernel: Any, layouts: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    whatever_it_costs(monkeypatch)
    shape = (540, kernel.tile_n + 24, 288)
    plain, of_groups = operands(*shape[:2], experts=4)
    close(*run(kernel, layouts, shape, every_operand, plain, of_groups, "emulator"))


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda k: k.name)
def test_many_tiles_of_a_multiprocessor(kernel: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    if kernel.b_dtype != kernel.a_dtype:
        pytest.skip("types differ in the MMA's name only")
    whatever_it_costs(monkeypatch)
    shape = (540, 3 * kernel.tile_n + 8, 160)
    plain, of_groups = operands(*shape[:2], experts=4)
    layouts = layouts_of(kernel)[0]
    with emulator.configure(sm_count=2):
        close(*run(kernel, layouts, shape, every_operand, plain, of_groups, "emulator", 2))


@pytest.mark.parametrize("second", ["128x128", "1x128"])
def test_one_group_of_sm100(second: str) -> None:
    """Products without groups whose blocks of K are scaled run on a kernel of groups."""
    rng = np.random.default_rng(0)
    a = exact_operand(rng, (300, 288), "1x128")
    b = exact_operand(rng, (1032, 288), second)
    bias = jnp.asarray(rng.integers(-4, 5, 1032), jnp.float32)

    def call(a: Any, b: Any, bias: Any) -> Any:
        return bw.scaled_matmul(
            a,
            b,
            implementation="emulator",
            epilogue=lambda z, bias: (jnp.maximum(z + bias, 0), z),
            epilogue_operands=(bias,),
        )

    with config.target("sm100", 4):
        lowered = jax.jit(call).lower(a, b, bias)
    assert "sm100_scaled_rows" in lowered.as_text()
    assert lowered.as_text().count("epilogue_digest") == 1
    z = jnp.asarray(formula_product(a, b), jnp.float32)
    got = lowered.compile()(a, b, bias)
    close(got, (jnp.maximum(z + bias, 0), z))


@pytest.mark.parametrize(
    ("recipe", "arch", "bound"), [("blockwise", "sm90", 0.02), ("per_tensor", "sm100", 0.06)]
)
def test_a_training_step_of_experts(
    recipe: str, arch: str, bound: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The activation, its gradient and the rows' weights, in a step that `accelerate` rewrites."""
    whatever_it_costs(monkeypatch)
    rng = np.random.default_rng(0)
    dot = bw.fp8_ragged_dot(recipe, implementation="emulator")
    sizes = jnp.asarray([100, 0, 30, 120])

    def layer(x: Any, w1: Any, w2: Any, weights: Any) -> Any:
        return dot(jax.nn.gelu(dot(x, w1, sizes)), w2, sizes) * weights[:, None]

    def step(g: Any, *args: Any) -> Any:
        out, back = jax.vjp(layer, *args)
        return out, *back(g)

    shapes = ((256, 128), (256, 128), (4, 128, 256), (4, 256, 128), (256,))
    args = [jnp.asarray(rng.standard_normal(s) / 8, jnp.bfloat16) for s in shapes]
    with config.target(arch, 4):
        lowered = jax.jit(bw.accelerate(step)).lower(*args)
        assert lowered.as_text().count("epilogue_digest") >= 2
        got, want = lowered.compile()(*args), jax.jit(step)(*args)
    for ours, theirs in zip(got, want, strict=True):
        ours, theirs = (np.asarray(x, np.float32) for x in (ours, theirs))
        assert np.linalg.norm(ours - theirs) < bound * np.linalg.norm(theirs)


@pytest.mark.parametrize("shape", [(0, 64, 128), (64, 0, 128), (64, 64, 0)])
def test_an_empty_problem_links_no_kernel(
    shape: tuple[int, int, int], caplog: pytest.LogCaptureFixture
) -> None:
    sizes, before = jnp.array([40, 24]), emulator.launch_count()
    pair = exact_pair("m-grouped", ("row", "row"), shape, 2)
    log_once.cache_clear()
    with caplog.at_level(logging.INFO, "jax_bwgemm"):
        got = bw.scaled_ragged_dot(
            *pair, sizes, implementation="emulator", epilogue=lambda z: z + 1
        )
    assert_exact(got, jnp.ones(shape[:2], jnp.bfloat16))
    assert "an empty problem runs no kernel" in caplog.text
    assert emulator.launch_count() == before
