"""`accelerate` around `jax.lax.ragged_dot`, with kernels that take along what follows it."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from emulator_cases import requires_emulator
from grouped_linked_cases import kernels
from linked_cases import linked_for_sm90, requires_linker  # noqa: F401
from numerics import assert_exact, small_integers

import jax_bwgemm as bw

pytestmark = [*requires_emulator, requires_linker]

M, K, H, E = 90, 64, 72, 3
F32 = jnp.float32
SOME = ("emulator", "xla")  # of some products a build may have no kernels

wide_tile = pytest.mark.skipif(
    not any(k.schedule == "pingpong" for k in kernels("emulator")),
    reason="no kernel of gate and up was built",
)


@pytest.fixture(autouse=True)
def _one_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jax, "local_device_count", lambda: 1)


@pytest.fixture
def arrays() -> dict[str, jax.Array]:
    rng = np.random.default_rng(0)
    shapes = {"x": (M, K), "w": (E, K, 2 * H), "down": (E, H, K), "weights": (M,), "b": (2 * H,)}
    return {
        name: jnp.asarray(small_integers(rng, shape, "bfloat16")) for name, shape in shapes.items()
    }


SIZES = jnp.asarray([50, 0, 33], jnp.int32)  # the last rows are no group's


def run(f: Any, *args: Any, linked: int) -> Any:
    lowered = jax.jit(bw.accelerate(f, implementation=SOME)).lower(*args)
    assert lowered.as_text().count("epilogue_digest") == linked
    return lowered.compile()(*args)


def exact(got: Any, want: Any) -> None:
    for ours, theirs in zip(*map(jax.tree.leaves, (got, want)), strict=True):
        assert ours.dtype == theirs.dtype
        assert_exact(ours, np.asarray(theirs))


def test_integers(arrays) -> None:
    """Rows of no group have the function of zero."""

    def f(x: Any, w: Any, weights: Any, b: Any) -> Any:
        z = jax.lax.ragged_dot(x, w, SIZES)
        y = jnp.maximum(z + b, -9) * weights[:, None]
        return y, z

    args = [arrays[name] for name in ("x", "w", "weights", "b")]
    got = run(f, *args, linked=1)
    z = jax.lax.ragged_dot(*(x.astype(F32) for x in args[:2]), SIZES)
    y = jnp.maximum(z + args[3].astype(F32), -9) * args[2].astype(F32)[:, None]
    exact(got, [y.astype(jnp.bfloat16), z.astype(jnp.bfloat16)])


def layer(x: Any, w: Any, down: Any, weights: Any) -> Any:
    """Of integers, whatever its derivatives: a gated layer of experts."""
    gate, up = jnp.split(jax.lax.ragged_dot(x, w, SIZES), 2, axis=-1)
    hidden = jnp.clip(jnp.maximum(gate, 0) * up * weights[:, None], -3, 3)
    return jax.lax.ragged_dot(hidden, down, SIZES)


@wide_tile
def test_integers_of_gate_and_up(arrays) -> None:
    args = [arrays[name] for name in ("x", "w", "down", "weights")]
    got = run(layer, *args, linked=1)
    exact(got, layer(*(x.astype(F32) for x in args)).astype(jnp.bfloat16))


@wide_tile
@pytest.mark.parametrize("remat", [False, True])
def test_gradients(arrays, remat: bool) -> None:
    """Of gate and up, side by side, and of the weights: exact but for what is rounded."""
    args = [arrays[name] for name in ("x", "w", "down", "weights")]
    f = jax.checkpoint(layer) if remat else layer

    def loss(*args: Any) -> Any:
        return jnp.vdot(f(*args).astype(F32), jnp.sign(args[0].astype(F32)))

    step = jax.grad(loss, (0, 1, 2, 3))
    got = run(step, *args, linked=2)
    want = step(*(x.astype(F32) for x in args))
    for ours, theirs in zip(got, want, strict=True):
        scale = float(jnp.max(jnp.abs(theirs)))
        # Hidden values' gradients are rounded once.
        np.testing.assert_allclose(ours.astype(F32) / scale, theirs / scale, atol=2**-7)
