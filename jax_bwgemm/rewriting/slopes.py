"""Activations whose slope is kept for the gradient, instead of their argument.

The gradient through an activation is a product times the activation's slope. The kernel of the
forward product computes the activation, and with few more operations the slope. It writes the slope
in the argument's place, so that the gradient's kernel has nothing to do but multiply.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax_bwgemm import compat
from jax_bwgemm.epilogue.costs import instructions
from jax_bwgemm.epilogue.fused import Fused
from jax_bwgemm.epilogue.hook import MAX_OPERANDS
from jax_bwgemm.epilogue.primitive import bw_gemm_epilogue_p, link_refusal
from jax_bwgemm.epilogue.program import FLOATS, Operand, Program, Step
from jax_bwgemm.epilogue.scaled_primitive import bw_scaled_epilogue_p
from jax_bwgemm.rewriting.comparable import Comparable
from jax_bwgemm.rewriting.dataflow import Dataflow
from jax_bwgemm.rewriting.group import SHAPES
from jax_bwgemm.rewriting.inlining import placed, trace_in_place

_PRIMITIVES = (bw_gemm_epilogue_p, bw_scaled_epilogue_p)
# A slope of fewer instructions (ReLU's) may as well be computed where it is needed.
_LEAST_INSTRUCTIONS = 8
# Factors of slopes that leave these in float16's range.
_NEAR_ONE = (2.0**-6, 2.0**6)
_ONE = Step("literal", (), "float32", (("value", np.float32(1).tobytes().hex()),))


def keep_slopes(flow: Dataflow) -> None:
    """Keeps the slope of each activation whose product and gradient are among the equations."""
    for eqn in [e for e in flow.eqns if e.primitive in _PRIMITIVES]:
        new = _with_slope(flow, eqn)
        if new is not None:
            flow.update(new)


def _with_slope(flow: Dataflow, gradient: Any) -> dict[int, list[Any]] | None:
    """What exchanges an activation and its gradient for ones that keep and read the slope."""
    fused: Fused = gradient.params["fused"]
    factors, operands = fused.factors(gradient.invars)
    matrices = [i for i, x in enumerate(fused.program.operands) if x.axes == fused.program.whole]
    if fused.keeps_product or len(matrices) != 1 or not is_multiple(fused.program):
        return None
    if instructions(fused.program, in_kernel=True) < _LEAST_INSTRUCTIONS:
        return None
    if fused.spec.out_dtype == "float16" and not _fits_float16(fused.program):
        return None
    (matrix,) = matrices
    kept = operands[matrix]
    activation = flow.producer(kept)
    if activation is None or activation.primitive not in _PRIMITIVES:
        return None
    if flow.is_needed(kept, {id(gradient)}) or sum(x is kept for x in operands) > 1:
        return None
    first: Fused = activation.params["fused"]
    forms = {(f.shape, f.spec.out_dtype, f.batch_dims) for f in (first, fused)}
    if forms != {(kept.aval.shape, kept.aval.dtype.name, fused.batch_dims)}:
        return None
    own_factors, own = first.factors(activation.invars)
    known = [array_of(flow, x, o) for x, o in zip(own, first.program.operands, strict=True)]
    added: list[int] = []
    places = []
    for i, (x, operand) in enumerate(zip(operands, fused.program.operands, strict=True)):
        same = array_of(flow, x, operand)
        place = -1 if i == matrix else next((j for j, y in enumerate(known) if y == same), None)
        if place is None:
            if not _there_before(flow, x, activation):
                return None
            added.append(i)
            place = len(own) + len(added) - 1
        places.append(place)
    if len(own) + len(added) > MAX_OPERANDS:
        return None
    at = [v is kept for v in activation.outvars].index(True)
    pair = _Pair(first, fused, matrix, at, tuple(places), tuple(added))
    writes, reads = pair.activation(), pair.gradient()
    for atoms, one in ((own_factors, writes), (factors, reads)):
        if link_refusal([x.aval for x in atoms], one):
            return None
    atoms = [*own_factors, *own, *(operands[i] for i in added)]
    return {
        id(activation): _equations(activation, atoms, writes),
        id(gradient): _equations(gradient, [*factors, kept], reads),
    }


def _fits_float16(program: Program) -> bool:
    """Whether a slope is in float16's range where the activation and the gradient are.

    A factor far from 1 (a scaled gradient) may bring a gradient into the range, and the slope out
    of it.
    """
    first = 1 + len(program.operands)
    matrices = {1 + i for i, x in enumerate(program.operands) if x.axes == program.whole}

    def source(value: int) -> Step | int:
        while value >= first:
            step = program.steps[value - first]
            if step.op != "convert_element_type":
                return step
            (value,) = step.inputs
        return value

    def far(value: int) -> bool:
        found = source(value)
        if isinstance(found, int):  # an operand: its values are not known
            return found > 0 and found not in matrices
        if found.op != "literal" or found.dtype not in FLOATS:
            return False
        size = abs(float(np.frombuffer(bytes.fromhex(found.param("value")), np.float32)[0]))
        return size != 0 and not _NEAR_ONE[0] <= size <= _NEAR_ONE[1]

    return not any(
        _may_overflow(step) or (step.op in ("mul", "div") and any(map(far, step.inputs)))
        for step in program.steps
    )


def _may_overflow(step: Step) -> bool:
    """Whether a slope of this step may be beyond float16 where the activation is not."""
    negative_power = step.op == "integer_pow" and step.param("y") < 0
    return negative_power or step.op in ("div", "rsqrt", "pow", "tan")


def array_of(flow: Dataflow, x: Any, operand: Operand) -> tuple[int, Operand]:
    """Which array an operand is, whatever its shape, and along which dimensions it is read."""
    eqn = flow.producer(x)
    while (
        eqn is not None and eqn.primitive.name in SHAPES and eqn.invars[0].aval.size == x.aval.size
    ):
        (x,) = eqn.invars
        eqn = flow.producer(x)
    return id(x), operand


def _there_before(flow: Dataflow, x: Any, eqn: Any) -> bool:
    made = flow.producer(x)
    return made is None or flow.place[id(made)] < flow.place[id(eqn)]


def _equations(old: Any, atoms: Sequence[Any], fused: Fused) -> list[Any]:
    """The primitive in an equation's place, with the same results."""

    def bind(*given: jax.Array) -> list[jax.Array]:
        return old.primitive.bind(*compat.match_varying(*given), fused=fused)

    return placed(trace_in_place(bind, old, atoms), atoms, old.outvars, old.source_info)


