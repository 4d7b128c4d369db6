"""Transposes ahead of a product: a kernel reads the operand as it is stored before them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def read_through(eqn: Any, transposes: Mapping[Any, Any]) -> Any:
    """A dense product that reads what its operands are transposes of.

    The result has its free dimensions in the operands' order: transposes that change it stay.

    Args:
        eqn: An equation of one of `products.PRODUCTS`.
        transposes: The equations of transposes ahead of it, by the variable that they define.
    """
    if eqn.primitive.name != "dot_general":
        return eqn
    atoms = list(eqn.invars)
    contracted, batch = map(list, eqn.params["dimension_numbers"])
    for side, atom in enumerate(atoms):
        while not hasattr(atom, "val") and atom in transposes:
            order = transposes[atom].params["permutation"]
            summed = (*contracted[side], *batch[side])
            free = [order[d] for d in range(len(order)) if d not in summed]
            if free != sorted(free):
                break
            contracted[side] = tuple(order[d] for d in contracted[side])
            batch[side] = tuple(order[d] for d in batch[side])
            atom = transposes[atom].invars[0]
        atoms[side] = atom
    if atoms == list(eqn.invars):
        return eqn
    numbers = tuple(contracted), tuple(batch)
    return eqn.replace(invars=atoms, params=eqn.params | {"dimension_numbers": numbers})
