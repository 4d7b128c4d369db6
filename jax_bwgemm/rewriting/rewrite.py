"""Jaxpr to jaxpr: products become ours, wherever they are; every other equation stays as it is.

Equations that hold jaxprs get rewritten ones of the same operands and results, so that everything
else they carry (donation, shardings, carried values, policies, names, effects) stays valid.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import jax

from jax_bwgemm import compat, compat_jaxpr
from jax_bwgemm.config import current_partial_sums, explicit_target, links_epilogues
from jax_bwgemm.product.jaxprs import INLINED, equations, is_jaxpr
from jax_bwgemm.product.rewrites import Rewrite
from jax_bwgemm.rewriting.calls import transformed
from jax_bwgemm.rewriting.duplicates import without_duplicates
from jax_bwgemm.rewriting.fuse import Provisional, fuse
from jax_bwgemm.rewriting.fused_products import KINDS
from jax_bwgemm.rewriting.layouts import in_rows, settled
from jax_bwgemm.rewriting.operands import read_through
from jax_bwgemm.rewriting.products import PRODUCTS, replace
from jax_bwgemm.rewriting.scatters import SCATTER, as_select
from jax_bwgemm.rewriting.splits import split_products
from jax_bwgemm.rewriting.uses import STORED, Uses, uses_of
from jax_bwgemm.scaled.quantize_primitive import bw_quantize_p
from jax_bwgemm.tuning import context as tuning_context

# Of this package, with what elementwise operations may become one.
_FUSED = (*KINDS, bw_quantize_p)
# Equations that hold jaxprs whose results go to memory: parameter and the place it is called.
CONTROL = {
    "scan": {"jaxpr": "scan body"},
    "while": {"cond_jaxpr": "while condition", "body_jaxpr": "while body"},
    "cond": {"branches": "cond branch"},
    "custom_linear_solve": {"jaxprs": "linear solve"},  # a namedtuple, of which some may be None
}
# Bodies that run in place of their equation; jit's is named after its function.
_PLACES = {
    "remat2": "checkpoint",
    "checkpoint": "checkpoint",
    "custom_jvp_call": "custom_jvp",
    "custom_vjp_call": "custom_vjp",
    "remat_opt": "custom_vjp",
    "shard_map": "shard_map",
    "closed_call": "call",
    "core_call": "call",
    "eval_jaxpr": "call",
}


@dataclasses.dataclass(frozen=True)
class _Rewritten:
    """A jaxpr's replacement (None: nothing in it changes) and the decisions taken in it."""

    jaxpr: Any
    decisions: tuple[Rewrite, ...]


def rewrite(
    jaxpr: Any, implementations: tuple[str, ...], results: Sequence[Uses] | None = None
) -> tuple[Any, tuple[Rewrite, ...]]:
    """A jaxpr in which every product that our kernels take, and should, is ours.

    Args:
        jaxpr: A jaxpr, closed or not.
        implementations: As the argument of `jax_bwgemm.dot_general`.
        results: What reads its results; None: memory.

    Returns:
        The new jaxpr, the same object where nothing changes; and the decision for every product.
    """
    results = (STORED,) * len(jaxpr.outvars) if results is None else tuple(results)
    done = _rewrite(jaxpr, results, implementations, current_context())
    return (jaxpr if done.jaxpr is None else done.jaxpr), done.decisions


def current_context() -> Hashable:
    """What else than a program the choice of its kernels depends on."""
    return (
        explicit_target(),
        tuning_context.current(),
        current_partial_sums(),
        links_epilogues(),
        compat_jaxpr.runs_eagerly(),
    )


def accelerated(f: Callable[..., Any], implementations: tuple[str, ...]) -> Callable[..., Any]:
    """The function whose program is ``f``'s, rewritten."""
    return transformed("accelerate", f, lambda jaxpr: rewrite(jaxpr, implementations)[0])


