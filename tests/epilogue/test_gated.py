"""Kernels of two products, in the emulator: results, rules, choices, refusals."""

from __future__ import annotations

import functools
import logging
import os
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from emulator_cases import requires_emulator
from epilogue_host import COMPILER, run_on_host
from gated_cases import EXACT, F32, FUNCTIONS, factors, operands, reference
from hypothesis import given, settings
from hypothesis import strategies as st
from linked_cases import requires_linker
from numerics import LINKED, assert_exact, normal, small_integers

import jax_bwgemm as bw
from jax_bwgemm import config, runtime
from jax_bwgemm.epilogue import gated_call, linking
from jax_bwgemm.epilogue.apply import Epilogue
from jax_bwgemm.epilogue.gated_hook import GatedHook
from jax_bwgemm.epilogue.gated_layer import gated_product
from jax_bwgemm.epilogue.hook import VERSION
from jax_bwgemm.epilogue.linker import NoLinkerError
from jax_bwgemm.epilogue.tracing import trace_epilogue
from jax_bwgemm.product import targets
from jax_bwgemm.product.implementations import log_once

KERNELS = runtime.gated_kernels("emulator")
BF16 = [k for k in KERNELS if k.a_dtype == "bfloat16"]
pytestmark = [
    *requires_emulator,
    requires_linker,
    pytest.mark.skipif(not BF16, reason="no kernels of two products were built"),
]


