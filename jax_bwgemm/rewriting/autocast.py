"""`autocast`: the products of layers in low precision, without changing a model's code."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec

from jax_bwgemm import compat, compat_jaxpr
from jax_bwgemm.product.implementations import (
    as_implementations,
    assumed_target,
    has_only_other_gpus,
)
from jax_bwgemm.product.jaxprs import INLINED, equations, is_jaxpr
from jax_bwgemm.product.rewrites import Rewrite
from jax_bwgemm.rewriting.calls import check_function, rewritable
from jax_bwgemm.rewriting.inlining import inlined, trace_for
from jax_bwgemm.rewriting.products import PRODUCTS
from jax_bwgemm.rewriting.rewrite import CONTROL, current_context, decision, place_of
from jax_bwgemm.rewriting.uses import ALIASES, FUSIBLE
from jax_bwgemm.scaled.api import OUT_DTYPES
from jax_bwgemm.scaled.layer_costs import LayerSizes, LayerTypes, speedup
from jax_bwgemm.scaled.layouts import multipliable
from jax_bwgemm.scaled.ragged_training import Fp8RaggedDot
from jax_bwgemm.scaled.recipes import Recipe, as_recipe
from jax_bwgemm.scaled.training import Fp8DotGeneral

NAME = "autocast"
# Every dimension is contracted in one of a layer's three products, and kernels of 8 bits contract
# multiples of 16.
_MULTIPLE = 16
# Smaller layers gain less than their operands cost to quantize.
_LEAST = 128
_NARROW = ("bfloat16", "float16")
# How names of this package's products begin, with epilogues and without, in 16 bits: asked for by
# name, or what `accelerate` made.
_OWN = ("bw_gemm", "bw_m_grouped", "bw_k_grouped", "bw_grouped")
_OWN_WHY = (
    "it is a product of this package: call fp8_dot_general or fp8_ragged_dot, and put autocast "
    "inside of accelerate"
)
# Of ragged_dot: rows in groups, a matrix [K, N] for each.
_RAGGED = lax.RaggedDotDimensionNumbers((((1,), (1,)), ((), ())), [0], [0])


@dataclasses.dataclass(frozen=True)
class LayerProduct:
    """A product of rows and a weight that `autocast` found.

    Attributes:
        scope: The `jax.named_scope` that it is in; Flax names it after modules: ``"Decoder/head"``.
        rows: Rows of one matrix.
        columns: What the weight maps to.
        depth: What is contracted.
        speedup: Predicted time of a training step of this layer in 16 bits over that in low
            precision, quantization included; 0 where a product has no kernel. Of whole arrays, also
            where sharding is automatic.
    """

    scope: str
    rows: int
    columns: int
    depth: int
    speedup: float = dataclasses.field(default=0.0, compare=False)


Only = Callable[[LayerProduct], bool]
# For `only`: products whose layers are predicted to gain.
FASTER = "faster"


def autocast(
    f: Callable[..., Any] | None = None,
    recipe: str | Recipe = "blockwise",
    *,
    only: Only | str | None = None,
    implementation: str | Sequence[str] | None = None,
) -> Callable[..., Any]:
    """Multiplies by the weights of any model in 8 bits, gradients included, its code unchanged.

        loss, grads = jax.value_and_grad(jax_bwgemm.autocast(loss_fn))(params, batch)

    ``f`` is traced, within jit, scan, while, cond, checkpoint and shard_map too. Its products of
    activations and a weight become those of `fp8_dot_general` and `fp8_ragged_dot`. A weight is an
    argument of ``f`` (or an array that it closes over) and what elementwise operations, casts,
    reshapes, slices and reductions make of arguments alone, such as a normalised matrix; where both
    operands are, it is the right one. Everything else stays: products of two activations
    (attention), of float32 operands, with results of other types than bfloat16, float16 and
    float32, with a ``precision`` of their own, of dimensions below 128 or that are no multiples of
    16, this package's own, and those inside of functions with derivatives of their own.
    `jax_bwgemm.explain_program` of the returned function lists them.

    Put it inside of grad, where the backward pass is not yet there: outside, products of the
    backward pass count as products too, and weights' gradients stay as they are. `accelerate`
    around the whole step then fuses what surrounds the products.

    Args:
        f: Any function of arrays, pytrees of them, and anything else; jitted or not. None: returns
            the decorator, ``@autocast(recipe=...)``.
        recipe: As in `fp8_dot_general`: one without state and random numbers.
        only: Which of these products become 8-bit ones. ``"faster"``: those whose layer is
            predicted to take less time with the recipe, forward, backward and quantization. Or a
            function of a `LayerProduct`, whose ``speedup`` is that prediction; equal bodies are
            decided once, so it must depend on nothing else. None: all.
        implementation: As in `jax_bwgemm.matmul`, of all three products of a layer.

    Returns:
        A function with f's arguments and results. It has a first reverse-mode derivative.

    Raises:
        TypeError: f is not a function that can be traced, ``only`` is neither ``"faster"`` nor
            callable, or an implementation that is not a name.
        ValueError: An unknown recipe or implementation, or a recipe with delayed scaling or random
            numbers: call `fp8_dot_general`, which takes both.
    """
    found = as_recipe(recipe)
    if found.history or found.needs_key:
        what = "a history" if found.history else "random numbers"
        raise ValueError(f"autocast has no place for {what} of {found}: call fp8_dot_general")
    if not (only is None or callable(only) or (isinstance(only, str) and only == FASTER)):
        what = repr(only) if isinstance(only, str) else type(only).__name__
        raise TypeError(f"autocast: only must be a function or {FASTER!r}, got {what}")
    settings = Settings(found, as_implementations(implementation), _hashable(only))
    if f is None:
        return functools.partial(
            autocast, recipe=found, only=only, implementation=settings.implementations
        )
    check_function("autocast", f)
    return rewritable("autocast", f, lambda jaxpr: cast(jaxpr, settings))


def _hashable(only: Only | str | None) -> Only | str | None:
    """`only` as part of the key of a cache."""
    try:
        hash(only)
    except TypeError:
        assert callable(only)
        return functools.partial(only)  # compared by identity
    return only


@dataclasses.dataclass(frozen=True)
class Settings:
    """What becomes of a layer's product.

    Attributes:
        recipe: Layouts and types.
        implementations: Of the products.
        only: Which products; None: all.
    """

    recipe: Recipe
    implementations: tuple[str, ...]
    only: Only | str | None


@dataclasses.dataclass(frozen=True)
class _Cast:
    """A jaxpr's replacement (None: nothing in it changes), the decisions taken in it, and which of
    its results are made of weights alone.
    """

    jaxpr: Any
    decisions: tuple[Rewrite, ...]
    given: tuple[bool, ...]


def cast(jaxpr: Any, settings: Settings) -> tuple[Any, tuple[Rewrite, ...]]:
    """A jaxpr whose layers have low precision, and the decision for every product."""
    found = _cast(jaxpr, (True,) * len(jaxpr.invars), "", settings, current_context())
    return (jaxpr if found.jaxpr is None else found.jaxpr), found.decisions


# One jaxpr has one replacement, as JAX's caches of compiled programs are by the jaxpr's identity.
@compat.weakref_lru_cache
def _cast(
    jaxpr: Any, given: tuple[bool, ...], scope: str, settings: Settings, context: Hashable
) -> _Cast:
    """scope: that of the equation that holds the jaxpr."""
    del context
    body = compat_jaxpr.opened(jaxpr)
    known = dict.fromkeys(body.constvars, True) | dict(zip(body.invars, given, strict=True))

    def is_given(x: Any) -> bool:
        return compat_jaxpr.is_literal(x) or known.get(x, False)

    eqns: list[Any] = []
    decisions: list[Rewrite] = []
    for eqn in body.eqns:
        name, new = eqn.primitive.name, [eqn]
        own = [is_given(x) for x in eqn.invars]
        made_of = own[:1] if name == "dynamic_slice" else own  # whatever the place
        out = [all(made_of) and (name in ALIASES or name in FUSIBLE)] * len(eqn.outvars)
        here = "/".join(filter(None, (scope, str(eqn.source_info.name_stack))))
        if name in PRODUCTS:
            made = _layer(eqn, own, here, settings)
            if isinstance(made, _Layer):
                decisions.append(decision(eqn, True, made.why, NAME))
                new = inlined(trace_for(made.function, eqn), eqn)
            else:
                decisions.append(decision(eqn, False, made, NAME))
        elif name.startswith(_OWN):
            decisions.append(decision(eqn, False, _OWN_WHY, NAME))
        elif name in ("custom_jvp_call", "custom_vjp_call"):
            why = "it is inside of a function with a derivative of its own"
            decisions += _left(eqn.params[INLINED[name]], place_of(eqn), why)
        elif name == "custom_linear_solve":
            for i, inner in enumerate(eqn.params["jaxprs"]):
                if inner is not None:
                    place = f"{CONTROL[name]['jaxprs']} {i}"
                    decisions += _left(
                        inner, place, "it is part of the solution of a linear system"
                    )
        elif name in INLINED or name in CONTROL:
            params, inner, out = _bodies(eqn, own, here, settings)
            decisions += inner
            if any(params[key] is not eqn.params[key] for key in params):
                new = [eqn.replace(params=params)]
        else:
            for held in jax.tree.leaves(list(eqn.params.values()), is_leaf=is_jaxpr):
                if is_jaxpr(held):
                    decisions += _left(held, name, "autocast does not rewrite what it holds")
        known.update(zip(eqn.outvars, out, strict=True))
        eqns += new
    changed = any(a is not b for a, b in zip(eqns, body.eqns, strict=False))
    changed |= len(eqns) != len(body.eqns)
    replacement = compat_jaxpr.with_equations(jaxpr, eqns) if changed else None
    return _Cast(replacement, tuple(decisions), tuple(is_given(x) for x in body.outvars))


def _left(jaxpr: Any, place: str, why: str) -> list[Rewrite]:
    """The decisions for the products of a body that stays as it is."""
    return [
        decision(eqn, False, why if name in PRODUCTS else _OWN_WHY, NAME).inside(place, times)
        for eqn, times in equations(jaxpr)
        if (name := eqn.primitive.name) in PRODUCTS or name.startswith(_OWN)
    ]


def _bodies(
    eqn: Any, given: list[bool], scope: str, settings: Settings
) -> tuple[dict[str, Any], list[Rewrite], list[bool]]:
    """The parameters of an equation that holds jaxprs, the decisions, and which results are made of
    weights alone.
    """
    name, params = eqn.primitive.name, dict(eqn.params)
    decisions: list[Rewrite] = []

    def body(jaxpr: Any, own: Sequence[bool], place: str, times: int = 1) -> _Cast:
        with compat_jaxpr.body_context(eqn):
            found = _cast(jaxpr, tuple(own), scope, settings, current_context())
        decisions.extend(one.inside(place, times) for one in found.decisions)
        return found

    def new(found: _Cast, old: Any) -> Any:
        return old if found.jaxpr is None else found.jaxpr

    out = [False] * len(eqn.outvars)
    if name in INLINED:
        key = INLINED[name]
        found = body(params[key], given, place_of(eqn))
        params[key], out = new(found, params[key]), list(found.given)
    elif name == "scan":
        carried = compat_jaxpr.carried(eqn)
        own = [x and i not in carried for i, x in enumerate(given)]
        found = body(params["jaxpr"], own, CONTROL[name]["jaxpr"], params["length"])
        params["jaxpr"] = new(found, params["jaxpr"])
    elif name == "while":
        first = params["cond_nconsts"]
        own = given[first : first + params["body_nconsts"]]
        own += [False] * (len(given) - first - len(own))  # what is carried
        found = body(params["body_jaxpr"], own, CONTROL[name]["body_jaxpr"])
        params["body_jaxpr"] = new(found, params["body_jaxpr"])
        place = CONTROL[name]["cond_jaxpr"]
        decisions += _left(params["cond_jaxpr"], place, "it is part of the condition of a loop")
    else:
        place = CONTROL[name]["branches"]
        branches = [body(j, given[1:], f"{place} {i}") for i, j in enumerate(params["branches"])]
        if any(found.jaxpr is not None for found in branches):
            params["branches"] = tuple(map(new, branches, params["branches"]))
    return params, decisions, out


class _Layer(NamedTuple):
    """A product as a function of low precision, and how."""

    function: Callable[..., jax.Array]
    why: str


def _layer(eqn: Any, given: Sequence[bool], scope: str, settings: Settings) -> _Layer | str:
    """A product with a weight in low precision; or why it stays."""
    lhs, rhs = (x.aval for x in eqn.invars[:2])
    dense = eqn.primitive.name == "dot_general"
    if not (given[0] or given[1]):
        return "no operand is a weight"
    if not {lhs.dtype.name, rhs.dtype.name} <= set(_NARROW):
        return f"operands are {lhs.dtype.name} and {rhs.dtype.name}: only 16-bit ones are cast"
    # Of 16-bit operands jax_default_matmul_precision means nothing: it is there for others.
    usual = (None, (lax.Precision.DEFAULT,) * 2, compat.canonical_precision(None))
    if eqn.params["precision"] not in usual:
        return "it asks for a precision"
    result = eqn.outvars[0].aval.dtype
    if result not in OUT_DTYPES:
        return f"its result is {result.name}"
    left = given[0] and not given[1]  # the weight is the left operand
    if not all(isinstance(size, int) for x in (lhs, rhs) for size in x.shape):
        return "sizes are symbolic"
    if dense:
        (contracted, batch) = eqn.params["dimension_numbers"]
        if all(given[:2]) and batch[0]:
            return "both operands of a batch are arguments: which is the weight is not known"
        weight, rows = (lhs, rhs) if left else (rhs, lhs)
        sides = [(contracted[s], batch[s]) for s in ((0, 1) if left else (1, 0))]
        depth = math.prod(weight.shape[d] for d in sides[0][0])
        matrices = math.prod(weight.shape[d] for d in sides[0][1])
        sizes = [math.prod(x.shape) // max(depth * matrices, 1) for x in (rows, weight)]
    else:
        if eqn.params["ragged_dot_dimension_numbers"] != _RAGGED or left:
            return "it is not of the form of ragged_dot, with weights on the right"
        recipe = settings.recipe
        if not multipliable(recipe.lhs, recipe.rhs, recipe.gradient):
            return f"fp8_ragged_dot does not take {recipe}"
        if eqn.params["group_offset"] is not None:
            return "it has a group_offset"
        sizes, depth, matrices = [lhs.shape[0], rhs.shape[2]], rhs.shape[1], rhs.shape[0]
    if matrices == 0:
        return "it has no matrix"
    extents = {"rows": sizes[0], "columns": sizes[1], "contracted": depth}
    for what, size in extents.items():
        if size < _LEAST or size % _MULTIPLE:
            rule = f"at least {_LEAST} and multiples of {_MULTIPLE}"
            return f"{size} {what}; sizes of layers in low precision are {rule}"
    why = str(settings.recipe)
    if settings.only is not None:
        layer = LayerSizes(*sizes, depth, matrices, grouped=not dense)
        given_types = (rhs, lhs) if left else (lhs, rhs)
        types = LayerTypes(*(x.dtype.name for x in given_types), result.name)
        gain = _speedup(settings, layer, types)
        if callable(settings.only):
            product = LayerProduct(scope, layer.rows, layer.columns, layer.depth, gain)
            if not settings.only(product):
                return "`only` leaves it out"
        elif gain == 0:
            return f"there is no kernel for a product of {why}"
        elif gain <= 1:
            took = f"{1 / gain:.2f} times as long as 16 bits, quantization included"
            return f"{why} is predicted to take {took}"
        else:
            why += f", predicted to be {gain:.2f} times as fast as 16 bits"
    return _Layer(_dense(eqn, left, settings) if dense else _grouped(eqn, settings), why)


def _speedup(settings: Settings, layer: LayerSizes, types: LayerTypes) -> float:
    """As `LayerProduct.speedup`."""
    first = settings.implementations[0]
    # XLA computes everything: what comes after it is never tried.
    if first == "xla" or (first == "cutlass" and has_only_other_gpus()):
        return 0.0
    return speedup(settings.recipe, layer, types, first, assumed_target())


def _dense(eqn: Any, left: bool, settings: Settings) -> Callable[..., jax.Array]:
    dot = Fp8DotGeneral(settings.recipe, settings.implementations)
    numbers, out = eqn.params["dimension_numbers"], eqn.outvars[0].aval
    options = {"preferred_element_type": out.dtype}
    # Of manual axes it says nothing.
    sharding = eqn.params["out_sharding"] if compat.has_explicit_axes() else None
    if not left:
        return lambda a, b: dot(a, b, numbers, out_sharding=sharding, **options)
    # A product's dimensions are the batch's, its left operand's and its right operand's.
    batch = len(numbers[1][0])
    own = eqn.invars[1].aval.ndim - batch - len(numbers[0][1])
    first, rank = batch + own, out.ndim
    order = (*range(batch), *range(first, rank), *range(batch, first))
    exchanged = tuple(pair[::-1] for pair in numbers)
    if sharding is not None:
        spec = dict(zip(order, sharding.spec, strict=False))  # of the exchanged product
        sharding = NamedSharding(sharding.mesh, PartitionSpec(*map(spec.get, range(rank))))
    options["out_sharding"] = sharding
    return lambda a, b: dot(b, a, exchanged, **options).transpose(np.array(order))


def _grouped(eqn: Any, settings: Settings) -> Callable[..., jax.Array]:
    dot = Fp8RaggedDot(settings.recipe, settings.implementations)
    return lambda a, b, sizes: dot(a, b, sizes, eqn.outvars[0].aval.dtype)
