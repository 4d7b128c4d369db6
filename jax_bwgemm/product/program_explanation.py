"""`explain_program`: which implementation and kernel each product of a program would get."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import types
from collections import Counter
from collections.abc import Iterable
from typing import Any

import jax
import numpy as np

from jax_bwgemm.compat import static_arguments
from jax_bwgemm.config import DEFAULT_SM_COUNT, explicit_target, target
from jax_bwgemm.product.explain import Explanation, explain_product, locate
from jax_bwgemm.product.flops import flops_of_equation
from jax_bwgemm.product.jaxprs import equations, is_jaxpr, jitted
from jax_bwgemm.product.primitive import (
    CONTRACTIONS,
    EXPLAINED_BESIDE,
    EXPLAINED_BY,
    REFUSED_BY,
)
from jax_bwgemm.product.rewrites import Rewrite, recorded
from jax_bwgemm.product.support import refusal
from jax_bwgemm.product.traced_call import trace_call

# JAX's own products, by name. A call of ours that was left to XLA while tracing became one too.
_XLA_PRODUCTS = ("dot_general", "ragged_dot_general")
_ORIGIN = "an operation of JAX's own, or left to XLA while tracing"
_LOGGED = "the log, jax_bwgemm, INFO, says why"
_BELOW = "the decisions below say why"
_BELOW_OR_LOGGED = "the decisions below, or else the log, jax_bwgemm, INFO, say why"
_ARRAYS, _NUMBERS = np.ndarray | np.generic, bool | int | float | complex
_ARRAY = jax.Array | jax.ShapeDtypeStruct


@dataclasses.dataclass(frozen=True)
class ProgramExplanation:
    """The decisions for the products of a program. ``str()`` of it is meant to be read.

    Attributes:
        products: (decision, how often it runs) of every different product, in order of appearance.
            A loop's body counts as often as the loop runs, where that is known, and else once; so
            does each branch of a condition.
        quantizations: The same of what is quantized.
        rewrites: What `jax_bwgemm.accelerate` and `autocast` decided, if the program is or calls
            such functions: every product of JAX's that they found in one call, each time that JAX
            traces it. So a function that is traced once for several calls reports once. Empty for
            a `jax.stages.Traced` or a jaxpr: what was decided then is in the log.
    """

    products: tuple[tuple[Explanation, int], ...]
    rewrites: tuple[Rewrite, ...] = ()
    quantizations: tuple[tuple[Explanation, int], ...] = ()

    @property
    def flops(self) -> int:
        """Floating-point operations of all products, each as often as it runs."""
        return sum(found.flops * times for found, times in self.products)

    def __str__(self) -> str:
        lines = [] if self.products else ["no matrix products"]
        for found, times in (*self.products, *self.quantizations):
            lines += [f"{times} x {found.problem}", *found.decision()]
        for by in dict.fromkeys(x.by for x in self.rewrites):
            lines += ["", f"{by}, of the products that it found:"]
            lines += map(str, _counted(x for x in self.rewrites if x.by == by))
        return "\n".join(lines)


def _counted(rewrites: Iterable[Rewrite]) -> list[Rewrite]:
    """Those that differ, each as often as all that are equal to it."""
    times: Counter[Rewrite] = Counter()
    for found in rewrites:
        times[dataclasses.replace(found, times=1)] += found.times
    return [dataclasses.replace(found, times=n) for found, n in times.items()]


def explain_program(
    program: Any, *args: Any, device: jax.Device | str | None = None, **kwargs: Any
) -> ProgramExplanation:
    """Says which kernel each product of a program would get, without running or compiling it.

    Dense, grouped and scaled products and quantizations, those of gradients included where the
    program takes them:

        print(jax_bwgemm.explain_program(train_step, params, batch))
        print(jax_bwgemm.explain_program(jax_bwgemm.ragged_dot, x, w, sizes, device="sm90"))

    Sizes are those in the traced program: within shard_map and pmap one device's, but under
    automatic partitioning those of all devices together. A function is traced for the named
    architecture, as under `jax_bwgemm.config.target`. Products whose results nothing uses, which
    compilers drop, are in it too; quantizations that were left to XLA while tracing are not.
    What `jax_bwgemm.accelerate` and `autocast` decide meanwhile is returned and not logged.

    Args:
        program: A function, jitted or not; or a `jax.stages.Traced`, or a jaxpr.
        *args: Arguments of a function: arrays, numbers or `jax.ShapeDtypeStruct`. Unless it is
            jitted, there may be others, which stay what they are, and so do Python's numbers.
        device: As in `jax_bwgemm.explain`.
        **kwargs: Keyword arguments of a function.

    Returns:
        The products with their kernels and reasons; printed, one paragraph each. ``flops`` is the
        number of floating-point operations of all of them.

    Raises:
        TypeError: Not a program, or arguments for one that takes none.
        ValueError: An unknown device.
        NotImplementedError: No implementation that a product allows can run it on the device
            (several: an ExceptionGroup of these).
    """
    locate(device, explicit_target())  # an unknown device, whatever the program has
    if device in DEFAULT_SM_COUNT:
        # Some decisions are taken while tracing: those for that GPU.
        with target(device):
            return _explained(program, args, kwargs, device)
    return _explained(program, args, kwargs, device)


def _explained(
    program: Any, args: tuple[Any, ...], kwargs: dict[str, Any], device: jax.Device | str | None
) -> ProgramExplanation:
    counts: Counter[Explanation] = Counter()
    beside: Counter[Explanation] = Counter()
    own: tuple[Rewrite, ...] = ()
    function, given, named = _unwrapped(program, args, kwargs)
    with recorded() as inner:
        # A wrapper made by functools.wraps has these attributes too, but is another function.
        if getattr(function, "accelerated", None) is function is not None:
            program, own = function.rewritten(*given, **named)
            args, kwargs = (), {}
        jaxpr = _traced(program, args, kwargs)
    rewrites = (*own, *inner)
    why = _BELOW if own else _BELOW_OR_LOGGED if inner else _LOGGED
    for eqn, times in equations(jaxpr):
        if eqn.primitive in EXPLAINED_BESIDE:
            explain = importlib.import_module(EXPLAINED_BESIDE[eqn.primitive]).explain
            beside[explain(eqn, device)] += times
        elif (found := _explain(eqn, device, why)) is not None:
            counts[found] += times
    return ProgramExplanation(tuple(counts.items()), rewrites, tuple(beside.items()))


def _unwrapped(
    program: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """The function inside of jit, methods and partial, and what these call it with."""
    while True:
        # First: before Python 3.12 a method of a jitted function counts as `Wrapped` too.
        if isinstance(program, types.MethodType):
            program, args = program.__func__, (program.__self__, *args)
        elif isinstance(program, jax.stages.Wrapped):
            args, kwargs = _as_traced(program, args, kwargs)
            program = getattr(program, "__wrapped__", None)
        elif isinstance(program, functools.partial):
            args, kwargs = (*program.args, *args), {**program.keywords, **kwargs}
            program = program.func
        else:
            return program, args, kwargs


def _as_traced(
    jitted: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """A jitted function's arguments as it is traced: numbers and NumPy's arrays become types."""
    known = static_arguments(jitted)
    kinds = _ARRAYS if known is None else _ARRAYS | _NUMBERS  # which may be static there
    numbers, names = known or ((), ())
    static = {number % max(len(args), 1) for number in numbers}

    def types_of(x: Any) -> Any:
        return jax.tree.map(
            lambda leaf: jax.eval_shape(lambda y: y, leaf) if isinstance(leaf, kinds) else leaf, x
        )

    return (
        tuple(x if i in static else types_of(x) for i, x in enumerate(args)),
        {k: x if k in names else types_of(x) for k, x in kwargs.items()},
    )


def _traced(program: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if isinstance(program, jax.stages.Traced) or is_jaxpr(program):
        if args or kwargs:
            raise TypeError(f"explain_program: a {type(program).__name__} takes no arguments")
        return program.jaxpr if isinstance(program, jax.stages.Traced) else program
    if not callable(program) or isinstance(program, jax.stages.Compiled):
        raise TypeError(
            "explain_program takes a function with its arguments, a jax.stages.Traced or a jaxpr; "
            f"got {type(program).__name__}"
        )
    leaves = jax.tree.leaves((args, kwargs))
    if isinstance(program, jax.stages.Wrapped) or all(map(_is_array, leaves)):
        traced = jitted(program).trace(*args, **kwargs)
        return getattr(traced, "traced", traced).jaxpr  # what flax.nnx.jit returns holds JAX's
    # Such as numbers and functions within a module of Equinox's, which `filter_jit` takes.
    return trace_call("explain_program", program, args, kwargs, _ARRAY | _ARRAYS).jaxpr


def _is_array(x: Any) -> bool:
    """Whether JAX takes an argument as an array, or as the type of one; not Python's numbers."""
    return isinstance(x, _ARRAY | _ARRAYS) or (hasattr(x, "shape") and hasattr(x, "dtype"))


