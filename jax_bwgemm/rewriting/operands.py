"""Transposes before a product: a kernel reads the operand as it is stored before them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jax_bwgemm.compat_jaxpr import is_literal


def read_through(eqn: Any, producers: Mapping[Any, Any]) -> Any:
    """A dense product that reads what its operands are transposes of.

    The result has its free dimensions in the operands' order: transposes that change it stay.

    Args:
        eqn: An equation of one of `products.PRODUCTS`.
        producers: The equation of each variable that the jaxpr defines.
    """
    if eqn.primitive.name != "dot_general":
        return eqn
    atoms = list(eqn.invars)
    contracted, batch = map(list, eqn.params["dimension_numbers"])
    for side, atom in enumerate(atoms):
        while (made := None if is_literal(atom) else producers.get(atom)) is not None:
            if made.primitive.name != "transpose":
                break
            order = made.params["permutation"]
            summed = (*contracted[side], *batch[side])
            free = [order[d] for d in range(len(order)) if d not in summed]
            if free != sorted(free):
                break
            contracted[side] = tuple(order[d] for d in contracted[side])
            batch[side] = tuple(order[d] for d in batch[side])
            atom = made.invars[0]
        atoms[side] = atom
    if atoms == list(eqn.invars):
        return eqn
    numbers = tuple(contracted), tuple(batch)
    return eqn.replace(invars=atoms, params=eqn.params | {"dimension_numbers": numbers})
