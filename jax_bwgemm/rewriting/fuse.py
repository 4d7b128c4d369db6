"""Products of ours and the elementwise operations after them, as one primitive.

Everything that a group of operations reads besides the product is there before it, so the primitive
stands where the product stood. Operations whose results are only read by passes of XLA's stay where
they are, as XLA computes them within these passes.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax

from jax_bwgemm import compat_jaxpr
from jax_bwgemm.dense.contraction import DENSE
from jax_bwgemm.dense.primitive import bw_gemm_p
from jax_bwgemm.epilogue.costs import Surroundings
from jax_bwgemm.epilogue.hook import MAX_OPERANDS, MAX_RESULTS, MAX_SUMS
from jax_bwgemm.epilogue.primitive import Fused, gemm_with_epilogue, link_refusal
from jax_bwgemm.epilogue.primitives import ALIASES, PRIMITIVES, SPECIAL
from jax_bwgemm.epilogue.program import as_matrix
from jax_bwgemm.epilogue.simplify import with_excess_precision
from jax_bwgemm.epilogue.tracing import EpilogueError, trace_epilogue
from jax_bwgemm.rewriting.inlining import placed
from jax_bwgemm.rewriting.materialised import materialised
from jax_bwgemm.rewriting.uses import INLINED, Uses, operand_uses, uses_of

# Bodies that may be part of a group; a checkpoint is to be computed again where it says.
_BODIES = {k: v for k, v in INLINED.items() if k not in ("shard_map", "remat2", "checkpoint")}
_ELEMENTWISE = ({*PRIMITIVES, *SPECIAL} | set(ALIASES)) - {"iota", "optimization_barrier"}
# What brings an operand into the result's shape.
_ARRANGING = ("broadcast_in_dim", "reshape", "squeeze", "expand_dims", "convert_element_type")
_ARRANGING += ("iota",)
# What says of an array that it varies over manual mesh axes, as all operands of the primitive do.
_VARYING = ("pvary", "pcast")
_MOST_OPERATIONS = 64


@dataclasses.dataclass
class _Group:
    """Operations after a product.

    Attributes:
        product: The product's equation.
        reshape: What gives its result another shape, and nothing else reads it; or None.
        root: The product's result, in the shape that the operations read.
        eqns: The operations, in order.
        sums: Sums over rows of the product or of what an operation gives: gradients of biases.
        arranging: Operations after the product on what was there before it, by what they define.
    """

    product: Any
    reshape: Any
    root: Any
    eqns: list[Any]
    sums: list[Any]
    arranging: dict[Any, Any]


@dataclasses.dataclass(frozen=True)
class Provisional:
    """A product that is better off with XLA unless a kernel takes along what follows it.

    Attributes:
        eqn: XLA's equation.
        ours: The equations in its place.
        why: Why it is better off.
        decision: Its number among the decisions.
    """

    eqn: Any
    ours: list[Any]
    why: str
    decision: int


def fuse(
    body: Any, eqns: list[Any], results: Sequence[Uses], provisional: Sequence[Provisional] = ()
) -> tuple[list[Any], list[Provisional]]:
    """Equations with products and what follows them as one.

    Args:
        body: The jaxpr that the equations are for: its arguments and results.
        eqns: Its equations, products of ours among them.
        results: What reads its results.
        provisional: Those of the products that are XLA's again where that does not work out.

    Returns:
        The equations, and what of `provisional` is XLA's again.
    """
    unsure = {id(e) for one in provisional for e in one.ours}
    for product in [e for e in eqns if e.primitive is bw_gemm_p]:
        if not _fits(product):
            continue
        group = _group(body, eqns, product)
        if group is None:
            continue
        for sums in _choices(group):
            new = _fused(body, eqns, results, group, sums, id(product) in unsure)
            if new:
                eqns = new
                break
    left = []
    for one in provisional:
        own = {id(e) for e in one.ours}
        here = [i for i, e in enumerate(eqns) if id(e) in own]
        if len(here) == len(own):
            eqns = [one.eqn if i == here[0] else e for i, e in enumerate(eqns)
                    if i == here[0] or id(e) not in own]  # fmt: skip
            left.append(one)
    return eqns, left


def _fits(eqn: Any) -> bool:
    """Whether kernels that compute a product may take operations along."""
    spec = eqn.params["spec"]
    a, b = (x.aval for x in eqn.invars)
    dims = DENSE.dims(spec, a.shape, b.shape)
    one_matrix = dims.batch == 1 or (dims.b_batch == 1 and spec.a_major == "k")
    return (
        one_matrix
        and not spec.reduce_batch
        and spec.out_sharding is None
        and a.dtype.name == b.dtype.name == spec.out_dtype
    )


def _variables(atoms: Sequence[Any]) -> list[Any]:
    return [x for x in atoms if not hasattr(x, "val")]


def _group(body: Any, eqns: list[Any], product: Any) -> _Group | None:
    """The operations after a product that read it and what was there before it."""
    at = eqns.index(product)
    (root,) = product.outvars
    readers = [e for e in eqns if root in _variables(e.invars)]
    reshape = None
    n = root.aval.shape[-1]
    if len(readers) == 1 and readers[0].primitive.name == "reshape" and root not in body.outvars:
        (shaped,) = readers[0].outvars
        if shaped.aval.shape[-1:] == (n,):
            reshape, root = readers[0], shaped
    available = {*body.invars, *body.constvars, *(v for e in eqns[:at] for v in e.outvars)}
    found = _Group(product, reshape, root, [], [], {})
    inside = {root}
    for eqn in eqns[at + 1 :]:
        read = _variables(eqn.invars)
        if eqn is reshape or eqn.effects or len(found.eqns) == _MOST_OPERATIONS:
            continue
        if not inside.intersection(read):
            again = eqn.primitive.name in _ARRANGING or _is_elementwise(eqn)
            if again and all(v in available or v in found.arranging for v in read):
                found.arranging.update(dict.fromkeys(eqn.outvars, eqn))
            continue
        if _sums_rows(eqn, root):
            found.sums.append(eqn)
            continue
        known = all(v in inside or v in available or v in found.arranging for v in read)
        same_shape = all(v.aval.shape == root.aval.shape for v in eqn.outvars)
        if known and same_shape and _is_elementwise(eqn):
            found.eqns.append(eqn)
            inside.update(eqn.outvars)
    return found if found.eqns or found.sums else None


def _sums_rows(eqn: Any, root: Any) -> bool:
    """Whether it is a sum over all dimensions but the last of an array of the product's shape."""
    if eqn.primitive.name != "reduce_sum" or eqn.invars[0].aval.shape != root.aval.shape:
        return False
    rank = root.aval.ndim
    return rank > 1 and tuple(eqn.params["axes"]) == tuple(range(rank - 1))


