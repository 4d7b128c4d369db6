"""JAX's rules, tested on a layer that is one kernel with an epilogue in it."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from linked_cases import close
from numerics import LINKED

F32 = jnp.float32


class EpilogueRules:
    """Tests to inherit. What follows is the inheriting class's.

    Attributes:
        layer: A function of arrays, which links.
        formula: The same by XLA, in float32.
        residual: Which of the arrays has the result's shape.
        mapped: Axes to map over, of the arrays: several cases.

    A fixture ``arrays`` has the arrays.
    """

    layer: Any
    formula: Any
    residual: int = 3
    mapped: tuple[tuple[int | None, ...], ...]

    def test_gradients(self, arrays) -> None:
        def loss(f: Any) -> Any:
            toward = jnp.sin(arrays[self.residual].astype(F32))
            return lambda *xs: jnp.vdot(f(*xs).astype(F32), toward)

        every = tuple(range(len(arrays)))
        for f in (self.layer, jax.checkpoint(self.layer)):
            gradient = jax.jit(jax.grad(loss(f), every))
            assert "epilogue_digest" in gradient.lower(*arrays).as_text()
            want = jax.jit(jax.grad(loss(self.formula), every))(*arrays)
            for ours, theirs in zip(gradient(*arrays), want, strict=True):
                scale = float(jnp.max(jnp.abs(theirs)))
                got, wanted = (x.astype(F32) / scale for x in (ours, theirs))
                np.testing.assert_allclose(got, wanted, **LINKED)

    def test_forward_mode(self, arrays) -> None:
        toward = tuple(jnp.cos(x) for x in arrays)
        got = jax.jit(lambda *xs: jax.jvp(self.layer, xs, toward))(*arrays)
        want = jax.jit(lambda *xs: jax.jvp(self.formula, xs, toward))(*arrays)
        close(got[0], want[0])
        scale = float(jnp.max(jnp.abs(want[1])))  # of a sum of three rounded ones
        close(got[1].astype(F32) / scale, want[1] / scale)

    def test_second_order(self, arrays) -> None:
        def twice(f: Any) -> Any:
            scalar = lambda x: jnp.sum(f(x, *arrays[1:]).astype(F32) ** 2)  # noqa: E731
            both = jax.jit(lambda x: jax.jvp(jax.grad(scalar), (x,), (jnp.cos(x),))[1])
            return both(arrays[0])

        got, want = twice(self.layer), twice(self.formula)
        scale = float(jnp.max(jnp.abs(want)))
        close(got.astype(F32) / scale, want.astype(F32) / scale)

    def test_vmap(self, arrays) -> None:
        stacked = tuple(jnp.stack([x, -x]) for x in arrays)
        for axes in self.mapped:
            xs = [s if a == 0 else x for s, x, a in zip(stacked, arrays, axes, strict=True)]
            close(*(jax.jit(jax.vmap(f, axes))(*xs) for f in (self.layer, self.formula)))
