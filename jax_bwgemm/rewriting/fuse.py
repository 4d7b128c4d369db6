"""Products of ours and the elementwise operations after them, as one primitive.

Everything else that a group of operations reads exists before the product, or is small and can be
computed before it. The primitive therefore takes the product's place. Operations whose results only
passes of XLA's read stay where they are: XLA computes them within these passes.

What differs between dense products and those of groups is in `fused_products.py`.
"""

from __future__ import annotations

import bisect
import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from jax_bwgemm import compat, compat_jaxpr
from jax_bwgemm.epilogue.costs import Surroundings
from jax_bwgemm.epilogue.fused import Fused
from jax_bwgemm.epilogue.hook import MAX_OPERANDS, MAX_RESULTS
from jax_bwgemm.epilogue.primitive import link_refusal
from jax_bwgemm.epilogue.tracing import EpilogueError
from jax_bwgemm.rewriting import varying
from jax_bwgemm.rewriting.dataflow import Dataflow, variables
from jax_bwgemm.rewriting.epilogue_functions import Shape, function_of
from jax_bwgemm.rewriting.fused_products import KINDS, Function
from jax_bwgemm.rewriting.group import ARRANGING, Group, choices, group_of, is_elementwise
from jax_bwgemm.rewriting.inlining import placed, trace_in_place
from jax_bwgemm.rewriting.materialised import Materialised, Stored
from jax_bwgemm.rewriting.products import Replacement
from jax_bwgemm.rewriting.slopes import keep_slopes
from jax_bwgemm.rewriting.sources import fuse_sources
from jax_bwgemm.rewriting.uses import Uses, uses_of


@dataclasses.dataclass(frozen=True)
class Provisional:
    """A product that XLA runs better unless a kernel also computes what follows it.

    Attributes:
        eqn: XLA's equation.
        replacement: What is in its place, and why XLA's would be better.
        decision: Its number among the decisions.
    """

    eqn: Any
    replacement: Replacement
    decision: int

    @property
    def ours(self) -> list[Any]:
        """The equations in its place."""
        return self.replacement.eqns or []

    def why(self, uses: Uses) -> str | None:
        """Why XLA's is better, given what reads its result; None: it is not."""
        unless_fused = self.replacement.unless_fused
        return None if unless_fused is None else unless_fused(uses)


def fuse(
    body: Any, eqns: list[Any], results: Sequence[Uses], provisional: Sequence[Provisional] = ()
) -> tuple[list[Any], list[tuple[Provisional, str]], dict[Any, str]]:
    """Equations with products and what follows them as one.

    Args:
        body: The jaxpr that the equations are for: its arguments and results.
        eqns: Its equations, products of ours among them.
        results: What reads its results.
        provisional: Products that return to XLA if nothing is fused with them.

    Returns:
        The equations; which of `provisional` returned to XLA, and why; for results that something
        elementwise follows, why no kernel computes that.
    """
    unsure = {id(e): one.replacement for one in provisional for e in one.ours}
    reasons: dict[Any, str] = {}
    flow = Dataflow(body, eqns, results)
    norms = Materialised(flow, is_elementwise)
    for product in [e for e in eqns if e.primitive in KINDS]:
        kind = KINDS[product.primitive]
        why_not = kind.why_not(product)
        group = group_of(flow, product) if why_not or kind.fits(product) else None
        if group is None:
            continue
        if why_not:
            reasons[product.outvars[0]] = why_not
            continue
        refused = None
        for sums in choices(group):
            try:
                new = _fused(flow, group, norms, sums, unsure.get(id(product)))
            except EpilogueError as error:
                refused = str(error)
                continue
            if new:
                norms.forget(flow.update(new))
                break
        else:
            if refused is not None:
                reasons[product.outvars[0]] = refused
    keep_slopes(flow)
    fuse_sources(flow)
    eqns = flow.eqns
    uses = uses_of(compat_jaxpr.with_equations(body, eqns), results) if provisional else {}
    left = [
        (one, why)
        for one in provisional
        if (why := one.why(uses.get(one.eqn.outvars[0], Uses())))
        and all(id(e) in flow.place for e in one.ours)
    ]
    returned, left = _returned(flow, left)
    return [new for e in eqns for new in returned.get(id(e), [e])], left, reasons