def _choices(group: _Group) -> list[list[Any]]:
    """Sums over rows that a kernel may take, the best choice first."""
    own = {group.root, *(v for e in group.eqns for v in e.outvars)}
    some = [e for e in group.sums if e.invars[0] in own][:MAX_SUMS]
    return [some, some[:1], []] if len(some) > 1 else [some, []] if some else [[]]


def _is_elementwise(eqn: Any) -> bool:
    name = eqn.primitive.name
    if name not in _BODIES:
        return name in _ELEMENTWISE
    inner = eqn.params[_BODIES[name]]
    inner = getattr(inner, "jaxpr", inner)
    return all(
        e.primitive.name not in _VARYING and (_is_elementwise(e) or e.primitive.name in _ARRANGING)
        for e in inner.eqns
    )


def _fused(
    body: Any,
    eqns: list[Any],
    results: Sequence[Uses],
    group: _Group,
    sums: list[Any],
    taken_by_xla: bool,
) -> list[Any] | None:
    """Equations with the group's product and operations as one; None where that is no gain.

    sums: Those of the group's that the kernel takes.
    taken_by_xla: Whether XLA's product would take the operations along.
    """
    stored = _stored(body, eqns, results)
    spec = group.product.params["spec"]
    outs = [
        v
        for e in group.eqns
        for v in e.outvars
        if v in stored and v.aval.dtype.name == spec.out_dtype
    ]
    if not (outs or sums) or len(outs) + len(sums) >= MAX_RESULTS:
        return None
    whole, outs = len(outs), [*outs, *(e.outvars[0] for e in sums)]
    inner = _needed(eqns, group, outs, stored, sums)
    defined = {group.root, *(v for e in inner for v in e.outvars)}
    operands = list(dict.fromkeys(v for e in inner for v in _variables(e.invars)))
    operands = [v for v in operands if v not in defined]
    if len(operands) > MAX_OPERANDS:
        return None
    function = _function(body, group.root, operands, outs, inner)
    fused = _described(group, function, operands, outs)
    if fused is None:
        return None
    # What the others still read: the product itself, if any of them does.
    rest = _without_unread(body, eqns, group, outs)
    keeps = any(group.root in _variables(e.invars) for e in rest) or group.root in body.outvars
    if not (whole or keeps):
        return None
    fused = fused.with_product() if keeps else fused
    made = [*outs, group.root] if keeps else outs
    after = uses_of(compat_jaxpr.with_equations(body, rest), results)
    also_read = sum(v in after and after[v].fused for v in outs[:whole])
    surroundings = Surroundings(also_read=also_read, taken_by_xla=taken_by_xla)
    fused = dataclasses.replace(fused, surroundings=surroundings)
    if (taken_by_xla or sums) and link_refusal([x.aval for x in group.product.invars], fused):
        return None
    replacement = _equations(group.product, operands, made, fused)
    if replacement is None:
        return None
    at = rest.index(group.product)
    return [*rest[:at], *replacement, *rest[at + 1 :]]


