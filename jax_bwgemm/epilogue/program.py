"""`Program`: an elementwise function of an accumulator and operands. Pure and hashable."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable
from itertools import accumulate
from operator import mul

# Types that values of a program may have.
FLOATS = ("float32", "bfloat16", "float16")
SIGNED = ("int8", "int16", "int32")
UNSIGNED = ("uint8", "uint16", "uint32")
TYPES = (*FLOATS, *SIGNED, *UNSIGNED, "bool")
# An operand with this axis has values of its own for every matrix of a grouped product, or of a
# batch.
MATRICES = 2
# Why a function that a user wrote is no part of a kernel.
SUMS_OVER_BATCH = "it sums over a batch of matrices"


@dataclasses.dataclass(frozen=True)
class Operand:
    """An array that a program reads, at the position of the result or of its row or column.

    Attributes:
        dtype: Name of its type.
        axes: Dimensions of the result that it varies along. () is a scalar. For a result of rank 2,
            ``(1,)`` is a row, with a value for each column, and ``(0, 1)`` a whole matrix. A
            grouped product also has ``(MATRICES,)`` and ``(MATRICES, 1)``; a batch of matrices has
            all of these, and ``(MATRICES, 0)`` and ``(MATRICES, 0, 1)``.
    """

    dtype: str
    axes: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Step:
    """One operation.

    Attributes:
        op: Name of the primitive of `jax.lax`; or ``"literal"``.
        inputs: The values it reads: see `Program`.
        dtype: Name of its result's type.
        params: What else it depends on, by name.
    """

    op: str
    inputs: tuple[int, ...]
    dtype: str
    params: tuple[tuple[str, Hashable], ...] = ()

    def param(self, name: str) -> Hashable:
        """A parameter by its name."""
        return dict(self.params)[name]


@dataclasses.dataclass(frozen=True)
class Program:
    """What is computed at every position of a result.

    Values have numbers: 0 is the accumulator, float32; then come the operands, then the results of
    the steps.

    Attributes:
        rank: How many dimensions a position has. Of `as_matrix`: 2, or 3 of a batch.
        operands: The arrays that it reads.
        steps: Its operations, in order.
        results: The values that it returns.
        summed: Which of the results, by their places, are summed over all dimensions but the last,
            and but those of a batch.
    """

    rank: int
    operands: tuple[Operand, ...]
    steps: tuple[Step, ...]
    results: tuple[int, ...]
    summed: tuple[int, ...] = ()

    @property
    def whole(self) -> tuple[int, ...]:
        """Axes of an operand of the result's shape, where the program is `as_matrix`'s."""
        return (MATRICES, 0, 1) if self.rank == 3 else (0, 1)

    def dtype(self, value: int) -> str:
        """Name of a value's type."""
        if value == 0:
            return "float32"
        if value <= len(self.operands):
            return self.operands[value - 1].dtype
        return self.steps[value - 1 - len(self.operands)].dtype

    def __str__(self) -> str:
        def name(value: int) -> str:
            if value == 0:
                return "acc"
            first = 1 + len(self.operands)
            return f"x{value - 1}" if value < first else f"v{value - first}"

        lines = [f"x{i}: {x.dtype} along {x.axes}" for i, x in enumerate(self.operands)]
        for i, step in enumerate(self.steps):
            params = "".join(f" {key}={value}" for key, value in step.params)
            inputs = "".join(f" {name(x)}" for x in step.inputs)
            lines.append(f"v{i}: {step.dtype} = {step.op}{inputs}{params}")
        returned = [
            f"sum({name(x)})" if i in self.summed else name(x) for i, x in enumerate(self.results)
        ]
        return "\n".join([*lines, f"return {', '.join(returned)}"])

    def result_types(self, dtype: str) -> tuple[str, ...]:
        """Types of the results, floating-point ones rounded to a product's type."""
        return tuple(dtype if self.dtype(x) in FLOATS else self.dtype(x) for x in self.results)


def without_dead_steps(program: Program) -> Program:
    """The program without steps whose results nothing uses, or that repeat earlier ones."""
    first = 1 + len(program.operands)
    needed = set(program.results)
    for number in range(first + len(program.steps) - 1, first - 1, -1):
        if number in needed:
            needed.update(program.steps[number - first].inputs)
    renamed = {number: number for number in range(first)}
    kept: dict[Step, int] = {}
    for number, step in enumerate(program.steps, first):
        if number in needed:
            inputs = tuple(renamed[x] for x in step.inputs)
            new = dataclasses.replace(step, inputs=inputs)
            renamed[number] = kept.setdefault(new, first + len(kept))
    results = tuple(renamed[x] for x in program.results)
    return dataclasses.replace(program, steps=tuple(kept), results=results)


def as_matrix(program: Program, shape: tuple[int, ...], batch_dims: int = 0) -> Program | str:
    """The same program of a matrix, or of each matrix of a batch.

    Args:
        program: The program.
        shape: The result's shape: dimensions of the batch, of the rows, and the columns.
        batch_dims: How many of its dimensions are the batch.

    Returns:
        The program, of rank 3 if there is a batch, or why it has no such form.
    """
    last = program.rank - 1
    kinds = {MATRICES: range(batch_dims), 0: range(batch_dims, last), 1: range(last, last + 1)}
    dims = {of: {d for d in kind if shape[d] != 1 or d == last} for of, kind in kinds.items()}
    operands = []
    for i, operand in enumerate(program.operands):
        along = {of: found & set(operand.axes) for of, found in dims.items()}
        for of, found in along.items():
            if found not in (set(), dims[of]):
                whose = "the batch's" if of == MATRICES else "the rows'"
                return f"operand {i} varies along some of {whose} dimensions and not along others"
        axes = tuple(of for of, found in along.items() if found)
        operands.append(dataclasses.replace(operand, axes=axes))
    steps = []
    for step in program.steps:
        if step.op == "iota":
            axis = step.param("axis")
            of = next((of for of, found in dims.items() if found == {axis}), None)
            if of is None:
                return (
                    "it reads a position along one of several dimensions of the rows or the batch"
                )
            step = dataclasses.replace(step, params=(("axis", of),))
        steps.append(step)
    rank = 3 if batch_dims else 2
    return dataclasses.replace(program, rank=rank, operands=tuple(operands), steps=tuple(steps))


def batch_dims_of(shape: tuple[int, ...], batch: int) -> int | None:
    """How many leading dimensions of a result are its batch of so many matrices; None: none are."""
    sizes = [1, *accumulate(shape[:-1], mul)]
    return sizes.index(batch) if batch in sizes else None