def _returned(
    flow: Dataflow, left: list[tuple[Provisional, str]]
) -> tuple[dict[int, list[Any]], list[tuple[Provisional, str]]]:
    """What equations of ours are exchanged for where products return to XLA, and those that do.

    Another product may read a variable inside of ours, before a transpose: it becomes a transpose
    of XLA's result. A product stays if such a variable cannot be had from its result.
    """
    again: dict[int, list[Any]] = {}
    while True:
        gone = {id(e) for one, _ in left for e in one.ours}
        stay = set()
        for one, _ in left:
            inner = {v for e in one.ours for v in e.outvars} - set(one.eqn.outvars)
            read = {v for v in inner if flow.readers(v, gone)}
            undone = _undone(one, read)
            if undone is None:
                stay.add(id(one))
            else:
                again[id(one)] = undone
        if not stay:
            break
        left = [(one, why) for one, why in left if id(one) not in stay]
    returned: dict[int, list[Any]] = {}
    for one, _ in left:
        own = [id(e) for e in one.ours]
        returned |= {i: [] for i in own}
        returned[min(own, key=flow.place.__getitem__)] = [one.eqn, *again[id(one)]]
    return returned, left


def _undone(one: Provisional, wanted: set[Any]) -> list[Any] | None:
    """Equations that give variables inside of ours from its result, if that is only arranged."""
    back: list[tuple[Any, Any]] = []
    known = set(one.eqn.outvars)
    for e in reversed(one.ours):
        if e.primitive.name == "transpose":
            params = {"permutation": tuple(np.argsort(e.params["permutation"]).tolist())}
        elif e.primitive.name == "reshape" and e.params.get("sharding") is None:
            params = {"new_sizes": e.invars[0].aval.shape}
        else:
            continue
        if e.outvars[0] in known:
            new = e.replace(invars=e.outvars, outvars=e.invars, params=e.params | params)
            back.append((e.invars[0], new))
            known.add(e.invars[0])
    if not wanted <= known:
        return None
    needed, eqns = set(wanted), []
    for v, e in reversed(back):
        if v in needed:
            needed.add(e.invars[0])
            eqns.append(e)
    return eqns[::-1]


def _fused(
    flow: Dataflow, group: Group, norms: Materialised, sums: list[Any], unsure: Replacement | None
) -> dict[int, list[Any]] | None:
    """What the group's product and operations are exchanged for, one; None if that gains nothing.

    norms: What norms' passes leave in memory.
    sums: The group's sums that the kernel computes.
    unsure: The product's replacement, if it only gains together with the operations.
    """
    kind, spec = group.kind, group.product.params["spec"]
    stored = Stored(flow, norms if kind.normalised else None)

    def written(v: Any) -> bool:
        return v in stored and v.aval.dtype.name == spec.out_dtype

    both = [e for e in group.side_by_side if written(e.outvars[0])][:1]
    outs = [e.outvars[0] for e in both]
    outs += [v for e in group.eqns for v in e.outvars if written(v)]
    if not (outs or sums):
        return None
    if len(outs) + len(both) + len(sums) > MAX_RESULTS:
        raise EpilogueError(f"more than {MAX_RESULTS} results")
    whole, outs = len(outs), [*outs, *(e.outvars[0] for e in sums)]
    inner = _needed(flow, group, outs, stored, [*sums, *both])
    if not sums and all(e.primitive.name == "convert_element_type" for e in inner):
        return None  # every kernel rounds its result
    defined = {*group.roots, *(v for e in inner for v in e.outvars)}
    operands = list(dict.fromkeys(v for e in inner for v in variables(e.invars)))
    operands = [v for v in operands if v not in defined]
    if len(operands) > MAX_OPERANDS:
        raise EpilogueError(f"more than {MAX_OPERANDS} operands")
    if kind.reads_badly(operands, flow, stored, group.shape):
        return None
    if not varying.can_evaluate(inner, [*group.product.invars, *operands]):
        return None
    found = kind.described(
        group.product,
        group.shape,
        [v.aval for v in operands],
        Function(
            functools.partial(function_of, flow.body, [*group.roots, *operands]),
            inner,
            [*sums, *both],
            outs[:whole],
            outs[whole:],
        ),
    )
    if found is None:
        return None
    fused, shapes = found
    # Whether other equations still read the product itself.
    gone = _unread(flow, group, [*sums, *both], outs, operands)
    keeps = any(flow.is_needed(v, gone) for v in group.roots)
    if not (whole or keeps):
        return None
    if keeps and len(outs) + len(both) == MAX_RESULTS:
        raise EpilogueError(f"more than {MAX_RESULTS} results, the product being one")
    if not keeps:  # dead code may still read it
        gone |= flow.after(group.roots, gone)
    fused = fused.with_product() if keeps else fused
    made = [*outs, *group.roots] if keeps else outs
    also_read = sum(flow.read_by_pass(v, gone) for v in outs[:whole])
    taken_by_xla = unsure is not None and unsure.taken_by_xla
    surroundings = Surroundings(also_read=also_read, taken_by_xla=taken_by_xla)
    fused = dataclasses.replace(fused, surroundings=surroundings)
    # A gain only if linked: a pass would read both halves, or concatenated results, in one array.
    only_linked = unsure or sums or both or len(group.roots) > 1
    if only_linked and link_refusal([x.aval for x in group.product.invars], fused):
        return None
    replacement = _equations(group, operands, shapes, made, fused)
    if replacement is None:
        return None
    ahead = _ahead(flow, group, operands)
    gone |= {id(e) for e in ahead}
    exchanged = {id(e): [_without(e, outs)] for e in map(flow.producer, outs)}
    exchanged |= {i: [] for i in gone}
    return exchanged | {id(group.product): [*ahead, *replacement]}


