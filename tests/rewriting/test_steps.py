"""Roundings and transposes of a product's result that its kernel takes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from accelerated import SIZE, has_all_majors, square
from jax import lax
from numerics import assert_exact, small_integers

import jax_bwgemm as bw
from jax_bwgemm.product.jaxprs import equations
from jax_bwgemm.rewriting.products import _taken
from jax_bwgemm.rewriting.uses import STORED, Uses, uses_of

X = jax.ShapeDtypeStruct((SIZE, SIZE), jnp.bfloat16)
TRANSPOSE, ROUND = ("transpose", (1, 0)), ("round", "bfloat16")


def wide(x: jax.Array, y: jax.Array) -> jax.Array:
    return jnp.matmul(x, y, preferred_element_type=jnp.float32)


def low(x: jax.Array) -> jax.Array:
    return x.astype(jnp.bfloat16)


@pytest.mark.parametrize(
    ("after", "steps"),
    [
        (lambda d: d, ()),
        (lambda d: d.T, (TRANSPOSE,)),
        (lambda d: low(d), (ROUND,)),
        (lambda d: low(d.T), (TRANSPOSE, ROUND)),
        (lambda d: low(d).T, (ROUND, TRANSPOSE)),
        (lambda d: jax.jit(low)(d.T), (TRANSPOSE, ROUND)),
        (lambda d: d.astype(jnp.float16), (("round", "float16"),)),
        (lambda d: d.reshape(-1, 2).T, ()),
        (lambda d: d.astype(jnp.int32), ()),
        # Readers that begin alike.
        (lambda d: (low(d), jnp.sin(low(d))), (ROUND,)),
        (lambda d: (low(d.T), d.T), (TRANSPOSE,)),
        (lambda d: (low(d), d), ()),
        (lambda d: (low(d), d.astype(jnp.float16)), ()),
    ],
)
def test_first_steps_of_all_readers(after: Callable[..., Any], steps: Any) -> None:
    closed = jax.make_jaxpr(lambda x: after(wide(x, x)))(X)
    product = next(e for e in closed.eqns if e.primitive.name == "dot_general")
    uses = uses_of(closed, [STORED] * len(closed.out_avals))
    assert uses.get(product.outvars[0], Uses()).steps == steps


def kernels_of(f: Callable[..., Any], *args: Any) -> list[str]:
    """Names of the kernels that a program for SM90 calls."""
    with bw.config.target("sm90"):
        text = jax.jit(f).trace(*args).lower(lowering_platforms=("cuda",)).as_text()
    return [part.split('"')[0] for part in text.split('kernel = "')[1:]]


def kinds(f: Callable[..., Any], *args: Any) -> list[str]:
    """Types and majors of the kernels that a program calls."""
    return sorted(name.removeprefix("sm90_").split("_128x")[0].split("_64x")[0]
                  for name in kernels_of(f, *args))  # fmt: skip


@pytest.mark.skipif(not has_all_majors(), reason="this build lacks kernels of some majors")
def test_gradients_of_right_operands_are_written_as_they_are_read() -> None:
    """JAX transposes the product of cotangent and left operand; the kernel exchanges them."""

    def loss(x: jax.Array, w: jax.Array) -> jax.Array:
        return jnp.sum(wide(x, w) ** 2)

    found = kinds(bw.accelerate(jax.grad(loss, (0, 1))), X, X)
    assert found == ["bf16_f32_bf16_mn", "bf16_f32_kn", "f32_bf16_bf16_kk"]
    plain = kinds(bw.accelerate(jax.grad(lambda x, w: jnp.sum(low(x @ w)), (1,))), X, X)
    assert plain == ["bf16_bf16_mn"]


def test_transposed_operands_are_read_as_they_are_stored() -> None:
    """Tied embeddings, weights stored [out, in]: XLA folds their transposes into its products."""
    for f, majors in (
        (lambda x, y: x @ y.T, "kk"),
        (lambda x, y: x.T @ y, "mn"),
        (lambda x, y: x.T.T @ y, "kn"),
    ):
        names = kernels_of(bw.accelerate(f), X, X)
        assert [name.split("_")[3] for name in names] == [majors]
    closed = jax.make_jaxpr(bw.accelerate(lambda x, y: x @ y.T))(X, X)
    product = next(e for e in closed.eqns if e.primitive.name == "bw_gemm")
    made_by = {v: e for e in closed.eqns for v in e.outvars}
    for atom in product.invars:
        while atom in made_by:
            assert made_by[atom].primitive.name != "transpose"
            (atom,) = made_by[atom].invars


CASES: dict[str, Callable[..., Any]] = {
    "rounded": lambda x, y: low(wide(x, y)),
    "transposed": lambda x, y: (x @ y).T,
    "transposed, rounded": lambda x, y: low(wide(x, y).T),
    "rounded, transposed": lambda x, y: low(wide(x, y)).T,
    "twice": lambda x, y: low(wide(x, y).T).T,
    "several readers": lambda x, y: (lambda d: (low(d.T), d.T * 2))(wide(x, y)),
    "three dimensions": lambda x, y: jnp.einsum("abk,kn->nab", x.reshape(8, -1, SIZE), y),
    "batch": lambda x, y: jnp.einsum(
        "bmk,bnk->bnm", x.reshape(8, -1, SIZE), y.reshape(8, -1, SIZE)),
    "another order": lambda x, y: jnp.einsum("abk,kn->bna", x.reshape(8, -1, SIZE), y),
    "vector": lambda x, y: (x @ y[:, 0]).T,
    "f32 beside bf16": lambda x, y: low(
        lax.dot_general(wide(x, x), y, (((0,), (0,)), ((), ())),
                        preferred_element_type=jnp.float32).T),
    "transposed operands": lambda x, y: x.T @ y.T,
    "transposed twice": lambda x, y: x @ y.T.T,
    "batch in another order": lambda x, y: jnp.matmul(
        x.reshape(-1, 8, SIZE).transpose(1, 0, 2), y.reshape(-1, 8, SIZE).transpose(1, 2, 0)),
    "free dimensions in another order": lambda x, y: jnp.einsum(
        "bak,kn->ban", x.reshape(8, -1, SIZE).transpose(1, 0, 2), y),
    # Of equal sizes, so that types do not tell.
    "batch of a cube in another order": lambda x, y: jnp.matmul(
        x[:256].reshape(16, 16, SIZE).transpose(1, 0, 2),
        jnp.roll(x[:256], 16, 0).reshape(16, 16, SIZE).transpose(1, 2, 0)),
    "free dimensions of a cube in another order": lambda x, y: jnp.einsum(
        "bak,kn->ban", x[:256].reshape(16, 16, SIZE).transpose(1, 0, 2), y),
    "gradients": jax.grad(lambda x, y: jnp.sum(wide(x, y) ** 2), (0, 1)),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_values_are_those_of_the_program_as_written(name: str) -> None:
    x = square()
    y = x[::-1]
    want, got = CASES[name](x, y), bw.accelerate(CASES[name])(x, y)
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert_exact(np.asarray(one), np.asarray(other), name)


def test_rounded_without_a_kernel() -> None:
    """A product that is left to XLA after all rounds the same."""
    f = CASES["rounded"]
    accelerated = bw.accelerate(f)
    with bw.config.target("sm90"):
        explained = bw.explain_program(accelerated, X, X, device="sm90")
    (decision,) = explained.rewrites
    assert decision.rewritten
    assert decision.reason == "a kernel takes it, which rounds to bfloat16"
    rng = np.random.default_rng(0)
    x = small_integers(rng, (SIZE, SIZE), "bfloat16")  # sums are exact in f32, rounded in bf16
    assert_exact(np.asarray(accelerated(x, x)), np.asarray(f(x, x)), "on XLA")


def test_a_batch_in_groups_is_not_rounded_by_its_kernel() -> None:
    """It is a dense product of the type that was asked for."""
    numbers = lax.RaggedDotDimensionNumbers((((2,), (1,)), ((0,), (0,))), [0], [])

    def f(x: jax.Array, y: jax.Array, sizes: jax.Array) -> jax.Array:
        return low(lax.ragged_dot_general(x, y, sizes, numbers, preferred_element_type=jnp.float32))

    x, sizes = jnp.ones((8, 64, 128), jnp.bfloat16), jnp.array([3, 5], jnp.int32)
    (one,) = bw.explain_program(bw.accelerate(f), x, x.mT, sizes, device="sm90").rewrites
    assert one.rewritten
    assert "rounds" not in one.reason


@pytest.mark.parametrize(
    ("after", "kinds_taken"),
    [
        (lambda d: d.T, ["transpose"]),
        (lambda d: d.T.T, []),
        (lambda d: low(d.T).T, ["round"]),
        (lambda d: low(d.T.T.T), ["transpose", "round"]),
        (lambda d: (low(d.T.T), d.T.T), []),
    ],
)
def test_transposes_that_cancel_leave_the_operands_as_they_are(
    after: Callable[..., Any], kinds_taken: list[str]
) -> None:
    closed = jax.make_jaxpr(lambda x: after(wide(x, x)))(X)
    product = next(e for e in closed.eqns if e.primitive.name == "dot_general")
    uses = uses_of(closed, [STORED] * len(closed.out_avals))[product.outvars[0]]
    assert [kind for kind, _ in _taken(product, uses)] == kinds_taken


@pytest.mark.parametrize(
    ("first", "second", "exchanged"),
    [((1, 0, 2), (2, 1, 0), True), ((2, 1, 0), (1, 0, 2), False)],
)
def test_the_order_of_transposes_counts(
    first: tuple[int, ...], second: tuple[int, ...], exchanged: bool
) -> None:
    """Of three dimensions, the same two transposes give another one the other way round."""
    x = jax.ShapeDtypeStruct((8, 64, SIZE), jnp.bfloat16)
    closed = jax.make_jaxpr(lambda x, y: wide(x, y).transpose(first).transpose(second))(x, X)
    uses = uses_of(closed, [STORED])[closed.eqns[0].outvars[0]]
    assert dict(_taken(closed.eqns[0], uses)) == ({"transpose": (2, 0, 1)} if exchanged else {})


@pytest.mark.skipif(not has_all_majors(), reason="this build lacks kernels of some majors")
def test_gradients_of_transposed_weights_are_not_transposed() -> None:
    """The embedding, [V, H], is the head's weights too: ``x @ embedding.T``."""
    x, embedding = (jax.ShapeDtypeStruct(s, jnp.bfloat16) for s in ((512, 256), (1024, 256)))
    gradient = jax.grad(lambda e, x: jnp.sum((x @ e.T).astype(jnp.float32) ** 2))
    with bw.config.target("sm90"):
        products = [
            eqn
            for eqn, _ in equations(jax.make_jaxpr(bw.accelerate(gradient))(embedding, x))
            if eqn.primitive.name.startswith("bw")
        ]
    assert [eqn.outvars[0].aval.shape[-2:] for eqn in products] == [(512, 1024), (1024, 256)]


