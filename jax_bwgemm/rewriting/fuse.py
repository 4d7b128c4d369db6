"""Products of ours and the elementwise operations after them, as one primitive.

Everything that a group of operations reads besides the product is there before it, or is small and
can be computed before it, so the primitive stands where the product stood. Operations whose results
are only read by passes of XLA's stay where they are, as XLA computes them within these passes.

What differs between dense products and those of groups is in `fused_products.py`.
"""

from __future__ import annotations

import dataclasses
import functools
import heapq
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
from jax_bwgemm.rewriting.dataflow import Dataflow, variables
from jax_bwgemm.rewriting.fused_products import KINDS, Function, Kind, Shape
from jax_bwgemm.rewriting.inlining import placed
from jax_bwgemm.rewriting.materialised import Materialised
from jax_bwgemm.rewriting.uses import INLINED, Uses, uses_of

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
    flow = Dataflow(body, eqns, results)
    for product in [e for e in eqns if e.primitive in KINDS]:
        kind = KINDS[product.primitive]
        why_not = kind.why_not(product)
        group = _group(flow, product) if why_not or kind.fits(product) else None
        if group is None:
            continue
        if why_not:
            reasons[product.outvars[0]] = why_not
            continue
        for sums in _choices(group):
            new = _fused(flow, group, sums, id(product) in unsure)
            if new:
                flow.update(new)
                break
    eqns = flow.eqns
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


def _group(flow: Dataflow, product: Any) -> _Group | None:
    """The operations after a product that read it and what was there before it."""
    found = _beginning(flow, product)
    kind, shape = found.kind, found.shape
    inside = set(found.roots)
    replaced = {id(e) for e in found.replaced}
    there = _Available(flow, found, inside, replaced)
    pending = [flow.place[id(e)] for v in found.roots for e in flow.readers(v)]
    seen: set[int] = set()
    heapq.heapify(pending)
    while pending:
        at = heapq.heappop(pending)
        eqn = flow.eqns[at]
        if at in seen or id(eqn) in replaced or eqn.effects or len(found.eqns) == _MOST_OPERATIONS:
            continue
        seen.add(at)
        read = variables(eqn.invars)
        if kind.sums(eqn, shape):
            found.sums.append(eqn)
        elif kind.lays_side_by_side(eqn, shape) and inside.issuperset(read):
            found.side_by_side.append(eqn)
        elif (
            all(v.aval.shape == shape for v in eqn.outvars)
            and _is_elementwise(eqn)
            and all(v in inside or there.has(v) for v in read)
        ):
            found.eqns.append(eqn)
            inside.update(eqn.outvars)
            for e in (e for v in eqn.outvars for e in flow.readers(v)):
                if flow.place[id(e)] not in seen:
                    heapq.heappush(pending, flow.place[id(e)])
    return found if found.eqns or found.sums else None


class _Available:
    """What is there before a product, or can be without the product.

    Notes in the group what has to be computed for that: `arranging` and `ahead`.
    """

    def __init__(self, flow: Dataflow, group: _Group, inside: set[Any], replaced: set[int]) -> None:
        self._flow, self._group, self._inside, self._replaced = flow, group, inside, replaced
        self._at = flow.place[id(group.product)]
        self._known: dict[Any, bool] = {}

    def has(self, wanted: Any) -> bool:
        """Asked of variables in the program's order: the group before them is complete."""
        pending = [wanted]
        while pending:
            v = pending[-1]
            if v in self._known:
                pending.pop()
                continue
            eqn = self._flow.producer(v)
            if eqn is None or self._flow.place[id(eqn)] < self._at:
                self._known[v] = True
                continue
            into = self._place_for(eqn)
            if into is None:
                self._known[v] = False
                continue
            read = variables(eqn.invars)
            if any(self._known.get(x) is False for x in read):
                self._known[v] = False
                continue
            unknown = [x for x in read if x not in self._known]
            if unknown:
                pending += unknown[:1]
                continue
            into.update(dict.fromkeys(eqn.outvars, eqn))
            self._known[v] = True
        return self._known[wanted]

    def _place_for(self, eqn: Any) -> dict[Any, Any] | None:
        """Where in the group an equation belongs that does not read the product; else None."""
        group = self._group
        if id(eqn) in self._replaced or eqn.effects or eqn is group.product:
            return None
        if not self._inside.isdisjoint(variables(eqn.invars)):
            return None
        if eqn.primitive.name in _ARRANGING or _is_elementwise(eqn):
            return group.arranging
        return group.ahead if group.kind.routed and _is_small(eqn, group.shape) else None


def _is_small(eqn: Any, shape: Shape) -> bool:
    return _SMALL * sum(v.aval.size for v in eqn.outvars) <= math.prod(shape)


def _beginning(flow: Dataflow, product: Any) -> _Group:
    """A product and the forms of its result that operations read."""
    (root,) = product.outvars

    def readers(v: Any) -> list[Any]:
        return [] if flow.is_result(v) else flow.readers(v)

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


class _Stored:
    """Variables in memory, those that a norm's pass leaves there included where that counts."""

    def __init__(self, flow: Dataflow, normalised: bool) -> None:
        self._flow = flow
        self._left = Materialised(flow, _is_elementwise) if normalised else ()

    def __contains__(self, v: Any) -> bool:
        return v in self._flow.stored or v in self._left