# One jaxpr has one replacement, as JAX's caches of compiled programs are by the jaxpr's identity.
@compat.weakref_lru_cache
def _rewrite(
    jaxpr: Any, results: tuple[Uses, ...], implementations: tuple[str, ...], context: Any
) -> _Rewritten:
    del context  # part of the cache's key
    given_jaxpr = jaxpr
    body = without_duplicates(compat_jaxpr.opened(jaxpr))
    jaxpr = compat_jaxpr.with_body(jaxpr, body)
    uses = uses_of(body, results)
    given = split_products(body.eqns, uses)
    if len(given) != len(body.eqns):
        uses = uses_of(compat_jaxpr.with_equations(body, given), results)
    made = _Equations(given, uses, implementations)
    for eqn in given:
        made.add(eqn)
    ours = made.differ_from(body) or any(e.primitive in _FUSED for e in made.eqns)
    if ours and links_epilogues():
        made.fuse(body, results)
        # A result that nothing reads outside has to be defined nevertheless.
        defined = {*body.constvars, *body.invars, *(v for e in made.eqns for v in e.outvars)}
        gone = [not compat_jaxpr.is_literal(v) and v not in defined for v in body.outvars]
        if any(gone):
            kept = (STORED if g else use for g, use in zip(gone, results, strict=True))
            return _rewrite(given_jaxpr, tuple(kept), implementations, current_context())
    if not made.differ_from(body):
        return _Rewritten(None, tuple(made.decisions))
    eqns = settled(in_rows(made.eqns), body.outvars)
    return _Rewritten(compat_jaxpr.with_equations(jaxpr, eqns), tuple(made.decisions))


class _Equations:
    """A body's equations while they are rewritten, one after the other.

    Attributes:
        eqns: The new ones.
        decisions: One for each product so far.
    """

    def __init__(
        self, given: Sequence[Any], uses: dict[Any, Uses], implementations: tuple[str, ...]
    ) -> None:
        self.eqns: list[Any] = []
        self.decisions: list[Rewrite] = []
        self._uses, self._implementations = uses, implementations
        self._producers = {v: e for e in given for v in e.outvars}
        self._deciding: dict[Any, int] = {}  # of results of products: where the decision is
        self._provisional: list[Provisional] = []

    def add(self, eqn: Any) -> None:
        """Appends what an equation becomes."""
        after = [self._uses.get(v, Uses()) for v in eqn.outvars]
        name = eqn.primitive.name
        new = None
        if name in PRODUCTS:
            new = self._product(eqn, after[0]) if after[0].count else None
        elif name in INLINED or name in CONTROL:
            params, inner = _parameters(eqn, after, self._implementations)
            self.decisions += inner
            new = None if params is None else [eqn.replace(params=params)]
        elif name == SCATTER:
            new = as_select(eqn, after[0], self._producers)
        else:
            self.decisions += _out_of_reach(eqn)
        if new:
            self._producers |= {v: e for e in new for v in e.outvars}
        self.eqns += new or [eqn]

    def _product(self, eqn: Any, after: Uses) -> list[Any] | None:
        """What a product becomes; None if it stays."""
        found = replace(read_through(eqn, self._producers), after, self._implementations)
        if found.unless_fused and found.eqns is not None:
            self._provisional.append(Provisional(eqn, found, len(self.decisions)))
        for new in found.eqns or ():
            self._deciding |= dict.fromkeys(new.outvars, len(self.decisions))
        self.decisions.append(decision(eqn, found.eqns is not None, found.why))
        return found.eqns

    def fuse(self, body: Any, results: tuple[Uses, ...]) -> None:
        """Makes what surrounds products part of them, and takes back what pays only so."""
        self.eqns, left, reasons = fuse(body, self.eqns, results, self._provisional)
        for v, why in reasons.items():
            if v in self._deciding:  # another product is the program's own
                at = self._deciding[v]
                why = f"{self.decisions[at].reason}; what follows is a pass of XLA's: {why}"
                self.decisions[at] = dataclasses.replace(self.decisions[at], reason=why)
        for one, why in left:
            self.decisions[one.decision] = decision(one.eqn, False, why)

    def differ_from(self, body: Any) -> bool:
        """Whether any equation is not one of the body's, or one is missing."""
        pairs = zip(self.eqns, body.eqns, strict=False)
        return len(self.eqns) != len(body.eqns) or any(new is not old for new, old in pairs)


