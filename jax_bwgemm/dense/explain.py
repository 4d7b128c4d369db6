"""`explain`: which implementation and kernel a call would get, and why."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
from jax.typing import DTypeLike

from jax_bwgemm.dense.canonical import dot_labels, matmul_labels
from jax_bwgemm.dense.contraction import DENSE
from jax_bwgemm.dense.problem import Options, make_options, make_problem
from jax_bwgemm.dense.products import (
    dot_product,
    is_symbolic,
    matmul_product,
    symbolic_problem,
)
from jax_bwgemm.dense.tuning_config import TuningConfig
from jax_bwgemm.dense.validation import as_dimension_numbers, check_dot_general, check_matmul
from jax_bwgemm.product.explain import ASKED_FOR, Explanation, explain_product
from jax_bwgemm.product.flops import flops_of_equation
from jax_bwgemm.product.implementations import SYMBOLIC
from jax_bwgemm.product.jaxprs import equations
from jax_bwgemm.product.support import refusal, viable_implementations


def explain(
    a: Any,
    b: Any,
    dimension_numbers: Any = None,
    *,
    precision: Any = None,
    preferred_element_type: DTypeLike | None = None,
    implementation: str | Sequence[str] | None = None,
    config: TuningConfig | str | None = None,
    device: jax.Device | str | None = None,
) -> Explanation:
    """Says which implementation and kernel a call would get, without running or compiling it.

    `jax_bwgemm.explain_program` does so for every product of a function, `ragged_dot` and gradients
    included.

    Args:
        a: Left operand: an array or `jax.ShapeDtypeStruct`.
        b: Right operand, likewise.
        dimension_numbers: As in `dot_general`; None means ``matmul(a, b)``.
        precision: As in `matmul`.
        preferred_element_type: As in `matmul`.
        implementation: As in `matmul`.
        config: As in `matmul`.
        device: Where it would run: a JAX device, ``"cpu"``, ``"sm90"`` or ``"sm100"``. None means
            the explicit target (`jax_bwgemm.config.target`) if there is one, else JAX's default
            device.

    Returns:
        The decision with its reasons.

    Raises:
        TypeError, ValueError, NotImplementedError, ExceptionGroup: As the call itself.
    """
    for name, x in (("a", a), ("b", b)):
        if not (hasattr(x, "shape") and hasattr(x, "dtype")):
            raise TypeError(f"explain requires arrays or types of arrays, got {name} {x!r}")
    a, b = _canonical(a), _canonical(b)
    options = make_options(
        precision, preferred_element_type, implementation=implementation, config=config
    )
    if is_symbolic("matmul" if dimension_numbers is None else "dot_general", a, b, options):
        return _explain_symbolic(a, b, dimension_numbers, options)
    if dimension_numbers is None:
        check_matmul(a.shape, b.shape)
        labels = matmul_labels(a.shape, b.shape)
    else:
        numbers = as_dimension_numbers(dimension_numbers, a.shape, b.shape)
        check_dot_general(a.shape, b.shape, numbers)
        labels = dot_labels(len(a.shape), len(b.shape), *numbers)
    problem = make_problem(a, b, labels, options, promotes=dimension_numbers is None)
    spec, plan = problem.spec, problem.plan
    lhs = jax.ShapeDtypeStruct(plan.lhs.shape, a.dtype)
    rhs = jax.ShapeDtypeStruct(plan.rhs.shape, b.dtype)
    rejected: list[tuple[str, str]] = []
    viable = viable_implementations(
        DENSE,
        spec,
        [lhs.dtype.name, rhs.dtype.name],
        problem.dims,
        veto=problem.veto,
        rejected=rejected,
    )
    spec = spec.with_policy(implementations=viable)
    return explain_product(DENSE, spec, (lhs, rhs), device, rejected, copied_elements=plan.copied)


def _canonical(x: Any) -> Any:
    """An operand as a call would see it: of 32 bits, unless JAX has more."""
    dtype = jax.dtypes.canonicalize_dtype(x.dtype)
    return x if dtype == x.dtype else jax.ShapeDtypeStruct(x.shape, dtype)


def _explain_symbolic(a: Any, b: Any, numbers: Any, options: Options) -> Explanation:
    """The decision for a product of symbolic sizes: XLA, which the options allow."""

    def product(a: jax.Array, b: jax.Array) -> jax.Array:
        if numbers is None:
            return matmul_product(a, b, options)
        return dot_product(a, b, as_dimension_numbers(numbers, a.shape, b.shape), options)

    traced = equations(jax.make_jaxpr(product)(a, b))
    flops = [flops_of_equation(e) for e, _ in traced if e.primitive is jax.lax.dot_general_p]
    kernels = options.implementations[: options.implementations.index("xla")]
    return Explanation(
        symbolic_problem("matmul" if numbers is None else "dot_general", a, b),
        "xla",
        SYMBOLIC if kernels else ASKED_FOR,
        rejected=tuple((name, SYMBOLIC) for name in kernels),
        flops=sum(flops),
    )


def refusal_of_equation(eqn: Any) -> str | None:
    """Why no kernel multiplies what an equation of ``lax.dot_general`` does; None if one may."""
    lhs, rhs = (
        jax.ShapeDtypeStruct(x.aval.shape, x.aval.dtype, weak_type=x.aval.weak_type)
        for x in eqn.invars
    )
    given = {x: eqn.params[x] for x in ("precision", "preferred_element_type", "out_sharding")}
    options = make_options(**given)
    if is_symbolic("dot_general", lhs, rhs, options):
        return SYMBOLIC
    labels = dot_labels(len(lhs.shape), len(rhs.shape), *eqn.params["dimension_numbers"])
    problem = make_problem(lhs, rhs, labels, options, promotes=False)
    dtypes = [lhs.dtype.name, rhs.dtype.name]
    return problem.veto or refusal(DENSE, "cutlass", problem.spec, dtypes, problem.dims)
