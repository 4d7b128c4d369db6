"""Quantizations of what elementwise operations compute, as one primitive with these.

The quantizing kernel then reads what the operations read: gate and up in the place of SiLU times
up, a product and both in the place of the gradient of the two. What it quantizes may consist of
parts side by side, and read columns of larger arrays in place.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import jax

from jax_bwgemm import compat, compat_jaxpr
from jax_bwgemm.epilogue.hook import MAX_OPERANDS, OPERAND_TYPES
from jax_bwgemm.epilogue.program import as_matrix
from jax_bwgemm.epilogue.source_hook import ELEMENTS, SourcePart, Window
from jax_bwgemm.epilogue.source_primitive import (
    QuantizedSource,
    quantized_source,
    source_refusal,
)
from jax_bwgemm.epilogue.tracing import EpilogueError
from jax_bwgemm.product.jaxprs import INLINED
from jax_bwgemm.rewriting import varying
from jax_bwgemm.rewriting.comparable import Comparable
from jax_bwgemm.rewriting.dataflow import Dataflow, variables
from jax_bwgemm.rewriting.epilogue_functions import function_of, traced_program
from jax_bwgemm.rewriting.group import (
    ARRANGING,
    MOST_OPERATIONS,
    SHAPES,
    SMALL,
    is_elementwise,
)
from jax_bwgemm.rewriting.inlining import placed, trace_in_place
from jax_bwgemm.rewriting.materialised import Materialised, Stored
from jax_bwgemm.rewriting.uses import ALIASES, FUSIBLE
from jax_bwgemm.scaled.layouts import FLOAT32
from jax_bwgemm.scaled.quantize_primitive import bw_quantize_p

_WHOLE = (0, 1)
# Whose results passes of XLA's compute where they are read, unless something needs them in memory.
_COMPUTED = {*FUSIBLE, *ALIASES, *INLINED, "gather"}


@dataclasses.dataclass
class _Found:
    """What leads to an array.

    Attributes:
        eqns: Equations, by their `id`.
        leaves: What they read.
        windows: Of leaves that are columns of another variable: it and the first column.
    """

    eqns: dict[int, Any] = dataclasses.field(default_factory=dict)
    leaves: list[Any] = dataclasses.field(default_factory=list)
    windows: dict[Any, tuple[Any, int]] = dataclasses.field(default_factory=dict)


def fuse_sources(flow: Dataflow) -> None:
    """Replaces each quantization whose operand need not be in memory."""
    norms = Materialised(flow, is_elementwise)
    for eqn in [e for e in flow.eqns if e.primitive is bw_quantize_p]:
        new = _replacement(flow, eqn, Stored(flow, norms))
        if new is not None:
            norms.forget(flow.update({id(eqn): new}))


def _replacement(flow: Dataflow, eqn: Any, stored: Stored) -> list[Any] | None:
    """The equations in a quantization's place; None where they would be no gain."""
    spec, (x, *rest) = eqn.params["spec"], eqn.invars
    if compat_jaxpr.is_literal(x) or not _fits(x.aval, spec):
        return None
    between, forms = {id(eqn)}, [x]
    while (made := flow.producer(forms[-1])) is not None and _keeps_rows(made):
        between.add(id(made))
        forms += made.invars
    if any(flow.is_needed(v, between) for v in forms):
        return None
    parts = _parts_of(flow, forms[-1])
    if len({id(p) for p, _ in parts}) < len(parts):
        return None
    found = [_leading_to(flow, part, stored) for part, _ in parts]
    if any(one is None for one in found):
        return None
    arrays: list[Any] = []
    made_parts = []
    for (part, columns), one in zip(parts, found, strict=True):
        source = _part(flow, part, columns, one, arrays)
        if source is None:
            return None
        made_parts.append(source)
    if len(arrays) > MAX_OPERANDS:
        return None
    eqns = _all_between(flow, x, arrays)
    if not varying.can_evaluate(eqns, arrays):
        return None
    whole = function_of(flow.body, arrays, eqns, [x])
    source = QuantizedSource(
        spec,
        Comparable(("first", whole), lambda *given: whole(*given)[0]),
        tuple(made_parts),
        len(arrays),
        x.aval.dtype.name,
        x.aval.shape,
    )
    if source_refusal(source) is not None:
        return None
    atoms = [*arrays, *rest]

    def bind(*given: jax.Array) -> list[jax.Array]:
        return quantized_source(given[: len(arrays)], given[len(arrays) :], source)

    jaxpr = trace_in_place(bind, eqn, atoms)
    if [o.aval for o in jaxpr.outvars] != [o.aval for o in eqn.outvars]:
        return None
    return placed(jaxpr, atoms, eqn.outvars, eqn.source_info)


def _fits(x: Any, spec: Any) -> bool:
    """Whether the kernel quantizes a function of this type."""
    return (
        x.dtype.name in ("bfloat16", "float16")
        and all(isinstance(size, int) for size in x.shape)
        and x.shape[0] == 1
        and x.shape[2] % ELEMENTS == 0
        and math.prod(x.shape) > 0
        and spec.layout.scale_dtype == FLOAT32
        and compat.explicit_sharding(x) is None
    )


def _keeps_rows(eqn: Any) -> bool:
    """Whether an equation gives an array another shape with the same last dimension."""
    if eqn.primitive.name not in SHAPES:
        return False
    (x,), (y,) = (variables(eqn.invars) or [None], eqn.outvars)
    return x is not None and x.aval.size == y.aval.size and x.aval.shape[-1:] == y.aval.shape[-1:]


