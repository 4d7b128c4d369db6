"""A JAX function of an accumulator and operands -> `Program`.

Every value of the traced function is followed together with where its dimensions lie in the result:
a function whose values would meet at different positions is not an epilogue.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from jax_bwgemm import compat, compat_jaxpr
from jax_bwgemm.epilogue.held_types import HELD, held, narrowed, same_in_32_bits, type_name
from jax_bwgemm.epilogue.places import MOVES, Places, places_of, places_of_result
from jax_bwgemm.epilogue.primitives import ALIASES, KINDS, POLYNOMIAL, PRIMITIVES, SPECIAL
from jax_bwgemm.epilogue.program import TYPES, Operand, Program, Step, without_dead_steps
from jax_bwgemm.product.jaxprs import INLINED

_BODIES = {name: key for name, key in INLINED.items() if name != "shard_map"}
_MAX_POWER = 64
PASS_IT = "pass it in epilogue_operands"


class EpilogueError(NotImplementedError):
    """A function that cannot be an epilogue; the message names the operation and its line."""


@dataclasses.dataclass(frozen=True)
class _Value:
    """What a variable of the traced function is in the program.

    Attributes:
        number: Of the program's value.
        places: Of the variable's dimensions.
        summed: Whether it is the sum over the rows of that value, which can only be returned.
    """

    number: int
    places: Places
    summed: bool = False


@dataclasses.dataclass(frozen=True)
class TracedEpilogue:
    """A function, traced.

    Attributes:
        program: What it computes.
        tree: The structure of what it returns.
    """

    program: Program
    tree: Any


def trace_epilogue(
    f: Callable[..., Any],
    shape: tuple[int, ...],
    operands: Sequence[Any],
    batch_dims: int = 0,
    name: str = "epilogue",
) -> TracedEpilogue:
    """Traces ``f(accumulator, *operands)``.

    Args:
        f: The function. It gets the accumulator as float32.
        shape: The result's.
        operands: Arrays or `jax.ShapeDtypeStruct`, whose shapes broadcast to the result's.
        batch_dims: How many of the result's dimensions sums leave as they are, besides the last.
        name: Of the function, for messages.

    Raises:
        EpilogueError: It has an operation that is not elementwise or not known, reads arrays that
            are not arguments, or returns something other than arrays of the result's shape and sums
            of them over all dimensions but these.
        TypeError: Operands that do not broadcast to the result, or of types that epilogues have
            not.
    """
    types = [jax.ShapeDtypeStruct(shape, np.float32)]
    found, places = [], []
    for i, operand in enumerate(operands):
        dtype = type_name(operand)
        if dtype not in TYPES:
            types_of = ", ".join(TYPES)
            raise TypeError(f"{name} operand {i} is of type {dtype}; types are {types_of}")
        own = places_of(f"{name} operand {i}", operand.shape, shape)
        found.append(Operand(dtype, tuple(p for p in own if p is not None)))
        places.append(own)
        types.append(jax.ShapeDtypeStruct(operand.shape, operand.dtype))
    trees: list[Any] = []

    def flat(*xs: jax.Array) -> list[Any]:
        results, tree = jax.tree.flatten(f(*xs))
        trees.append(tree)
        for x in results:
            if not isinstance(x, jax.Array):
                raise EpilogueError(f"an epilogue returns arrays, not {type(x).__name__}")
        return results

    info = compat_jaxpr.call_info(name, f, types, {}, range(len(types)))
    with compat.of_no_mesh():
        jaxpr, constants = compat_jaxpr.trace(flat, [compat_jaxpr.type_of(x) for x in types], info)
    tracer = _Tracer(shape, tuple(found), batch_dims)
    values = [_Value(0, places_of_result(shape))]
    values += [_Value(1 + i, own) for i, own in enumerate(places)]
    results = tracer.run(jaxpr, [tracer.constant(c) for c in constants], values)
    if not results:
        raise EpilogueError("an epilogue returns at least one array")
    for atom, value in zip(jaxpr.outvars, results, strict=True):
        if value.summed:
            continue
        if type_name(atom.aval) not in TYPES:
            raise EpilogueError(f"an epilogue returns an array of type {type_name(atom.aval)}")
        if atom.aval.shape != shape or any(p not in (None, d) for d, p in enumerate(value.places)):
            raise EpilogueError(
                f"an epilogue returns arrays of the product's shape {shape}, value by value; "
                f"got {atom.aval.shape}"
            )
    numbers = tuple(value.number for value in results)
    summed = tuple(i for i, value in enumerate(results) if value.summed)
    program = Program(len(shape), tuple(found), tuple(tracer.steps), numbers, summed)
    return TracedEpilogue(without_dead_steps(program), trees[0])


@dataclasses.dataclass
class _Tracer:
    """Turns equations into the steps of a program, one after the other.

    Attributes:
        shape: The result's.
        operands: The program's.
        batch_dims: As in `trace_epilogue`.
        steps: Those so far.
        around: Equations whose bodies the current one is in, from the outermost.
    """

    shape: tuple[int, ...]
    operands: tuple[Operand, ...]
    batch_dims: int
    steps: list[Step] = dataclasses.field(default_factory=list)
    around: list[Any] = dataclasses.field(default_factory=list)

    def run(self, jaxpr: Any, constants: list[_Value], arguments: list[_Value]) -> list[_Value]:
        """The values that a jaxpr, not closed, returns."""
        # JAX 0.12 has constants as the first operands.
        variables = (*jaxpr.constvars, *jaxpr.invars)
        values: dict[Any, _Value] = dict(zip(variables, (*constants, *arguments), strict=True))

        def read(atom: Any) -> _Value:
            if compat_jaxpr.is_literal(atom):
                return self.constant(atom.val, atom.aval.dtype)
            return values[atom]

        for eqn in jaxpr.eqns:
            inputs = [read(atom) for atom in eqn.invars]
            results = self.equation(eqn, inputs)
            values.update(zip(eqn.outvars, results, strict=True))
        return [read(atom) for atom in jaxpr.outvars]

    def add(
        self, op: str, inputs: Sequence[_Value], dtype: Any, places: Places, **params: Any
    ) -> _Value:
        """The value of a new step."""
        dtype = np.dtype(dtype).name
        step = Step(op, tuple(x.number for x in inputs), dtype, tuple(sorted(params.items())))
        self.steps.append(step)
        return _Value(len(self.operands) + len(self.steps), places)

    def constant(self, value: Any, dtype: Any = None) -> _Value:
        """A constant of one element, whatever its rank."""
        if isinstance(value, jax.core.Tracer):
            raise EpilogueError(
                f"an epilogue reads an array that is traced outside of it: {PASS_IT}"
            )
        if jax.dtypes.issubdtype(getattr(value, "dtype", np.float32), jax.dtypes.extended):
            raise EpilogueError(f"an epilogue has a constant of type {value.dtype}")
        array = np.asarray(value, dtype)
        if array.size != 1:
            raise EpilogueError(
                f"an epilogue reads a constant array of shape {array.shape}: {PASS_IT}"
            )
        array = narrowed(array)
        if array.dtype.name not in TYPES:
            raise EpilogueError(f"an epilogue has a constant of type {array.dtype.name}")
        wide = np.float32 if KINDS[array.dtype.name] == "f" else array.dtype
        plain = array.astype(wide).item()
        key = np.float32(plain).tobytes().hex() if wide is np.float32 else plain
        return self.add("literal", (), array.dtype, (None,) * array.ndim, value=key)

    def equation(self, eqn: Any, inputs: list[_Value]) -> list[_Value]:
        """The values that an equation gives."""
        name, params = eqn.primitive.name, eqn.params
        if name in _BODIES:
            body = params[_BODIES[name]]
            constants = [self.constant(c) for c in getattr(body, "consts", ())]
            self.around.append(eqn)
            results = self.run(compat_jaxpr.opened(body), constants, inputs)
            self.around.pop()
            return results
        if name in ALIASES:
            return inputs
        if any(x.summed for x in inputs):
            if name == "convert_element_type" and KINDS[type_name(eqn.outvars[0].aval)] == "f":
                return inputs  # the caller knows what type it returns
            raise self.refused(eqn, "it reads a sum over rows, which can only be returned")
        if name == "reduce_sum":
            return [self.sum_over_rows(eqn, inputs[0])]
        if len(eqn.outvars) != 1:
            raise self.refused(eqn, "it is not elementwise, or epilogues do not have it")
        out = eqn.outvars[0].aval
        dtype, read = held(out), [type_name(x.aval) for x in eqn.invars]
        if dtype not in TYPES:
            raise self.refused(eqn, f"its result is of type {dtype}")
        wide = [x for x in (*read, type_name(out)) if x in HELD]
        if wide and not same_in_32_bits(name, read, type_name(out)):
            raise self.refused(eqn, f"it computes with {wide[0]}")
        if name in MOVES:
            places = MOVES[name](eqn, inputs[0].places)
            if places is None:
                raise self.refused(eqn, "it moves values to other positions")
            return [dataclasses.replace(inputs[0], places=places)]
        if name == "iota":
            return [self.iota(eqn)]
        if name == POLYNOMIAL and KINDS[dtype] == "f":
            return [self.polynomial(eqn, inputs)]
        if name not in PRIMITIVES and name not in SPECIAL:
            raise self.refused(eqn, "it is not elementwise, or epilogues do not have it")
        places = self.meet(eqn, inputs)
        read = held(eqn.invars[0].aval)
        if name in PRIMITIVES and KINDS[read] not in PRIMITIVES[name].kinds:
            raise self.refused(eqn, f"epilogues do not have it of {read}")
        if name == "nextafter" and dtype != "float32":
            raise self.refused(eqn, f"epilogues do not have it of {dtype}")
        if name == "bitcast_convert_type" and not {read, dtype} <= {"float32", "int32", "uint32"}:
            raise self.refused(eqn, f"epilogues do not have it of {read} to {dtype}")
        if name == "convert_element_type":
            if read == dtype:
                return [dataclasses.replace(inputs[0], places=places)]
            return [self.add(name, inputs, dtype, places)]
        return [self.add(name, inputs, dtype, places, **self.parameters(eqn))]

    def polynomial(self, eqn: Any, inputs: list[_Value]) -> _Value:
        """A polynomial of the first operand; the others are its coefficients, a constant first."""
        x, *lower, total = inputs
        dtype, places = eqn.outvars[0].aval.dtype, self.meet(eqn, inputs)
        for coefficient in reversed(lower):
            product = self.add("mul", (total, x), dtype, places)
            total = self.add("add", (product, coefficient), dtype, places)
        return dataclasses.replace(total, places=places)

    def sum_over_rows(self, eqn: Any, value: _Value) -> _Value:
        """A sum over all dimensions of the product but the batch's and the last."""
        aval, rank = eqn.invars[0].aval, len(self.shape)
        whole = aval.shape == self.shape and all(p in (None, d) for d, p in enumerate(value.places))
        rows = tuple(range(self.batch_dims, rank - 1))
        if not rows or not whole or tuple(eqn.params["axes"]) != rows:
            what = "sums are over all dimensions but the last, of an array of the product's shape"
            raise self.refused(eqn, what)
        if KINDS[type_name(aval)] != "f":
            raise self.refused(eqn, f"epilogues do not have it of {aval.dtype.name}")
        places = (*value.places[: self.batch_dims], value.places[-1])
        return _Value(value.number, places, summed=True)

    def parameters(self, eqn: Any) -> dict[str, Any]:
        """What a step depends on besides its operands."""
        name, params = eqn.primitive.name, eqn.params
        if name == "integer_pow":
            if abs(params["y"]) > _MAX_POWER or (
                params["y"] < 0 and KINDS[eqn.outvars[0].aval.dtype.name] != "f"
            ):
                raise self.refused(eqn, f"epilogues do not have the power {params['y']}")
            return {"y": int(params["y"])}
        if name == "round":
            return {"even": bool(int(params["rounding_method"]))}
        if name == "reduce_precision":
            bits = params["exponent_bits"], params["mantissa_bits"]
            names = {(8, 23): "float32", (8, 7): "bfloat16", (5, 10): "float16"}
            if bits not in names:
                raise self.refused(eqn, f"epilogues do not have numbers of {bits} bits")
            return {"to": names[bits]}
        return {}

    def meet(self, eqn: Any, inputs: list[_Value]) -> Places:
        """Where the result of an elementwise operation lies: where all its operands do."""
        shape = eqn.outvars[0].aval.shape
        places: list[int | None] = [None] * len(shape)
        for value in inputs:
            for d, place in enumerate(value.places):  # scalars have none
                if place is not None and places[d] is not None and places[d] != place:
                    raise self.refused(eqn, "its operands meet at different positions")
                places[d] = places[d] if place is None else place
        return tuple(places)

    def iota(self, eqn: Any) -> _Value:
        """The position along one dimension of the result."""
        shape, d, out = eqn.params["shape"], eqn.params["dimension"], eqn.outvars[0].aval
        if eqn.invars:
            raise self.refused(eqn, "its size is not known")
        if shape[d] == 1:
            zero = self.constant(np.zeros((), out.dtype))
            return dataclasses.replace(zero, places=(None,) * len(shape))
        same_rank = len(shape) == len(self.shape) and shape[d] == self.shape[d]
        fitting = [d] if same_rank else [i for i, n in enumerate(self.shape) if n == shape[d]]
        if len(fitting) != 1:
            raise self.refused(
                eqn,
                "it is not clear which of the product's dimensions it counts: use "
                "jax.lax.broadcasted_iota of the product's shape",
            )
        places = tuple(fitting[0] if i == d else None for i in range(len(shape)))
        return self.add("iota", (), held(out), places, axis=fitting[0])

    def refused(self, eqn: Any, why: str) -> EpilogueError:
        # The body of a function of jax.numpy has no line of the user's, but its call has one.
        lines = map(compat_jaxpr.source_line, (eqn, *reversed(self.around)))
        at = next(filter(None, lines), "")
        return EpilogueError(
            f"an epilogue cannot have {eqn.primitive.name!r}{' at ' + at if at else ''}: {why}"
        )
