"""A product of JAX's as this package's: traced in its place, or the reason why not."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType

from jax_bwgemm import compat
from jax_bwgemm.config import Target, links_epilogues
from jax_bwgemm.dense.api import dot_general, rounded_dot_general
from jax_bwgemm.dense.costs import typical_gain
from jax_bwgemm.dense.selection import predicted_cycles
from jax_bwgemm.grouped.api import ragged_dot_general, rounded_ragged_dot_general
from jax_bwgemm.product.contraction import Contraction
from jax_bwgemm.product.dtypes import operand_types
from jax_bwgemm.product.implementations import SYMBOLIC, assumed_target, rounded_types
from jax_bwgemm.product.lowering import padding_refusal
from jax_bwgemm.product.primitive import CONTRACTIONS
from jax_bwgemm.product.support import refusal
from jax_bwgemm.product.terms import in_terms
from jax_bwgemm.rewriting import policy
from jax_bwgemm.rewriting.dataflow import variables
from jax_bwgemm.rewriting.inlining import inlined, trace_for
from jax_bwgemm.rewriting.uses import Uses

PRODUCTS = ("dot_general", "ragged_dot_general")
WHY = "a kernel takes it"


@dataclasses.dataclass(frozen=True)
class Replacement:
    """What becomes of a product.

    Attributes:
        eqns: The equations that compute it on our kernels; None: it stays with XLA.
        why: The reason.
        unless_fused: Why it had better stay with XLA if no kernel takes along what follows it, by
            what reads its result then; None: it need not.
        taken_by_xla: Whether XLA's product takes along what follows it.
    """

    eqns: list[Any] | None
    why: str
    unless_fused: Callable[[Uses], str | None] | None = None
    taken_by_xla: bool = False


def replace(eqn: Any, uses: Uses, implementations: tuple[str, ...]) -> Replacement:
    """What becomes of a product, and why.

    Args:
        eqn: An equation of one of `PRODUCTS`.
        uses: What reads its result.
        implementations: As the argument of `jax_bwgemm.dot_general`.
    """
    eqn = _without_needless_sharding(eqn)
    sizes = [size for x in eqn.invars[:2] for size in x.aval.shape]
    if not all(isinstance(size, int) for size in sizes):
        return Replacement(None, f"sizes are symbolic, and {SYMBOLIC}")
    dense = eqn.primitive.name == "dot_general"
    if dense and (reason := policy.tiny(eqn)):
        return Replacement(None, reason)
    if not dense and eqn.params["group_offset"] is not None:
        return Replacement(None, "it has a group_offset")
    names = tuple(name for name in implementations if name != "xla")
    # With "xla" in it nothing is refused while tracing.
    traced = trace_for(_ours(eqn, (*names, "xla"), uses), eqn)
    found = next((e for e in traced.eqns if e.primitive in CONTRACTIONS), None)
    if found is None or found.params["spec"].policy.implementations[0] == "xla":
        return Replacement(None, _refusal(eqn, found, names, uses))
    if "xla" in implementations and (reason := _padding_refusal(found)):
        return Replacement(None, reason)
    unless_fused, taken_by_xla = None, False
    if dense:
        copies = _copied(eqn, traced, _taken(eqn, uses))
        contraction, spec = CONTRACTIONS[found.primitive], found.params["spec"]
        dims = contraction.dims(spec, *(x.aval.shape for x in found.invars))
        target = assumed_target()
        types = tuple(str(x.aval.dtype) for x in found.invars[:2])
        if reason := policy.tf32(types, spec.policy.precision):
            return Replacement(None, reason)
        if reason := _unsupported(contraction, spec, types, target, names[0]):
            return Replacement(None, reason)
        cycles = _predicted(found.primitive, spec, operand_types(*types), dims, target, names[0])
        if reason := policy.slower(types, spec.policy.precision, dims, cycles, target):
            return Replacement(None, reason)
        gain = typical_gain(operand_types(*types), spec.policy.precision)

        def loses(passes: int) -> str | None:
            return policy.loses(dims, spec.out_dtype, passes, copies, target, gain)

        if reason := loses(0):
            return Replacement(None, reason)

        def alone(uses: Uses) -> str | None:
            return (
                loses(uses.extra_passes)
                or policy.short(dims)
                or policy.small(types, dims, cycles, target)
            )

        if reason := alone(uses):
            if not links_epilogues():
                return Replacement(None, reason)
            unless_fused, taken_by_xla = alone, uses.extra_passes > 0
    if "xla" not in implementations:
        traced = trace_for(_ours(eqn, implementations, uses), eqn)
    wanted, got = eqn.outvars[0].aval, traced.outvars[0].aval
    if got != wanted:
        return Replacement(None, f"ours has the type {got}, not {wanted}")
    rounded = dict(_taken(eqn, uses)).get("round")
    why = WHY if rounded is None else f"{WHY}, which rounds to {rounded}"
    return Replacement(inlined(traced, eqn), why, unless_fused, taken_by_xla)


def _without_needless_sharding(eqn: Any) -> Any:
    """An equation without an ``out_sharding`` that says nothing.

    JAX's gradients of products have one wherever arrays belong to a mesh: of automatic and manual
    axes too, and where the operands' types say the same.
    """
    sharding = eqn.params.get("out_sharding")
    if sharding is None:
        return eqn
    explicit = any(kind == AxisType.Explicit for kind in sharding.mesh.axis_types)
    if explicit and not _follows(sharding.spec, eqn):
        return eqn
    return eqn.replace(params=eqn.params | {"out_sharding": None})


def _follows(spec: Any, eqn: Any) -> bool:
    """Whether a product's result is sharded as its operands are, which contract nothing sharded."""
    operands = [x.aval for x in eqn.invars[:2]]
    if eqn.primitive.name != "dot_general" or None in map(compat.explicit_sharding, operands):
        return False
    contracted, batch = eqn.params["dimension_numbers"]
    specs = [compat.spec_of(x) for x in operands]
    if any(spec[d] is not None for spec, dims in zip(specs, contracted, strict=True) for d in dims):
        return False
    batches = [[spec[d] for d in dims] for spec, dims in zip(specs, batch, strict=True)]
    free = [
        [axes for d, axes in enumerate(spec) if d not in (*contracted[i], *batch[i])]
        for i, spec in enumerate(specs)
    ]
    found = [*batches[0], *free[0], *free[1]]
    named = [x for axes in found if axes for x in (axes if isinstance(axes, tuple) else (axes,))]
    if batches[0] != batches[1] or len({*named}) != len(named):
        return False
    return found == [*spec, *[None] * (len(found) - len(spec))]


