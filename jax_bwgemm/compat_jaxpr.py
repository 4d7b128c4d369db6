"""Private JAX names for traced programs: what rewriting and epilogues do with jaxprs."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
from jax._src import api_util as _api_util
from jax._src import config as _config
from jax._src import core as _core
from jax._src import linear_util as _lu
from jax._src import source_info_util as _source_info_util
from jax._src.interpreters import ad as _ad
from jax._src.interpreters import partial_eval as _pe
from jax._src.lax.lax import _convert_element_type
from jax._src.sharding_impls import UnspecifiedValue as _UnspecifiedValue

from jax_bwgemm import compat

_PACKAGE = os.path.dirname(__file__) + os.sep


def type_of(x: Any) -> Any:
    """The type of an array, tracer or `jax.ShapeDtypeStruct`, weak types and shardings included."""
    return _core.shaped_abstractify(x) if isinstance(x, jax.ShapeDtypeStruct) else jax.typeof(x)


def call_info(
    caller: str, f: Callable[..., Any], args: Any, kwargs: Any, places: Sequence[int]
) -> Any:
    """How JAX's errors are to name a function that is traced, and those of its arguments.

    Args:
        caller: What it is traced for.
        f: The function.
        args: Of the call.
        kwargs: Of the call.
        places: Which leaves of both are traced.
    """
    info = _api_util.debug_info(caller, f, args, kwargs)
    names = info.arg_names
    known = names is not None and len(names) > max(places, default=-1)
    return info._replace(arg_names=tuple(names[i] for i in places) if known else None)


def trace(
    f: Callable[..., list[Any]], types: list[Any], debug_info: Any = None
) -> tuple[Any, list[Any]]:
    """Traces a function of arrays of given types.

    Args:
        f: The function.
        types: Of its operands.
        debug_info: `call_info`; None for a function of our own.

    Returns:
        Its jaxpr, not closed, and the arrays (tracers of callers included) that it found elsewhere.
    """
    debug_info = debug_info or _api_util.debug_info("accelerate", f, types, {})
    # What `jax.ensure_compile_time_eval` would compute now, constants for their reader, is to be
    # part of the program.
    with _config.eager_constant_folding(False):
        traced = _pe.trace_to_jaxpr_dynamic(_lu.wrap_init(f, debug_info=debug_info), types)
    jaxpr, _, constants = traced
    return jaxpr, list(constants)


def evaluate(jaxpr: Any, constants: list[Any], operands: list[Any]) -> list[Any]:
    """Runs (or traces into the caller) a jaxpr that `trace` returned, or one rewritten from it."""
    results = _core.eval_jaxpr(jaxpr, constants, *operands)
    return [
        _convert_element_type(x, atom.aval.dtype, atom.aval.weak_type)
        if isinstance(atom, _core.Literal)
        else x
        for x, atom in zip(results, jaxpr.outvars, strict=True)
    ]


def source_within(eqn: Any, call: Any, name: str) -> Any:
    """``source_info`` of an equation of a call's jaxpr, seen from outside of the call.

    Args:
        eqn: The equation.
        call: The call's.
        name: Of what is called, in names of operations.
    """
    stack = call.source_info.name_stack.extend(name) + eqn.source_info.name_stack
    return eqn.source_info.replace(name_stack=stack)


def runs_eagerly() -> bool:
    """Whether nothing is being traced: operations run as they are called."""
    return _core.trace_state_clean()


def new_variable(aval: Any) -> Any:
    """A variable of this type that no jaxpr has."""
    jaxpr, _ = trace(lambda x: [x], [aval])
    return jaxpr.invars[0]


def is_literal(atom: Any) -> bool:
    """Whether what an equation reads, or a jaxpr returns, is a constant and no variable."""
    return isinstance(atom, _core.Literal)


def is_unread(v: Any) -> bool:
    """Whether a variable that an equation defines stands for a result that nothing reads."""
    return isinstance(v, _core.DropVar)


def opened(jaxpr: Any) -> Any:
    """The open jaxpr of a closed one; an open one itself."""
    return getattr(jaxpr, "jaxpr", jaxpr)


def with_equations(jaxpr: Any, eqns: list[Any]) -> Any:
    """A jaxpr, closed or not, with other equations of the same operands, results and effects."""
    return with_body(jaxpr, opened(jaxpr).replace(eqns=eqns))


def with_body(jaxpr: Any, body: Any) -> Any:
    """A jaxpr, closed or not, of another open one of the same arguments, types and effects."""
    if opened(jaxpr) is jaxpr:  # open; since JAX 0.12 there is one class for both
        return body
    return jaxpr.replace(jaxpr=body)


@contextlib.contextmanager
def plain_types() -> Iterator[None]:
    """Traced arrays are of no mesh, and need not say over which manual axes they vary."""
    with _config._check_vma(False), compat.of_no_mesh():
        yield


def unchecked() -> Any:
    """Context manager: `jax_enable_checks` does not compare types, which may be of another mesh."""
    return _config.enable_checks(False)


def varying_axes(aval: Any) -> frozenset[str]:
    """The manual mesh axes that an array of a type varies over."""
    manual = getattr(aval, "mat", None)  # since JAX 0.12
    return frozenset(aval.vma if manual is None else manual.varying)


def part_of(jaxpr: Any, operands: list[Any], results: list[Any], eqns: list[Any]) -> Any:
    """An open jaxpr of some of another's equations."""
    debug_info = jaxpr.debug_info._replace(arg_names=None, result_paths=None)
    return jaxpr.replace(
        constvars=[],
        invars=operands,
        outvars=results,
        eqns=eqns,
        effects=_core.no_effects,
        debug_info=debug_info,
    )


