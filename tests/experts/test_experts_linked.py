"""`grouped_mlp` and `moe_mlp` with functions linked into the products' kernels, in the emulator."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from emulator_cases import requires_emulator
from grouped_linked_cases import kernels
from linked_cases import linked_for_sm90, requires_linker  # noqa: F401
from numerics import LINKED, normal

import jax_bwgemm as bw

pytestmark = [*requires_emulator, requires_linker]

F32 = jnp.float32
M, E, K, H, N = 90, 3, 64, 72, 128
SIZES = np.array([50, 0, 33], np.int32)  # the last rows are no group's
SOME = ("emulator", "xla")  # of some products a build may have no kernels
Arrays = dict[str, Any]

wide_tile = pytest.mark.skipif(
    not any(k.schedule == "pingpong" for k in kernels("emulator")),
    reason="no kernel of gate and up was built",
)


@pytest.fixture
def arrays() -> Arrays:
    rng = np.random.default_rng(0)
    shapes = {"rows": (M, K), "up": (E, K, 2, H), "down": (E, H, N), "row_weights": (M,)}
    scales = {"up": K**-0.5, "down": H**-0.5}
    return {
        name: jnp.asarray(normal(rng, shape, "bfloat16")) * jnp.bfloat16(scales.get(name, 1.0))
        for name, shape in shapes.items()
    }


FORMS = {
    "gated": lambda a: a,
    "plain": lambda a: a | {"up": a["up"][:, :, 0]},
    "without weights": lambda a: {n: x for n, x in a.items() if n != "row_weights"},
}
forms = pytest.mark.parametrize("form", FORMS)


def ours(a: Arrays, **more: Any) -> jax.Array:
    more.setdefault("implementation", SOME)
    return bw.grouped_mlp(
        a["rows"], a["up"], a["down"], SIZES, row_weights=a.get("row_weights"), **more
    )


def formula(a: Arrays) -> jax.Array:
    a = {name: x.astype(F32) for name, x in a.items()}
    group = np.repeat(np.arange(E + 1), [*SIZES, M - SIZES.sum()])
    of_group = (group[:, None] == np.arange(E)).astype(np.float32)
    z = jnp.einsum("mk,ek...h,me->m...h", a["rows"], a["up"], of_group)
    hidden = jax.nn.silu(z[:, 0]) * z[:, 1] if z.ndim == 3 else jax.nn.silu(z)
    hidden = hidden * a["row_weights"][:, None] if "row_weights" in a else hidden
    return jnp.einsum("mh,ehn,me->mn", hidden, a["down"], of_group)


def loss(f: Any) -> Any:
    return lambda a: jnp.sum(jnp.sin(f(a).astype(F32)))


def same(got: Any, want: Any) -> None:
    for ours, theirs in zip(*map(jax.tree.leaves, (got, want)), strict=True):
        ours, theirs = (np.asarray(x).astype(np.float32) for x in (ours, theirs))
        got, wanted = (x / np.max(np.abs(theirs)) for x in (ours, theirs))
        # Of several roundings: hidden values, both products and their gradients.
        np.testing.assert_allclose(got, wanted, rtol=LINKED["rtol"], atol=3 * LINKED["atol"])


@wide_tile
@forms
def test_values(arrays: Arrays, form: str) -> None:
    a = FORMS[form](arrays)
    f = jax.jit(ours)
    assert f.lower(a).as_text().count("epilogue_digest") == 1
    same(f(a), jax.jit(formula)(a))


@wide_tile
@forms
@pytest.mark.parametrize("recompute", [False, True], ids=["", "recompute"])
def test_gradients(arrays: Arrays, form: str, recompute: bool) -> None:
    a = FORMS[form](arrays)
    f = jax.jit(jax.grad(loss(lambda a: ours(a, recompute=recompute))))
    assert f.lower(a).as_text().count("epilogue_digest") >= 2 + recompute
    same(f(a), jax.jit(jax.grad(loss(formula)))(a))


@wide_tile
def test_forward_mode_and_mapped(arrays: Arrays) -> None:
    toward = jax.tree.map(jnp.cos, arrays)
    both = (jax.jit(lambda a, t, f=f: jax.jvp(f, (a,), (t,))[1]) for f in (ours, formula))
    same(*(f(arrays, toward) for f in both))
    stacked = jax.tree.map(lambda x: jnp.stack([x, -x]), arrays)
    same(*(jax.jit(jax.vmap(f))(stacked) for f in (ours, formula)))


def test_an_activation_that_is_no_epilogue(arrays: Arrays) -> None:
    """It is a pass of XLA's, as it was."""
    softmax = lambda z: jax.nn.softmax(z, axis=-1)  # noqa: E731
    f = jax.jit(lambda a: ours(a, activation=softmax))
    assert "epilogue_digest" not in f.lower(arrays).as_text()
    assert jnp.all(jnp.isfinite(f(arrays).astype(F32)))


@wide_tile
def test_moe_layer(arrays: Arrays) -> None:
    rng = np.random.default_rng(1)
    x = arrays["rows"]
    experts = jnp.asarray(np.argsort(rng.random((M, E)), axis=1)[:, :2], jnp.int32)
    weights = jnp.asarray(rng.random((M, 2)), F32)

    def layer(x: Any, up: Any, down: Any, weights: Any) -> Any:
        return bw.moe_mlp(x, up, down, experts, weights, implementation=SOME)

    def dense(x: Any, up: Any, down: Any, weights: Any) -> Any:
        x, up, down = (v.astype(F32) for v in (x, up, down))
        z = jnp.einsum("tk,ekph->teph", x, up)
        y = jnp.einsum("teh,ehn->ten", jax.nn.silu(z[:, :, 0]) * z[:, :, 1], down)
        return jnp.sum(jnp.take_along_axis(y, experts[:, :, None], 1) * weights[:, :, None], 1)

    given = (x, arrays["up"], arrays["down"], weights)
    assert "epilogue_digest" in jax.jit(layer).lower(*given).as_text()
    same(jax.jit(layer)(*given), jax.jit(dense)(*given))
    gradients = [
        jax.jit(jax.grad(lambda *a, f=f: jnp.sum(jnp.sin(f(*a).astype(F32))), (0, 1, 2, 3)))
        for f in (layer, dense)
    ]
    same(gradients[0](*given), gradients[1](*given))