def _parts_of(flow: Dataflow, v: Any) -> list[tuple[Any, int]]:
    """The arrays that are side by side in a variable, and their columns."""
    eqn, last = flow.producer(v), v.aval.ndim - 1
    whole = [(v, v.aval.shape[-1])]
    if eqn is None:
        return whole
    if eqn.primitive.name == "concatenate" and eqn.params["dimension"] == last:
        if any(compat_jaxpr.is_literal(x) for x in eqn.invars):
            return whole
        return [(x, x.aval.shape[-1]) for x in eqn.invars]
    if eqn.primitive.name not in ("add", "add_any"):
        return whole
    # What the gradients of slices are.
    padded = [flow.producer(x) for x in variables(eqn.invars)]
    if len(padded) != 2 or any(p is None or p.primitive.name != "pad" for p in padded):
        return whole
    found = []
    for pad in padded:
        *others, (low, _, interior) = pad.params["padding_config"]
        value = getattr(pad.invars[1], "val", None)
        if any(any(config) for config in others) or interior or value != 0 or low < 0:
            return whole
        found.append((low, pad.invars[0]))
    found.sort(key=lambda pair: pair[0])
    widths = [x.aval.shape[-1] for _, x in found]
    if [low for low, _ in found] != [0, widths[0]] or sum(widths) != v.aval.shape[-1]:
        return whole
    return [(x, width) for (_, x), width in zip(found, widths, strict=True)]


def _leading_to(flow: Dataflow, part: Any, stored: Any) -> _Found | None:
    """The elementwise operations that compute a part; None where there are none to fuse."""
    shape, found = part.aval.shape, _Found()
    pending, seen = [part], set()
    while pending:
        v = pending.pop()
        if v in seen:
            continue
        seen.add(v)
        eqn = flow.producer(v)
        computes = eqn is not None and not eqn.effects and (v is part or v not in stored)
        if computes and eqn.primitive.name in SHAPES and v.aval.shape == shape and _base(flow, v):
            found.leaves.append(v)  # another shape of what is in memory
        elif computes and (is_elementwise(eqn) or eqn.primitive.name in ARRANGING):
            found.eqns[id(eqn)] = eqn
            pending += variables(eqn.invars)
        else:
            window = None if eqn is None else _window(eqn, v)
            if window is not None and _base(flow, window[0]):
                found.windows[v] = window
            elif SMALL * v.aval.size > math.prod(shape) and not _in_memory(flow, v, stored):
                return None
            found.leaves.append(v)
    computing = [e for e in found.eqns.values() if e.primitive.name not in ARRANGING]
    return found if computing and len(found.eqns) <= MOST_OPERATIONS else None


def _base(flow: Dataflow, v: Any) -> bool:
    """Whether a variable is another shape of what no pass computes."""
    eqn = flow.producer(v)
    while eqn is not None and eqn.primitive.name in SHAPES:
        (x,) = variables(eqn.invars) or (None,)
        if x is None or x.aval.size != v.aval.size:
            return False
        eqn = flow.producer(x)
    return eqn is None or eqn.primitive.name not in _COMPUTED


def _in_memory(flow: Dataflow, v: Any, stored: Any) -> bool:
    return v in stored or _base(flow, v)


def _window(eqn: Any, v: Any) -> tuple[Any, int] | None:
    """Of which variable a result is columns, and from which on."""
    (x, *_), last = eqn.invars, v.aval.ndim - 1
    if eqn.primitive.name == "split" and eqn.params["axis"] == last:
        place = [o is v for o in eqn.outvars].index(True)
        return x, int(sum(eqn.params["sizes"][:place]))
    if eqn.primitive.name != "slice" or set(eqn.params["strides"] or (1,)) != {1}:
        return None
    start, end = eqn.params["start_indices"], eqn.params["limit_indices"]
    if any(start[:-1]) or tuple(end[:-1]) != x.aval.shape[:-1]:
        return None
    return x, int(start[-1])


def _part(
    flow: Dataflow, part: Any, columns: int, found: _Found, arrays: list[Any]
) -> SourcePart | None:
    """What is computed in some columns. Adds to the arrays that the kernel reads."""
    if columns % ELEMENTS:
        return None
    eqns = sorted(found.eqns.values(), key=lambda e: flow.place[id(e)])
    if not varying.can_evaluate(eqns, found.leaves):
        return None
    function = function_of(flow.body, found.leaves, eqns, [part])
    types = [v.aval for v in found.leaves]
    shape = part.aval.shape
    try:
        traced = traced_program(
            lambda _, *given: function(*given), part.aval.dtype.name, shape, [], types
        )
    except EpilogueError:  # XLA computes it
        return None
    program = None if traced is None else as_matrix(traced[0], shape)
    if program is None or isinstance(program, str):
        return None
    windows = []
    for v, operand in zip(found.leaves, program.operands, strict=True):
        array, offset = found.windows.get(v, (v, 0))
        if operand.dtype not in OPERAND_TYPES or (v in found.windows and 1 not in operand.axes):
            return None
        if array not in arrays:
            arrays.append(array)
        pitch = array.aval.shape[-1] if operand.axes == _WHOLE else int(operand.axes == (0,))
        window = Window(arrays.index(array), pitch, offset)
        if 1 in operand.axes and not window.aligned(operand.dtype):
            return None
        windows.append(window)
    return SourcePart(program, tuple(windows), columns)


def _all_between(flow: Dataflow, x: Any, arrays: Sequence[Any]) -> list[Any]:
    """The equations that compute a variable from arrays, in order."""
    needed: dict[int, Any] = {}
    pending = [x]
    while pending:
        v = pending.pop()
        eqn = None if v in arrays else flow.producer(v)
        if eqn is not None and id(eqn) not in needed:
            needed[id(eqn)] = eqn
            pending += variables(eqn.invars)
    return sorted(needed.values(), key=lambda e: flow.place[id(e)])