@dataclasses.dataclass(frozen=True)
class _Pair:
    """An activation's product and the one whose result its gradient is.

    Attributes:
        first: The activation's.
        second: The gradient's.
        matrix: Which operand of `second` the slope replaces.
        at: Which result of `first`.
        places: Of every operand of `second`: which operand of the new `first` it is.
        added: Which of them `first` did not have before.
    """

    first: Fused
    second: Fused
    matrix: int
    at: int
    places: tuple[int, ...]
    added: tuple[int, ...]

    def activation(self) -> Fused:
        """With the slope in the matrix's place."""
        first = self.first
        is_product = first.keeps_product and self.at == len(first.result_types) - 1
        return dataclasses.replace(
            first,
            function=Comparable(("values", self), self._values),
            program=self._program(),
            keeps_product=first.keeps_product and not is_product,
        )

    def gradient(self) -> Fused:
        """With the slope as its only operand."""
        second, dtype = self.second, self.second.spec.out_dtype
        times = Step("convert_element_type", (1,), "float32"), Step("mul", (0, 2), "float32")
        program = dataclasses.replace(
            second.program,
            operands=(Operand(dtype, second.program.whole),),
            steps=times,
            results=(3,) * len(second.result_types),
        )
        function = Comparable(("gradients", self), self._gradients)
        return dataclasses.replace(second, function=function, program=program)

    def _values(self, product: jax.Array, *operands: jax.Array) -> list[jax.Array]:
        own = len(self.first.program.operands)
        results = [*self.first.function(product, *operands[:own])]
        found = [*results, product] if self.first.keeps_product else results
        value = found[self.at]
        given = [value if place < 0 else operands[place] for place in self.places]
        slopes = self.second.function(jnp.ones_like(value), *given)
        found[self.at] = slopes[_whole(self.second.program)]
        keeps_product = self.first.keeps_product and self.at < len(results)
        return found[:-1] if keeps_product else found

    def _gradients(self, product: jax.Array, slope: jax.Array) -> list[jax.Array]:
        wide = product.astype(jnp.float32) * slope.astype(jnp.float32)
        rows = tuple(range(self.second.batch_dims, wide.ndim - 1))
        summed = self.second.program.summed
        found = [
            jnp.sum(wide, rows) if i in summed else wide
            for i in range(len(self.second.result_types))
        ]
        return [x.astype(t) for x, t in zip(found, self.second.result_types, strict=True)]

    def _program(self) -> Program:
        """The activation's, then the gradient's of a product that is 1."""
        first, second = self.first.program, self.second.program
        own, more = len(first.operands), len(self.added)
        kept = first.results[self.at]
        kept += more if kept > own else 0
        steps = [_renumbered(s, lambda x: x + more if x > own else x) for s in first.steps]
        one = 1 + own + more + len(steps)
        count = len(second.operands)

        def moved(value: int) -> int:
            if value == 0:
                return one
            if value > count:
                return one + value - count
            place = self.places[value - 1]
            return kept if place < 0 else 1 + place

        steps += [_ONE, *(_renumbered(s, moved) for s in second.steps)]
        results = [x + more if x > own else x for x in first.results]
        results[self.at] = moved(second.results[_whole(second)])
        operands = (*first.operands, *(second.operands[i] for i in self.added))
        return dataclasses.replace(
            first, operands=operands, steps=tuple(steps), results=tuple(results)
        )


