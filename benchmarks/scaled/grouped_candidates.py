"""What bench_scaled_grouped.py compares: grouped products of scaled operands, of bf16, torch's.

Operands were quantized before, but for `bf16` products.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from common.timing import Candidate
from grouped.problems import Problem
from jax import lax
from scaled.candidates import Unsupported

import jax_bwgemm as bw


class Kind(NamedTuple):
    """Layouts of scales, and how sums are accumulated."""

    activations: str
    weights: str
    gradients: str
    accumulation: str


KINDS = {
    "tensor": Kind("tensor", "tensor", "tensor", "fast"),
    "row": Kind("row", "row", "row", "fast"),
    "blockwise": Kind("1x128", "128x128", "1x128", "promoted"),
    "blockwise_2d": Kind("128x128", "128x128", "1x128", "promoted"),
}
_CONTRACT = lax.RaggedDotDimensionNumbers((((0,), (0,)), ((), ())), (0,), ())


@dataclasses.dataclass(frozen=True)
class Operands:
    """Numbers of one problem, bfloat16: x [m, k], dy [m, n], w [groups, k, n]."""

    x: jax.Array
    dy: jax.Array
    w: jax.Array
    sizes: jax.Array


def operands(problem: Problem, seed: int) -> Operands:
    """Normal numbers."""
    keys = jax.random.split(jax.random.key(seed), 3)
    m, n, k = problem.m, problem.n, problem.k
    shapes = ((m, k), (m, n), (problem.groups, k, n))
    arrays = [
        jax.jit(lambda key, shape=shape: jax.random.normal(key, shape, jnp.bfloat16))(key)
        for key, shape in zip(keys, shapes, strict=True)
    ]
    return Operands(*arrays, jnp.asarray(problem.sizes(seed)))


def _candidate(name: str, function: Callable[..., Any], *arguments: Any) -> Candidate:
    compiled = jax.jit(function).lower(*arguments).compile()
    return Candidate(name, lambda i: compiled(*arguments), jax.block_until_ready)


def bf16(mode: str, given: Operands, implementation: str | None) -> Candidate:
    """This package's product of 16 bits."""
    if mode == "dw":
        function = functools.partial(
            bw.ragged_dot_general,
            ragged_dot_dimension_numbers=_CONTRACT,
            implementation=implementation,
        )
        return _candidate("bwgemm bf16 dw", function, given.x, given.dy, given.sizes)
    function = functools.partial(bw.ragged_dot, implementation=implementation)
    if mode == "forward":
        return _candidate("bwgemm bf16 forward", function, given.x, given.w, given.sizes)
    return _candidate(
        "bwgemm bf16 dx",
        lambda dy, w, sizes: function(dy, jnp.swapaxes(w, 1, 2), sizes),
        given.dy,
        given.w,
        given.sizes,
    )


@functools.partial(jax.jit, static_argnums=(1, 2))
def _copies(x: jax.Array, scaling: str, transposed: bool) -> Any:
    return bw.quantize(x, scaling, transposed=transposed)


def quantized(kind: str, mode: str, given: Operands) -> tuple[Any, Any]:
    """A and B of `scaled_ragged_dot`."""
    layouts = KINDS[kind]
    if mode == "dw":
        x = _copies(given.x, layouts.activations, True)[1]
        return x, _copies(given.dy, layouts.gradients, True)[1]
    both = _copies(given.w, layouts.weights, True)
    if mode == "forward":
        return _copies(given.x, layouts.activations, False), both[1]
    return _copies(given.dy, layouts.gradients, False), both[0]


def ours(
    kind: str, mode: str, pair: tuple[Any, Any], sizes: jax.Array, implementation: str | None
) -> Candidate:
    """`scaled_ragged_dot`."""
    function = functools.partial(
        bw.scaled_ragged_dot, accumulation=KINDS[kind].accumulation, implementation=implementation
    )
    return _candidate(f"bwgemm {kind} {mode}", function, *pair, sizes)


