"""What tests of linked epilogues share: kernels, epilogues and their reference."""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numerics import LINKED, normal

from jax_bwgemm import config, runtime
from jax_bwgemm.epilogue.linkable import linkable_kernels
from jax_bwgemm.epilogue.linker import LinkError, linker
from jax_bwgemm.product.kernels import Kernel

F32 = jnp.float32


def unlinkable() -> str | None:
    """Why nothing can be linked here; None when it can."""
    if not linkable_kernels():
        return "no kernels for linking were built"
    try:
        linker()
    except LinkError as error:
        return str(error)
    return None


requires_linker = pytest.mark.skipif(unlinkable() is not None, reason=str(unlinkable()))


@pytest.fixture(autouse=True)
def linked_for_sm90(shared_folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Linking is on, for an SM90; one cache for all tests, so that each kernel is linked once."""
    monkeypatch.setenv("BWGEMM_LINK_CACHE", str(shared_folder / "linked"))
    with config.target("sm90", 4), config.linked_epilogues(True):
        yield


def kernels(implementation: str, archs: Sequence[str] = ("sm90",)) -> list[Kernel]:
    """Those of one product that epilogues are linked into."""
    found = linkable_kernels()
    table = [k for k in runtime.kernel_table(implementation) if k.arch in archs]
    return [k for k in table if k.name in found and k.contraction == "dense"]


# name -> (function, (shape, type) of every operand; "m" and "n" stand for sizes)
EPILOGUES: dict[str, tuple[Callable[..., Any], list[tuple[tuple[Any, ...], str]]]] = {
    "bias, gelu": (
        lambda z, b: jax.nn.gelu(z + b.astype(F32)),
        [(("n",), "bfloat16")],
    ),
    "bias, silu, residual": (
        lambda z, b, r: jax.nn.silu(z + b) + r.astype(F32),
        [(("n",), "float32"), (("m", "n"), "bfloat16")],
    ),
    "activation and its argument": (
        lambda z, c: (jnp.square(jax.nn.relu(z * c)), z),
        [(("m", 1), "float32")],
    ),
    "every kind of result": (
        lambda z, s, r, k: (
            jnp.tanh(z * s) + r,
            (z > 0).astype(jnp.int32) + k,
            z.astype(jnp.bfloat16),
        ),
        [((), "float32"), (("m", "n"), "float32"), (("m", "n"), "int32")],
    ),
    "three matrices": (
        lambda z, r, s, t: z * r.astype(F32) + s.astype(F32) * t.astype(F32),
        [(("m", "n"), "bfloat16")] * 3,
    ),
    "gate and up, their gradients": (
        lambda z, g, u: jax.vjp(lambda g, u: jax.nn.silu(g) * u, g.astype(F32), u.astype(F32))[1](
            z
        ),
        [(("m", "n"), "bfloat16")] * 2,
    ),
    "positions": (
        lambda z, h: jnp.where(
            jax.lax.broadcasted_iota(jnp.int32, z.shape, 0)
            >= jax.lax.broadcasted_iota(jnp.int32, z.shape, 1),
            z * h.astype(F32),
            -1.0,
        ),
        [(("m", 1), "float16")],
    ),
}


def operands(
    rng: np.random.Generator, name: str, m: int, n: int
) -> tuple[Callable[..., Any], list[jax.Array]]:
    """An epilogue and arrays for it."""
    function, types = EPILOGUES[name]
    sizes = {"m": m, "n": n, 1: 1}
    arrays = []
    for shape, dtype in types:
        actual = tuple(sizes[x] for x in shape)
        if dtype == "int32":
            arrays.append(jnp.asarray(rng.integers(-9, 9, actual, dtype)))
        else:
            arrays.append(jnp.asarray(normal(rng, actual, dtype)))
    return function, arrays


def product(rng: np.random.Generator, kernel: Kernel, m: int, n: int, k: int) -> tuple[Any, Any]:
    """Operands of a product, B as the kernel reads it without a copy."""
    a = normal(rng, (m, k), kernel.a_dtype)
    b = normal(rng, (n, k) if kernel.b_major == "k" else (k, n), kernel.b_dtype)
    return jnp.asarray(a), jnp.asarray(b * np.asarray(k**-0.5, b.dtype))


def reference(function: Callable[..., Any], a: Any, b: Any, arrays: list[Any]) -> Any:
    """In f32, of the exact product."""

    @jax.jit  # one program, not one for each operation
    def of_product(a: Any, b: Any, *arrays: Any) -> Any:
        return function(jnp.dot(a.astype(F32), b.astype(F32), precision="highest"), *arrays)

    return of_product(a, b, *arrays)


def close_on_gpu(got: Any, want: Any) -> None:
    for ours, theirs in zip(*map(jax.tree.leaves, (got, want)), strict=True):
        if jnp.issubdtype(ours.dtype, jnp.integer):
            # A product near zero may have either sign.
            assert float(jnp.mean(ours != theirs)) < 1e-3
        else:
            np.testing.assert_allclose(ours.astype(F32), theirs.astype(F32), **LINKED)


def close(got: Any, want: Any) -> None:
    for ours, theirs in zip(*map(jax.tree.leaves, (got, want)), strict=True):
        ours, theirs = np.asarray(ours), np.asarray(theirs)
        if jnp.issubdtype(ours.dtype, jnp.integer):
            np.testing.assert_array_equal(ours, theirs)
        else:
            wide = (x.astype(np.float32) for x in (ours, theirs))
            np.testing.assert_allclose(*wide, **LINKED)