def _needed(
    eqns: list[Any], group: _Group, outs: list[Any], stored: set[Any], sums: list[Any]
) -> list[Any]:
    """The operations that results need, in order.

    Those of the group, what arranges operands, and elementwise ones before the product whose
    results no pass of XLA's would have to write: they are computed again from what is in memory.
    """
    shape = group.root.aval.shape
    place = {id(e): i for i, e in enumerate(eqns)}
    of = {v: e for e in eqns for v in e.outvars}
    members = {id(e) for e in (*group.eqns, *sums)}
    needed: dict[int, Any] = {}
    open_ends = list(outs)
    while open_ends:
        v = open_ends.pop()
        eqn = of.get(v)
        if eqn is None or v is group.root or id(eqn) in needed:
            continue
        # Another shape of what is in memory is in memory.
        computes = eqn.primitive.name == "broadcast_in_dim" or _is_elementwise(eqn)
        again = v not in stored and v.aval.shape == shape and not eqn.effects and computes
        if id(eqn) in members or v in group.arranging or again:
            needed[id(eqn)] = eqn
            open_ends += _variables(eqn.invars)
    return sorted(needed.values(), key=lambda e: place[id(e)])


def _stored(body: Any, eqns: list[Any], results: Sequence[Uses]) -> set[Any]:
    """Variables in memory: what reads them is no pass of XLA's, or they are `materialised`."""
    uses = uses_of(compat_jaxpr.with_equations(body, eqns), results)
    read = list(zip(body.outvars, results, strict=True))
    for eqn in eqns:
        of_operands = operand_uses(eqn, [uses.get(v, Uses()) for v in eqn.outvars])
        read += zip(eqn.invars, of_operands, strict=True)
    stored = {x for x, use in read if not hasattr(x, "val") and use.stored}
    return stored | materialised(eqns, _is_elementwise, stored)


def _function(
    body: Any, root: Any, operands: list[Any], outs: list[Any], inner: list[Any]
) -> Callable[..., list[jax.Array]]:
    """The operations as a function of the product and operands."""
    same: dict[Any, Any] = {}
    eqns = []
    for eqn in inner:
        read = [x if hasattr(x, "val") else same.get(x, x) for x in eqn.invars]
        if eqn.primitive.name in _VARYING:
            same.update(zip(eqn.outvars, read, strict=True))
        else:
            eqns.append(eqn.replace(invars=read))
    outs = [same.get(v, v) for v in outs]
    jaxpr = compat_jaxpr.part_of(body, [root, *operands], outs, eqns)

    def function(product: jax.Array, *operands: jax.Array) -> list[jax.Array]:
        return compat_jaxpr.evaluate(jaxpr, [], [product, *operands])

    return function


def _described(
    group: _Group, function: Callable[..., list[jax.Array]], operands: list[Any], outs: list[Any]
) -> Fused | None:
    """What the primitive is to compute; None where kernels cannot."""
    spec, shape = group.product.params["spec"], group.root.aval.shape

    def of_accumulator(accumulator: jax.Array, *operands: jax.Array) -> list[jax.Array]:
        return function(accumulator.astype(spec.out_dtype), *operands)

    try:
        types = [jax.ShapeDtypeStruct(x.aval.shape, x.aval.dtype) for x in operands]
        with compat_jaxpr.plain_types():
            program = trace_epilogue(of_accumulator, shape, types).program
    except (EpilogueError, TypeError):
        return None
    # As XLA's passes, which do not round between their operations.
    program = as_matrix(with_excess_precision(program), shape)
    if isinstance(program, str):
        return None
    return Fused(spec, function, program, tuple(v.aval.dtype.name for v in outs), shape)


def _without_unread(body: Any, eqns: list[Any], group: _Group, outs: list[Any]) -> list[Any]:
    """The equations without those of the group that nothing reads any more."""
    members = {id(e) for e in (*group.eqns, *group.sums, *group.arranging.values())}
    read = set(_variables(body.outvars)) - set(outs)
    kept = []
    for eqn in reversed(eqns):
        if eqn is group.reshape:
            continue
        if id(eqn) in members and not read.intersection(eqn.outvars):
            continue
        kept.append(eqn)
        if eqn is not group.product:
            read.update(set(_variables(eqn.invars)) - set(outs))
    return kept[::-1]


def _equations(
    product: Any, operands: list[Any], made: list[Any], fused: Fused
) -> list[Any] | None:
    """The primitive in the product's place; None where its results have other types.

    Within shard_map operands may first have to vary over the same mesh axes.
    """
    atoms = [*product.invars, *operands]
    with compat_jaxpr.equation_context(product):
        bind = functools.partial(_bind, fused)
        jaxpr, constants = compat_jaxpr.trace(bind, [x.aval for x in atoms])
    assert not constants, "the primitive makes no constants"
    if [v.aval for v in jaxpr.outvars] != [v.aval for v in made]:
        return None
    return placed(jaxpr, atoms, made, product.source_info)


def _bind(fused: Fused, a: jax.Array, b: jax.Array, *operands: jax.Array) -> list[jax.Array]:
    return gemm_with_epilogue(a, b, operands, fused)
