"""`Program`: an elementwise function of an accumulator and operands. Pure and hashable."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable

# Types that values of a program may have.
FLOATS = ("float32", "bfloat16", "float16")
SIGNED = ("int8", "int16", "int32")
UNSIGNED = ("uint8", "uint16", "uint32")
TYPES = (*FLOATS, *SIGNED, *UNSIGNED, "bool")
# An operand with this axis has a value, or a row, for every matrix of a grouped product.
GROUPS = 2


@dataclasses.dataclass(frozen=True)
class Operand:
    """An array that a program reads, at the position of the result or of its row or column.

    Attributes:
        dtype: Name of its type.
        axes: Dimensions of the result that it varies along. () is a scalar. For a result of rank 2,
            ``(1,)`` is a row, with a value for each column, and ``(0, 1)`` a whole matrix. A
            grouped product also has ``(GROUPS,)`` and ``(GROUPS, 1)``.
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
        rank: How many dimensions a position has.
        operands: The arrays that it reads.
        steps: Its operations, in order.
        results: The values that it returns.
        summed: Which of the results, by their places, are summed over all dimensions but the last.
    """

    rank: int
    operands: tuple[Operand, ...]
    steps: tuple[Step, ...]
    results: tuple[int, ...]
    summed: tuple[int, ...] = ()

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


def as_matrix(program: Program, shape: tuple[int, ...]) -> Program | str:
    """The same program of a matrix whose rows are all dimensions but the last.

    Args:
        program: The program.
        shape: The result's shape.

    Returns:
        The program, or why it has no such form.
    """
    rows = {axis for axis, size in enumerate(shape[:-1]) if size != 1}
    last = program.rank - 1
    operands = []
    for i, operand in enumerate(program.operands):
        along = set(operand.axes) - {last}
        if along not in (set(), rows):
            return f"operand {i} varies along some of the rows' dimensions and not along others"
        axes = ((0,) if along else ()) + ((1,) if last in operand.axes else ())
        operands.append(dataclasses.replace(operand, axes=axes))
    steps = []
    for step in program.steps:
        if step.op == "iota":
            axis = step.param("axis")
            if axis != last and rows != {axis}:
                return "it reads a position along one of several dimensions of the rows"
            step = dataclasses.replace(step, params=(("axis", 1 if axis == last else 0),))
        steps.append(step)
    return dataclasses.replace(program, rank=2, operands=tuple(operands), steps=tuple(steps))
