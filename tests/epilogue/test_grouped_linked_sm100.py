"""Epilogues in SM100's m-grouped kernels, in the emulator."""

from __future__ import annotations

import logging
import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from emulator_cases import requires_emulator
from grouped_cases import families, row_tile
from grouped_linked_cases import EPILOGUES, EXPERTS, F32, kernels, operands, product, reference, run
from linked_cases import close, requires_linker
from numerics import assert_exact, small_integers

import jax_bwgemm as bw
from jax_bwgemm import config, emulator
from jax_bwgemm.epilogue.apply import Epilogue
from jax_bwgemm.grouped.api import ragged_dot_with_epilogue
from jax_bwgemm.grouped.with_epilogue import After, EpilogueOperands
from jax_bwgemm.product.implementations import log_once

pytestmark = [*requires_emulator, requires_linker]

KERNELS = kernels("emulator", "sm100")
# Of every tile and major one type; of the smallest tile both.
SMALL = [k for k in KERNELS if k.tile_n == min(x.tile_n for x in KERNELS)]

needs_kernels = pytest.mark.skipif(not KERNELS, reason="no such kernel was built")


@pytest.fixture(autouse=True)
def _linked(shared_folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("BWGEMM_LINK_CACHE", str(shared_folder / "linked"))
    with config.target("sm100", 4), config.linked_epilogues(True):
        yield


def _name(x: Any) -> Any:
    return getattr(x, "name", x)


@pytest.mark.parametrize("kernel", KERNELS, ids=_name)
def test_integers_of_all_group_sizes(kernel: Any) -> None:
    """No row of another group is written, and rows of no group have the function of zero."""
    m, n, k = row_tile(kernel) + 41, 200, 72

    def f(z: Any, w: Any, r: Any, q: Any, b: Any, c: Any) -> Any:
        wide = jnp.maximum(z + b, c) * w + r.astype(F32)
        return wide, z - r.astype(F32), (z * 2).astype(jnp.int32) + q

    rng = np.random.default_rng(0)
    a, b = product(rng, kernel, m, n, k, exact=True)
    shapes = ((m, 1), "float32"), ((m, n), kernel.out_dtype), ((m, n), "int32")
    plain = [jnp.asarray(small_integers(rng, *s)) for s in shapes]
    of_groups = [
        jnp.asarray(small_integers(rng, *s))
        for s in (((EXPERTS, n), kernel.a_dtype), ((EXPERTS,), "float32"))
    ]
    for i, (name, sizes) in enumerate(families(kernel, m).items()):
        if kernel.a_dtype == "float16" and i % 3:
            continue
        with emulator.configure(races=i % 3 == 0):
            got = run(
                f, (a, b, jnp.asarray(sizes)), plain, of_groups,
                transposed=kernel.b_major == "k", config=kernel.name,
            )  # fmt: skip
        for ours, theirs in zip(got, reference(f, (a, b, sizes), plain, of_groups), strict=True):
            assert_exact(ours, np.asarray(theirs.astype(ours.dtype)), name)


@needs_kernels
@pytest.mark.parametrize("name", EPILOGUES)
def test_every_epilogue(name: str) -> None:
    kernel, rng = SMALL[0], np.random.default_rng(1)
    m, n, k = 2 * row_tile(kernel) + 9, 264, 96
    a, b = product(rng, kernel, m, n, k)
    sizes = jnp.asarray([row_tile(kernel) + 5, 0, 3, row_tile(kernel) - 9, 1, 2], jnp.int32)
    f, plain, of_groups = operands(rng, name, m, n, kernel.out_dtype)
    transposed = kernel.b_major == "k"
    got = run(f, (a, b, sizes), plain, of_groups, transposed=transposed, config=kernel.name)
    close(got, reference(f, (a, b, sizes), plain, of_groups))


@needs_kernels
def test_offset_and_more_groups_than_matrices() -> None:
    rng = np.random.default_rng(3)
    kernel = SMALL[0]
    a, b = product(rng, kernel, 60, 72, 64)
    sizes = jnp.asarray([5, 9, 0, 12, 3, 8, 7, 11], jnp.int32)
    f, plain, of_groups = operands(rng, "two of all", 60, 72, kernel.out_dtype)
    more = {"transposed": kernel.b_major == "k", "group_offset": jnp.int32(1)}
    got = run(f, (a, b, sizes), plain, of_groups, **more)
    close(got, reference(f, (a, b, sizes), plain, of_groups, offset=1))


@needs_kernels
@pytest.mark.parametrize("what", ["gated", "halves", "sums"])
def test_what_sm90_alone_has_is_a_pass(what: str, caplog: pytest.LogCaptureFixture) -> None:
    log_once.cache_clear()
    caplog.set_level(logging.INFO, "jax_bwgemm")
    rng = np.random.default_rng(4)
    a, b = product(rng, SMALL[0], 64, 128, 64)
    sizes = jnp.asarray([20, 0, 7, 9, 1, 2], jnp.int32)

    def f(z: Any, *up: Any) -> Any:
        return (z, z + 1) if what == "halves" else (z, z * up[0] if up else z)

    def call(a: Any, b: Any) -> Any:
        by_xla = lambda z, *_: [z]  # noqa: E731
        epilogue = Epilogue(f, "test")
        after = After(
            epilogue, EpilogueOperands(), what == "gated", True, what == "halves",
            what == "sums", by_xla,
        )  # fmt: skip
        return ragged_dot_with_epilogue(a, b, sizes, None, after, implementation="emulator")

    assert jax.eval_shape(call, a, b) is None
    assert "what follows the product is a pass of its own: no kernel for sm100" in caplog.text


@needs_kernels
def test_a_layer_of_experts() -> None:
    """Without gate the activation is part of the first product's kernel."""
    rng = np.random.default_rng(5)
    a, b = product(rng, SMALL[0], 64, 128, 64)
    down = jnp.swapaxes(b, 1, 2)
    sizes = np.asarray([20, 0, 7, 9, 1, 2], np.int32)

    def layer(a: Any, b: Any, down: Any) -> Any:
        return bw.grouped_mlp(a, b, down, sizes, implementation=("emulator", "xla"))

    lowered = jax.jit(layer).lower(a, b, down)
    assert lowered.as_text().count("epilogue_digest") == 1
    z = reference(lambda z: jax.nn.silu(z), (a, b, sizes))
    want = reference(lambda z: z, (z.astype(a.dtype), down, sizes))
    close([lowered.compile()(a, b, down)], [want])
