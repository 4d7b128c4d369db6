"""Functions of equal equations are equal, so that an eager call compiles nothing again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.xla_metadata import set_xla_metadata

import jax_bwgemm as bw
from jax_bwgemm import config
from jax_bwgemm.rewriting import fuse
from jax_bwgemm.rewriting.comparable import Comparable, key_of

SIZE = 256
X = jnp.ones((SIZE, SIZE), jnp.bfloat16)

STEPS: dict[str, Callable[..., Any]] = {
    "relu": lambda w: jax.nn.relu(w @ w),
    "gelu": lambda w: jax.nn.gelu(w @ w + 1),
    "gradient": jax.grad(lambda w: jnp.sum(jax.nn.silu(w @ w).astype(jnp.float32))),
    "where": lambda w: jnp.where(w > 0, w @ w, jnp.clip(w @ w, -1, 1)),
    "quantized": lambda w: bw.quantize(jnp.tanh(w @ w) * w, "1x128").values,
}


@pytest.mark.parametrize("name", STEPS)
def test_eager_calls_compile_once(
    name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def compiled() -> int:
        return sum("Compiling" in record.getMessage() for record in caplog.records)

    monkeypatch.setattr(fuse, "link_refusal", lambda *_: None)
    f = bw.accelerate(STEPS[name])
    with config.target("sm90"), config.linked_epilogues(True), jax.log_compiles():
        want = f(X)
        assert compiled() > 0
        caplog.clear()
        got = f(X)
    assert compiled() == 0
    np.testing.assert_array_equal(np.asarray(got, np.float32), np.asarray(want, np.float32))


def _key(f: Callable[..., Any], *shapes: tuple[int, ...]) -> Any:
    types = [jax.ShapeDtypeStruct(s, jnp.float32) for s in shapes or ((4,),)]
    return key_of(jax.make_jaxpr(f)(*types))


SAME: list[Callable[..., Any]] = [
    lambda x: x * 2 + 1,
    lambda x: jax.nn.relu(x),
    lambda x: jax.jit(jnp.tanh)(x),
    lambda x: jax.nn.silu(jnp.where(x > 0, x, 3.5)),
    lambda x: jnp.sum(x, 0),
]


@pytest.mark.parametrize("f", SAME)
def test_a_function_traced_twice_is_equal(f: Callable[..., Any]) -> None:
    assert _key(f) == _key(lambda x: f(x))
    assert hash(Comparable(_key(f), f)) == hash(Comparable(_key(f), len))


def test_what_differs_is_not_equal() -> None:
    def tagged(x: jax.Array) -> jax.Array:
        with set_xla_metadata(tag="x"):
            return x * 2

    tables = np.arange(4, dtype=np.float32), np.ones(4, np.float32)

    different = [
        _key(lambda x: x * 2),
        _key(lambda x: x * 3),
        _key(lambda x: x * jnp.float32(np.nextafter(np.float32(2), np.float32(3)))),
        _key(lambda x: x + 2),
        _key(lambda x: 2 - x),
        _key(lambda x: x - 2),
        _key(lambda x: x * 2, (5,)),
        _key(lambda x: (x * 2, x)),
        _key(lambda x, y: x - y, (4,), (4,)),
        _key(lambda x, y: y - x, (4,), (4,)),
        _key(lambda x: jax.jit(lambda y: y * 2)(x)),
        _key(lambda x: jax.nn.relu(x)),
        _key(lambda x: jax.nn.relu6(x)),
        _key(lambda x: jnp.sum(x, keepdims=True)),
        _key(tagged),
        *(_key(lambda x, table=table: x * table) for table in tables),
    ]
    assert len(set(different)) == len(different)


def test_what_cannot_be_compared_is_equal_to_nothing() -> None:
    @jax.custom_jvp
    def own(x: jax.Array) -> jax.Array:
        return x * 2

    own.defjvp(lambda primals, tangents: (own(*primals), tangents[0] * 3))
    assert _key(lambda x: own(x)) != _key(lambda x: own(x))

    def printed(x: jax.Array) -> jax.Array:
        jax.debug.print("{}", x)
        return x

    assert _key(printed) != _key(printed)