def _without(eqn: Any, defined: list[Any]) -> Any:
    """An equation of which something else defines some results; others of it are still read."""
    new = compat_jaxpr.new_variable
    return eqn.replace(outvars=[new(v.aval) if v in defined else v for v in eqn.outvars])


def _ahead(flow: Dataflow, group: Group, operands: list[Any]) -> list[Any]:
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
    flow: Dataflow, group: Group, outs: list[Any], stored: Stored, last: list[Any]
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
        # A reshape of what is in memory is in memory too.
        computes = eqn.primitive.name == "broadcast_in_dim" or is_elementwise(eqn)
        again = v not in stored and v.aval.shape == shape and not eqn.effects and computes
        if id(eqn) in members or v in group.arranging or again:
            needed[id(eqn)] = eqn
            open_ends += variables(eqn.invars)
    return sorted(needed.values(), key=lambda e: flow.place[id(e)])


def _unread(
    flow: Dataflow, group: Group, last: list[Any], outs: list[Any], operands: list[Any]
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
    pending = sorted({flow.place[id(e)] for e in members})
    while pending:  # from the last one on
        eqn = flow.at(pending.pop())
        own = [v for v in eqn.outvars if v not in outs]
        others = {*gone, id(group.product)}
        if id(eqn) in gone or any(
            v in operands or flow.is_result(v) or flow.readers(v, others) for v in own
        ):
            continue
        gone.add(id(eqn))
        # An equation that arranged an operand of another kernel may have lost its last reader.
        for made in (flow.producer(v) for v in variables(eqn.invars)):
            if made is not None and made.primitive.name in ARRANGING:
                bisect.insort(pending, flow.place[id(made)])
    return gone


def _equations(
    group: Group, operands: list[Any], shapes: list[Shape], made: list[Any], fused: Fused
) -> list[Any] | None:
    """The primitive in the product's place; None where its results have other types.

    Within shard_map operands may first have to vary over the same mesh axes.
    """
    product = group.product
    atoms = [*product.invars, *operands]

    def bind(*given: jax.Array) -> list[jax.Array]:
        factors, rest = fused.factors(given)
        rest = [x.reshape(shape) for x, shape in zip(rest, shapes, strict=True)]
        found = group.kind.bind(factors, rest, fused)
        return [_of_mesh(x, v.aval) for x, v in zip(found, made, strict=True)]

    jaxpr = trace_in_place(bind, product, atoms)
    if [v.aval for v in jaxpr.outvars] != [v.aval for v in made]:
        return None
    return placed(jaxpr, atoms, made, product.source_info)


def _of_mesh(x: jax.Array, wanted: Any) -> jax.Array:
    """A result whose type names the mesh of a type that it has to have, whole on all devices.

    Operands that were made outside of the mesh name none, but scalars within the function do.
    """
    sharding = compat.explicit_sharding(wanted)
    if sharding is None or any(sharding.spec) or compat.explicit_sharding(jax.typeof(x)):
        return x
    return jax.sharding.reshard(x, sharding)
