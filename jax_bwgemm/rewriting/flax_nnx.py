"""Modules of `flax.nnx` as arguments: what a call changes in them is changed in the caller's.

They are pytrees, so a traced function would get copies, and lose what it does to them: an
optimizer's update, counts of random numbers, running means. flax itself is never imported here: a
program with such arguments has done so.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import jax


def _objects(args: Any) -> list[Any]:
    """Modules, optimizers and variables of flax.nnx among the arguments."""
    if "flax.nnx" not in sys.modules:
        return []
    return [x for x in jax.tree.leaves(args, is_leaf=_is_object) if _is_object(x)]


def _is_object(x: Any) -> bool:
    nnx = sys.modules["flax.nnx"]
    return isinstance(x, (nnx.Object, nnx.Variable))


def _is_shared(x: Any) -> bool:
    """Whether it is a module, an optimizer or a variable: what is changed in place."""
    nnx = sys.modules["flax.nnx"]
    # Since flax 0.12 modules derive from Pytree, and no longer from Object.
    return isinstance(x, (nnx.Object, nnx.Variable, getattr(nnx, "Pytree", nnx.Object)))


def has_objects(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether there are modules, optimizers or variables of flax.nnx among the arguments."""
    return bool(_objects((args, kwargs)))


def functional(
    f: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Callable[..., Any], Any, Callable[[Any], Any]]:
    """A call with such arguments, as a function of their state and of the other arguments.

    Returns:
        The function; its argument; and what turns its result into f's, and changes the arguments.

    Raises:
        ValueError: When it runs: f added, removed or replaced parts of a module or its attributes
            that are not arrays.
    """
    nnx = sys.modules["flax.nnx"]
    given = (dict(enumerate(args)), kwargs)
    modules = [{k: x for k, x in part.items() if _objects(x)} for part in given]
    others = [{k: x for k, x in part.items() if not _objects(x)} for part in given]
    before, state = nnx.split(modules)
    after: list[Any] = []

    def pure(state_and_others: Any) -> Any:
        state, others = state_and_others
        inner = nnx.merge(before, state)
        numbered, named = (a | b for a, b in zip(inner, others, strict=True))
        result = f(*(numbered[i] for i in range(len(args))), **named)
        if nnx.graphdef(inner) != before:
            raise ValueError(
                "the function changes the structure of a flax.nnx module (adds or removes a "
                "variable, or assigns an attribute that is no array, as eval() and train() do). "
                "Do that outside, undo it before returning, or use nnx.view instead of eval(), "
                "and nnx.capture or nnx.pop for what Module.sow keeps"
            )
        structure, new = nnx.split((inner, result))
        after.append(structure)
        return new

    def finish(new: Any) -> Any:
        inner, result = nnx.merge(after[-1], new)
        nnx.update(_objects(modules), nnx.state(_objects(inner)))
        # Their structure is the same: what the function returns of them are the caller's own.
        pairs = zip(nnx.iter_graph(inner), nnx.iter_graph(modules), strict=True)
        own = {id(copy): x for (_, copy), (_, x) in pairs if _is_shared(x)}
        return jax.tree.map(lambda x: own.get(id(x), x), result, is_leaf=_is_shared)

    return pure, (state, others), finish
