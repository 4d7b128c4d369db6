"""A call of a function, traced: arrays are its operands, everything else stays what it is."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax

from jax_bwgemm import compat_jaxpr


@dataclasses.dataclass(frozen=True)
class TracedCall:
    """A traced call, ready to be run with its arguments.

    Attributes:
        jaxpr: The program.
        constants: Arrays that the function found elsewhere.
        operands: Arrays among the arguments.
        rebuild: From the program's results to what the function returns.
    """

    jaxpr: Any
    constants: list[Any]
    operands: list[Any]
    rebuild: Callable[[list[Any]], Any]

    def run(self, jaxpr: Any) -> Any:
        """What the function returns, computed by a jaxpr that replaces its own."""
        return self.rebuild(compat_jaxpr.evaluate(jaxpr, self.constants, self.operands))


def trace_call(
    caller: str,
    f: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    operand: Any = jax.Array,
) -> TracedCall:
    """Traces a call.

    Only arrays of JAX's (tracers included) become operands. So Python scalars keep their weak
    types, and strings, functions and whatever else the arguments hold need not be declared static.
    The same holds for results.

    Args:
        caller: Who traces it, for JAX's errors.
        f: The function.
        args: Of the call.
        kwargs: Of the call.
        operand: The types of arguments that become operands.
    """
    leaves, tree = jax.tree.flatten((args, kwargs))
    places = [i for i, x in enumerate(leaves) if isinstance(x, operand)]
    rest: list[Any] = []  # of the results: those that are not arrays, None in the place of arrays
    structure: list[Any] = []

    def flat(*operands: jax.Array) -> list[jax.Array]:
        inner = list(leaves)
        for place, operand in zip(places, operands, strict=True):
            inner[place] = operand
        inner_args, inner_kwargs = jax.tree.unflatten(tree, inner)
        results, out_tree = jax.tree.flatten(f(*inner_args, **inner_kwargs))
        structure.append(out_tree)
        arrays = [isinstance(x, jax.Array) for x in results]
        rest.extend(
            (is_array, None if is_array else x) for x, is_array in zip(results, arrays, strict=True)
        )
        return [x for x, is_array in zip(results, arrays, strict=True) if is_array]

    operands = [leaves[i] for i in places]
    info = compat_jaxpr.call_info(caller, f, args, kwargs, places)
    jaxpr, constants = compat_jaxpr.trace(flat, [compat_jaxpr.type_of(x) for x in operands], info)

    def rebuild(results: list[Any]) -> Any:
        arrays = iter(results)
        out = [next(arrays) if is_array else x for is_array, x in rest]
        return jax.tree.unflatten(structure[0], out)

    return TracedCall(jaxpr, constants, operands, rebuild)