def _explain(eqn: Any, device: jax.Device | str | None, where: str) -> Explanation | None:
    """The decision for an equation; None if it is no product.

    Args:
        eqn: The equation.
        device: As in `explain_program`.
        where: Where to read on about a product of JAX's.
    """
    avals = [x.aval for x in eqn.invars]
    if eqn.primitive in EXPLAINED_BY:
        return importlib.import_module(EXPLAINED_BY[eqn.primitive]).explain(eqn, device)
    contraction = CONTRACTIONS.get(eqn.primitive)
    if contraction is not None:
        spec = eqn.params["spec"]
        rejected: list[tuple[str, str]] = []
        if spec.policy.implementations == ("xla",):  # the others were dropped while tracing
            dims = contraction.dims(spec, *(aval.shape for aval in avals))
            dtypes = [aval.dtype.name for aval in avals[:2]]
            if reason := refusal(contraction, "cutlass", spec, dtypes, dims):
                rejected.append(("cutlass", reason))
        return explain_product(contraction, spec, avals, device, rejected)
    if eqn.primitive.name in _XLA_PRODUCTS:
        result = eqn.outvars[0].aval
        types = " x ".join(aval.str_short() for aval in avals[:2])
        what = f"{eqn.primitive.name} {types} -> {result.str_short()}"
        return Explanation(what, "xla", _why_xla(eqn, where), flops=flops_of_equation(eqn))
    return None


def _why_xla(eqn: Any, where: str) -> str:
    """The reason for one of JAX's products, which does not say whether it was ours."""
    module = REFUSED_BY.get(eqn.primitive.name)
    reason = importlib.import_module(module).refusal_of_equation(eqn) if module else None
    return f"{reason} ({_ORIGIN})" if reason else f"{_ORIGIN} ({where})"
