"""Which intermediate values are in memory: what a norm reads twice, and little else."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from random_programs import program

import jax_bwgemm as bw
from jax_bwgemm import config
from jax_bwgemm.epilogue.primitive import bw_gemm_epilogue_p
from jax_bwgemm.product.jaxprs import equations
from jax_bwgemm.rewriting import fuse
from jax_bwgemm.rewriting.dataflow import Dataflow, variables
from jax_bwgemm.rewriting.group import is_elementwise
from jax_bwgemm.rewriting.materialised import Materialised
from jax_bwgemm.rewriting.uses import Uses

SHAPE = (64, 128)
F32 = jnp.float32


def found(f: Callable[..., Any], *args: Any, stored: tuple[int, ...] = ()) -> list[int]:
    """Numbers of the equations whose results are in memory."""
    body = jax.make_jaxpr(f)(*args).jaxpr
    flow = Dataflow(body, body.eqns, [Uses()] * len(body.outvars))
    flow.stored = {body.eqns[i].outvars[0] for i in stored}
    results = Materialised(flow, is_elementwise)
    return [i for i, e in enumerate(body.eqns) if e.outvars[0] in results]


X = jax.ShapeDtypeStruct(SHAPE, jnp.bfloat16)


def rms(x: jax.Array) -> jax.Array:
    wide = x.astype(F32)
    return (wide * jax.lax.rsqrt(jnp.mean(wide * wide, -1, keepdims=True))).astype(x.dtype)


def test_a_residual_sum_ahead_of_a_norm() -> None:
    assert found(lambda x, y: rms(x + y), X, X) == [0]
    # Of one matrix: computed again from it.
    assert found(lambda x, y: rms(2 * x) + y, X, X) == []
    # In memory in any case, and what follows from it alone.
    assert found(lambda x, y: rms((x + y) * 2), X, X, stored=(0,)) == []


@pytest.mark.parametrize("norm", [jax.nn.softmax, jax.jit(rms), jax.nn.standardize])
def test_kinds_of_norms(norm: Callable[..., Any]) -> None:
    assert found(lambda x, y: norm(x + y), X, X) == [0]


def test_what_has_no_row_statistics() -> None:
    assert found(lambda x, y: jax.nn.silu(x + y), X, X) == []
    assert found(lambda x, y: (x + y, jnp.sum(x + y, 0)), X, X) == []
    # Its sum is all that is read.
    assert found(lambda x, y: jnp.sum(x + y, -1), X, X) == []


def test_gradients_of_norms() -> None:
    """The backward pass multiplies a cotangent before it adds rows of it."""
    gradient = lambda x, d, e: jax.vjp(rms, x)[1](d + e)[0]  # noqa: E731
    eqns = jax.make_jaxpr(gradient)(X, X, X).jaxpr.eqns
    kinds = [eqns[i].primitive.name for i in found(gradient, X, X, X)]
    assert kinds[:1] in (["add"], ["convert_element_type"], ["mul"])


class TestFused:
    """Products take along what is in memory, and read no more than that."""

    @pytest.fixture(autouse=True)
    def _linked(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        monkeypatch.setattr(fuse, "link_refusal", lambda *_: None)
        with config.target("sm90"), config.linked_epilogues(True):
            yield

    @staticmethod
    def axes(f: Any, *args: Any) -> list[tuple[list[tuple[int, ...]], tuple[int, ...]]]:
        """Of every fused equation: its operands' axes, and which results are sums."""
        jaxpr = jax.make_jaxpr(bw.accelerate(f))(*args)
        programs = [
            eqn.params["fused"].program
            for eqn, _ in equations(jaxpr)
            if eqn.primitive is bw_gemm_epilogue_p
        ]
        return [([x.axes for x in p.operands], p.summed) for p in programs]

    @pytest.mark.parametrize("name", ["layers", "layers in 8 bits", *range(12, 20)])
    def test_what_is_kept_is_what_would_be_found_again(
        self, monkeypatch: pytest.MonkeyPatch, name: str | int
    ) -> None:
        """After each replacement, whatever was looked at before it."""
        times = 0

        def checked(self: Materialised, changed: Iterable[Any]) -> None:
            nonlocal times
            times += 1
            kept(self, changed)
            flow = self._flow
            names = [v for e in flow.eqns for v in (*variables(e.invars), *e.outvars)]
            again = Materialised(flow, is_elementwise)
            assert [v for v in names if v in self] == [v for v in names if v in again]

        kept = Materialised.forget
        monkeypatch.setattr(Materialised, "forget", checked)
        if isinstance(name, int):
            f, args = program(name)
        else:
            f, args = (
                jax.grad(self.layers if name == "layers" else bw.autocast(self.layers)),
                (
                    jnp.ones((128, 128), jnp.bfloat16) / 128,
                    jnp.ones((128, 128), jnp.bfloat16),
                ),
            )
        jax.make_jaxpr(bw.accelerate(f))(*args)
        assert times >= (2 if isinstance(name, str) else 0)

    @staticmethod
    def layers(w: jax.Array, x: jax.Array) -> jax.Array:
        for _ in range(3):
            x = x + jax.nn.silu(rms(x) @ w) @ w
        return jnp.sum(x.astype(F32) ** 2)

    def test_a_transformer_s_residuals_and_scales(self) -> None:
        w = jnp.ones((128, 128), jnp.bfloat16) / 128
        scales, bias = jnp.ones((3, 128), jnp.bfloat16), jnp.zeros(128, jnp.bfloat16)

        def loss(w: Any, scales: Any, bias: Any, x: Any) -> Any:
            for i in range(3):
                x = x + (jnp.sin((rms(x) * scales[i]) @ w) @ w + bias)
            return jnp.sum((x @ w).astype(F32))

        programs = self.axes(jax.grad(loss, (0, 1, 2)), w, scales, bias, jnp.ones(SHAPE, w.dtype))
        # Every residual: the sum before, and the bias.
        assert sum(sorted(axes) == [(0, 1), (1,)] and not s for axes, s in programs) >= 2
        # Every scale's gradient: the residual sum that the norm read, and its row statistics.
        sums = [axes for axes, s in programs if s]
        assert len(sums) >= 2
        assert all(axes.count((0, 1)) <= 3 for axes in sums)


