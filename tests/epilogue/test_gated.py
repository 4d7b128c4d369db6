"""Kernels of two products, in the emulator: results and rules."""

from __future__ import annotations

import functools
import os
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from epilogue_host import COMPILER, run_on_host
from gated_cases import (
    BF16,
    EXACT,
    F32,
    FUNCTIONS,
    KERNELS,
    factors,
    forms,
    formula,
    layer,
    operands,
    reference,
    requires_gated,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from linked_cases import close, linked_for_sm90  # noqa: F401
from numerics import assert_exact, normal, small_integers
from random_epilogues import functions
from sharded import collectives

import jax_bwgemm as bw
from jax_bwgemm import config
from jax_bwgemm.epilogue import linking
from jax_bwgemm.epilogue.apply import Epilogue
from jax_bwgemm.epilogue.gated_layer import gated_product
from jax_bwgemm.epilogue.tracing import trace_epilogue

pytestmark = [*requires_gated, pytest.mark.usefixtures("no_rule_broken")]


def run(f: Any, x: Any, weights: Any, arrays: Any = (), **more: Any) -> Any:
    """A function of both products in one kernel: anything else is an error."""

    def call(x: Any, weights: Any, *arrays: Any) -> Any:
        more.setdefault("implementation", "emulator")
        return gated_product(x, weights, Epilogue(f, "test"), arrays, **more)

    lowered = jax.jit(call).lower(x, weights, *arrays)
    assert lowered.as_text().count("_gated") == 1
    return lowered.compile()(x, weights, *arrays)


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


@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler")
@settings(max_examples=int(os.environ.get("BWGEMM_RANDOM_EPILOGUES", "8")))
@given(functions(m=13, n=40, most=10, products=2, results=4), st.integers(0, 1000), st.booleans())
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


@pytest.mark.parametrize("linking", [True, False], ids=["linking", ""])
def test_sharded_columns_of_stacked_weights_stay_where_they_are(linking: bool) -> None:
    """Side by side in one dimension the columns of both matrices would be gathered."""
    x, w = factors(np.random.default_rng(4), "bfloat16", 24, 64, 64)
    mesh = jax.make_mesh((2,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
    columns = jax.sharding.NamedSharding(mesh, jax.P(None, None, "i"))
    whole = jax.sharding.NamedSharding(mesh, jax.P())
    with config.linked_epilogues(linking):
        lowered = jax.jit(layer).lower(jax.device_put(x, whole), jax.device_put(w, columns))
    assert collectives(lowered.compile()) == {}


def test_stacked_weights_of_one_device_are_one_matrix() -> None:
    """Where no kernel computes both products, they are one product of twice the columns."""
    x, w = factors(np.random.default_rng(4), "bfloat16", 24, 64, 64)
    mesh, p = jax.make_mesh((2,), ("i",), axis_types=(jax.sharding.AxisType.Auto,)), jax.P

    def local(x: Any, w: Any) -> Any:
        f = Epilogue(lambda gate, up: jax.nn.silu(gate) * up, "test")
        return gated_product(x, w, f, keeps_products=True, implementation="xla")

    f = jax.jit(jax.shard_map(local, mesh=mesh, in_specs=(p("i"), p()), out_specs=p("i")))
    assert f.lower(x, w).as_text().count("stablehlo.dot_general") == 1
    close(f(x, w), reference(lambda gate, up: (jax.nn.silu(gate) * up, gate, up), x, w, []))
