"""What tests of grouped kernels with linked epilogues share: kernels, epilogues, a reference."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numerics import normal, small_integers

import jax_bwgemm as bw
from jax_bwgemm import runtime
from jax_bwgemm.epilogue.apply import Epilogue
from jax_bwgemm.epilogue.linkable import linkable_kernels
from jax_bwgemm.grouped.api import ragged_dot_with_epilogue
from jax_bwgemm.grouped.with_epilogue import After, EpilogueOperands
from jax_bwgemm.product.kernels import Kernel

F32 = jnp.float32
EXPERTS = 6
TRANSPOSED = jax.lax.RaggedDotDimensionNumbers((((1,), (2,)), ((), ())), (0,), (0,))


def kernels(implementation: str, arch: str = "sm90") -> list[Kernel]:
    """The grouped ones of operands without scales that epilogues are linked into."""
    found = linkable_kernels()
    table = [k for k in runtime.kernel_table(implementation) if k.arch == arch]
    return [k for k in table if k.name in found and k.contraction == "m_grouped" and not k.scales]


# name -> (function, operands, operands of groups); "m", "n" and "e" stand for sizes
Shapes = list[tuple[tuple[Any, ...], str]]
EPILOGUES: dict[str, tuple[Callable[..., Any], Shapes, Shapes]] = {
    "weights of rows": (lambda z, w: z * w, [(("m", 1), "float32")], []),
    "bias of groups, silu": (
        lambda z, b, s: jax.nn.silu(z + b.astype(F32)) * s,
        [],
        [(("e", "n"), "bfloat16"), (("e",), "float32")],
    ),
    "activation and product": (
        lambda z, w: (jax.nn.gelu(z) * w, z),
        [(("m", 1), "bfloat16")],
        [],
    ),
    "derivative": (
        lambda z, w, p: jax.vjp(jax.nn.silu, p.astype(F32))[1](z * w)[0],
        [(("m", 1), "float32"), (("m", "n"), "16 bits")],
        [],
    ),
    "two of all": (
        lambda z, r, q, b, c: (z * q + b, r.astype(F32) - z + c.astype(F32)),
        [(("m", "n"), "16 bits"), (("m", "n"), "float32")],
        [(("e", "n"), "float32"), (("e", "n"), "float16")],
    ),
    "every kind of result": (
        lambda z, s, k, r: (
            jnp.tanh(z * s),
            (z > 0).astype(jnp.int32) + k,
            jax.lax.broadcasted_iota(jnp.int32, z.shape, 0) - z,
            z + r,
        ),
        [((), "float32"), (("m", "n"), "int32"), (("n",), "bfloat16")],
        [],
    ),
}


def operands(
    rng: np.random.Generator, name: str, m: int, n: int, dtype: str
) -> tuple[Callable[..., Any], list[jax.Array], list[jax.Array]]:
    """An epilogue, arrays for it, and those of groups."""
    function, *kinds = EPILOGUES[name]
    sizes = {"m": m, "n": n, "e": EXPERTS, 1: 1}

    def array(shape: tuple[Any, ...], kind: str) -> jax.Array:
        actual = tuple(sizes[x] for x in shape)
        if kind == "int32":
            return jnp.asarray(rng.integers(-9, 9, actual, kind))
        return jnp.asarray(normal(rng, actual, dtype if kind == "16 bits" else kind))

    plain, of_groups = ([array(*x) for x in shapes] for shapes in kinds)
    return function, plain, of_groups


def product(
    rng: np.random.Generator, kernel: Kernel, m: int, n: int, k: int, *, exact: bool = False
) -> tuple[jax.Array, jax.Array]:
    """Operands of a product: integers where sums are to be exact."""
    shapes = (m, k), (EXPERTS, k, n)
    if exact:
        a, b = (jnp.asarray(small_integers(rng, s, kernel.a_dtype)) for s in shapes)
        return a, b
    a, b = (jnp.asarray(normal(rng, s, kernel.a_dtype)) for s in shapes)
    return a, b * jnp.asarray(k**-0.5, b.dtype)


def run(
    f: Callable[..., Any],
    factors: Sequence[Any],
    plain: Sequence[Any] = (),
    of_groups: Sequence[Any] = (),
    implementation: str = "emulator",
    *,
    transposed: bool = False,
    **more: Any,
) -> Any:
    """An epilogue by a kernel that it is linked into: anything else is an error.

    ``transposed``: matrices are read as [E, N, K], as gradients read them.
    """

    def call(factors: Any, plain: Any, of_groups: Any) -> Any:
        if transposed:
            return ragged_dot_with_epilogue(
                *factors,
                TRANSPOSED,
                After(Epilogue(f, "test"), EpilogueOperands(tuple(plain), tuple(of_groups))),
                implementation=implementation,
                **more,
            )
        return bw.ragged_dot(
            *factors,
            epilogue=f,
            epilogue_operands=plain,
            epilogue_group_operands=of_groups,
            implementation=implementation,
            **more,
        )

    if transposed:
        factors = (factors[0], factors[1].swapaxes(1, 2), factors[2])
    lowered = jax.jit(call).lower(factors, plain, of_groups)
    assert lowered.as_text().count("epilogue_digest") == 1
    return lowered.compile()(factors, plain, of_groups)


def reference(
    f: Callable[..., Any],
    factors: Sequence[Any],
    plain: Sequence[Any] = (),
    of_groups: Sequence[Any] = (),
    offset: int = 0,
) -> Any:
    """In f32, of the exact product, group by group."""
    a, b, sizes = (np.asarray(x) for x in factors)
    rows = a.shape[0]
    z = np.zeros((rows, b.shape[2]), np.float32)
    found = [np.zeros((rows, *(x.shape[1:] or (1,))), x.dtype) for x in map(np.asarray, of_groups)]
    start = 0
    for group, size in enumerate(sizes):
        end = min(rows, start + max(int(size), 0))
        expert = group - offset
        if 0 <= expert < b.shape[0]:
            z[start:end] = a[start:end].astype(np.float32) @ b[expert].astype(np.float32)
            for x, given in zip(found, of_groups, strict=True):
                x[start:end] = np.asarray(given)[expert]
        start = end
    return f(jnp.asarray(z), *plain, *map(jnp.asarray, found))
