"""Operations after products of groups become part of them, where nothing is lost by that."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fuse_cases import check
from jax.sharding import PartitionSpec as P
from numerics import LINKED, normal

import jax_bwgemm as bw
from jax_bwgemm import config
from jax_bwgemm.epilogue.grouped_primitive import bw_grouped_epilogue_p
from jax_bwgemm.product.jaxprs import equations
from jax_bwgemm.rewriting import fuse

M, K, H, E = 64, 128, 192, 3
F32 = jnp.float32
SIZES = jnp.asarray([30, 0, 25], jnp.int32)  # the last rows are no group's
DOT = jax.lax.ragged_dot


@pytest.fixture(autouse=True)
def _linked(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No kernel runs: what is traced counts, and is then computed by XLA."""
    monkeypatch.setattr(fuse, "link_refusal", lambda *_: None)
    with config.target("sm90"), config.linked_epilogues(True):
        yield


@pytest.fixture
def a() -> dict[str, jax.Array]:
    rng = np.random.default_rng(0)
    shapes = {
        "x": (M, K), "gate": (E, K, H), "up": (E, K, H), "down": (E, H, K), "b": (H,),
        "both": (E, K, 2 * H), "weights": (M,), "r": (M, H), "square": (E, M, M), "y": (M, M),
    }  # fmt: skip
    found = {name: jnp.asarray(normal(rng, s, "bfloat16")) for name, s in shapes.items()}
    for name in ("gate", "up", "down", "both", "square"):
        found[name] = found[name] * jnp.bfloat16(found[name].shape[1] ** -0.5)
    return found


def found(f: Any, *args: Any) -> list[tuple[list[tuple[int, ...]], int, str]]:
    """Of every fused equation: the axes of its operands, how many results it has, its form."""
    return [
        (
            [x.axes for x in eqn.params["fused"].program.operands],
            len(eqn.outvars),
            eqn.params["fused"].form,
        )
        for eqn in made(f, *args)
    ]


def made(f: Any, *args: Any) -> list[Any]:
    """The fused equations."""
    jaxpr = jax.make_jaxpr(bw.accelerate(f))(*args)
    return [eqn for eqn, _ in equations(jaxpr) if eqn.primitive is bw_grouped_epilogue_p]


def names(a: dict[str, jax.Array], text: str) -> list[jax.Array]:
    return [a[name] for name in text.split()]


def experts(x: Any, gate: Any, up: Any, down: Any, weights: Any) -> Any:
    """As users write it: two products, and the weights after the third."""
    hidden = jax.nn.silu(DOT(x, gate, SIZES)) * DOT(x, up, SIZES)
    return DOT(hidden, down, SIZES) * weights[:, None]


def stacked(x: Any, both: Any, down: Any, weights: Any) -> Any:
    """With gate and up in one array."""
    gate, up = jnp.split(DOT(x, both, SIZES), 2, axis=-1)
    return DOT(jax.nn.silu(gate) * up * weights[:, None], down, SIZES)


def test_vectors_along_rows_and_columns_and_matrices(a) -> None:
    def f(x: Any, w: Any, weights: Any, b: Any, r: Any) -> Any:
        return jnp.tanh(DOT(x, w, SIZES) * weights[:, None] + b) + r * 0.5

    args = names(a, "x gate weights b r")
    assert found(f, *args) == [([(0,), (1,), (0, 1)], 1, "")]
    check(f, *args)


def test_as_many_rows_as_columns(a) -> None:
    """What a vector lies along is seen from what is done with it."""

    def f(x: Any, w: Any, s: Any, b: Any) -> Any:
        return DOT(x, w, SIZES) * s[:, None] + b

    args = a["y"], a["square"], a["weights"], a["weights"] + 1
    assert found(f, *args) == [([(0,), (1,)], 1, "")]
    check(f, *args)


