"""What `explain_program` and the log say of decorated functions within a program."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_bwgemm as bw
from jax_bwgemm.product.program_explanation import ProgramExplanation
from jax_bwgemm.product.rewrites import recorded

OPERANDS = tuple(jax.ShapeDtypeStruct(s, "bfloat16") for s in ((256, 256), (256, 16), (16, 256)))
NARROW = "left to XLA: K is 16, at most 32"


def two_products(x: jax.Array, w: jax.Array, b: jax.Array) -> jax.Array:
    """The second one has a K that `accelerate` leaves to XLA."""
    return x @ w @ b


def explained(program: Any, *args: Any) -> ProgramExplanation:
    return bw.explain_program(program, *(args or OPERANDS), device="sm90")


def total(f: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    return lambda *args: f(*args).astype(jnp.float32).sum()


WRAPPED: dict[str, Callable[[Callable[..., Any]], Callable[..., Any]]] = {
    "called": lambda f: lambda *args: f(*args),
    "jit": lambda f: jax.jit(lambda *args: f(*args)),
    "grad": lambda f: jax.jit(jax.grad(total(f))),
    "vmap": lambda f: lambda x, w, b: jax.vmap(f, (0, None, None))(x[None], w, b),
    "checkpoint": jax.checkpoint,
    "scan": lambda f: lambda x, w, b: jax.lax.scan(lambda c, _: (f(c, w, b), None), x, None, 3),
}


@pytest.mark.parametrize("wrap", WRAPPED.values(), ids=WRAPPED)
def test_decisions_are_found_wherever_the_decorator_is(wrap: Callable[..., Any]) -> None:
    found = explained(wrap(bw.accelerate(two_products)))
    assert {x.rewritten for x in found.rewrites} == {True, False}
    text = str(found)
    assert NARROW in text
    assert "the decisions below, or else the log, jax_bwgemm, INFO, say why" in text
    direct = str(explained(bw.accelerate(two_products)))
    assert "the decisions below say why" in direct


def test_what_was_traced_before_is_explained_each_time() -> None:
    step = jax.jit(lambda *args: bw.accelerate(two_products)(*args))
    step(*(jnp.ones(x.shape, x.dtype) for x in OPERANDS))
    first, second = explained(step), explained(step)
    assert first.rewrites == second.rewrites
    assert len(first.rewrites) == 2


def test_decisions_of_autocast_within_accelerate() -> None:
    def loss(a: jax.Array, b: jax.Array, x: jax.Array) -> jax.Array:
        return ((x @ a) @ b).astype(jnp.float32).sum()

    def step(*args: jax.Array) -> Any:
        return jax.value_and_grad(bw.autocast(loss))(*args)

    shapes = (256, 512), (512, 1000), (1024, 256)  # 1000 is no multiple of 16
    types = [jax.ShapeDtypeStruct(s, "bfloat16") for s in shapes]
    found = explained(jax.jit(bw.accelerate(step)), *types)
    by = {x.by: x for x in found.rewrites}
    assert set(by) == {"accelerate", "autocast"}
    text = str(found)
    assert text.index("accelerate, of the products") < text.index("autocast, of the products")
    assert "rewritten: recipe 'blockwise'" in text
    assert "left as it is: 1000 columns" in text


def test_equal_decisions_are_counted() -> None:
    @bw.accelerate
    def layers(x: jax.Array, w: jax.Array, b: jax.Array) -> jax.Array:
        for _ in range(5):
            x = two_products(x, w, b)
        return x

    found = explained(layers)
    assert len(found.rewrites) == 10
    text = str(found)
    assert text.count(NARROW) == 1
    assert "5 x dot_general bf16[256,16] x bf16[16,256] -> bf16[256,256]\n  left to XLA" in text


def test_arguments_that_are_no_arrays() -> None:
    """As modules of Equinox's hold them."""
    found = explained(
        lambda act, *args: act(bw.accelerate(two_products)(*args)), jnp.tanh, *OPERANDS
    )
    assert len(found.rewrites) == 2
    with pytest.raises(TypeError):
        explained(jax.jit(lambda act, x: act(x)), jnp.tanh, OPERANDS[0])
    # NumPy's arrays beside them are operands, and types are those that JAX takes.
    arrays = [np.ones(x.shape, x.dtype) for x in OPERANDS]
    assert len(explained(lambda mode, *args: two_products(*args), "train", *arrays).products) == 2
    types = [jax.core.ShapedArray(x.shape, x.dtype) for x in OPERANDS]
    assert len(explained(two_products, *types).products) == 2


def test_numbers_of_a_function_that_is_not_jitted_stay_numbers() -> None:
    x, w, _ = OPERANDS
    found = bw.explain_program(
        lambda x, w, n, scale: x @ w * scale if n else x, x, w, True, 2, device="sm90"
    )
    assert [count for _, count in found.products] == [1]


def test_numbers_beside_arrays_within_equinoxs_jit() -> None:
    """A module whose leaves are arrays and numbers alone."""
    eqx = pytest.importorskip("equinox")
    dropout = eqx.nn.Dropout(0.1)  # its `inference` is a bool
    net = eqx.nn.Linear(OPERANDS[0].shape[1], 256, dtype=OPERANDS[0].dtype, key=jax.random.key(0))

    def step(net: tuple[Any, Any], x: jax.Array, key: jax.Array) -> jax.Array:
        linear, dropout = net
        return dropout(jax.nn.silu(jax.vmap(linear)(x)), key=key)

    x, key = jnp.ones(OPERANDS[0].shape, OPERANDS[0].dtype), jax.random.key(1)
    for program in (eqx.filter_jit(bw.accelerate(step)), eqx.filter_jit(step)):
        found = bw.explain_program(program, (net, dropout), x, key, device="sm90")
        assert [count for _, count in found.products] == [1]


def test_within_nnx_jit() -> None:
    nnx = pytest.importorskip("flax.nnx")
    layer = nnx.Linear(256, 256, rngs=nnx.Rngs(0), dtype=jnp.bfloat16)
    inner = bw.accelerate(lambda m, x: m(x))
    found = explained(nnx.jit(lambda m, x: inner(m, x)), layer, OPERANDS[0])
    assert len(found.rewrites) == 1


def test_a_recording_ends_with_an_explanation() -> None:
    with recorded() as decisions:
        jax.make_jaxpr(lambda *args: bw.accelerate(two_products)(*args))(*OPERANDS)
    assert len(decisions) == 2
    jax.make_jaxpr(lambda *args: bw.accelerate(two_products)(*args))(*OPERANDS)
    assert len(decisions) == 2


def test_the_log_says_once_what_was_left(caplog: pytest.LogCaptureFixture) -> None:
    from jax_bwgemm.product.implementations import log_once

    log_once.cache_clear()
    arrays = [jnp.ones(x.shape, x.dtype) for x in OPERANDS]
    with caplog.at_level(logging.INFO, "jax_bwgemm"):
        for _ in range(2):
            jax.jit(lambda *args: bw.accelerate(two_products)(*args))(*arrays)
    left = [x for x in caplog.messages if "left to XLA" in x]
    assert len(left) == 1
    assert left[0].startswith("accelerate: dot_general bf16[256,16] x bf16[16,256]")
    assert NARROW in left[0]
    assert "test_decisions.py" in left[0]
