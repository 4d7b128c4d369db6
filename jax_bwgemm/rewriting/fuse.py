"""Products of ours and the elementwise operations after them, as one primitive.

Everything that a group of operations reads besides the product is there before it, or is small and
can be computed before it, so the primitive stands where the product stood. Operations whose results
are only read by passes of XLA's stay where they are, as XLA computes them within these passes.

What differs between dense products and those of groups is in `fused_products.py`.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax

from jax_bwgemm import compat_jaxpr
from jax_bwgemm.epilogue.costs import Surroundings
from jax_bwgemm.epilogue.hook import MAX_OPERANDS, MAX_RESULTS
from jax_bwgemm.epilogue.primitive import Fused, link_refusal
from jax_bwgemm.epilogue.primitives import ALIASES, PRIMITIVES, SPECIAL
from jax_bwgemm.rewriting import varying
from jax_bwgemm.rewriting.fused_products import KINDS, Function, Kind, Shape
from jax_bwgemm.rewriting.inlining import placed
from jax_bwgemm.rewriting.materialised import materialised
from jax_bwgemm.rewriting.uses import INLINED, Uses, operand_uses, uses_of

# Bodies that may be part of a group; a checkpoint is to be computed again where it says.
_BODIES = {k: v for k, v in INLINED.items() if k not in ("shard_map", "remat2", "checkpoint")}
_ELEMENTWISE = ({*PRIMITIVES, *SPECIAL} | set(ALIASES)) - {"iota", "optimization_barrier"}
# What brings an operand into the result's shape.
_ARRANGING = ("broadcast_in_dim", "reshape", "squeeze", "expand_dims", "convert_element_type")
_ARRANGING += ("iota",)
_MOST_OPERATIONS = 64
# What is computed ahead of a product has at most this part of its elements.
_SMALL = 16


@dataclasses.dataclass
class _Group:
    """Operations after a product.

    Attributes:
        kind: What the product is.
        product: The product's equation.
        replaced: What gives its result another shape or divides it, and nothing else reads it.
        roots: The product's result in the shape that the operations read, or both its halves.
        eqns: The operations, in order.
        sums: Sums of the product or of what an operation gives, which kernels may take.
        side_by_side: Operations that lay two results side by side.
        arranging: Operations after the product on what was there before it, by what they define.
        ahead: The same of small results, of any operations: empty unless `Kind.routed`.
    """

    kind: Kind
    product: Any
    replaced: list[Any]
    roots: list[Any]
    eqns: list[Any] = dataclasses.field(default_factory=list)
    sums: list[Any] = dataclasses.field(default_factory=list)
    side_by_side: list[Any] = dataclasses.field(default_factory=list)
    arranging: dict[Any, Any] = dataclasses.field(default_factory=dict)
    ahead: dict[Any, Any] = dataclasses.field(default_factory=dict)

    @property
    def shape(self) -> Shape:
        return self.roots[0].aval.shape


@dataclasses.dataclass(frozen=True)
class Provisional:
    """A product that is better off with XLA unless a kernel takes along what follows it.

    Attributes:
        eqn: XLA's equation.
        ours: The equations in its place.
        why: Why it is better off, by what reads its result; None: it is not.
        decision: Its number among the decisions.
    """

    eqn: Any
    ours: list[Any]
    why: Callable[[Uses], str | None]
    decision: int


def fuse(
    body: Any, eqns: list[Any], results: Sequence[Uses], provisional: Sequence[Provisional] = ()
) -> tuple[list[Any], list[tuple[Provisional, str]], dict[Any, str]]:
    """Equations with products and what follows them as one.

    Args:
        body: The jaxpr that the equations are for: its arguments and results.
        eqns: Its equations, products of ours among them.
        results: What reads its results.
        provisional: Those of the products that are XLA's again where that does not work out.

    Returns:
        The equations; what of `provisional` is XLA's again, and why; of results that something
        elementwise follows, why no kernel takes that along.
    """
    unsure = {id(e) for one in provisional for e in one.ours}
    reasons: dict[Any, str] = {}
    for product in [e for e in eqns if e.primitive in KINDS]:
        kind = KINDS[product.primitive]
        why_not = kind.why_not(product)
        group = _group(body, eqns, product) if why_not or kind.fits(product) else None
        if group is None:
            continue
        if why_not:
            reasons[product.outvars[0]] = why_not
            continue
        for sums in _choices(group):
            new = _fused(body, eqns, results, group, sums, id(product) in unsure)
            if new:
                eqns = new
                break
    uses = uses_of(compat_jaxpr.with_equations(body, eqns), results) if provisional else {}
    left = []
    for one in provisional:
        own = {id(e) for e in one.ours}
        here = [i for i, e in enumerate(eqns) if id(e) in own]
        why = one.why(uses.get(one.eqn.outvars[0], Uses()))
        if len(here) == len(own) and why:
            eqns = [one.eqn if i == here[0] else e for i, e in enumerate(eqns)
                    if i == here[0] or id(e) not in own]  # fmt: skip
            left.append((one, why))
    return eqns, left, reasons


def _variables(atoms: Sequence[Any]) -> list[Any]:
    return [x for x in atoms if not hasattr(x, "val")]


def _group(body: Any, eqns: list[Any], product: Any) -> _Group | None:
    """The operations after a product that read it and what was there before it."""
    at = eqns.index(product)
    found = _beginning(body, eqns, product)
    kind, shape = found.kind, found.shape
    available = {*body.invars, *body.constvars, *(v for e in eqns[:at] for v in e.outvars)}
    inside = set(found.roots)
    replaced = {id(e) for e in found.replaced}
    for eqn in eqns[at + 1 :]:
        read = _variables(eqn.invars)
        if id(eqn) in replaced or eqn.effects or len(found.eqns) == _MOST_OPERATIONS:
            continue
        known = all(
            v in inside or v in available or v in found.arranging or v in found.ahead for v in read
        )
        if not inside.intersection(read):
            if known and (eqn.primitive.name in _ARRANGING or _is_elementwise(eqn)):
                found.arranging.update(dict.fromkeys(eqn.outvars, eqn))
            elif known and kind.routed and _is_small(eqn, shape):
                found.ahead.update(dict.fromkeys(eqn.outvars, eqn))
            continue
        if kind.sums(eqn, shape):
            found.sums.append(eqn)
        elif kind.lays_side_by_side(eqn, shape) and inside.issuperset(read):
            found.side_by_side.append(eqn)
        elif all(v.aval.shape == shape for v in eqn.outvars) and known and _is_elementwise(eqn):
            found.eqns.append(eqn)
            inside.update(eqn.outvars)
    return found if found.eqns or found.sums else None


def _is_small(eqn: Any, shape: Shape) -> bool:
    return _SMALL * sum(v.aval.size for v in eqn.outvars) <= math.prod(shape)


def _beginning(body: Any, eqns: list[Any], product: Any) -> _Group:
    """A product and the forms of its result that operations read."""
    (root,) = product.outvars

    def readers(v: Any) -> list[Any]:
        return [] if v in body.outvars else [e for e in eqns if v in _variables(e.invars)]

    found = _Group(KINDS[product.primitive], product, [], [root])
    after = readers(root)
    if len(after) == 1 and after[0].primitive.name == "reshape":
        (shaped,) = after[0].outvars
        if shaped.aval.shape[-1:] == root.aval.shape[-1:]:
            found = dataclasses.replace(found, replaced=after, roots=[shaped])
            after = readers(shaped)
    halves = found.kind.halves(after, found.shape)
    if halves:
        found = dataclasses.replace(found, replaced=[*found.replaced, *after], roots=halves)
    return found


def _choices(group: _Group) -> list[list[Any]]:
    """Sums that a kernel may take, the best choice first."""
    own = {*group.roots, *(v for e in group.eqns for v in e.outvars)}
    some = [e for e in group.sums if e.invars[0] in own][: group.kind.most_sums]
    return [some, some[:1], []] if len(some) > 1 else [some, []] if some else [[]]


def _is_elementwise(eqn: Any) -> bool:
    name = eqn.primitive.name
    if name not in _BODIES:
        return name in _ELEMENTWISE
    inner = eqn.params[_BODIES[name]]
    inner = getattr(inner, "jaxpr", inner)
    return all(_is_elementwise(e) or e.primitive.name in _ARRANGING for e in inner.eqns)


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
    kind, spec = group.kind, group.product.params["spec"]
    stored = _stored(body, eqns, results)
    stored |= materialised(eqns, _is_elementwise, stored) if kind.normalised else set()

    def written(v: Any) -> bool:
        return v in stored and v.aval.dtype.name == spec.out_dtype

    both = [e for e in group.side_by_side if written(e.outvars[0])][:1]
    outs = [e.outvars[0] for e in both]
    outs += [v for e in group.eqns for v in e.outvars if written(v)]
    if not (outs or sums) or len(outs) + len(both) + len(sums) >= MAX_RESULTS:
        return None
    whole, outs = len(outs), [*outs, *(e.outvars[0] for e in sums)]
    inner = _needed(eqns, group, outs, stored, [*sums, *both])
    defined = {*group.roots, *(v for e in inner for v in e.outvars)}
    operands = list(dict.fromkeys(v for e in inner for v in _variables(e.invars)))
    operands = [v for v in operands if v not in defined]
    if len(operands) > MAX_OPERANDS or kind.reads_badly(operands, eqns, stored, group.shape):
        return None
    if not varying.can_evaluate(inner, [*group.product.invars, *operands]):
        return None
    found = kind.described(
        group.product,
        group.shape,
        [v.aval for v in operands],
        Function(
            functools.partial(_function, body, [*group.roots, *operands]),
            inner,
            [*sums, *both],
            outs[:whole],
            outs[whole:],
        ),
    )
    if found is None:
        return None
    fused, shapes = found
    # What the others still read: the product itself, if any of them does.
    rest = _without_unread(body, eqns, group, [*sums, *both], outs)
    read = {v for e in rest for v in _variables(e.invars)}.union(_variables(body.outvars))
    keeps = not read.isdisjoint(group.roots)
    if not (whole or keeps):
        return None
    fused = fused.with_product() if keeps else fused
    made = [*outs, *group.roots] if keeps else outs
    after = uses_of(compat_jaxpr.with_equations(body, rest), results)
    also_read = sum(v in after and after[v].fused for v in outs[:whole])
    surroundings = Surroundings(also_read=also_read, taken_by_xla=taken_by_xla)
    fused = dataclasses.replace(fused, surroundings=surroundings)
    # As passes halves would be read in one array, and so would what is laid side by side.
    sure = taken_by_xla or sums or both or len(group.roots) > 1
    if sure and link_refusal([x.aval for x in group.product.invars], fused):
        return None
    replacement = _equations(group, operands, shapes, made, fused)
    if replacement is None:
        return None
    ahead = _ahead(rest, group, operands)
    moved = {id(e) for e in ahead}
    rest = [e for e in rest if id(e) not in moved]
    at = rest.index(group.product)
    return [*rest[:at], *ahead, *replacement, *rest[at + 1 :]]


def _ahead(eqns: list[Any], group: _Group, operands: list[Any]) -> list[Any]:
    """The operations after the product that operands need, in order."""
    needed: dict[int, Any] = {}
    open_ends = list(operands)
    while open_ends:
        v = open_ends.pop()
        eqn = group.ahead.get(v) or group.arranging.get(v)
        if eqn is not None and id(eqn) not in needed:
            needed[id(eqn)] = eqn
            open_ends += _variables(eqn.invars)
    return [e for e in eqns if id(e) in needed]


def _needed(
    eqns: list[Any], group: _Group, outs: list[Any], stored: set[Any], last: list[Any]
) -> list[Any]:
    """The operations that results need, in order.

    Those of the group, what arranges operands, and elementwise ones before the product whose
    results no pass of XLA's would have to write: they are computed again from what is in memory.
    """
    shape = group.shape
    place = {id(e): i for i, e in enumerate(eqns)}
    of = {v: e for e in eqns for v in e.outvars}
    members = {id(e) for e in (*group.eqns, *last)}
    needed: dict[int, Any] = {}
    open_ends = list(outs)
    while open_ends:
        v = open_ends.pop()
        eqn = of.get(v)
        if eqn is None or v in group.roots or id(eqn) in needed:
            continue
        # Another shape of what is in memory is in memory.
        computes = eqn.primitive.name == "broadcast_in_dim" or _is_elementwise(eqn)
        again = v not in stored and v.aval.shape == shape and not eqn.effects and computes
        if id(eqn) in members or v in group.arranging or again:
            needed[id(eqn)] = eqn
            open_ends += _variables(eqn.invars)
    return sorted(needed.values(), key=lambda e: place[id(e)])


def _stored(body: Any, eqns: list[Any], results: Sequence[Uses]) -> set[Any]:
    """Variables in memory: what reads them is no pass of XLA's."""
    uses = uses_of(compat_jaxpr.with_equations(body, eqns), results)
    read = list(zip(body.outvars, results, strict=True))
    for eqn in eqns:
        of_operands = operand_uses(eqn, [uses.get(v, Uses()) for v in eqn.outvars])
        read += zip(eqn.invars, of_operands, strict=True)
    return {x for x, use in read if not hasattr(x, "val") and use.stored}


