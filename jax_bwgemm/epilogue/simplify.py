"""Program to program: the same function in fewer or better operations."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np

from jax_bwgemm.epilogue.program import FLOATS, Program, Step

_ONE = np.float32(1).tobytes().hex()


def simplified(program: Program) -> Program:
    """The program as kernels compute it: ``1 + tanh(x)``, GELU's, is one operation.

    Steps that nothing uses any more are dropped by the compiler.
    """
    first = 1 + len(program.operands)

    def step_of(value: int) -> Step | None:
        return program.steps[value - first] if value >= first else None

    def rewritten() -> Iterator[Step]:
        for step in program.steps:
            sides = [step_of(x) for x in step.inputs]
            if step.op == "add" and step.dtype == "float32":
                for one, other in (sides, sides[::-1]):
                    if _is_one(one) and other is not None and other.op == "tanh":
                        step = Step("one_plus_tanh", other.inputs, "float32")
            yield step

    return dataclasses.replace(program, steps=tuple(rewritten()))


def _is_one(step: Step | None) -> bool:
    return step is not None and step.op == "literal" and step.param("value") == _ONE


def with_excess_precision(program: Program) -> Program:
    """The program whose values are not rounded to 16 bits between operations.

    As in the passes of XLA's GPU compiler, which by default (``xla_allow_excess_precision``) drops
    such roundings. `jax.lax.reduce_precision` still rounds.
    """
    steps = tuple(
        dataclasses.replace(step, dtype="float32") if step.dtype in FLOATS else step
        for step in program.steps
    )
    return dataclasses.replace(program, steps=steps)
