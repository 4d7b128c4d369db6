"""Private JAX names of checkify and jet: how these see primitives."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
from jax._src import checkify as _checkify
from jax._src.core import Primitive
from jax._src.pjit import layout_constraint_p as _layout_constraint_p
from jax.experimental import jet as _jet

# Behind results of rewritten products; JAX has no rule for it.
_jet.jet_rules.setdefault(
    _layout_constraint_p, functools.partial(_jet.linear_prop, _layout_constraint_p)
)


def check_nans(primitive: Primitive) -> None:
    """Lets ``checkify.checkify(errors=checkify.float_checks)`` look for NaNs in its results."""
    _checkify.error_checks[primitive] = functools.partial(_checkify.nan_error_check, primitive)


def taylor_bilinear(primitive: Primitive) -> None:
    """Lets `jax.experimental.jet` through a primitive, bilinear in its first two operands."""

    def rule(primals: Any, series: Any, **params: Any) -> Any:
        fixed = primals[2:]

        class Product:
            @staticmethod
            def bind(lhs: jax.Array, rhs: jax.Array, **params: Any) -> jax.Array:
                return primitive.bind(lhs, rhs, *fixed, **params)

        return _jet._bilinear_taylor_rule(Product, primals[:2], series[:2], **params)

    _jet.jet_rules[primitive] = rule


def transform_as(primitive: Primitive, function: Callable[..., Any]) -> None:
    """Lets checkify's checks of floats and jet see a primitive as the function that it stands for.

    Args:
        primitive: The primitive.
        function: The same of other operations; takes the primitive's operands and parameters.
    """

    def checked(*args: Any, **params: Any) -> tuple[Any, Any]:
        # JAX 0.12 passes a context before the error.
        place = next(i for i, x in enumerate(args) if isinstance(x, _checkify.Error))
        context, (error, enabled, *operands) = args[:place], args[place:]
        if not enabled & _checkify.float_checks:
            return error, primitive.bind(*operands, **params)
        jaxpr = jax.make_jaxpr(functools.partial(function, **params))(*operands)
        error, results = _checkify.checkify_jaxpr(*context, jaxpr, enabled, error, *operands)
        return error, (results if primitive.multiple_results else results[0])

    def taylor(primals: Any, series: Any, **params: Any) -> Any:
        # Rules get and return coefficients, not derivatives.
        function_of = functools.partial(function, **params)
        return _jet.jet(function_of, tuple(primals), tuple(series), factorial_scaled=False)

    _checkify.error_checks[primitive] = checked
    _jet.jet_rules[primitive] = taylor
