"""A product whose columns are divided in two becomes one kernel of two products."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from emulator_cases import requires_emulator
from fuse_cases import check
from gated_cases import requires_gated
from jax.sharding import PartitionSpec as P
from numerics import assert_exact, normal, small_integers

import jax_bwgemm as bw
from jax_bwgemm import config
from jax_bwgemm.epilogue import gated_call, gated_pair
from jax_bwgemm.epilogue.gated import bw_gemm_gated_p
from jax_bwgemm.epilogue.primitive import bw_gemm_epilogue_p
from jax_bwgemm.product.jaxprs import equations
from jax_bwgemm.rewriting import fuse

M, K, N = 96, 64, 80
F32 = jnp.float32


def runs_kernels(tests: type) -> type:
    """Marks a class whose tests need the emulator and kernels of two products."""
    for mark in (*requires_emulator, *requires_gated):
        tests = mark(tests)
    return tests


@pytest.fixture
def a() -> dict[str, jax.Array]:
    rng = np.random.default_rng(0)
    shapes = {"x": (M, K), "w": (K, 2 * N), "v": (N, K), "b": (N,), "r": (M, N), "t": (2 * N, K)}
    found = {name: jnp.asarray(normal(rng, s, "bfloat16")) for name, s in shapes.items()}
    return found | {n: found[n] * jnp.bfloat16(K**-0.5) for n in ("w", "v", "t")}


def made(f: Any, *args: Any) -> list[Any]:
    """The equations of both products."""
    jaxpr = jax.make_jaxpr(bw.accelerate(f))(*args)
    return [eqn for eqn, _ in equations(jaxpr) if eqn.primitive is bw_gemm_gated_p]


def split(z: Any) -> Any:
    return jnp.split(z, 2, axis=-1)


def sliced(z: Any) -> Any:
    half = z.shape[-1] // 2
    return z[..., :half], z[..., half:]


def sliced_from_the_end(z: Any) -> Any:
    up = z[..., -(z.shape[-1] // 2) :]
    return z[..., : z.shape[-1] // 2], up


@pytest.mark.usefixtures("functions_link")
class TestProgram:
    """No kernel runs: what is traced counts, and is then computed by XLA."""

    @pytest.mark.parametrize("divide", [split, sliced, sliced_from_the_end])
    @pytest.mark.parametrize("shape", [(M, K), (2, M // 2, K)], ids=["rows", "sequences"])
    def test_both_halves(self, a, divide: Any, shape: tuple[int, ...]) -> None:
        def f(x: Any, w: Any, v: Any, b: Any, r: Any) -> Any:
            gate, up = divide(x @ w)
            return (jax.nn.silu(gate) * (up + b) * r) @ v

        args = [a[name] for name in ("x", "w", "v", "b", "r")]
        args[0], args[-1] = args[0].reshape(shape), args[-1].reshape(*shape[:-1], N)
        (eqn,) = made(f, *args)
        gated = eqn.params["gated"]
        assert gated.stacked
        assert not gated.keeps_products
        assert [x.aval.shape for x in eqn.invars[:2]][1] == (K, 2, N)
        assert [x.axes for x in gated.of_gate.program.operands] == [(0, 1), (1,), (0, 1)]
        check(f, *args)

    def test_the_gate_may_be_second(self, a) -> None:
        def f(x: Any, w: Any) -> Any:
            up, gate = split(x @ w)
            return up * jax.nn.gelu(gate), gate - up

        (eqn,) = made(f, a["x"], a["w"])
        assert len(eqn.outvars) == 2
        check(f, a["x"], a["w"])

    def test_gradients_keep_both_products(self, a) -> None:
        def loss(x: Any, w: Any, v: Any) -> Any:
            gate, up = split(x @ w)
            return jnp.sum(jnp.sin(((jax.nn.silu(gate) * up) @ v).astype(F32)))

        step = jax.value_and_grad(loss, (0, 1, 2))
        (eqn,) = made(step, a["x"], a["w"], a["v"])
        assert eqn.params["gated"].keeps_products
        assert [x.aval.shape for x in eqn.outvars] == [(M, N)] * 3
        check(step, a["x"], a["w"], a["v"])
        # And the other way round: the derivative of what was rewritten.
        ours = jax.jit(jax.grad(bw.accelerate(loss), 1))(a["x"], a["w"], a["v"])
        theirs = jax.jit(jax.grad(loss, 1))(a["x"], a["w"], a["v"])
        scale = float(jnp.max(jnp.abs(theirs.astype(F32))))
        np.testing.assert_allclose(ours.astype(F32), theirs.astype(F32), atol=0.02 * scale)

    @pytest.mark.parametrize("kind", ["scan", "checkpoint", "cond", "shard_map", "vmap"])
    def test_within(self, a, kind: str) -> None:
        def layer(x: Any, w: Any, v: Any) -> Any:
            gate, up = split(x @ w)
            return (jax.nn.silu(gate) * up) @ v

        def f(x: Any, w: Any, v: Any) -> Any:
            if kind == "scan":
                return jax.lax.scan(lambda x, _: (layer(x, w, v), None), x, length=2)[0]
            if kind == "checkpoint":
                return jax.grad(lambda x: jnp.sum(jax.checkpoint(layer)(x, w, v).astype(F32)))(x)
            if kind == "cond":
                return jax.lax.cond(jnp.sum(x) > 9e9, lambda x, *_: x, layer, x, w, v)
            if kind == "vmap":
                return jax.vmap(layer, (0, None, None))(x.reshape(2, -1, K), w, v)
            mesh = jax.make_mesh((2,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
            specs = P("i"), P(), P()
            return jax.shard_map(layer, mesh=mesh, in_specs=specs, out_specs=P("i"))(x, w, v)

        args = a["x"], a["w"], a["v"]
        assert made(f, *args)
        check(f, *args)

    @pytest.mark.parametrize(
        "way", ["whole", "thirds", "uneven", "one", "transposed", "strided", "three"]
    )
    def test_no_halves(self, a, way: str) -> None:
        """Of results that are divided otherwise, or read whole too, and of other weights."""

        def f(x: Any, w: Any) -> Any:
            z = x @ (w.T if way == "transposed" else w)
            if way == "thirds":
                gate, up = z[:, :48], z[:, 48:96]
            elif way == "uneven":
                gate, up = jnp.split(z, [N - 8], axis=1)
                up = up[:, : N - 8]
            elif way == "one":
                gate = up = z[:, :N]
            elif way == "strided":
                gate, up = z[:, ::2], z[:, 1::2]
            else:
                gate, up = split(z)
            y = jax.nn.silu(gate) * up
            if way == "three":
                return y, z[:, 8 : N + 8]
            return (y, z) if way == "whole" else y

        args = a["x"], a["t"] if way == "transposed" else a["w"]
        assert made(f, *args) == []
        check(f, *args)

    def test_sums_and_many_results_stay_apart(self, a) -> None:
        def f(x: Any, w: Any) -> Any:
            gate, up = split(x @ w)
            y = gate * jax.nn.sigmoid(up)
            return y, jnp.sum(y.astype(F32), 0)

        def many(x: Any, w: Any) -> Any:
            gate, up = split(x @ w)
            return gate, up, gate * up, gate + up, jnp.tanh(gate), jnp.tanh(up)

        for g in (f, many):
            check(g, a["x"], a["w"])
        assert made(many, a["x"], a["w"]) == []

    def test_explained(self, a) -> None:
        def f(x: Any, w: Any) -> Any:
            gate, up = split(x @ w)
            return jax.nn.silu(gate) * up

        text = str(bw.explain_program(bw.accelerate(f), a["x"], a["w"], device="sm90"))
        assert "rewritten: a kernel takes it" in text
        assert "two products of" in text


@runs_kernels
class TestInTheEmulator:
    @pytest.fixture(autouse=True)
    def _one_device(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        monkeypatch.setattr(jax, "local_device_count", lambda: 1)
        with config.target("sm90"), config.linked_epilogues(True):
            yield

    @staticmethod
    def f(x: Any, w: Any, b: Any) -> Any:
        """Of integers."""
        gate, up = split(x @ w)
        return jnp.maximum(gate, -5) * (up + b), up

    @pytest.fixture
    def integers(self) -> list[jax.Array]:
        rng = np.random.default_rng(1)
        shapes = (M, K), (K, 2 * N), (N,)
        return [jnp.asarray(small_integers(rng, s, "bfloat16")) for s in shapes]

    def compare(self, text: str, integers: list[jax.Array]) -> None:
        lowered = jax.jit(bw.accelerate(self.f, implementation=("emulator", "xla"))).lower(
            *integers
        )
        found = lowered.as_text()
        assert text in found
        assert found.count("epilogue_digest") == 1
        gate, up = split(integers[0].astype(F32) @ integers[1].astype(F32))
        want = jnp.maximum(gate, -5) * (up + integers[2].astype(F32)), up
        for ours, theirs in zip(lowered.compile()(*integers), want, strict=True):
            assert_exact(ours, np.asarray(theirs.astype(jnp.bfloat16)))

    def test_one_kernel(self, integers, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(gated_call, "_apart", lambda *_: float("inf"))
        self.compare("_gated", integers)

    def test_two_that_read_columns_in_place(
        self, integers, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(gated_call, "_apart", lambda *_: 0.0)
        monkeypatch.setattr(gated_pair, "_cycles", lambda *_: (1.0, 2.0))
        monkeypatch.setattr("jax_bwgemm.epilogue.call._slower", lambda *_: None)
        self.compare(f'windows = "b:0:{N}"', integers)

    def test_neither_pays(self, integers, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(gated_call, "_apart", lambda *_: 0.0)
        monkeypatch.setattr(gated_pair, "_cycles", lambda *_: (2.0, 1.0))
        accelerated = bw.accelerate(self.f, implementation=("emulator", "xla"))
        jaxpr = jax.make_jaxpr(accelerated)(*integers)
        names = {eqn.primitive for eqn, _ in equations(jaxpr)}
        assert names.isdisjoint({bw_gemm_gated_p, bw_gemm_epilogue_p})


def test_of_several_devices_nothing_is_linked(a, monkeypatch: pytest.MonkeyPatch) -> None:
    def f(x: Any, w: Any) -> Any:
        gate, up = split(x @ w)
        return jax.nn.silu(gate) * up

    monkeypatch.setattr(fuse, "link_refusal", lambda *_: "several devices")
    with config.target("sm90"), config.linked_epilogues(True):
        assert made(f, a["x"], a["w"]) == []
        check(f, a["x"], a["w"])
