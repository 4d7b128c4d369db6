"""The operations after a product that one kernel may compute with it."""

from __future__ import annotations

import dataclasses
import heapq
import math
from typing import Any

from jax_bwgemm.compat_jaxpr import opened
from jax_bwgemm.epilogue.primitives import ALIASES, POLYNOMIAL, PRIMITIVES, SPECIAL
from jax_bwgemm.epilogue.program import TYPES
from jax_bwgemm.product.jaxprs import INLINED
from jax_bwgemm.rewriting.dataflow import Dataflow, Place, variables
from jax_bwgemm.rewriting.epilogue_functions import Shape
from jax_bwgemm.rewriting.fused_products import KINDS, Kind

# Bodies that may be part of a group. Not a checkpoint, which says where to compute again.
_NOT_IN_GROUPS = ("shard_map", "remat2", "checkpoint", "remat_opt")
_BODIES = {k: v for k, v in INLINED.items() if k not in _NOT_IN_GROUPS}
_ELEMENTWISE = {*PRIMITIVES, *SPECIAL, POLYNOMIAL, *ALIASES} - {"iota", "optimization_barrier"}
# What gives an array another shape, if it repeats nothing.
SHAPES = ("broadcast_in_dim", "reshape", "squeeze", "expand_dims")
# What brings an operand into the result's shape.
ARRANGING = (*SHAPES, "convert_element_type", "iota")
MOST_OPERATIONS = 64
# What is computed ahead of a kernel has at most 1/SMALL of the elements of what it writes.
SMALL = 16


@dataclasses.dataclass
class Group:
    """Operations after a product.

    Attributes:
        kind: What the product is.
        product: The product's equation.
        replaced: Equations that reshape or divide the product's result, which nothing else reads.
        roots: The product's result in the shape that the operations read, or both its halves.
        eqns: The operations, in order.
        sums: Sums of the product or of an operation's result, which kernels may compute.
        side_by_side: Operations that concatenate two results.
        arranging: Operations that stand after the product but depend only on what was there before
            it, by the variables they define.
        ahead: The same for any operation with a small result: empty unless `Kind.routed`.
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


def group_of(flow: Dataflow, product: Any) -> Group | None:
    """The operations after a product that read it and what was there before it."""
    found = _beginning(flow, product)
    kind, shape = found.kind, found.shape
    inside = set(found.roots)
    replaced = {id(e) for e in found.replaced}
    there = _Available(flow, found, inside, replaced)
    pending = [flow.place[id(e)] for v in found.roots for e in flow.readers(v)]
    seen: set[Place] = set()
    heapq.heapify(pending)
    while pending:
        at = heapq.heappop(pending)
        eqn = flow.at(at)
        if at in seen or id(eqn) in replaced or eqn.effects or len(found.eqns) == MOST_OPERATIONS:
            continue
        seen.add(at)
        read = variables(eqn.invars)
        if kind.sums(product, eqn, shape):
            found.sums.append(eqn)
        elif kind.lays_side_by_side(eqn, shape) and inside.issuperset(read):
            found.side_by_side.append(eqn)
        elif (
            all(v.aval.shape == shape for v in eqn.outvars)
            and is_elementwise(eqn)
            and all(v in inside or there.has(v) for v in read)
        ):
            found.eqns.append(eqn)
            inside.update(eqn.outvars)
            for e in (e for v in eqn.outvars for e in flow.readers(v)):
                if flow.place[id(e)] not in seen:
                    heapq.heappush(pending, flow.place[id(e)])
    return found if found.eqns or found.sums else None


class _Available:
    """Which variables exist before a product, or can be computed without it.

    Records in the group what has to be computed for that: `arranging` and `ahead`.
    """

    def __init__(self, flow: Dataflow, group: Group, inside: set[Any], replaced: set[int]) -> None:
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
        if eqn.primitive.name in ARRANGING or is_elementwise(eqn):
            return group.arranging
        if eqn.primitive.name == "reshard" and eqn.outvars[0].aval.size == 1:
            return group.ahead  # a loss's cotangent, where arrays are of a mesh
        return group.ahead if group.kind.routed and _is_small(eqn, group.shape) else None


def _is_small(eqn: Any, shape: Shape) -> bool:
    sizes = [n for v in eqn.outvars for n in v.aval.shape]
    if not all(isinstance(n, int) for n in sizes):  # symbolic
        return False
    return SMALL * sum(v.aval.size for v in eqn.outvars) <= math.prod(shape)


def _beginning(flow: Dataflow, product: Any) -> Group:
    """A product and the forms of its result that operations read."""
    (root,) = product.outvars

    def readers(v: Any) -> list[Any]:
        return [] if flow.is_result(v) else flow.readers(v)

    found = Group(KINDS[product.primitive], product, [], [root])
    after = readers(root)
    while len(after) == 1 and after[0].primitive.name in SHAPES:
        (shaped,) = after[0].outvars
        if shaped.aval.size != root.aval.size or shaped.aval.shape[-1:] != root.aval.shape[-1:]:
            break
        found = dataclasses.replace(found, replaced=[*found.replaced, *after], roots=[shaped])
        after = readers(shaped)
    halves = found.kind.halves(after, found.shape)
    if halves:
        found = dataclasses.replace(found, replaced=[*found.replaced, *after], roots=halves)
    return found


def choices(group: Group) -> list[list[Any]]:
    """Sums that a kernel may take, the best choice first."""
    own = {*group.roots, *(v for e in group.eqns for v in e.outvars)}
    some = [e for e in group.sums if e.invars[0] in own][: group.kind.most_sums]
    return [some, some[:1], []] if len(some) > 1 else [some, []] if some else [[]]


def is_elementwise(eqn: Any) -> bool:
    """Whether an equation, or all that it calls, computes each element by itself."""
    name = eqn.primitive.name
    if name not in _BODIES:
        types = (x.aval.dtype.name for x in (*eqn.invars, *eqn.outvars))
        return name in _ELEMENTWISE and all(t in TYPES for t in types)
    inner = opened(eqn.params[_BODIES[name]])
    return all(is_elementwise(e) or e.primitive.name in ARRANGING for e in inner.eqns)
