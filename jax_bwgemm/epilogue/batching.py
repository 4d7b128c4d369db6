"""vmap of a dense product with an epilogue: a batch of matrices, or more rows of one matrix."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp

from jax_bwgemm.dense.spec import matrices
from jax_bwgemm.epilogue.fused import Fused
from jax_bwgemm.epilogue.program import MATRICES, Program


def batched(
    operands: Sequence[jax.Array], mapped: Sequence[bool], fused: Fused
) -> tuple[list[jax.Array], Fused] | None:
    """A mapped product as one that kernels compute with its epilogue; None where none does.

    Args:
        operands: A, B and the epilogue's operands. The dimension that is mapped is their first, and
            has more than one element.
        mapped: Which operands have it.
        fused: What is computed for each of its elements.

    Returns:
        The operands, and what is computed of them: results have the mapped dimension first.
    """
    (a, b, *rest), (a_mapped, b_mapped, *others) = operands, mapped
    spec, size = fused.spec, (a if a_mapped else b).shape[0]
    if fused.batch_dims or not (a_mapped or b_mapped) or 0 in (*a.shape, *b.shape):
        return None
    # Without the mapped dimension B is one matrix, and so is A once its batch is more rows.
    own = math.prod(a.shape[1:] if a_mapped else a.shape)
    a = a.reshape(size if a_mapped else 1, own // a.shape[-1], a.shape[-1])
    b = b.reshape(size if b_mapped else 1, *b.shape[-2:])
    dims = fused.contraction.dims(spec, a.shape, b.shape)
    batch_dims = 0 if matrices(spec, dims) == 1 else 1
    program = (_of_batch if batch_dims else _of_rows)(fused, others)
    if program is None:
        return None
    more = dataclasses.replace(
        fused,
        function=_mapped_function(fused.function, tuple(0 if x else None for x in others)),
        program=program,
        shape=(size, *fused.shape),
        batch_dims=batch_dims,
    )
    return [a, b, *rest], more


def _of_batch(fused: Fused, mapped: Sequence[bool]) -> Program:
    """The program of every matrix of a batch."""
    operands = [
        dataclasses.replace(x, axes=(MATRICES, *x.axes)) if own else x
        for x, own in zip(fused.program.operands, mapped, strict=True)
    ]
    return dataclasses.replace(fused.program, rank=3, operands=tuple(operands))


def _of_rows(fused: Fused, mapped: Sequence[bool]) -> Program | None:
    """The program of a matrix with more rows; None where positions in it are not what they were."""
    program = fused.program
    if program.summed or any(s.op == "iota" and s.param("axis") == 0 for s in program.steps):
        return None
    one_row = math.prod(fused.shape[:-1]) == 1
    operands = []
    for operand, own in zip(program.operands, mapped, strict=True):
        axes = operand.axes
        if own and one_row:
            axes = (0, *axes)
        elif own != (0 in axes):
            return None
        operands.append(dataclasses.replace(operand, axes=axes))
    return dataclasses.replace(program, operands=tuple(operands))


@functools.lru_cache(maxsize=256)
def _mapped_function(
    function: Callable[..., list[jax.Array]], axes: tuple[int | None, ...]
) -> Callable[..., list[jax.Array]]:
    """The same function for the same one: it is part of a primitive's parameters."""

    def mapped(product: jax.Array, *operands: jax.Array) -> list[jax.Array]:
        return jax.vmap(function, in_axes=(0, *axes))(product, *operands)

    return mapped


def first_axis(x: jax.Array, axis: int | None) -> jax.Array:
    """An operand with the mapped dimension, if it has it, in the first place."""
    return x if axis is None else jnp.moveaxis(x, axis, 0)