def _padding_refusal(found: Any) -> str | None:
    """Why our product's operands are not worth padding for a kernel.

    Args:
        found: Its equation.
    """
    spec, avals = found.params["spec"], [x.aval for x in found.invars]
    dtypes = rounded_types([x.dtype.name for x in avals[:2]], spec.policy.precision)
    contraction = CONTRACTIONS[found.primitive]
    return padding_refusal(contraction, spec, dtypes, [x.shape for x in avals])


def _unsupported(
    contraction: Contraction, spec: Any, types: tuple[str, ...], target: Target, name: str
) -> str | None:
    """Why no kernel of a GPU multiplies operands of these types, which those of others do."""
    table = contraction.kernels(name)
    if any(k.arch == target.arch and (k.a_dtype, k.b_dtype) == types for k in table):
        return None
    if in_terms(contraction, spec, types, target) is not None:
        return None
    asked = spec.policy.precision
    each = asked if isinstance(asked, tuple) else (asked,)
    names = dict.fromkeys(getattr(x, "name", str(x)) for x in each if x is not None)
    precision = f" with precision {' and '.join(names)}" if names else ""
    return f"no kernel for {target.arch} multiplies {types[0]} by {types[1]}{precision}"


@functools.lru_cache(maxsize=4096)
def _predicted(
    primitive: Any, spec: Any, in_dtype: str, dims: Any, target: Target, implementation: str
) -> float | None:
    """Cycles that a kernel is predicted to take for a dense product; None if none fits as it is."""
    table = CONTRACTIONS[primitive].kernels(implementation)
    return predicted_cycles(spec, in_dtype, dims, target, table)


def _ours(eqn: Any, implementations: tuple[str, ...], uses: Uses) -> Callable[..., Any]:
    """This package's function for an equation.

    Where all readers round or transpose the result alike, the kernel does it: XLA drops what goes
    there and back. Else a transpose, which costs XLA's own product nothing, would be a copy: JAX
    has one in the gradient of every right operand.
    """
    params = dict(eqn.params)
    params["implementation"] = implementations
    if eqn.primitive.name == "dot_general":
        return _taking(eqn, params, _taken(eqn, uses))
    del params["group_offset"]
    if not (taken := _taken(eqn, uses)):
        return functools.partial(ragged_dot_general, **params)
    rounded_to, wanted = dict(taken)["round"], eqn.outvars[0].aval.dtype
    product = functools.partial(rounded_ragged_dot_general, rounded_to=rounded_to, **params)
    return lambda *operands: product(*operands).astype(wanted)


def _taken(eqn: Any, uses: Uses) -> list[tuple[str, Any]]:
    """The first steps of all readers that a kernel takes: rounding, exchanging the operands.

    Transposes one after the other count as one: two that cancel leave nothing to exchange.
    """
    if eqn.primitive.name != "dot_general":
        ragged, *_ = eqn.params["ragged_dot_dimension_numbers"].lhs_ragged_dimensions
        (_, _), (batch, _) = eqn.params["ragged_dot_dimension_numbers"].dot_dimension_numbers
        first = uses.steps[:1]
        return list(first) if first and first[0][0] == "round" and ragged not in batch else []
    whole = tuple(range(eqn.outvars[0].aval.ndim))
    order, exchanged, rounded = whole, False, None
    for kind, how in uses.steps:
        if kind == "transpose":
            order = tuple(order[d] for d in how)
            if order in (whole, _swap(eqn)):
                exchanged = order != whole
        elif rounded is None:
            rounded = how
        else:
            break
    taken: list[tuple[str, Any]] = []
    if exchanged and eqn.params["out_sharding"] is None:
        taken.append(("transpose", _swap(eqn)))
    if rounded is not None:
        taken.append(("round", rounded))
    return taken


