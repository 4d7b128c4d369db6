"""The operations after a product as a function, and the function as an epilogue's program."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax

from jax_bwgemm import compat_jaxpr
from jax_bwgemm.epilogue.program import Program
from jax_bwgemm.epilogue.simplify import with_excess_precision
from jax_bwgemm.epilogue.tracing import EpilogueError, trace_epilogue
from jax_bwgemm.rewriting import varying
from jax_bwgemm.rewriting.comparable import Comparable, key_of

Shape = tuple[int, ...]
# More ways than these to read vectors along rows or columns are not tried.
_MOST_WAYS = 16


def function_of(
    body: Any, operands: list[Any], inner: list[Any], outs: list[Any]
) -> Callable[..., list[jax.Array]]:
    """The operations that results need as a function of the product and operands."""
    jaxpr = compat_jaxpr.part_of(body, operands, outs, inner)

    def function(*operands: jax.Array) -> list[jax.Array]:
        with compat_jaxpr.unchecked():
            if varying.has_casts(inner):
                return varying.evaluate(jaxpr, operands)
            return compat_jaxpr.evaluate(jaxpr, [], list(operands))

    return Comparable(key_of(jaxpr), function)


def rounding(
    function: Callable[..., list[jax.Array]], dtype: str, products: int
) -> Callable[..., list[jax.Array]]:
    """A function of products that are rounded first."""

    def call(*given: jax.Array) -> list[jax.Array]:
        return function(*(x.astype(dtype) for x in given[:products]), *given[products:])

    return Comparable((function, dtype, products), call)


def of_shapes(
    function: Callable[..., list[jax.Array]], shapes: Sequence[Shape], products: int
) -> Callable[..., list[jax.Array]]:
    """A function of operands in other shapes, which first gives them these."""

    def call(*given: jax.Array) -> list[jax.Array]:
        rest = [x.reshape(shape) for x, shape in zip(given[products:], shapes, strict=True)]
        return function(*given[:products], *rest)

    return Comparable((function, tuple(shapes), products), call)


def traced_program(
    function: Callable[..., list[jax.Array]],
    dtype: str,
    shape: Shape,
    second: list[Any],
    operands: list[Any],
    batch_dims: int = 0,
) -> tuple[Program, list[Shape]] | None:
    """The program of a function of rounded products, and the shapes that operands broadcast in.

    A vector may lie along columns or along rows, which the function knows: what it makes no sense
    of is refused while it is traced.

    Raises:
        EpilogueError: It has an operation that epilogues do not have.
    """
    refused = None
    products = 1 + len(second)
    inner = rounding(of_shapes(function, [x.shape for x in operands], products), dtype, products)
    ways = itertools.product(*(_broadcasting(x.shape, shape) for x in operands))
    for shapes in itertools.islice(ways, _MOST_WAYS):
        types = [jax.ShapeDtypeStruct(s, x.dtype) for s, x in zip(shapes, operands, strict=True)]
        try:
            with compat_jaxpr.plain_types():
                program = trace_epilogue(inner, shape, [*second, *types], batch_dims).program
        except EpilogueError as error:
            refused = error
            continue
        except TypeError:
            continue
        # As XLA's passes, which do not round between their operations.
        return with_excess_precision(program), list(shapes)
    if refused is not None:
        raise refused
    return None


def _broadcasting(shape: Shape, result: Shape) -> list[Shape]:
    """The shapes that an array's dimensions, and others of size 1, broadcast to the result in."""

    def fits(candidate: Shape) -> bool:
        sizes = zip(candidate[::-1], result[::-1], strict=False)
        return len(candidate) <= len(result) and all(n in (1, whole) for n, whole in sizes)

    along_rows = (*shape, *[1] * (len(result) - len(shape)))
    found = [shape, along_rows] if 0 < len(shape) < len(result) else [shape]
    return [candidate for candidate in found if fits(candidate)]
