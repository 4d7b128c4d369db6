"""Sums over rows in linked kernels, in the emulator: gradients of biases and scales."""

from __future__ import annotations

import functools
import pathlib
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from emulator_cases import requires_emulator
from linked_cases import F32, kernels, requires_linker
from numerics import assert_exact, small_integers

import jax_bwgemm as bw
from jax_bwgemm import config
from jax_bwgemm.epilogue import call
from jax_bwgemm.epilogue.tracing import EpilogueError, trace_epilogue

pytestmark = [*requires_emulator, requires_linker, pytest.mark.usefixtures("no_rule_broken")]

KERNELS = [
    k
    for k in kernels("emulator", ("sm90", "sm100"))
    if not k.swap_ab and k.b_major == "n" and "bf16_bf16" in k.name
]


@pytest.fixture(autouse=True)
def _linked(shared_folder: pathlib.Path, monkeypatch: Any) -> Iterator[None]:
    monkeypatch.setenv("BWGEMM_LINK_CACHE", str(shared_folder / "linked"))
    with config.target("sm90", 2), config.linked_epilogues(True):
        yield


def sums(z: jax.Array, r: jax.Array, c: jax.Array) -> Any:
    """Of a result, and of what is no result; exact on small integers, beyond D's rows infinite."""
    y = 2 * z + c
    return jnp.sum(z * r / jnp.where(r > 8, 0, 1), 0), y, jnp.sum(y, 0)


def arrays(m: int, n: int, k: int = 64) -> list[jax.Array]:
    rng = np.random.default_rng(m)
    shapes = ((m, k), (k, n), (m, n), (n,))
    return [jnp.asarray(small_integers(rng, s, "bfloat16")) for s in shapes]


def run(f: Any, name: str | None, a: Any, b: Any, *rest: Any, linked: int = 1) -> Any:
    def product(a: Any, b: Any, *rest: Any) -> Any:
        return bw.matmul(
            a, b, epilogue=f, epilogue_operands=rest, implementation="emulator", config=name
        )

    lowered = jax.jit(product).lower(a, b, *rest)
    assert lowered.as_text().count("epilogue_digest") == linked
    return lowered.compile()(a, b, *rest)


def check(f: Any, name: str | None, *given: Any) -> None:
    want = jax.jit(lambda a, b, *rest: f(jnp.dot(a.astype(F32), b.astype(F32)), *rest))(*given)
    for ours, theirs in zip(run(f, name, *given), want, strict=True):
        assert_exact(ours, np.asarray(theirs).astype(ours.dtype))


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda k: k.name)
def test_every_kernel(kernel: Any) -> None:
    """Tiles inside of D, beyond it, and those whose rows move so that they are inside."""
    tile_m, tile_n = kernel.tile_m, kernel.tile_n
    for m, n in ((3 * tile_m + 9, 2 * tile_n + 40), (2 * tile_m, tile_n), (40, 72), (1, 8)):
        with config.target(kernel.arch, 2):
            check(sums, kernel.name, *arrays(m, n))


def test_chooses_a_kernel_that_sums() -> None:
    # Few rows: kernels with swapped operands would be taken otherwise.
    check(sums, None, *arrays(16, 256, 256))


def test_leading_dimensions_are_rows() -> None:
    a, b, _, c = arrays(24, 128)
    f = lambda z, c: (z, jnp.sum(z + c, (0, 1)))  # noqa: E731
    got = run(f, None, a.reshape(2, 12, 64), b, c)
    z = jnp.dot(a.astype(F32), b.astype(F32)).reshape(2, 12, 128)
    for ours, theirs in zip(got, f(z, c), strict=True):
        assert_exact(ours, np.asarray(theirs.astype(ours.dtype)))


def test_derivatives() -> None:
    a, b, r, c = arrays(24, 64)

    def loss(f: Any) -> Any:
        return lambda *xs: sum(jnp.sum(x.astype(F32) ** 2) for x in f(*xs))

    def ours(a: Any, b: Any, r: Any, c: Any) -> Any:
        some = ("emulator", "xla")
        return bw.matmul(a, b, epilogue=sums, epilogue_operands=(r, c), implementation=some)

    got = jax.jit(jax.grad(loss(ours), (0, 1, 2, 3)))(a, b, r, c)
    want = jax.grad(loss(lambda a, b, *xs: sums(a.astype(F32) @ b.astype(F32), *xs)), (0, 1, 2, 3))
    for x, y in zip(got, want(a, b, r, c), strict=True):
        scale = float(jnp.max(jnp.abs(y.astype(F32))))
        np.testing.assert_allclose(x.astype(F32) / scale, y.astype(F32) / scale, atol=0.02)