def _function(
    body: Any, operands: list[Any], inner: list[Any], outs: list[Any]
) -> Callable[..., list[jax.Array]]:
    """The operations that results need as a function of the product and operands."""
    jaxpr = compat_jaxpr.part_of(body, operands, outs, inner)

    def function(*operands: jax.Array) -> list[jax.Array]:
        if varying.has_casts(inner):
            return varying.evaluate(jaxpr, operands)
        return compat_jaxpr.evaluate(jaxpr, [], list(operands))

    return function


def _without_unread(
    body: Any, eqns: list[Any], group: _Group, last: list[Any], outs: list[Any]
) -> list[Any]:
    """The equations without those of the group that nothing reads any more."""
    members = {id(e) for e in (*group.eqns, *group.sums, *last, *group.arranging.values())}
    replaced = {id(e) for e in group.replaced}
    read = set(_variables(body.outvars)) - set(outs)
    kept = []
    for eqn in reversed(eqns):
        if id(eqn) in replaced:
            continue
        if id(eqn) in members and not read.intersection(eqn.outvars):
            continue
        kept.append(eqn)
        if eqn is not group.product:
            read.update(set(_variables(eqn.invars)) - set(outs))
    return kept[::-1]


def _equations(
    group: _Group, operands: list[Any], shapes: list[Shape], made: list[Any], fused: Fused
) -> list[Any] | None:
    """The primitive in the product's place; None where its results have other types.

    Within shard_map operands may first have to vary over the same mesh axes.
    """
    product = group.product
    atoms = [*product.invars, *operands]

    def bind(*given: jax.Array) -> list[jax.Array]:
        factors, rest = fused.factors(given)
        rest = [x.reshape(shape) for x, shape in zip(rest, shapes, strict=True)]
        return group.kind.bind(factors, rest, fused)

    with compat_jaxpr.equation_context(product):
        jaxpr, constants = compat_jaxpr.trace(bind, [x.aval for x in atoms])
    assert not constants, "the primitive makes no constants"
    if [v.aval for v in jaxpr.outvars] != [v.aval for v in made]:
        return None
    return placed(jaxpr, atoms, made, product.source_info)