def _fused(flow: Dataflow, group: _Group, sums: list[Any], taken_by_xla: bool) -> list[Any] | None:
    """Equations with the group's product and operations as one; None where that is no gain.

    sums: Those of the group's that the kernel takes.
    taken_by_xla: Whether XLA's product would take the operations along.
    """
    kind, spec = group.kind, group.product.params["spec"]
    stored = _Stored(flow, kind.normalised)

    def written(v: Any) -> bool:
        return v in stored and v.aval.dtype.name == spec.out_dtype

    both = [e for e in group.side_by_side if written(e.outvars[0])][:1]
    outs = [e.outvars[0] for e in both]
    outs += [v for e in group.eqns for v in e.outvars if written(v)]
    if not (outs or sums) or len(outs) + len(both) + len(sums) >= MAX_RESULTS:
        return None
    whole, outs = len(outs), [*outs, *(e.outvars[0] for e in sums)]
    inner = _needed(flow, group, outs, stored, [*sums, *both])
    defined = {*group.roots, *(v for e in inner for v in e.outvars)}
    operands = list(dict.fromkeys(v for e in inner for v in variables(e.invars)))
    operands = [v for v in operands if v not in defined]
    if len(operands) > MAX_OPERANDS or kind.reads_badly(operands, flow, stored, group.shape):
        return None
    if not varying.can_evaluate(inner, [*group.product.invars, *operands]):
        return None
    found = kind.described(
        group.product,
        group.shape,
        [v.aval for v in operands],
        Function(
            functools.partial(_function, flow.body, [*group.roots, *operands]),
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
    gone = _unread(flow, group, [*sums, *both], outs, operands)
    keeps = any(flow.is_result(v) or flow.readers(v, gone) for v in group.roots)
    if not (whole or keeps):
        return None
    fused = fused.with_product() if keeps else fused
    made = [*outs, *group.roots] if keeps else outs
    also_read = sum(flow.read_by_pass(v, gone) for v in outs[:whole])
    surroundings = Surroundings(also_read=also_read, taken_by_xla=taken_by_xla)
    fused = dataclasses.replace(fused, surroundings=surroundings)
    # As passes halves would be read in one array, and so would what is laid side by side.
    sure = taken_by_xla or sums or both or len(group.roots) > 1
    if sure and link_refusal([x.aval for x in group.product.invars], fused):
        return None
    replacement = _equations(group, operands, shapes, made, fused)
    if replacement is None:
        return None
    ahead = _ahead(flow, group, operands)
    gone |= {id(e) for e in ahead}
    at = flow.place[id(group.product)]
    before, after = ([e for e in part if id(e) not in gone] for part in _cut(flow.eqns, at))
    return [*before, *ahead, *replacement, *after]


def _cut(eqns: list[Any], at: int) -> tuple[list[Any], list[Any]]:
    return eqns[:at], eqns[at + 1 :]


def _ahead(flow: Dataflow, group: _Group, operands: list[Any]) -> list[Any]:
    """The operations after the product that operands need, in order."""
    needed: dict[int, Any] = {}
    open_ends = list(operands)
    while open_ends:
        v = open_ends.pop()
        eqn = group.ahead.get(v) or group.arranging.get(v)
        if eqn is not None and id(eqn) not in needed:
            needed[id(eqn)] = eqn
            open_ends += variables(eqn.invars)
    return sorted(needed.values(), key=lambda e: flow.place[id(e)])


def _needed(
    flow: Dataflow, group: _Group, outs: list[Any], stored: _Stored, last: list[Any]
) -> list[Any]:
    """The operations that results need, in order.

    Those of the group, what arranges operands, and elementwise ones before the product whose
    results no pass of XLA's would have to write: they are computed again from what is in memory.
    """
    shape = group.shape
    members = {id(e) for e in (*group.eqns, *last)}
    needed: dict[int, Any] = {}
    open_ends = list(outs)
    while open_ends:
        v = open_ends.pop()
        eqn = flow.producer(v)
        if eqn is None or v in group.roots or id(eqn) in needed:
            continue
        # Another shape of what is in memory is in memory.
        computes = eqn.primitive.name == "broadcast_in_dim" or _is_elementwise(eqn)
        again = v not in stored and v.aval.shape == shape and not eqn.effects and computes
        if id(eqn) in members or v in group.arranging or again:
            needed[id(eqn)] = eqn
            open_ends += variables(eqn.invars)
    return sorted(needed.values(), key=lambda e: flow.place[id(e)])


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


def _unread(
    flow: Dataflow, group: _Group, last: list[Any], outs: list[Any], operands: list[Any]
) -> set[int]:
    """The `id`s of the group's equations that nothing reads any more.

    Args:
        flow: All equations.
        group: The group.
        last: Equations beside the group's that the kernel takes.
        outs: What the kernel writes.
        operands: What it reads.
    """
    members = (*group.eqns, *group.sums, *last, *group.arranging.values())
    gone = {id(e) for e in group.replaced}
    pending = list({-flow.place[id(e)] for e in members})
    heapq.heapify(pending)
    while pending:  # from the last one on
        eqn = flow.eqns[-heapq.heappop(pending)]
        own = [v for v in eqn.outvars if v not in outs]
        others = {*gone, id(group.product)}
        if id(eqn) in gone or any(
            v in operands or flow.is_result(v) or flow.readers(v, others) for v in own
        ):
            continue
        gone.add(id(eqn))
        # What arranged an operand of another kernel may have lost its last reader here.
        for made in (flow.producer(v) for v in variables(eqn.invars)):
            if made is not None and made.primitive.name in _ARRANGING:
                heapq.heappush(pending, -flow.place[id(made)])
    return gone


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