def test_an_accelerated_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The gradient of a bias is a sum in the kernel that computes what is summed."""
    monkeypatch.setattr(jax, "local_device_count", lambda: 1)
    monkeypatch.setattr(call, "pass_cycles", lambda *_: 1e9)
    rng = np.random.default_rng(3)
    shapes = ((64, 128), (128, 256), (256,), (256, 128), (64, 128))
    x, w, b, v, y = (jnp.asarray(small_integers(rng, s, "bfloat16")) for s in shapes)

    def loss(w: Any, b: Any, v: Any) -> Any:
        return jnp.vdot(jax.nn.relu(x.astype(w.dtype) @ w + b) @ v, y.astype(w.dtype))

    gradients = jax.grad(loss, (0, 1, 2))
    lowered = jax.jit(bw.accelerate(gradients, implementation=("emulator", "xla"))).lower(w, b, v)
    assert "float32:summed" in lowered.as_text()
    want = gradients(*(x.astype(F32) for x in (w, b, v)))
    for ours, theirs in zip(lowered.compile()(w, b, v), want, strict=True):
        scale = float(jnp.max(jnp.abs(theirs)))
        np.testing.assert_allclose(ours.astype(F32) / scale, theirs / scale, atol=2**-7)


def test_the_gradient_of_a_layers_bias(monkeypatch: pytest.MonkeyPatch) -> None:
    """`mlp` leaves no pass over the hidden values' gradients for it."""
    monkeypatch.setattr(call, "pass_cycles", lambda *_: 1e9)
    x, up, _, bias = arrays(64, 128)
    down = jnp.asarray(small_integers(np.random.default_rng(5), (128, 64), "bfloat16"))

    def loss(bias: Any) -> Any:
        some = ("emulator", "xla")
        y = bw.mlp(x, up, down, up_bias=bias, activation="relu", implementation=some)
        return jnp.sum(y.astype(F32))

    lowered = jax.jit(jax.grad(loss)).lower(bias)
    assert "float32:summed" in lowered.as_text()
    passed = x.astype(F32) @ up.astype(F32) + bias.astype(F32) > 0
    want = jnp.sum(jnp.where(passed, jnp.sum(down.astype(F32), 1), 0), 0)
    assert_exact(lowered.compile()(bias), np.asarray(want.astype(bias.dtype)))


class TestRefusals:
    def test_by_the_tracer(self) -> None:
        def refused(f: Any, why: str, shape: tuple[int, ...] = (16, 24)) -> None:
            with pytest.raises(EpilogueError, match=why):
                trace_epilogue(f, shape, ())

        whole = "sums are over all dimensions but the last, of an array of the product's shape"
        refused(lambda z: jnp.sum(z, 1), whole)
        refused(lambda z: jnp.sum(z), whole)
        refused(lambda z: jnp.sum(z.T, 0), whole)
        refused(lambda z: jnp.sum(z, 0), whole, (16,))
        refused(lambda z: z + jnp.sum(z, 0), "it reads a sum over rows, which can only be returned")
        refused(lambda z: jnp.sum(z.astype(jnp.int32), 0), "epilogues do not have it of int32")

    def test_by_the_kernels(self, caplog: pytest.LogCaptureFixture) -> None:
        a, b, *_ = arrays(16, 64)
        three = lambda z: (z, *(jnp.sum(z * i, 0) for i in (1, 2, 3)))  # noqa: E731
        caplog.set_level("INFO", "jax_bwgemm")
        run(three, None, a, b, linked=0)
        assert "more than 2 sums over rows" in caplog.text
        swapped = next(k for k in kernels("emulator") if k.swap_ab and k.b_major == "n")
        run(lambda z: (z, jnp.sum(z + 1, 0)), swapped.name, a, b, linked=0)
        why = "kernels with swapped operands or of parts of K sum no rows"
        assert f"the epilogue is a pass of its own: emulator: {why}" in caplog.text

    def test_of_the_sums_alone(self, caplog: pytest.LogCaptureFixture) -> None:
        """Of what a kernel returns, XLA computes them where no kernel does; the rest is linked."""
        swapped = next(k for k in kernels("emulator") if k.swap_ab and k.b_major == "n")
        caplog.set_level("INFO", "jax_bwgemm")
        f = lambda z, c: (jnp.sum(z + c, 0), z, z + c, jnp.sum(z, 0))  # noqa: E731
        a, b, _, c = arrays(24, 64)
        check(f, swapped.name, a, b, c)
        assert "sums are passes of their own: emulator: kernels with swapped" in caplog.text
        more = {"epilogue": f, "implementation": "emulator", "config": swapped.name}
        product = functools.partial(bw.matmul, **more)
        explained = str(bw.explain_program(product, a, b, epilogue_operands=(c,)))
        assert "the epilogue is linked into the kernel, but for its sums" in explained

    def test_no_kernel_that_sums(self, caplog, monkeypatch: pytest.MonkeyPatch) -> None:
        found = [k for k in kernels("emulator") if k.swap_ab]
        monkeypatch.setattr(call.LinkableDense, "kernels", lambda *_: tuple(found))
        a, b, *_ = arrays(32, 64)  # of sizes that no test logged before
        caplog.set_level("INFO", "jax_bwgemm")
        run(lambda z: (z, jnp.sum(z + 1, 0)), None, a, b, linked=0)
        assert "kernels with swapped operands or of parts of K sum no rows" in caplog.text