def test_what_a_kernel_exchanged_is_no_copy_for_the_next() -> None:
    """The gradient of a batch's right operand is written in rows, and read in rows after that."""

    def f(w: jax.Array, x: jax.Array, a: jax.Array) -> jax.Array:
        return jnp.sum(jnp.tanh(jnp.einsum("bij,bjd->bid", a, jnp.tanh(x @ w) @ w)))

    a = jax.ShapeDtypeStruct((4, SIZE, SIZE), jnp.bfloat16)
    with bw.config.target("sm90"), bw.config.linked_epilogues(False):
        jaxpr = jax.make_jaxpr(bw.accelerate(jax.grad(f)))(X, a, a)
    transposed = {e.outvars[0] for e in jaxpr.eqns if e.primitive.name == "transpose"}
    ours = [e for e in jaxpr.eqns if e.primitive.name == "bw_gemm"]
    assert ours
    assert not any(x in transposed for e in ours for x in e.invars)


def test_products_that_need_copies_are_left_to_xla() -> None:
    """Attention with heads beside the features; a large product is worth them."""

    def scores(q: jax.Array, k: jax.Array) -> jax.Array:
        return jnp.einsum("bqhd,bkhd->bhqk", q, k)

    def reasons(*shape: int) -> list[tuple[bool, str]]:
        q = jax.ShapeDtypeStruct(shape, jnp.bfloat16)
        with bw.config.target("sm90"):
            found = bw.explain_program(bw.accelerate(scores), q, q).rewrites
        return [(one.rewritten, one.reason) for one in found]

    [(rewritten, why)] = reasons(4, 256, 8, 64)
    assert not rewritten
    assert "transposing 1048576 bytes" in why or "transposing 2097152 bytes" in why
    [(rewritten, _)] = reasons(1, 65536, 2, 128)
    assert rewritten