@pytest.mark.parametrize("replaced", [False, True])
def test_a_network_is_looked_at_once(monkeypatch: pytest.MonkeyPatch, replaced: bool) -> None:
    """Twice as many layers: twice as many questions, not four times.

    No kernel takes the residual sums, so that each is looked through; with ``replaced``, products
    and what follows them are replaced meanwhile.
    """
    asked = 0

    def counted(self: Materialised, v: Any) -> bool:
        nonlocal asked
        asked += 1
        return whole(self, v)

    whole = Materialised._has_statistics
    monkeypatch.setattr(Materialised, "_has_statistics", counted)
    counts = []
    for layers in (8, 16):

        def f(w: jax.Array, x: jax.Array, layers: int = layers) -> jax.Array:
            for _ in range(layers):
                product = rms(x) @ w
                x = x + (jax.nn.silu(product) @ w if replaced else jnp.cumsum(product, 0))
            return jnp.sum(x.astype(F32) ** 2)

        asked = 0
        jax.make_jaxpr(bw.accelerate(jax.grad(f)))(
            jnp.ones((128, 128), jnp.bfloat16), jnp.ones((64, 128), jnp.bfloat16)
        )
        counts.append(asked)
    assert 0 < counts[1] < 2.5 * counts[0]


@pytest.mark.parametrize("axes", [0, None])
def test_sums_over_rows_are_no_row_statistics(axes: int | None) -> None:
    """Nor is a sum of everything, such as a loss."""
    assert found(lambda x, y: (lambda z: (z * 2, jnp.sum(z, axes)))(x + y), X, X) == []


def _rows(v: jax.Array) -> jax.Array:
    return jnp.sum(jnp.abs(v.astype(F32)), -1)


def _sum_of_one(a: Any, b: Any, c: Any) -> Any:
    y = a + b
    return _rows(y) + 0, (y * c) @ c


def _sums_of_two(a: Any, b: Any, c: Any) -> Any:
    y = a + b
    z = jnp.sin(y)
    return _rows(y) + 0, _rows(z) + 0, (y * c) @ c, (z * c) @ c


def _other_operand(a: Any, b: Any, c: Any) -> Any:
    return _rows(a + b) + 0, (c * jnp.bfloat16(2)) @ c


def _transposed(a: Any, b: Any, c: Any) -> Any:
    y = a + b
    t = y.T
    return _rows(y) + 0, (y * c) @ c, c * jnp.bfloat16(3), t * c


def _first(eqns: list[Any], name: str, number: int = 0) -> Any:
    return [e for e in eqns if e.primitive.name == name][number]


def _other_axis(eqns: list[Any]) -> dict[int, list[Any]]:
    e = _first(eqns, "reduce_sum")
    return {id(e): [e.replace(params={**e.params, "axes": (0,)})]}


def _another_sum(a: Any, b: Any, c: Any) -> Any:
    return _rows(a + b) + 0, (c + jnp.bfloat16(2)) @ c


def _sums_the_sum(eqns: list[Any]) -> dict[int, list[Any]]:
    e = [e for e in eqns if e.primitive.name == "add" and e.outvars[0].aval.shape == (8, 8)][1]
    return {id(e): [e.replace(invars=[_first(eqns, "add").outvars[0], e.invars[1]])]}


def _reads_the_sum(eqns: list[Any]) -> dict[int, list[Any]]:
    e = _first(eqns, "mul")
    return {id(e): [e.replace(invars=[_first(eqns, "add").outvars[0], e.invars[1]])]}


def _product_of_transposed(eqns: list[Any]) -> dict[int, list[Any]]:
    dot, e = _first(eqns, "dot_general"), _first(eqns, "mul", 1)
    transposed = _first(eqns, "transpose").outvars[0]
    return {id(e): [dot.replace(invars=[transposed, dot.invars[1]], outvars=e.outvars)]}


@pytest.mark.parametrize(
    ("f", "change"),
    [
        (_sum_of_one, _other_axis),  # a statistic less: what is above it
        (_sums_of_two, _other_axis),  # and what is made of that
        (_other_operand, _reads_the_sum),  # a reader more
        (_another_sum, _sums_the_sum),  # and what it makes
        (_transposed, _product_of_transposed),  # one form of it is in memory now
    ],
)
def test_what_a_replacement_changes_is_forgotten(
    f: Callable[..., Any], change: Callable[[list[Any]], dict[int, list[Any]]]
) -> None:
    body = jax.make_jaxpr(f)(*[jnp.ones((8, 8), jnp.bfloat16)] * 3).jaxpr
    flow = Dataflow(body, list(body.eqns), [Uses(1, stored=True)] * len(body.outvars))
    kept = Materialised(flow, is_elementwise)

    def of(those: Materialised) -> list[Any]:
        names = [v for e in flow.eqns for v in (*variables(e.invars), *e.outvars)]
        return [v for v in names if v in those]

    of(kept)  # looks at everything
    kept.forget(flow.update(change(list(body.eqns))))
    assert of(kept) == of(Materialised(flow, is_elementwise))
