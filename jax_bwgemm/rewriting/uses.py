"""What a program does with the result of a product, counted on its jaxpr.

XLA fuses a bias, a residual and a ReLU into its own products, but not into a kernel that it cannot
see into. What that costs depends on what comes after: see `Uses.extra_passes`.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from jax_bwgemm.compat_jaxpr import is_literal, opened
from jax_bwgemm.product.jaxprs import INLINED

# The result is the operand: nothing is computed.
ALIASES = frozenset(("reshape", "squeeze", "expand_dims", "transpose", "name", "copy_p", "pvary"))
ALIASES |= {"sharding_constraint", "reshard", "pcast"}

# Operations that XLA fuses with their neighbours into one pass.
FUSIBLE = frozenset(
    (
        "abs", "add", "add_any", "acos", "acosh", "and", "asin", "asinh", "atan", "atan2",
        "atanh", "broadcast_in_dim", "cbrt", "ceil", "clamp", "concatenate",
        "convert_element_type", "cos", "cosh", "digamma", "div", "dynamic_slice", "eq", "erf",
        "erf_inv", "erfc", "exp", "exp2", "expm1", "floor", "ge", "gt", "imag", "integer_pow",
        "is_finite", "le", "lgamma", "log", "log1p", "logistic", "lt", "max", "min", "mul", "ne",
        "neg", "nextafter", "not", "one_minus_square", "or", "pad", "polynomial", "pow", "real",
        "reduce_and", "reduce_max", "reduce_min", "reduce_or", "reduce_precision", "reduce_prod",
        "reduce_sum", "rem", "rev", "round", "rsqrt", "select_n", "sign", "sin", "sinh", "slice",
        "split", "sqrt", "square", "stop_gradient", "sub", "tan", "tanh", "xor", "argmax", "argmin",
    )
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Uses:
    """What reads a value.

    Attributes:
        count: How many equations read it, 2 standing for more.
        fused: Some of them belong to a pass of XLA's that reads the value anyway.
        stored: Some of them need it in memory: products, loops, calls, the program's results.
        folded: If its only use is a step that XLA fuses into the product: what reads the result of
            the last such step. None otherwise.
        residual: One of these steps adds a whole matrix.
        steps: What all of them do with the value first, in order: ``("transpose", permutation)`` or
            ``("round", name of a 16-bit type)``.
    """

    count: int = 0
    fused: bool = False
    stored: bool = False
    folded: Uses | None = None
    residual: bool = False
    steps: tuple[tuple[str, Any], ...] = ()

    def __or__(self, other: Uses) -> Uses:
        if not self.count or not other.count:
            return other if other.count else self
        # A value with several readers is not folded into the product: XLA would compute it twice.
        both = itertools.takewhile(
            lambda pair: pair[0] == pair[1], zip(self.steps, other.steps, strict=False)
        )
        steps = tuple(mine for mine, _ in both)
        fused, stored = self.fused or other.fused, self.stored or other.stored
        return Uses(2, fused, stored, steps=steps)

    @property
    def extra_passes(self) -> int:
        """Readings and writings of the value that a kernel opaque to XLA adds to the program.

        0 where XLA's product would take nothing in, or where the next pass, which reads the value
        anyway, takes those steps. 1 where that pass must also write what the product would have
        written: something needs it in memory, or a sum with a residual has several readers. 2, a
        reading and a writing, where there is no such pass.
        """
        if self.folded is None:
            return 0
        if not self.folded.stored:
            return int(self.residual and self.folded.count > 1)
        return 1 if self.folded.fused else 2


STORED = Uses(1, stored=True)
_FUSED = Uses(1, fused=True)


def uses_of(jaxpr: Any, results: Sequence[Uses]) -> dict[Any, Uses]:
    """What reads each variable of a jaxpr.

    Args:
        jaxpr: The jaxpr, closed or not.
        results: What reads its results, outside.
    """
    jaxpr = opened(jaxpr)
    found: dict[Any, Uses] = {}

    def add(atom: Any, uses: Uses) -> None:
        if not is_literal(atom):
            found[atom] = found.get(atom, Uses()) | uses

    for atom, uses in zip(jaxpr.outvars, results, strict=True):
        add(atom, uses)
    repeated = {e.outvars[0] for e in jaxpr.eqns if e.primitive.name == "broadcast_in_dim"}
    for eqn in reversed(jaxpr.eqns):
        after = [found.get(v, Uses()) for v in eqn.outvars]
        for atom, uses in zip(eqn.invars, _operands(eqn, after, repeated), strict=True):
            add(atom, uses)
    return found


def operand_uses(eqn: Any, after: list[Uses]) -> list[Uses]:
    """What an equation does with each of its operands.

    Args:
        eqn: The equation.
        after: What reads its results.
    """
    return _operands(eqn, after, set())


def _operands(eqn: Any, after: list[Uses], repeated: set[Any]) -> list[Uses]:
    """What an equation does with each of its operands.

    Args:
        eqn: The equation.
        after: What reads its results.
        repeated: Variables that repeat a smaller array.
    """
    name = eqn.primitive.name
    if name in INLINED:
        body = eqn.params[INLINED[name]]
        body = opened(body)
        inside = uses_of(body, after)
        return [inside.get(v, Uses()) for v in body.invars]
    if name in ALIASES:
        steps: tuple[tuple[str, Any], ...] = ()
        if name == "transpose":
            steps = (("transpose", tuple(eqn.params["permutation"])), *after[0].steps)
        alias = dataclasses.replace(after[0], steps=steps)
        return [alias] * len(eqn.invars)
    if name not in FUSIBLE:
        return [STORED] * len(eqn.invars)
    if not any(uses.count for uses in after):  # dead code
        return [Uses()] * len(eqn.invars)
    return [_step(eqn, i, after[0], repeated) for i in range(len(eqn.invars))]


def _step(eqn: Any, operand: int, after: Uses, repeated: set[Any]) -> Uses:
    """One pass's step as its operand sees it: taken into a product before it, or not."""
    name, atom = eqn.primitive.name, eqn.invars[operand]
    shape = eqn.outvars[0].aval.shape
    if name == "convert_element_type" and atom.aval.dtype == np.float32:
        wanted = np.dtype(eqn.outvars[0].aval.dtype).name
        if wanted in ("bfloat16", "float16"):
            return dataclasses.replace(_FUSED, steps=(("round", wanted), *after.steps))
    others = [x for i, x in enumerate(eqn.invars) if i != operand]
    adds = name in ("add", "add_any")
    scales = name in ("mul", "max") and not others[0].aval.shape
    if not shape or atom.aval.shape != shape or not (adds or scales):
        return _FUSED
    (other,) = others
    matrix = other.aval.shape == shape and (is_literal(other) or other not in repeated)
    residual = after.residual or (adds and matrix)
    return Uses(1, fused=True, folded=after.folded or after, residual=residual)