def test_what_is_computed_after_the_product(a) -> None:
    """Weights that are gathered then, and converted, as routing has it."""
    order = jnp.asarray(np.random.default_rng(1).permutation(M), jnp.int32)

    def f(x: Any, w: Any, weights: Any) -> Any:
        y = DOT(x, w, SIZES)
        return y * weights[order].astype(F32)[:, None].astype(y.dtype)

    args = names(a, "x gate weights")
    assert found(f, *args) == [([(0,)], 1, "")]
    check(f, *args)


def test_a_matrix_computed_after_the_product_is_a_pass(a) -> None:
    def f(x: Any, w: Any, y: Any) -> Any:
        return DOT(x, w, SIZES) + jnp.sort(y, axis=0)

    assert found(f, *names(a, "x gate r")) == []
    check(f, *names(a, "x gate r"))


def test_two_products_of_the_same_rows(a) -> None:
    """Matrices that lie apart have no kernel of both: the second product reads the first."""
    args = names(a, "x gate up down weights")
    assert found(experts, *args) == [([(0, 1)], 1, ""), ([(0,)], 1, "")]
    check(experts, *args)


def test_gate_and_up_in_one_array(a) -> None:
    args = names(a, "x both down weights")
    # The first operand is the second product.
    assert found(stacked, *args) == [([(0, 1), (0,)], 1, "gated")]
    check(stacked, *args)

    def sliced(x: Any, both: Any, down: Any, weights: Any) -> Any:
        z = DOT(x, both, SIZES)
        return DOT(jax.nn.silu(z[:, :H]) * z[:, H:] * weights[:, None], down, SIZES)

    def sliced_from_the_end(x: Any, both: Any, down: Any, weights: Any) -> Any:
        z = DOT(x, both, SIZES)
        up, gate = z[:, H:], z[:, :H]
        return DOT(jax.nn.silu(gate) * up * weights[:, None], down, SIZES)

    for f in (sliced, sliced_from_the_end):
        assert found(f, *args) == [([(0, 1), (0,)], 1, "gated")]
        check(f, *args)