@pytest.fixture(autouse=True)
def _linked(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Linking is on, for an SM90; one cache for all tests, so that each kernel is linked once."""
    monkeypatch.setenv("BWGEMM_LINK_CACHE", str(tmp_path_factory.getbasetemp() / "linked"))
    with config.target("sm90", 4), config.linked_epilogues(True):
        yield


def forms(w: jax.Array) -> tuple[Any, Any]:
    """Stacked weights, and the pair."""
    return w, (w[:, 0], w[:, 1])


def run(f: Any, x: Any, weights: Any, arrays: Any = (), **more: Any) -> Any:
    """A function of both products in one kernel: anything else is an error."""

    def call(x: Any, weights: Any, *arrays: Any) -> Any:
        more.setdefault("implementation", "emulator")
        return gated_product(x, weights, Epilogue(f, "test"), arrays, **more)

    lowered = jax.jit(call).lower(x, weights, *arrays)
    assert lowered.as_text().count("_gated") == 1
    return lowered.compile()(x, weights, *arrays)


def close(got: Any, want: Any) -> None:
    for ours, theirs in zip(*map(jax.tree.leaves, (got, want)), strict=True):
        np.testing.assert_allclose(ours.astype(F32), theirs.astype(F32), **LINKED)


def check(name: str, f: Any, got: Any, want: Any) -> None:
    if name not in EXACT:
        return close(got, want)
    for ours, theirs in zip(*map(jax.tree.leaves, (got, want)), strict=True):
        assert_exact(ours, theirs.astype(ours.dtype), name)
    return None


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("kernel", KERNELS, ids=lambda k: k.name)
def test_every_kernel(kernel: Any, name: str) -> None:
    rng = np.random.default_rng(0)
    m, n, k = kernel.tile_n + 9, kernel.tile_m // 2 + 40, 96
    x, w = factors(rng, kernel.a_dtype, m, n, k, exact=name in EXACT)
    f, arrays = operands(rng, name, m, n)
    weights = forms(w)[name == "silu"]
    check(name, f, run(f, x, weights, arrays, config=kernel.name), reference(f, x, w, arrays))


@pytest.mark.parametrize("stacked", [True, False], ids=["stacked", "pair"])
def test_many_tiles_of_a_consumer(stacked: bool) -> None:
    rng = np.random.default_rng(1)
    for kernel in BF16:
        m, n = 4 * kernel.tile_n + 8, 3 * kernel.tile_m // 2 + 24
        x, w = factors(rng, "bfloat16", m, n, 64, exact=True)
        f, arrays = operands(rng, "of every shape", m, n)
        with config.target("sm90", 2):
            got = run(f, x, forms(w)[not stacked], arrays, config=kernel.name)
        check("of every shape", f, got, reference(f, x, w, arrays))


@pytest.mark.parametrize(("m", "n", "k"), [(1, 8, 8), (3, 16, 64), (64, 8, 40), (70, 72, 200)])
def test_smaller_than_a_tile(m: int, n: int, k: int) -> None:
    rng = np.random.default_rng(2)
    for kernel in BF16:
        x, w = factors(rng, "bfloat16", m, n, k, exact=True)
        f, arrays = operands(rng, "of every shape", m, n)
        for weights in forms(w):
            got = run(f, x, weights, arrays, config=kernel.name)
            check("of every shape", f, got, reference(f, x, w, arrays))


@st.composite
def functions(draw: Any) -> tuple[Any, list[tuple[str, tuple[int, ...]]]]:
    """Random functions whose operations are exact on small integers."""
    types = st.sampled_from(["float32", "bfloat16", "float16", "int32"])
    shapes = st.sampled_from([(), (40,), (1, 40), (13, 1), (13, 40)])
    arrays = draw(st.lists(st.tuples(types, shapes), max_size=4))
    choices = draw(st.lists(st.integers(0, 2**30), min_size=3, max_size=10))
    count = draw(st.integers(1, 4))

    def f(gate: jax.Array, up: jax.Array, *xs: jax.Array) -> list[jax.Array]:
        found = [gate, up, *xs]
        found += [jax.lax.broadcasted_iota(jnp.int32, gate.shape, d) for d in (0, 1)]
        for c in choices:
            x, y = (found[i % len(found)] for i in (c, c // 7))
            x, y = jnp.broadcast_arrays(*(v.astype(F32) for v in (x, y)))
            operations = [
                lambda x, y: x + y, lambda x, y: x - y, jnp.maximum, jnp.minimum,
                lambda x, y: jnp.where(x > y, x, y * 2), lambda x, y: jnp.floor(x / 2),
                lambda x, y: jnp.abs(x) + jnp.sign(y), lambda x, y: jnp.clip(x, -9, y) * 3,
            ]  # fmt: skip
            found.append(operations[c // 64 % len(operations)](x, y))
        return [jnp.broadcast_to(x.astype(F32), gate.shape) for x in found[-count:]]

    return f, arrays


@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler")
@settings(max_examples=int(os.environ.get("BWGEMM_RANDOM_EPILOGUES", "20")))
@given(functions(), st.integers(0, 1000), st.booleans())
def test_random_functions(function: Any, seed: int, stacked: bool) -> None:
    """Bit for bit what the host computes of the same program."""
    f, types = function
    kernel = min(BF16, key=lambda k: k.tile_n)
    rng = np.random.default_rng(seed)
    x, w = factors(rng, "bfloat16", 13, 40, 32, exact=True)
    arrays = [np.asarray(small_integers(rng, s, t)) for t, s in types]
    got = run(f, x, forms(w)[not stacked], arrays, config=kernel.name)
    gate, up = (np.asarray(x, np.float32) @ np.asarray(w[:, i], np.float32) for i in (0, 1))
    program = trace_epilogue(f, gate.shape, [up, *arrays]).program
    want = run_on_host(program, gate, [up, *arrays])
    for ours, theirs in zip(got, want, strict=True):
        assert_exact(ours, theirs.astype(ours.dtype), str(program))


def layer(x: Any, weights: Any, **more: Any) -> Any:
    # Of the gradients' products a build may have no kernels.
    more.setdefault("implementation", ("emulator", "xla"))
    return bw.gated_linear_unit(x, weights, activation="silu", **more)


def formula(x: Any, w: Any) -> Any:
    gate, up = (x.astype(F32) @ w[..., i, :].astype(F32) for i in (0, 1))
    return jax.nn.silu(gate) * up


def halves(f: Any) -> Any:
    """The layer of stacked weights by the pair."""
    return lambda x, w, **more: f(x, (w[..., 0, :], w[..., 1, :]), **more)


@pytest.mark.parametrize("ours", [layer, halves(layer)], ids=["stacked", "pair"])
class TestRules:
    """Of JAX, on the primitive."""

    @pytest.fixture
    def arrays(self) -> tuple[jax.Array, jax.Array]:
        return factors(np.random.default_rng(4), "bfloat16", 24, 48, 64)

    @staticmethod
    def scaled(got: Any, want: Any) -> None:
        for ours, theirs in zip(*map(jax.tree.leaves, (got, want)), strict=True):
            scale = float(jnp.max(jnp.abs(theirs)))
            close(ours.astype(F32) / scale, theirs.astype(F32) / scale)

    def test_leading_dimensions_are_rows(self, ours, arrays) -> None:
        x, w = arrays
        for shape in ((2, 3, 4, 64), (24, 1, 64), (1, 24, 64)):
            f = jax.jit(ours)
            assert "_gated" in f.lower(x.reshape(shape), w).as_text()
            close(f(x.reshape(shape), w).reshape(24, 48), formula(x, w))
        close(ours(x[0], w), formula(x, w)[0])

    def test_gradients(self, ours, arrays) -> None:
        x, w = arrays
        bar = jnp.sin(jnp.arange(24 * 48.0)).reshape(24, 48)

        def loss(f: Any) -> Any:
            return lambda x, w: jnp.vdot(f(x, w).astype(F32), bar)

        want = jax.grad(loss(formula), (0, 1))(x, w)
        for f in (ours, jax.checkpoint(ours)):
            gradient = jax.jit(jax.grad(loss(f), (0, 1)))
            text = gradient.lower(x, w).as_text()
            assert "_gated" in text
            assert 'epilogue_results = "bfloat16 bfloat16"' in text  # the products, for it
            self.scaled(gradient(x, w), want)
        for i in (0, 1):
            self.scaled(jax.grad(loss(ours), i)(x, w), want[i])

    def test_forward_mode_and_second_order(self, ours, arrays) -> None:
        toward = tuple(jnp.cos(x) for x in arrays)
        got = jax.jit(lambda *xs: jax.jvp(ours, xs, toward))(*arrays)
        self.scaled(got, jax.jvp(formula, arrays, toward))

        def twice(f: Any) -> Any:
            square = jax.grad(lambda x: jnp.sum(f(x, arrays[1]).astype(F32) ** 2))
            return jax.jvp(square, arrays[:1], toward[:1])[1]

        # bf16 throughout: some roundings of the largest value.
        got, want = twice(ours), twice(formula)
        scale = float(jnp.max(jnp.abs(want)))
        np.testing.assert_allclose(got.astype(F32) / scale, want.astype(F32) / scale, atol=0.03)

    def test_vmap(self, ours, arrays) -> None:
        stacked = tuple(jnp.stack([x, -x]) for x in arrays)
        for axes in ((0, None), (None, 0), (0, 0)):
            xs = [s if a == 0 else x for s, x, a in zip(stacked, arrays, axes, strict=True)]
            self.scaled(jax.vmap(ours, axes)(*xs), jax.vmap(formula, axes)(*xs))

    def test_shard_map_and_automatic_sharding(self, ours, arrays) -> None:
        mesh = jax.make_mesh((2,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
        p = jax.sharding.PartitionSpec
        f = jax.jit(jax.shard_map(ours, mesh=mesh, in_specs=(p("i"), p()), out_specs=p("i")))
        assert "_gated" in f.lower(*arrays).as_text()
        close(f(*arrays), formula(*arrays))
        for specs in ((p("i"), p()), (p(), p(None, None, "i")), (p(None, "i"), p("i"))):
            placed = [
                jax.device_put(x, jax.sharding.NamedSharding(mesh, s))
                for x, s in zip(arrays, specs, strict=True)
            ]
            f = jax.jit(ours)
            assert "_gated" not in f.lower(*placed).as_text()  # XLA partitions the products
            self.scaled(f(*placed), formula(*arrays))

    def test_exported_programs_need_no_linker(self, ours, arrays, monkeypatch) -> None:
        f = jax.jit(functools.partial(ours, implementation="emulator"))
        exported = jax.export.export(f, disabled_checks=bw.DISABLE_EXPORT_CHECKS)(*arrays)
        assert "_gated" in exported.mlir_module()
        data = exported.serialize()
        monkeypatch.setattr(linking, "linker", None)
        linking.forget_linked_kernels()
        jax.clear_caches()
        close(jax.export.deserialize(data).call(*arrays), formula(*arrays))

    def test_explained(self, ours, arrays) -> None:
        text = str(bw.explain_program(ours, *arrays, device="cpu"))
        assert "two products of" in text
        assert "and a function of both" in text
        assert "the function is linked into the kernel" in text
        text = str(bw.explain_program(ours, *arrays, device="sm90"))
        assert "not one kernel: no kernels for cuda" in text

    def test_eager(self, ours, arrays) -> None:
        close(ours(*arrays), formula(*arrays))


class TestMlp:
    def test_forward_and_backward(self) -> None:
        rng = np.random.default_rng(5)
        shapes = {"x": (2, 48, 64), "gate": (64, 96), "up": (64, 96), "down": (96, 64)}
        a = {k: jnp.asarray(normal(rng, s, "bfloat16")) for k, s in shapes.items()}
        a |= {"gate": a["gate"] / 8, "up": a["up"] / 8, "down": a["down"] / 9}

        def ours(a: Any, **more: Any) -> Any:
            pair = (a["gate"], a["up"])
            some = ("emulator", "xla")
            return bw.mlp(a["x"], pair, a["down"], activation="silu", implementation=some, **more)

        def wanted(a: Any) -> Any:
            a = {k: v.astype(F32) for k, v in a.items()}
            return (jax.nn.silu(a["x"] @ a["gate"]) * (a["x"] @ a["up"])) @ a["down"]

        text = jax.jit(ours).lower(a).as_text()
        assert text.count("_gated") == 1
        assert "epilogue_results" not in text  # no products are kept where none are needed
        close(ours(a), wanted(a))
        for more in ({}, {"recompute": True}):
            f = functools.partial(ours, **more)
            gradient = jax.jit(jax.grad(lambda a, f=f: jnp.sum(f(a).astype(F32) ** 2)))
            assert "_gated" in gradient.lower(a).as_text()
            want = jax.grad(lambda a: jnp.sum(wanted(a) ** 2))(a)
            got = gradient(a)
            for name in a:
                scale = float(jnp.max(jnp.abs(want[name].astype(F32))))
                np.testing.assert_allclose(
                    got[name].astype(F32) / scale, want[name].astype(F32) / scale, atol=0.03
                )


class TestFallbacks:
    """Where no kernel computes both: the same result, and a reason in the log."""

    @staticmethod
    def reason(caplog: Any, f: Any, *arrays: Any, m: int = 64, n: int = 96, k: int = 64) -> str:
        rng = np.random.default_rng(6)
        x, w = factors(rng, "bfloat16", m, n, k)
        texts = []
        for weights in forms(w):

            def call(x: Any, weights: Any, *arrays: Any) -> Any:
                some = ("emulator", "xla")
                return gated_product(x, weights, Epilogue(f, "test"), arrays, implementation=some)

            with caplog.at_level(logging.INFO, "jax_bwgemm"):
                log_once.cache_clear()
                caplog.clear()
                lowered = jax.jit(call).lower(x, weights, *arrays)
            assert "_gated" not in lowered.as_text()
            want = reference(f, x, w, list(arrays))
            for ours, theirs in zip(
                *map(jax.tree.leaves, (lowered.compile()(x, weights, *arrays), want)), strict=True
            ):
                np.testing.assert_allclose(
                    ours.astype(F32), theirs.astype(F32), atol=0.05, rtol=0.05
                )
            texts.append(caplog.text)
        assert all("two products and a function are not one kernel" in text for text in texts)
        return "\n".join(texts)

    def test_types(self, caplog) -> None:
        text = self.reason(caplog, lambda g, u: (g * u, jnp.zeros_like(g, jnp.int32)))
        assert "a result is of type int32; kernels of two products write bfloat16" in text
        mask = jnp.arange(96) > 3
        text = self.reason(caplog, lambda g, u, x: jnp.where(x, g, 0) * u, mask)
        assert "an operand is of type bool; kernels read float32" in text

    def test_too_many(self, caplog) -> None:
        text = self.reason(caplog, lambda g, u, *xs: g + u + sum(xs), *[jnp.ones(96)] * 9)
        assert "more than 8 operands or 4 results" in text

    def test_sizes(self, caplog) -> None:
        text = self.reason(caplog, lambda g, u: g * u, n=90)
        assert "row pitches are not multiples of 16 bytes" in text
        text = self.reason(caplog, lambda g, u: g - u, k=90)
        assert "row pitches are not multiples of 16 bytes" in text

    def test_empty(self) -> None:
        x, w = jnp.ones((0, 16), jnp.bfloat16), jnp.ones((16, 2, 16), jnp.bfloat16)
        assert layer(x, w, implementation="emulator").shape == (0, 16)

    def test_no_linker(self, caplog, monkeypatch) -> None:
        def none() -> Any:
            raise NoLinkerError("libnvJitLink.so.13 is not installed")

        monkeypatch.setattr(linking, "linker", none)
        linking.forget_linked_kernels()
        text = self.reason(caplog, lambda g, u: g * u + 12345.0)
        assert "libnvJitLink.so.13 is not installed" in text

    def test_no_kernels(self, caplog, monkeypatch) -> None:
        monkeypatch.setattr(gated_call._Both, "kernels", lambda *_: ())
        text = self.reason(caplog, lambda g, u: g * u + 1.5)
        assert "this installation has no kernels of two products" in text

    def test_apart_is_better(self, caplog, monkeypatch) -> None:
        monkeypatch.setattr(gated_call, "_apart", lambda *_: 0.0)
        text = self.reason(caplog, lambda g, u: g * u + 2.5)
        assert "products of their own and a pass over both are predicted to take 0 cycles" in text

    @pytest.mark.parametrize("stacked", [True, False], ids=["stacked", "pair"])
    def test_sums_over_rows(self, stacked) -> None:
        x, w = factors(np.random.default_rng(9), "bfloat16", 48, 64, 64)

        def f(x: Any, weights: Any) -> Any:
            both = Epilogue(lambda g, u: (g * u, jnp.sum(g * u, 0)), "test")
            return gated_product(x, weights, both, implementation=("emulator", "xla"))

        text = jax.jit(f).lower(x, forms(w)[not stacked]).as_text()
        assert "_gated" not in text
        hidden, sums = f(x, forms(w)[not stacked])
        want = reference(lambda g, u: g * u, x, w, [])
        np.testing.assert_allclose(hidden.astype(F32), want, atol=0.05, rtol=0.05)
        np.testing.assert_allclose(sums.astype(F32), jnp.sum(want, 0), atol=0.5, rtol=0.05)

    @pytest.mark.parametrize(("k", "stacked", "taken"), [(768, True, True), (4096, False, False)])
    def test_pays_where_k_is_short(self, k, stacked, taken) -> None:
        """A pair's products hide what they read and write where K is long."""
        m, n = 8192, 3072

        def f(x: Any, weights: Any) -> Any:
            both = Epilogue(lambda g, u: jax.nn.silu(g) * u.astype(F32), "test")
            return gated_product(
                x, weights, both, keeps_products=True, implementation=("emulator", "xla")
            )

        x = jax.ShapeDtypeStruct((m, k), jnp.bfloat16)
        each = jax.ShapeDtypeStruct((k, n), jnp.bfloat16)
        weights = jax.ShapeDtypeStruct((k, 2, n), jnp.bfloat16) if stacked else (each, each)
        with config.target("sm90", 132):
            assert ("_gated" in jax.jit(f).lower(x, weights).as_text()) == taken

    def test_operands_of_two_types(self) -> None:
        a, b = jnp.ones((16, 64), jnp.bfloat16), jnp.ones((64, 2, 16), F32)
        text = jax.jit(layer).lower(a, b).as_text()
        assert "_gated" not in text

    def test_switched_off(self) -> None:
        x, w = factors(np.random.default_rng(7), "bfloat16", 32, 48, 64)
        with config.linked_epilogues(False):
            assert "_gated" not in jax.jit(layer).lower(x, w).as_text()
        assert "_gated" in jax.jit(layer).lower(x, w).as_text()


class TestConfiguration:
    """A kernel by its name never falls back silently."""

    @pytest.fixture
    def arrays(self) -> tuple[jax.Array, jax.Array]:
        return factors(np.random.default_rng(8), "bfloat16", 24, 48, 64)

    def test_of_one_product(self, arrays) -> None:
        kernel = next(
            k for k in runtime.emulated_kernels()
            if (k.in_dtype, k.out_dtype, k.majors) == ("bfloat16", "bfloat16", "kn")
        )  # fmt: skip
        f = jax.jit(functools.partial(layer, config=kernel.name))
        text = f.lower(*arrays).as_text()
        assert "_gated" not in text
        assert kernel.name in text
        close(f(*arrays), formula(*arrays))

    def test_cannot_be_satisfied(self, arrays) -> None:
        x, w = arrays
        named = functools.partial(layer, config=BF16[0].name)
        with pytest.raises(NotImplementedError, match=r"cannot be satisfied: .* multiples of 16 b"):
            named(x, w[..., :47])
        with pytest.raises(NotImplementedError, match="cannot be satisfied: the products are map"):
            jax.vmap(named, (0, None))(x[None], w)
        mesh = jax.make_mesh((2,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
        rows = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("i"))
        with pytest.raises(NotImplementedError, match="cannot be satisfied: XLA partitions this"):
            jax.jit(named)(jax.device_put(x, rows), w)

    def test_gradients_choose_their_own(self, arrays) -> None:
        named = functools.partial(layer, config=BF16[0].name)
        got = jax.grad(lambda x: jnp.sum(named(x, arrays[1]).astype(F32)))(arrays[0])
        want = jax.grad(lambda x: jnp.sum(formula(x, arrays[1])))(arrays[0])
        np.testing.assert_allclose(got.astype(F32), want.astype(F32), atol=0.1, rtol=0.05)


class TestCalls:
    """The FFI call as an exported program may have it."""

    KERNEL = BF16[0] if BF16 else None

    @pytest.fixture
    def linked(self) -> linking.LinkedKernel:
        up = jax.ShapeDtypeStruct((16, 24), F32)
        program = trace_epilogue(lambda g, u, x: (g + u + x, u), (16, 24), [up, jnp.ones(24)])
        hook = GatedHook(program.program, ("bfloat16",) * 2)
        return linking.linked_kernel(self.KERNEL.name, hook, ptx=True)

    def call(self, linked: Any, **changes: Any) -> Any:
        fields = {
            "kernel": self.KERNEL.name,
            "operands": "a b b_up x0",
            "results": "d workspace y1",
            "epilogue": linked.code,
            "epilogue_digest": linked.digest,
            "epilogue_version": np.int64(VERSION),
            "epilogue_operands": "float32:n",
            "epilogue_results": "bfloat16",
        }
        arrays = {
            "a": np.ones((1, 16, 64), "bfloat16"),
            "b": np.ones((1, 64, 24), "bfloat16"),
            "b_up": np.full((1, 64, 24), 2, "bfloat16"),
            "x0": np.ones(24, np.float32),
        }
        results = {
            "d": ((1, 16, 24), "bfloat16"),
            "workspace": ((0,), "uint8"),
            "y1": ((1, 16, 24), "bfloat16"),
        }
        for name, change in changes.items():
            where = arrays if name in arrays else results if name in results else fields
            where[name] = change
        fields = {key: value for key, value in fields.items() if value is not None}
        shapes = [jax.ShapeDtypeStruct(*results[name]) for name in fields["results"].split()]
        given = [arrays[name] for name in fields["operands"].split()]
        return jax.ffi.ffi_call(targets.TARGETS["emulator"], shapes)(*given, config=fields)

    def test_runs(self, linked) -> None:
        d, _, up = self.call(linked)
        assert_exact(d, np.full((1, 16, 24), 193, "bfloat16"))
        assert_exact(up, np.full((1, 16, 24), 128, "bfloat16"))
        both = np.ones((64, 2, 24), "bfloat16")
        d, _, _ = self.call(linked, operands="a b x0", b=both)
        assert_exact(d, np.full((1, 16, 24), 129, "bfloat16"))

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"epilogue": None, "operands": "a b b_up", "results": "d workspace"},
             "needs an epilogue"),
            ({"operands": "a b x0"}, r"operand b is bfloat16\[1,64,24\], expected bfloat16\[64,2"),
            ({"operands": "a b x0", "b": np.ones((1, 2, 24), "bfloat16")}, "K is 64"),
            ({"b_up": np.ones((1, 64, 32), "bfloat16")}, r"operand b_up is bfloat16\[1,64,32\]"),
            ({"b": np.ones((1, 64, 32), "bfloat16")}, r"operand b is bfloat16\[1,64,32\]"),
            ({"a": np.ones((2, 16, 64), "bfloat16"), "d": ((2, 16, 24), "bfloat16")},
             "has no batch"),
            ({"y1": ((1, 16, 24), "float32"), "epilogue_results": "float32"},
             r"result y1 is float32\[1,16,24\], a gated kernel's are all of bfloat16"),
            ({"splits": np.int64(2)}, "with an epilogue has no splits and no batch"),
            ({"order": "vertical"}, r"\(gated\) has no order"),
        ],
    )  # fmt: skip
    def test_refusals(self, linked, changes, message) -> None:
        with pytest.raises(jax.errors.JaxRuntimeError, match=message):
            jax.block_until_ready(self.call(linked, **changes))

    def test_other_kernels_take_no_second_matrix(self, linked) -> None:
        dense = next(
            k for k in runtime.emulated_kernels()
            if (k.in_dtype, k.out_dtype, k.majors) == ("bfloat16", "bfloat16", "kn")
        )  # fmt: skip
        with pytest.raises(jax.errors.JaxRuntimeError, match=r"\(dense\) takes no b_up"):
            jax.block_until_ready(self.call(linked, kernel=dense.name))