def only_groups(call: Any) -> bool:
    """Whether an equation of jit says nothing about its body: no shardings, donation or options."""
    params = call.params
    unspecified = (*params["in_shardings"], *params["out_shardings"])
    return (
        all(isinstance(x, _UnspecifiedValue) for x in unspecified)
        and all(x is None for x in (*params["in_layouts"], *params["out_layouts"]))
        and not any(params["donated_invars"])
        and not params["compiler_options_kvs"]
        # Since JAX 0.12 jit can be told when XLA inlines it.
        and getattr(params["inline"], "name", "") not in ("XLA_EARLY", "XLA_LATE")
    )


def equation_context(eqn: Any) -> Any:
    """Context manager: the mesh and other settings an equation was traced under."""
    return eqn.ctx.manager


@contextlib.contextmanager
def body_context(eqn: Any) -> Iterator[None]:
    """The mesh axes and the kind of types that the body of an equation is traced under."""
    if eqn.primitive.name != "shard_map":
        yield
        return
    mesh = eqn.params["mesh"]
    manual = eqn.params["newly_manual_axes"] | set(mesh.manual_axes)
    sizes = [(axis, size) for axis, size in mesh.shape.items() if axis in manual]
    with _core.extend_axis_env_nd(sizes), _config._check_vma(eqn.params["check_vma"]):
        yield


def carried(scan: Any) -> range:
    """Which operands of a scan's equation are carried; constants come before, arrays of steps
    after.
    """
    params = scan.params
    if "num_carry" in params:  # before JAX 0.12
        constants, count = params["num_consts"], params["num_carry"]
    else:
        constants, count, _ = (len(list(part)) for part in params["ft_in"].unpack())
    return range(constants, constants + count)


def source_line(eqn: Any) -> str:
    """Where the user's code made an equation: file, line and function; empty if unknown."""
    frames = _source_info_util.user_frames(eqn.source_info.traceback)
    frame = next((f for f in frames if not f.file_name.startswith(_PACKAGE)), None)
    return f"{frame.file_name}:{frame.start_line} ({frame.function_name})" if frame else ""


def after(fun: Any, change: Callable[..., Any]) -> Any:
    """A rule of a custom derivative in a jaxpr, its results changed."""

    def changed(*args: Any) -> Any:
        return change(*fun.call_wrapped(*args))

    return _lu.wrap_init(changed, debug_info=fun.debug_info)


def around(fun: Any, transform: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Any:
    """A backward rule in a jaxpr, transformed as a function.

    One that adds to its cotangents in place (``defvjp_with_accums``) stays as it is.
    """
    if isinstance(fun.f, getattr(_ad, "CustomBwdWithAccums", ())):
        return fun
    return _lu.wrap_init(transform(fun.call_wrapped), debug_info=fun.debug_info)
