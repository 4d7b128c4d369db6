"""Stacked matrices as two products that read their columns in place, in the emulator."""

from __future__ import annotations

import logging
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gated_cases import (
    EXACT,
    F32,
    FUNCTIONS,
    factors,
    formula,
    layer,
    operands,
    reference,
    requires_gated,
)
from linked_cases import close, linked_for_sm90  # noqa: F401
from numerics import assert_exact

import jax_bwgemm as bw
from jax_bwgemm import config
from jax_bwgemm.epilogue import call, gated_call, gated_pair
from jax_bwgemm.epilogue.apply import Epilogue
from jax_bwgemm.epilogue.gated_layer import gated_product
from jax_bwgemm.product.implementations import log_once

pytestmark = [*requires_gated, pytest.mark.usefixtures("no_rule_broken")]


@pytest.fixture(autouse=True)
def _two_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """No kernel computes both, and a pair is predicted to take less time, its function linked."""
    monkeypatch.setattr(gated_call, "_apart", lambda *_: 0.0)
    monkeypatch.setattr(call, "_slower", lambda *_: None)
    monkeypatch.setattr(gated_pair, "_cycles", lambda *_: (1.0, 2.0))


def windows(n: int) -> tuple[str, str]:
    """Of the two calls."""
    return f'windows = "b:0:{n}"', f'windows = "b:{n}:{n}"'


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("keeps", [False, True], ids=["", "products kept"])
@pytest.mark.parametrize(("m", "n", "k"), [(200, 136, 72), (24, 264, 200)])
def test_columns_are_read_in_place(name: str, keeps: bool, m: int, n: int, k: int) -> None:
    rng = np.random.default_rng(2)
    f, arrays = operands(rng, name, m, n)
    x, w = factors(rng, "bfloat16", m, n, k, exact=name in EXACT)
    if keeps and name == "of every shape":
        pytest.skip("with both products these are more results than a kernel has")

    def both(x: Any, w: Any, *arrays: Any) -> Any:
        after = Epilogue(f, "test")
        return gated_product(
            x, w, after, arrays, keeps_products=keeps, implementation=("emulator", "xla")
        )

    lowered = jax.jit(both).lower(x, w, *arrays)
    text = lowered.as_text()
    assert all(text.count(window) == 1 for window in windows(n))
    assert text.count("epilogue_digest") == 1
    assert "_gated" not in text
    assert "slice(" not in lowered.compile().as_text()  # no copy of the columns

    def wanted(gate: Any, up: Any, *arrays: Any) -> Any:
        # The second product is rounded before the function reads it.
        rounded = up.astype(x.dtype).astype(F32)
        found = f(gate, rounded, *arrays)
        return (found, gate, up) if keeps else found

    got, want = lowered.compile()(x, w, *arrays), reference(wanted, x, w, arrays)
    for ours, theirs in zip(*map(jax.tree.leaves, (got, want)), strict=True):
        if name in EXACT:
            assert_exact(ours, theirs.astype(ours.dtype), name)
        else:
            close(ours, theirs)


def test_gradients_and_rules_of_jax() -> None:
    x, w = factors(np.random.default_rng(4), "bfloat16", 24, 48, 64)
    bar = jnp.sin(jnp.arange(24 * 48.0)).reshape(24, 48)

    def loss(f: Any) -> Any:
        return lambda x, w: jnp.vdot(f(x, w).astype(F32), bar)

    gradient = jax.jit(jax.grad(loss(layer), (0, 1)))
    text = gradient.lower(x, w).as_text()
    assert all(window in text for window in windows(48))
    for ours, theirs in zip(gradient(x, w), jax.grad(loss(formula), (0, 1))(x, w), strict=True):
        scale = float(jnp.max(jnp.abs(theirs)))
        close(ours.astype(F32) / scale, theirs.astype(F32) / scale)
    mapped = jax.vmap(layer, (0, None))(jnp.stack([x, -x]), w)
    close(mapped, jnp.stack([formula(x, w), formula(-x, w)]))
    mesh, p = jax.make_mesh((2,), ("i",), axis_types=(jax.sharding.AxisType.Auto,)), jax.P
    for specs, in_place in (((p("i"), p()), True), ((p(), p(None, None, "i")), False)):
        f = layer
        if in_place:
            f = jax.shard_map(layer, mesh=mesh, in_specs=specs, out_specs=p("i"))
            placed = x, w
        else:
            placed = tuple(
                jax.device_put(a, jax.sharding.NamedSharding(mesh, s))
                for a, s in zip((x, w), specs, strict=True)
            )
        text = jax.jit(f).lower(*placed).as_text()
        assert ("windows" in text) == in_place
        close(jax.jit(f)(*placed), formula(x, w))


def test_explained() -> None:
    x, w = factors(np.random.default_rng(4), "bfloat16", 24, 48, 64)
    text = str(bw.explain_program(layer, x, w, device="cpu"))
    assert "two products of" in text
    assert "the second has the function linked into the kernel; not one kernel" in text
    with config.linked_epilogues(False):
        assert "linked" not in str(bw.explain_program(layer, x, w, device="cpu"))


@pytest.mark.parametrize(
    ("m", "changes", "reason"),
    [
        (40, {"_cycles": lambda *_: (2.0, 1.0)}, "a pair is predicted to take 2 cycles, one prod"),
        (48, {"choose": lambda *_: "no kernel today"}, "no kernel today"),
        (56, {"PLATFORMS": {}}, "no kernels for cpu are allowed"),
    ],
    ids=["slower", "no kernel", "other platform"],
)
def test_refusals(
    m: int,
    changes: dict[str, Any],
    reason: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in changes.items():
        monkeypatch.setattr(gated_pair, name, value)
    log_once.cache_clear()
    x, w = factors(np.random.default_rng(5), "bfloat16", m, 56, 72)
    with caplog.at_level(logging.INFO, "jax_bwgemm"):
        text = jax.jit(layer).lower(x, w).as_text()
    assert "windows" not in text
    assert f"stacked matrices are one product, and a pass over it: {reason}" in caplog.text
    close(layer(x, w), formula(x, w))


def test_columns_that_are_no_multiple_of_16_bytes() -> None:
    x, w = factors(np.random.default_rng(5), "bfloat16", 40, 57, 72)
    assert "windows" not in jax.jit(layer).lower(x, w).as_text()
    close(layer(x, w), formula(x, w))
