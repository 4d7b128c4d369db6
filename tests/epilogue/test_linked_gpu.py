"""Kernels with epilogues linked into them, on a GPU of compute capability 9.0."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from linked_batch_cases import call, case, of_matrices, of_vectors
from linked_cases import (
    EPILOGUES,
    F32,
    close_on_gpu,
    kernels,
    operands,
    product,
    reference,
    requires_linker,
)
from numerics import LINKED, assert_exact

import jax_bwgemm as bw
from jax_bwgemm import config
from jax_bwgemm.epilogue import linking

pytestmark = [pytest.mark.sm90, requires_linker]

KERNELS = [k for k in kernels("cutlass") if k.b_major == "n"]


@pytest.fixture(autouse=True)
def _linked() -> Any:
    with config.linked_epilogues(True):
        yield


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda k: k.name)
@pytest.mark.parametrize("name", EPILOGUES)
@pytest.mark.parametrize(("m", "n", "k"), [(1000, 1512, 328), (40, 264, 1024)])
def test_every_kernel(kernel: Any, name: str, m: int, n: int, k: int) -> None:
    rng = np.random.default_rng(0)
    a, b = product(rng, kernel, m, n, k)
    f, arrays = operands(rng, name, m, n)

    def call(a: Any, b: Any, *arrays: Any) -> Any:
        return bw.matmul(
            a,
            b,
            epilogue=f,
            epilogue_operands=arrays,
            implementation="cutlass",
            config=kernel.name,
        )

    lowered = jax.jit(call).lower(a, b, *arrays)
    assert lowered.as_text().count("epilogue_digest") == 1
    close_on_gpu(lowered.compile()(a, b, *arrays), reference(f, a, b, arrays))


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda k: k.name)
@pytest.mark.parametrize("f", [of_vectors, of_matrices])
@pytest.mark.parametrize(("m", "n", "k"), [(1000, 1512, 64), (40, 264, 128)])
def test_batches(kernel: Any, f: Any, m: int, n: int, k: int) -> None:
    if kernel.a_dtype != "bfloat16":
        pytest.skip("small integers are exact in every type")
    a, b, arrays, want = case(f, m, n, k)
    product = call(f, implementation="cutlass", config=kernel.name)
    lowered = jax.jit(product).lower(a, b, *arrays)
    assert lowered.as_text().count("epilogue_digest") == 1
    for ours, theirs in zip(lowered.compile()(a, b, *arrays), want, strict=True):
        assert_exact(ours, theirs.astype(ours.dtype))


def test_sums_of_each_matrix() -> None:
    keys = jax.random.split(jax.random.key(0), 3)
    x, w, h = (
        jax.random.normal(k, s, jnp.bfloat16)
        for k, s in zip(keys, ((3, 1000, 256), (3, 256, 1024), (3, 1000, 1024)), strict=True)
    )

    def f(x: Any, w: Any, h: Any) -> Any:
        y = jnp.einsum("bmk,bkn->bmn", x, w) * jnp.tanh(h)
        return y, jnp.sum(y, 1)

    lowered = jax.jit(bw.accelerate(f)).lower(x, w, h)
    assert "float32:summed" in lowered.as_text()
    got, want = lowered.compile()(x, w, h), jax.jit(f)(x, w, h)
    for ours, theirs in zip(got, want, strict=True):
        ours, theirs = ours.astype(F32), theirs.astype(F32)
        assert float(jnp.linalg.norm(ours - theirs)) < 0.01 * float(jnp.linalg.norm(theirs))


def test_random_epilogues_and_sums_over_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Exact; 300 of them: ``python tools/sanitize_linked.py``."""
    monkeypatch.syspath_prepend(str(Path(__file__).resolve().parents[2] / "tools"))
    import sanitize_linked

    found = [*sanitize_linked.cases("sm90", ""), *sanitize_linked.random_cases(KERNELS, 20)]
    assert any(case.sums for case in found)
    assert [str(case) for case in found if not case.is_exact("cutlass")] == []


def layer(x: Any, w: Any, b: Any, r: Any) -> Any:
    return bw.linear(x, w, b, activation="gelu", residual=r)


@pytest.fixture
def arrays() -> list[jax.Array]:
    keys = jax.random.split(jax.random.key(0), 4)
    shapes = ((512, 256), (256, 1024), (1024,), (512, 1024))
    x, w, b, r = (jax.random.normal(k, s, jnp.bfloat16) for k, s in zip(keys, shapes, strict=True))
    return [x, w / 16, b, r]


def formula(*arrays: Any) -> Any:
    x, w, b, r = (x.astype(F32) for x in arrays)
    return jax.nn.gelu(jnp.dot(x, w, precision="highest") + b) + r


def test_in_a_loop_that_xla_captures(arrays) -> None:
    def many(x: Any, w: Any, b: Any, r: Any) -> Any:
        return jax.lax.fori_loop(0, 50, lambda _, y: layer(x, w, b, r) + 0 * y, r)

    f = jax.jit(many)
    assert "epilogue_digest" in f.lower(*arrays).as_text()
    for _ in range(3):
        close_on_gpu(f(*arrays), formula(*arrays))


def test_gradients(arrays) -> None:
    def loss(f: Any) -> Any:
        return lambda *xs: jnp.vdot(f(*xs).astype(F32), jnp.sin(arrays[3].astype(F32)))

    got = jax.jit(jax.grad(loss(layer), (0, 1, 2, 3)))(*arrays)
    want = jax.grad(loss(formula), (0, 1, 2, 3))(*arrays)
    for ours, theirs in zip(got, want, strict=True):
        scale = float(jnp.max(jnp.abs(theirs)))
        got_, want_ = (x.astype(F32) / scale for x in (ours, theirs))
        np.testing.assert_allclose(got_, want_, **LINKED)


def test_exported_programs_need_no_linker(arrays, monkeypatch) -> None:
    exported = jax.export.export(jax.jit(layer), disabled_checks=bw.DISABLE_EXPORT_CHECKS)(*arrays)
    data = exported.serialize()
    assert "epilogue_digest" in exported.mlir_module()
    monkeypatch.setattr(linking, "linker", None)
    linking.forget_linked_kernels()
    jax.clear_caches()
    close_on_gpu(jax.export.deserialize(data).call(*arrays), formula(*arrays))