@dataclasses.dataclass(frozen=True)
class Epilogue:
    """A function after a product, and what it reads.

    Attributes:
        function: Of the product, an array for each axis of `plain`, then of `groups`.
        plain: Axes of operands: ``"mn"`` is a matrix of the product's shape, ``"m"`` a column.
        groups: The same of operands of groups: ``"n"`` is a row for each.
    """

    function: Callable[..., Any]
    plain: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()


# An activation and its argument; a gradient through it; the weights of rows.
EPILOGUES = {
    "gelu": Epilogue(lambda z, b: (jax.nn.gelu(z + b), z + b), groups=("n",)),
    "gradient": Epilogue(lambda z, slope: z * slope.astype(jnp.float32), plain=("mn",)),
    "weights": Epilogue(lambda z, w: z * w, plain=("m",)),
}


def with_epilogue(
    kind: str,
    pair: tuple[Any, Any],
    sizes: jax.Array,
    implementation: str | None,
    name: str,
    *,
    linked: bool,
) -> Candidate:
    """`scaled_ragged_dot`, forward, and a function: in the kernel, or as a pass of XLA's."""
    epilogue = EPILOGUES[name]
    m, n, groups = pair[0].shape[0], pair[1].shape[1], sizes.size
    shapes = {"mn": (m, n), "m": (m, 1)}
    key = jax.random.key(0)
    plain = [jax.random.normal(key, shapes[axes], jnp.bfloat16) for axes in epilogue.plain]
    of_groups = [jax.random.normal(key, (groups, n), jnp.bfloat16) for _ in epilogue.groups]
    function = functools.partial(
        bw.scaled_ragged_dot,
        accumulation=KINDS[kind].accumulation,
        implementation=implementation,
        epilogue=epilogue.function,
    )

    def call(a: Any, b: Any, sizes: jax.Array, plain: Any, of_groups: Any) -> Any:
        return function(a, b, sizes, epilogue_operands=plain, epilogue_group_operands=of_groups)

    with bw.config.linked_epilogues(linked):
        column = f"bwgemm {kind} {name} {'linked' if linked else 'pass'}"
        return _candidate(column, call, *pair, sizes, plain, of_groups)


def torch(pair: tuple[Any, Any], sizes: jax.Array) -> Candidate:
    """`torch._scaled_grouped_mm` of operands with scales of rows, forward, on the same buffers.

    Raises:
        Unsupported: torch or its product is not there, or it refuses.
    """
    try:
        import torch as th
    except ModuleNotFoundError:
        raise Unsupported("torch is not installed") from None
    if not th.cuda.is_available() or not hasattr(th, "_scaled_grouped_mm"):
        raise Unsupported("this torch has no CUDA, or no _scaled_grouped_mm")

    def values(x: bw.ScaledArray) -> Any:
        bits = lax.bitcast_convert_type(x.values, jnp.uint8)
        return th.from_dlpack(bits).view(th.float8_e4m3fn)

    a, b = values(pair[0]), values(pair[1]).transpose(-2, -1)
    scales = [th.from_dlpack(x.scales) for x in pair]
    ends = th.from_dlpack(jnp.asarray(np.cumsum(np.asarray(sizes)), jnp.int32))

    def run(_: int) -> Any:
        return th._scaled_grouped_mm(
            a, b, *scales, offs=ends, out_dtype=th.bfloat16, use_fast_accum=True
        )

    try:
        run(0)
        th.cuda.synchronize()
    except (RuntimeError, ValueError) as error:
        raise Unsupported(str(error).strip().split("\n", 1)[0]) from None
    return Candidate("torch row forward", run, lambda _: th.cuda.synchronize())


def difference(result: Any, reference: Any) -> float:
    """1 - 2xy / (xx + yy) of a result and another one, both of bf16."""

    @jax.jit
    def compare(got: jax.Array, want: jax.Array) -> jax.Array:
        got, want = got.astype(jnp.float32), want.astype(jnp.float32)
        return 1 - 2 * jnp.sum(got * want) / jnp.sum(got * got + want * want)

    if not isinstance(result, jax.Array):  # torch's
        result = jax.dlpack.from_dlpack(result)
    return float(compare(result, reference))