def decision(eqn: Any, rewritten: bool, why: str, by: str = "accelerate") -> Rewrite:
    """What was decided for a product. by: the decorator that decides."""
    types = " x ".join(x.aval.str_short(short_dtypes=True) for x in eqn.invars[:2])
    result = eqn.outvars[0].aval.str_short(short_dtypes=True)
    what = f"{eqn.primitive.name} {types} -> {result}"
    return Rewrite(what, rewritten, why, source=compat_jaxpr.source_line(eqn), by=by)


def _out_of_reach(eqn: Any) -> list[Rewrite]:
    """The decisions for products inside of an equation whose bodies stay as they are."""
    found = []
    for value in jax.tree.leaves(list(eqn.params.values()), is_leaf=is_jaxpr):
        for one, times in equations(value) if is_jaxpr(value) else ():
            if one.primitive.name in PRODUCTS:
                made = decision(one, False, "accelerate does not rewrite what it holds")
                found.append(made.inside(eqn.primitive.name, times))
    return found


def place_of(eqn: Any) -> str:
    """What an equation that holds one jaxpr is called in explanations."""
    return _PLACES.get(eqn.primitive.name) or f"jit {eqn.params.get('name', '')}".rstrip()


def _parameters(
    eqn: Any, after: list[Uses], implementations: tuple[str, ...]
) -> tuple[dict[str, Any] | None, list[Rewrite]]:
    """An equation's parameters with rewritten jaxprs (None: they stay), and the decisions."""
    name, params = eqn.primitive.name, dict(eqn.params)
    decisions: list[Rewrite] = []

    def body(jaxpr: Any, place: str, results: list[Uses] | None, times: int = 1) -> Any:
        with compat_jaxpr.body_context(eqn):
            new, inner = rewrite(jaxpr, implementations, results)
        decisions.extend(one.inside(place, times) for one in inner)
        return new

    if name in INLINED:
        params[INLINED[name]] = body(params[INLINED[name]], place_of(eqn), after)
    else:
        times = params["length"] if name == "scan" else 1
        for key, place in CONTROL[name].items():
            old = params[key]
            if isinstance(old, tuple):
                new = [j and body(j, f"{place} {i}", None) for i, j in enumerate(old)]
                same = all(a is b for a, b in zip(old, new, strict=True))
                params[key] = old if same else getattr(old, "_make", tuple)(new)
            else:
                params[key] = body(old, place, None, times)
    params |= _rules(name, params, implementations)
    changed = any(params[key] is not eqn.params[key] for key in params)
    return (params if changed else None), decisions


def _rules(name: str, params: dict[str, Any], implementations: tuple[str, ...]) -> dict[str, Any]:
    """The rules of differentiation that a program brings along, rewritten when they are used."""

    def rewritten(jaxpr: Any, *rest: Any) -> tuple[Any, ...]:
        return (rewrite(jaxpr, implementations)[0], *rest)

    if name == "custom_jvp_call":
        return {"jvp_jaxpr_fun": compat_jaxpr.after(params["jvp_jaxpr_fun"], rewritten)}
    if name == "custom_vjp_call":
        return {
            "fwd_jaxpr_thunk": compat_jaxpr.after(params["fwd_jaxpr_thunk"], rewritten),
            "bwd": compat_jaxpr.around(params["bwd"], lambda f: accelerated(f, implementations)),
        }
    if name == "remat_opt":  # the function itself, where no residual is read
        thunk = params["fun_jaxpr_thunk"]
        return {"fun_jaxpr_thunk": lambda: rewritten(*thunk())}
    return {}