def _swap(eqn: Any) -> tuple[int, ...]:
    """The transpose of a product's result that exchanged operands give; empty if there is none."""
    (contracted, _), (batch, _) = eqn.params["dimension_numbers"]
    first, rank = len(batch), eqn.outvars[0].aval.ndim
    rows = eqn.invars[0].aval.ndim - len(contracted)  # of lhs, after the batch
    if rows in (first, rank):
        return ()
    return (*range(first), *range(rows, rank), *range(first, rows))


def _taking(
    eqn: Any, params: dict[str, Any], taken: list[tuple[str, Any]]
) -> Callable[..., jax.Array]:
    """A dense product that takes these steps and undoes them, the last one first."""
    steps = dict(taken)
    product: Callable[..., jax.Array] = dot_general
    if "round" in steps:
        product = functools.partial(rounded_dot_general, rounded_to=steps["round"])
    if "transpose" in steps:
        numbers = tuple(pair[::-1] for pair in params["dimension_numbers"])
        params = params | {"dimension_numbers": numbers}

    def call(lhs: jax.Array, rhs: jax.Array) -> jax.Array:
        out = product(*((rhs, lhs) if "transpose" in steps else (lhs, rhs)), **params)
        for kind, how in reversed(taken):
            if kind == "transpose":
                out = out.transpose(np.argsort(how))
            else:
                out = out.astype(eqn.outvars[0].aval.dtype)
        return out

    return call


def _copied(eqn: Any, traced: Any, taken: list[tuple[str, Any]]) -> policy.Copies:
    """What is transposed before and after a kernel."""
    sides = {x: side for side, x in enumerate(traced.invars[:2])}
    found: dict[str, list[int]] = {"alone": [], "rows": [], "batch": []}
    for one in traced.eqns:
        read = variables(one.invars)
        side = sides.get(read[0]) if len(read) == 1 else None
        if side is not None:
            sides[one.outvars[0]] = side
        if one.primitive.name == "transpose":
            aval = one.outvars[0].aval
            kind = "alone" if side is None else scattered(eqn, side)
            found[kind].append(aval.size * aval.dtype.itemsize)
    if "transpose" in dict(taken):  # the last one cancels one that follows
        found["alone"].pop()
    return policy.Copies(**{kind: sum(sizes) for kind, sizes in found.items()})


def scattered(eqn: Any, side: int) -> str:
    """Which dimensions of an operand do not merge into one, as an attribute of `policy.Copies`."""
    shape = eqn.invars[side].aval.shape
    contracted, batch = (
        [dims[side] for dims in sorted(zip(*pair, strict=True))]
        for pair in eqn.params["dimension_numbers"]
    )
    free = [d for d in range(len(shape)) if d not in contracted and d not in batch]
    places = {d: i for i, d in enumerate(d for d, size in enumerate(shape) if size != 1)}

    def merge(dims: list[int]) -> bool:
        own = [places[d] for d in dims if d in places]
        return all(b == a + 1 for a, b in itertools.pairwise(own))

    if not merge(batch):
        return "batch"
    return "alone" if merge(free) and merge(contracted) else "rows"


def _error(eqn: Any, names: tuple[str, ...], uses: Uses) -> str:
    """Why this package's function refuses a product when XLA may not compute it."""
    try:
        trace_for(_ours(eqn, names, uses), eqn)
    except ExceptionGroup as group:  # several implementations: all for one reason, as a rule
        return str(group.exceptions[0]).partition(": ")[2]
    except NotImplementedError as error:
        return str(error).partition(": ")[2]
    return "the log says more"


def _refusal(eqn: Any, found: Any, names: tuple[str, ...], uses: Uses) -> str:
    """Why no kernel takes a product."""
    if not names:
        return "only 'xla' is allowed"
    if found is None:
        types = " x ".join(x.aval.dtype.name for x in eqn.invars[:2])
        result = eqn.outvars[0].aval.dtype.name
        return f"no kernel multiplies {types} -> {result} like that: {_error(eqn, names, uses)}"
    contraction, spec = CONTRACTIONS[found.primitive], found.params["spec"]
    avals = [x.aval for x in found.invars]
    dims = contraction.dims(spec, *(aval.shape for aval in avals))
    dtypes = [aval.dtype.name for aval in avals[:2]]
    reasons = [refusal(contraction, name, spec, dtypes, dims) for name in names]
    return next((reason for reason in reasons if reason), "only 'xla' is allowed")
