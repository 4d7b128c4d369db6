"""Batches of matrices with an epilogue in the kernel: results, `vmap`, `accelerate`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from emulator_cases import requires_emulator
from linked_batch_cases import BATCH, call, case, integers, of_matrices, of_vectors
from linked_cases import F32, close, kernels, linked_for_sm90, requires_linker  # noqa: F401
from numerics import assert_exact, normal
from scaled_linked_cases import kernels as scaled_kernels

import jax_bwgemm as bw
from jax_bwgemm import config
from jax_bwgemm.dense.spec import GemmSpec
from jax_bwgemm.epilogue.fused import Fused
from jax_bwgemm.epilogue.tracing import trace_epilogue

pytestmark = [*requires_emulator, requires_linker, pytest.mark.usefixtures("no_rule_broken")]

KERNELS = [
    k
    for k in kernels("emulator", ("sm90", "sm100"))
    if k.b_major == "n" and k.a_dtype == "bfloat16"
]
# Whatever else were faster.
TILE = next((k.name for k in KERNELS if k.arch == "sm90" and k.schedule == "pingpong"), None)


def run(f: Callable[..., Any], *args: Any) -> Any:
    """A function with one product, which has an epilogue in its kernel."""
    lowered = jax.jit(f).lower(*args)
    assert lowered.as_text().count("epilogue_digest") == 1
    return lowered.compile()(*args)


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda k: k.name)
@pytest.mark.parametrize("f", [of_vectors, of_matrices])
def test_every_tile(kernel: Any, f: Callable[..., Any]) -> None:
    tile_m, tile_n = (kernel.tile_m, kernel.tile_n)[:: -1 if kernel.swap_ab else 1]
    a, b, arrays, want = case(f, tile_m + 9, tile_n + 8, 64)
    with config.target(kernel.arch, 4):
        got = run(call(f, implementation="emulator", config=kernel.name), a, b, *arrays)
    for ours, theirs in zip(got, want, strict=True):
        assert_exact(ours, np.asarray(theirs).astype(ours.dtype))


def test_a_shared_operand() -> None:
    """A of all matrices is shared; with a shared B the rows of all are one matrix."""
    rng = np.random.default_rng(1)
    a, w = integers(rng, (BATCH, 40, 64), "bfloat16"), integers(rng, (64, 136), "bfloat16")
    own = integers(rng, (BATCH, 1, 136), "bfloat16")
    product = call(lambda z, r: z * 2 + r.astype(F32), implementation="emulator", config=TILE)
    got = run(product, a[0], jnp.stack([w] * BATCH), own)
    want = jnp.einsum("mk,kn->mn", a[0].astype(F32), w.astype(F32))[None] * 2 + own.astype(F32)
    assert_exact(got, want.astype(got.dtype))
    # Rows of the three matrices are one matrix, whose rows have no values of their own matrix.
    lowered = jax.jit(product).lower(a, w, own)
    assert "epilogue_digest" not in lowered.as_text()


def test_scaled() -> None:
    kernel = next(k for k in scaled_kernels("emulator") if k.scales == "blocks")
    rng = np.random.default_rng(2)
    shapes = ((BATCH, 136, 256), (BATCH, 264, 256))
    a, b = (
        bw.quantize(integers(rng, s, "bfloat16"), scaling, implementation="xla")
        for s, scaling in zip(shapes, ("1x128", "128x128"), strict=True)
    )
    bias, residual = (
        jnp.asarray(normal(rng, s, "bfloat16")) for s in ((BATCH, 1, 264), (BATCH, 136, 264))
    )
    f = lambda z, b, r: jnp.tanh(z + b) + r  # noqa: E731

    def product(a: Any, b: Any, *arrays: Any) -> Any:
        return bw.scaled_matmul(
            a,
            b,
            implementation="emulator",
            config=kernel.name,
            epilogue=f,
            epilogue_operands=arrays,
        )

    z = jnp.einsum("bmk,bnk->bmn", *(bw.dequantize(x, F32) for x in (a, b)))
    close(run(product, a, b, bias, residual), f(z, bias, residual))


@pytest.mark.parametrize("axes", [(0, 0, 0, 0), (0, 0, None, 0), (None, 0, 0, None),
                                  (0, None, None, 0), (2, 1, 0, 1)])  # fmt: skip
def test_vmap(axes: tuple[int | None, ...]) -> None:
    rng = np.random.default_rng(3)
    shapes = ((40, 64), (64, 136), (136,), (40, 136))
    arrays = [integers(rng, s, "bfloat16") for s in shapes]
    many = [
        x if d is None else jnp.stack([x, x + 1, x - 1], d)
        for x, d in zip(arrays, axes, strict=True)
    ]
    f = lambda z, b, r: jax.nn.relu(z + b.astype(F32)) - r.astype(F32)  # noqa: E731
    got = run(jax.vmap(call(f, implementation="emulator", config=TILE), axes), *many)
    want = jax.vmap(lambda a, b, *rest: f(a.astype(F32) @ b.astype(F32), *rest), axes)(*many)
    assert_exact(got, want.astype(got.dtype))


@pytest.mark.parametrize(
    "f",
    [
        lambda z: z + jax.lax.broadcasted_iota(F32, z.shape, 0),
        lambda z: (z, jnp.sum(z, 0)),
    ],
    ids=["numbers", "sums"],
)
def test_vmap_of_rows_that_are_told_apart(f: Callable[..., Any]) -> None:
    """As more rows of one matrix they would have other numbers, and one sum."""
    rng = np.random.default_rng(6)
    a, b = (integers(rng, s, "bfloat16") for s in ((BATCH, 8, 64), (64, 16)))
    product = jax.vmap(call(f, implementation="emulator", config=TILE), (0, None))
    want = jax.vmap(lambda a: f(a.astype(F32) @ b.astype(F32)))(a)
    for ours, theirs in zip(*map(jax.tree.leaves, (jax.jit(product)(a, b), want)), strict=True):
        assert_exact(ours, np.asarray(theirs).astype(ours.dtype))


@pytest.mark.parametrize("empty", [(8, 0, 16), (0, 16, 8), (8, 16, 0)])
def test_vmap_of_an_empty_product(empty: tuple[int, int, int]) -> None:
    m, k, n = empty
    a, b = jnp.ones((BATCH, m, k), jnp.bfloat16), jnp.ones((BATCH, k, n), jnp.bfloat16)
    f = jax.vmap(call(lambda z: z + 1, implementation=("emulator", "xla")))
    assert_exact(jax.jit(f)(a, b), jnp.ones((BATCH, m, n), jnp.bfloat16))


def test_gradients_of_a_mapped_layer() -> None:
    rng = np.random.default_rng(4)
    shapes = ((BATCH, 40, 64), (BATCH, 64, 136), (BATCH, 136))
    x, w, b = (jnp.asarray(normal(rng, s, "bfloat16")) for s in shapes)

    def loss(one: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *xs: jnp.sum(jnp.square(jax.vmap(one)(*xs).astype(F32)))

    some = ("emulator", "xla")
    ours = lambda x, w, b: bw.linear(x, w / 8, b, activation="gelu", implementation=some)  # noqa: E731
    plain = lambda x, w, b: jax.nn.gelu(x @ (w / 8) + b)  # noqa: E731
    got, want = (jax.grad(loss(f), (0, 1, 2))(x, w, b) for f in (ours, plain))
    for mine, theirs in zip(got, want, strict=True):
        mine, theirs = mine.astype(F32), theirs.astype(F32)
        assert float(jnp.linalg.norm(mine - theirs)) < 0.02 * float(jnp.linalg.norm(theirs))


def test_an_accelerated_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Experts with biases of their own: bias and GELU, and its gradient and the biases'."""
    monkeypatch.setattr(jax, "local_device_count", lambda: 1)  # kernels compute the sums, too
    rng = np.random.default_rng(5)
    shapes = {"x": (BATCH, 64, 128), "w": (BATCH, 128, 256), "b": (BATCH, 1, 256)}
    params = {k: jnp.asarray(normal(rng, s, "bfloat16")) / 8 for k, s in shapes.items()}
    params["v"] = jnp.asarray(normal(rng, (BATCH, 256, 128), "bfloat16")) / 16

    def loss(p: Any) -> Any:
        h = jax.nn.gelu(jnp.einsum("esd,edf->esf", p["x"], p["w"]) + p["b"])
        return jnp.mean(jnp.square(jnp.einsum("esf,efd->esd", h, p["v"]).astype(F32)))

    step = jax.value_and_grad(loss)
    fused = jax.jit(bw.accelerate(step, implementation=("emulator", "xla")))
    text = fused.lower(params).as_text()
    assert text.count("epilogue_digest") >= 2
    assert "float32:summed" in text
    got, want = fused(params), jax.jit(step)(params)
    for ours, theirs in zip(*map(jax.tree.leaves, (got, want)), strict=True):
        ours, theirs = ours.astype(F32), theirs.astype(F32)
        assert float(jnp.linalg.norm(ours - theirs)) < 0.02 * float(jnp.linalg.norm(theirs))


def test_sums_that_xla_completes_are_of_each_matrix() -> None:
    program = trace_epilogue(lambda z: (z, jnp.sum(z, 1)), (2, 3, 4), (), batch_dims=1).program
    fused = Fused(GemmSpec(), list, program, ("float32",) * 2, (2, 3, 4), batch_dims=1)
    z = jnp.arange(24, dtype=F32).reshape(2, 3, 4)
    assert_exact(fused.completed([z])[1], jnp.sum(z, 1))


def test_sums_over_a_batch_are_a_pass(caplog: pytest.LogCaptureFixture) -> None:
    a, b = jnp.ones((BATCH, 64, 64), jnp.bfloat16), jnp.ones((BATCH, 64, 64), jnp.bfloat16)
    f = call(lambda z: (z, jnp.sum(z, (0, 1))), implementation=("emulator", "xla"))
    with config.target("sm90", 4), config.linked_epilogues(True):
        _, total = jax.jit(f)(a, b)
    assert total.tolist() == [BATCH * 64.0 * 64] * 64