@pytest.mark.parametrize("way", ["unequal", "whole", "one half"])
def test_no_halves(a, way: str) -> None:
    """Of results that are divided otherwise, or read whole too, kernels have no halves."""

    def f(x: Any, both: Any) -> Any:
        z = DOT(x, both, SIZES)
        if way == "unequal":
            first, second = z[:, : H // 2], z[:, H // 2 :]
            return jnp.tanh(first), jnp.tanh(second)
        if way == "whole":
            first, second = jnp.split(z, 2, axis=1)
            return jnp.tanh(first) * second, jnp.sin(z)
        return jnp.tanh(z[:, :H])

    assert [form for _, _, form in found(f, *names(a, "x both"))] == [""] * (way == "whole")
    check(f, *names(a, "x both"))


def loss(f: Any) -> Any:
    return lambda *args: jnp.sum(jnp.sin(f(*args).astype(F32)))


def test_gradients(a) -> None:
    args = names(a, "x gate up down weights")
    step = jax.value_and_grad(loss(experts), tuple(range(5)))
    # Both products are kept; hidden values' gradient comes with both derivatives in its kernel,
    # and then those of x, of which the second reads the first.
    got = found(step, *args)
    assert ([(0, 1)], 2, "") in got  # forward
    assert ([(0, 1), (0, 1)], 2, "") in got  # backward
    check(step, *args)
    check(jax.grad(lambda *xs: bw.accelerate(loss(experts))(*xs), tuple(range(5))), *args)


def test_gradients_side_by_side_and_sums_over_columns(a) -> None:
    args = names(a, "x both down weights")
    step = jax.value_and_grad(loss(stacked), tuple(range(4)))
    got = found(step, *args)
    assert ([(0, 1), (0,)], 3, "gated") in got
    # Gradients of gate and up in one array; that of the weights, whose terms are computed again.
    assert [x for x in got if x[2] == "halves"] == [([(0, 1), (0, 1), (0,)], 2, "halves")]
    (halves,) = [e for e in made(step, *args) if e.params["fused"].form == "halves"]
    assert [x.aval.shape for x in halves.outvars] == [(M, 2 * H), (M,)]
    check(step, *args)


@pytest.mark.parametrize("kind", ["scan", "cond", "jit", "checkpoint", "shard_map"])
def test_within_bodies(a, kind: str) -> None:
    args = names(a, "x both down weights")

    def f(x: Any, *rest: Any) -> Any:
        if kind == "scan":
            return jax.lax.scan(lambda x, _: (stacked(x, *rest), None), x, length=2)[0]
        if kind == "cond":
            return jax.lax.cond(jnp.sum(x) > 9e9, lambda x, *_: x, stacked, x, *rest)
        if kind == "shard_map":
            mesh = jax.make_mesh((1,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
            specs = (P("i"), P(), P(), P("i"))
            return jax.shard_map(stacked, mesh=mesh, in_specs=specs, out_specs=P("i"))(x, *rest)
        return {"jit": jax.jit(stacked), "checkpoint": jax.checkpoint(stacked)}[kind](x, *rest)

    assert ([(0, 1), (0,)], 1, "gated") in found(f, *args)
    check(f, *args)
    if kind != "shard_map":
        step = jax.grad(loss(f), (0, 1, 2, 3))
        assert [x for x in found(step, *args) if x[2] == "halves"]
        check(step, *args)


def test_mapped(a) -> None:
    """A product of a batch takes nothing along; mapped after it was rewritten, it is apart."""
    args = [jnp.stack([x, -x]) for x in names(a, "x gate weights")]
    args.append(jnp.stack([SIZES, SIZES + 1]))  # JAX's product maps all of its operands or none

    def f(x: Any, w: Any, weights: Any, sizes: Any) -> Any:
        return jnp.tanh(DOT(x, w, sizes)) * weights[:, None]

    inside = jax.vmap(f)
    assert found(inside, *args) == []
    check(inside, *args)
    got, want = jax.jit(jax.vmap(bw.accelerate(f)))(*args), jax.jit(inside)(*args)
    scale = float(jnp.max(jnp.abs(want)))
    np.testing.assert_allclose(
        got.astype(F32) / scale, want.astype(F32) / scale, atol=4 * LINKED["atol"]
    )
    text = str(bw.explain_program(bw.accelerate(inside), *args, device="sm90"))
    assert "what follows is a pass of XLA's: the product is a batch" in text


def test_biases_of_experts_are_read_by_a_pass(a) -> None:
    """Gathered by expert they are a matrix, which is not worth writing."""
    ids = jnp.repeat(jnp.arange(E), SIZES, total_repeat_length=M)

    def f(x: Any, w: Any, biases: Any) -> Any:
        return jax.nn.silu(DOT(x, w, SIZES) + biases[ids])

    def before(x: Any, w: Any, biases: Any) -> Any:
        rows = biases[ids]
        return jax.nn.silu(DOT(x, w, SIZES) + rows)

    args = a["x"], a["gate"], jnp.ones((E, H), jnp.bfloat16)
    for one in (f, before):
        assert found(one, *args) == []
    check(f, *args)


def test_other_types_and_rounded_results(a) -> None:
    x, w = names(a, "x gate")
    wide = lambda x, w: jnp.tanh(DOT(x, w, SIZES, preferred_element_type=F32))  # noqa: E731
    assert found(wide, x, w) == []
    check(wide, x, w)


def test_results_that_all_readers_round(a) -> None:
    """The kernel rounds, and takes along what follows; alone that is no epilogue."""
    x, w = names(a, "x gate")
    rounded = lambda x, w: DOT(x, w, SIZES, preferred_element_type=F32).astype(x.dtype)  # noqa: E731
    assert found(rounded, x, w) == []
    f = lambda x, w: jnp.tanh(rounded(x, w)) * x[:, :1]  # noqa: E731
    assert found(f, x, w) == [([(0,)], 1, "")]
    check(f, x, w)
    step = jax.grad(lambda x, w: jnp.sum(f(x, w).astype(F32)), (0, 1))
    check(step, x, w)
    rewrites = bw.explain_program(bw.accelerate(step), x, w, device="sm90").rewrites
    assert all("a kernel takes it, which rounds to bfloat16" in one.reason for one in rewrites)


def test_halves_of_an_array_are_two_results(a) -> None:
    """With another array, a sum and the product they are five: a pass of XLA's sums."""

    def f(x: Any, w: Any) -> Any:
        y = DOT(x, w, SIZES)
        t = jnp.tanh(y)
        return jnp.concatenate([t, y * 2], axis=1), jnp.sin(y), y, jnp.sum(t, 1)

    for results, count in ((4, 3), (3, 3)):
        one = lambda x, w, n=results: f(x, w)[:n]  # noqa: E731
        assert [n for _, n, _ in found(one, *names(a, "x gate"))] == [count]
    check(f, *names(a, "x gate"))


@pytest.mark.parametrize("stored", [False, True])
def test_a_matrix_whose_rows_were_moved(a, stored: bool) -> None:
    """Where it goes to memory, kernels read it there; a pass reads it where it was."""

    def f(x: Any, w: Any, r: Any) -> Any:
        moved = jnp.concatenate([r[M // 2 :], r[: M // 2]])
        y = jnp.tanh(DOT(x, w, SIZES)) * moved
        return (y, moved) if stored else y

    assert found(f, *names(a, "x gate r")) == [([(0, 1)], 1, "")] * stored
    check(f, *names(a, "x gate r"))


def test_results_one_below_the_other_are_a_pass(a) -> None:
    """Which reads the product; another function of it is the kernel's."""

    def f(x: Any, w: Any) -> Any:
        y = DOT(x, w, SIZES)
        return jnp.concatenate([jnp.tanh(y), y * 2], axis=0), jnp.sin(y)

    assert found(f, *names(a, "x gate")) == [([], 2, "")]
    check(f, *names(a, "x gate"))


def test_what_only_passes_read_stays_with_them(a) -> None:
    x, w = names(a, "x gate")
    f = lambda x, w: jnp.sum(jnp.square(DOT(x, w, SIZES).astype(F32)))  # noqa: E731
    assert found(f, x, w) == []


def test_explained(a) -> None:
    args = names(a, "x both down weights")
    text = str(bw.explain_program(bw.accelerate(stacked), *args, device="sm90"))
    assert "and an epilogue of 1 operand" in text
    assert "ragged_dot_general" in text


def test_unless_it_is_sure_halves_stay_with_xla(a, monkeypatch: pytest.MonkeyPatch) -> None:
    """Apart they would be read in one array, without a copy."""
    monkeypatch.setattr(fuse, "link_refusal", lambda *_: "no")
    args = names(a, "x both down weights")
    step = jax.value_and_grad(loss(stacked), tuple(range(4)))
    # Neither would derivatives read halves of the product, which kernels read as copies. Of the
    # last product the loss's derivative is.
    assert found(step, *args) == [([], 2, "")]
    check(step, *args)


def test_unless_it_is_sure_xla_lays_results_side_by_side(
    a, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pass that does that computes them, too."""

    def f(x: Any, w: Any) -> Any:
        y = DOT(x, w, SIZES)
        return jnp.concatenate([jnp.tanh(y), y * 2], axis=1)

    g = lambda x, w: f(x, w)  # noqa: E731
    assert [form for *_, form in found(f, *names(a, "x gate"))] == ["halves"]
    monkeypatch.setattr(fuse, "link_refusal", lambda *_: "no")
    assert found(g, *names(a, "x gate")) == []
