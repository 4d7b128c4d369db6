"""What is known of equations follows their replacement, and is counted once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import jax_bwgemm as bw
from jax_bwgemm import config
from jax_bwgemm.epilogue.primitive import bw_gemm_epilogue_p
from jax_bwgemm.product.jaxprs import equations
from jax_bwgemm.rewriting import dataflow, fuse
from jax_bwgemm.rewriting.dataflow import Dataflow
from jax_bwgemm.rewriting.uses import STORED, Uses

WIDTH = 256
X = jax.ShapeDtypeStruct((512, WIDTH), jnp.bfloat16)
W = jax.ShapeDtypeStruct((WIDTH, WIDTH), jnp.bfloat16)


@pytest.fixture(autouse=True)
def _linked(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(fuse, "link_refusal", lambda *_: None)
    with config.target("sm90"):
        yield


def norm(x: jax.Array) -> jax.Array:
    wide = x.astype(jnp.float32)
    return (wide * jax.lax.rsqrt(jnp.mean(wide * wide, -1, keepdims=True) + 1e-6)).astype(x.dtype)


def blocks(layers: int) -> Callable[..., Any]:
    """The gradient of residual layers with norms, a jitted activation and another shape."""

    def f(x: jax.Array, w: jax.Array) -> jax.Array:
        for _ in range(layers):
            h = jax.jit(jax.nn.gelu)(norm(x) @ w + w[0])
            x = x + (h.reshape(8, -1, WIDTH) @ w).reshape(x.shape) * 2
        return jnp.sum(x.astype(jnp.float32))

    return jax.grad(f, (0, 1))


def test_what_is_stored_follows_every_replacement(monkeypatch: pytest.MonkeyPatch) -> None:
    flows: list[tuple[Dataflow, Any]] = []
    made, updated = Dataflow.__init__, Dataflow.update

    def init(self: Dataflow, body: Any, eqns: list[Any], results: Any) -> None:
        made(self, body, eqns, results)
        flows.append((self, results))

    def update(self: Dataflow, exchanged: dict[int, list[Any]]) -> set[Any]:
        stored = set(self.stored)
        changed = updated(self, exchanged)
        assert self.stored - stored <= changed
        results = next(r for flow, r in flows if flow is self)
        again = Dataflow.__new__(Dataflow)
        made(again, self.body, self.eqns, results)
        assert self.stored & set(again._producers) == again.stored & set(again._producers)
        assert self._producers == again._producers
        assert all(self.readers(v) == again.readers(v) for v in again._readers)
        checked.append(self)
        return changed

    checked: list[Dataflow] = []
    monkeypatch.setattr(Dataflow, "__init__", init)
    monkeypatch.setattr(Dataflow, "update", update)
    jax.make_jaxpr(bw.accelerate(blocks(3)))(X, W)
    assert len(checked) >= 3


def test_equations_are_counted_once_however_many_products(monkeypatch: pytest.MonkeyPatch) -> None:
    def counted(layers: int) -> tuple[int, int]:
        calls = 0
        count = dataflow.uses_of

        def uses_of(*args: Any) -> Any:
            nonlocal calls
            calls += 1
            return count(*args)

        monkeypatch.setattr(dataflow, "uses_of", uses_of)
        jaxpr = jax.make_jaxpr(bw.accelerate(blocks(layers)))(X, W)
        monkeypatch.setattr(dataflow, "uses_of", count)
        return calls, sum(e.primitive is bw_gemm_epilogue_p for e, *_ in equations(jaxpr.jaxpr))

    few, many = counted(1), counted(6)
    assert many[1] >= 6 * few[1] > 0
    assert many[0] == few[0]


def test_equations_get_a_place_once_however_many_products(monkeypatch: pytest.MonkeyPatch) -> None:
    def placed(layers: int) -> int:
        calls = 0
        add = Dataflow._add

        def counted(*args: Any) -> None:
            nonlocal calls
            calls += 1
            add(*args)

        with monkeypatch.context() as patch:
            patch.setattr(Dataflow, "_add", counted)
            jax.make_jaxpr(bw.accelerate(blocks(layers)))(X, W)
        return calls

    few, more, many = map(placed, (2, 4, 8))
    assert many - more == 2 * (more - few) > 0


def test_who_reads() -> None:
    def f(x: jax.Array, w: jax.Array) -> tuple[jax.Array, jax.Array]:
        shaped = x.reshape(-1)
        unread = jnp.sin(w)
        del unread
        return jnp.tanh(shaped), x @ w

    body = jax.make_jaxpr(f)(X, W).jaxpr
    flow = Dataflow(body, body.eqns, [STORED, Uses()])
    x, w = body.invars
    names = {e.primitive.name: e for e in body.eqns}
    assert flow.readers(x) == [names["reshape"], names["dot_general"]]
    assert flow.readers(x, {id(names["reshape"])}) == [names["dot_general"]]
    assert flow.producer(body.outvars[0]) is names["tanh"]
    assert flow.producer(x) is None
    assert flow.is_result(body.outvars[1])
    assert not flow.is_result(x)
    assert flow.read_by_pass(x, ())  # by tanh, in another shape
    assert not flow.read_by_pass(x, {id(names["tanh"])})
    assert not flow.read_by_pass(w, ())  # by dead code and a product
    assert {x, w, body.outvars[0]} <= flow.stored


def test_a_variable_returned_twice_has_the_uses_of_both() -> None:
    body = jax.make_jaxpr(lambda x: (lambda y: (y, y))(jnp.sin(x)))(X).jaxpr
    flow = Dataflow(body, body.eqns, [STORED, Uses()])
    assert body.outvars[0] in flow.stored
    assert flow.is_needed(body.outvars[0], ())


def test_an_effect_needs_what_it_reads() -> None:
    show = jax.jit(lambda y: jax.debug.print("{}", y[0, 0]))
    body = jax.make_jaxpr(lambda x: (show(y := jnp.sin(x)), y)[1])(X).jaxpr
    flow = Dataflow(body, body.eqns, [Uses()])
    assert flow.is_needed(body.outvars[0], ())
