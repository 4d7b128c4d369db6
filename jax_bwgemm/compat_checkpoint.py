"""Private JAX names of `jax.checkpoint`: its policies see our products as dot products."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from jax._src import ad_checkpoint as _ad_checkpoint
from jax._src import core as _core
from jax._src.core import Primitive
from jax._src.interpreters import partial_eval as _pe
from jax._src.interpreters import remat as _remat

from jax_bwgemm.compat import DimensionNumbers


def checkpoint_as_dot(primitive: Primitive, numbers: Callable[..., DimensionNumbers]) -> None:
    """Makes policies of `jax.checkpoint` treat a primitive as they treat ``lax.dot_general``.

    A policy is asked about the primitive itself first, then about a ``dot_general`` of the same
    operands, which is what ``dots_saveable`` and its like know.

    Args:
        primitive: The primitive, of one result.
        numbers: From operands' abstract values and the primitive's parameters to the dimension
            numbers of the dot product.
    """

    def decide(policy: Any, avals: Any, params: dict[str, Any]) -> Any:
        own = _pe.ensure_enum(policy(primitive, *avals, **params))
        if own is not _pe.Recompute:
            return own
        dot = {
            "dimension_numbers": numbers(*avals, **params),
            "precision": params["spec"].policy.precision,
            "preferred_element_type": jax.numpy.dtype(params["spec"].out_dtype),
            "out_sharding": params["spec"].out_sharding,
        }
        return _pe.ensure_enum(policy(jax.lax.dot_general_p, *avals[:2], **dot))

    def partial_eval(
        policy: Any, unknown: list[bool], instantiated: list[bool], eqn: Any
    ) -> tuple[Any, Any, list[bool], list[bool], list[Any]]:
        """Returns (known equation, staged one, result unknown, result instantiated, residuals)."""
        inputs = [
            x
            for x, known in zip(eqn.invars, instantiated, strict=True)
            if isinstance(x, _core.Var) and not known
        ]
        if any(unknown):
            return None, eqn, [True], [True], inputs
        case = decide(policy, [x.aval for x in eqn.invars], eqn.params)
        if isinstance(case, _pe.SaveableType):
            return eqn, None, [False], [False], []
        if isinstance(case, _pe.Offloadable):
            known_eqn, staged_eqn = _offloaded(eqn, case)
            return known_eqn, staged_eqn, [False], [True], known_eqn.outvars[1:]
        return eqn, eqn, [False], [True], inputs

    _pe.partial_eval_jaxpr_custom_rules[primitive] = partial_eval

    def remat(trace: Any, *operands: Any, **params: Any) -> Any:
        """The rule under ``jax_remat3``: (result, residuals, what recomputes or reuses it)."""

        def again(*operands: Any) -> Any:
            return primitive.bind(*operands, **params)

        def reuse(out: Any, *operands: Any) -> Any:
            return _ad_checkpoint.primal_left_tangent_right(out, again(*operands))

        out = again(*operands)
        case = _pe.Recompute
        if trace.policy is not None:
            case = decide(trace.policy, [_core.typeof(x) for x in operands], params)
        if isinstance(case, _pe.SaveableType):
            out = _remat.reduce_precision(out)
            return out, out, reuse
        if isinstance(case, _pe.Offloadable):
            out = _remat.reduce_precision(out)
            away = jax.device_put(out, _core.mem_kind_to_space(case.dst), may_alias=False)
            space = _core.mem_kind_to_space(case.src)
            return (
                out,
                away,
                lambda away, *xs: reuse(jax.device_put(away, space, may_alias=False), *xs),
            )
        return out, (), lambda _, *operands: again(*operands)

    if jax.__version_info__ >= (0, 12):  # before, these rules had another form and were not public
        _remat.rules[primitive] = remat


def _offloaded(eqn: Any, case: Any) -> tuple[Any, Any]:
    """The equation followed by a copy to where the policy says; and the copy back."""
    there, back = _core.mem_kind_to_space(case.dst), _core.mem_kind_to_space(case.src)

    def compute(*operands: Any) -> tuple[Any, Any]:
        out = eqn.primitive.bind(*operands, **eqn.params)
        return out, jax.device_put(out, there, may_alias=False)

    def called(f: Callable[..., Any], inputs: list[Any], outputs: Any) -> Any:
        jaxpr = jax.make_jaxpr(f)(*(x.aval for x in inputs))
        results = outputs(jaxpr)
        parameters = {"call_jaxpr": jaxpr}
        return eqn.replace(
            primitive=_core.closed_call_p, invars=inputs, outvars=results, params=parameters
        )

    known = called(compute, eqn.invars, lambda j: [*eqn.outvars, _core.Var(j.out_avals[1])])
    staged = called(
        lambda away: [jax.device_put(away, back, may_alias=False)],
        [known.outvars[1]],
        lambda _: eqn.outvars,
    )
    return known, staged
