"""Where no kernel computes both products, or one was named: results, reasons and errors."""

from __future__ import annotations

import functools
import logging
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gated_cases import (
    BF16,
    F32,
    factors,
    forms,
    formula,
    layer,
    reference,
    requires_gated,
)
from linked_cases import close, linked_for_sm90  # noqa: F401

from jax_bwgemm import config, runtime
from jax_bwgemm.epilogue import gated_call, linking
from jax_bwgemm.epilogue.apply import Epilogue
from jax_bwgemm.epilogue.gated_layer import gated_product
from jax_bwgemm.epilogue.linker import NoLinkerError
from jax_bwgemm.product.implementations import log_once

pytestmark = requires_gated


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

    @pytest.mark.parametrize(("k", "stacked"), [(768, True), (4096, False)])
    def test_one_kernel_pays_on_an_h200(self, k, stacked) -> None:
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
            assert "_gated" in jax.jit(f).lower(x, weights).as_text()

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


def test_columns_of_one_matrix_that_are_no_multiple_of_16_bytes(caplog) -> None:
    """Those of both are: 2 x 92 of 2 bytes."""
    text = TestFallbacks.reason(caplog, lambda g, u: g * u + 3.5, n=92)
    assert "row pitches are not multiples of 16 bytes" in text