def _renumbered(step: Step, moved: Callable[[int], int]) -> Step:
    return dataclasses.replace(step, inputs=tuple(moved(x) for x in step.inputs))


def _whole(program: Program) -> int:
    """The first result that is not summed."""
    return next(i for i in range(len(program.results)) if i not in program.summed)


def is_multiple(program: Program) -> bool:
    """Whether all that a program returns is one multiple of the accumulator, or sums of it."""
    if len(program.summed) == len(program.results):
        return False
    first = 1 + len(program.operands)
    linear = {0}
    for value, step in enumerate(program.steps, first):
        if linear.isdisjoint(step.inputs):
            continue
        if not _stays_multiple(step, linear, program, first):
            return False
        linear.add(value)

    def unrounded(value: int) -> int:
        while value >= first and program.steps[value - first].op == "convert_element_type":
            (value,) = program.steps[value - first].inputs
        return value

    return {unrounded(x) for x in program.results} <= linear and (
        len({unrounded(x) for x in program.results}) == 1
    )


def _stays_multiple(step: Step, linear: set[int], program: Program, first: int) -> bool:
    """Whether a step gives a multiple of the accumulator, some of its inputs being such ones."""
    multiples = [x in linear for x in step.inputs]
    if step.op == "mul":
        return multiples.count(True) == 1
    if step.op == "div":
        return multiples == [True, False]
    if step.op in ("add", "add_any", "sub", "neg"):
        return all(multiples)
    if step.op == "convert_element_type":
        return step.dtype in FLOATS
    if step.op == "select_n":
        return not multiples[0] and all(
            is_one or _is_zero(x, program, first)
            for x, is_one in zip(step.inputs[1:], multiples[1:], strict=True)
        )
    return False


def _is_zero(value: int, program: Program, first: int) -> bool:
    step = program.steps[value - first] if value >= first else None
    if step is not None and step.op == "convert_element_type":
        return _is_zero(step.inputs[0], program, first)
    return step is not None and step.op == "literal" and set(str(step.param("value"))) == {"0"}
